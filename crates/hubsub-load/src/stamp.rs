//! The stamp at the start of every payload, by which a receiver identifies the message.
//!
//! ```text
//! 0        4            8       12     20      28
//! | magic  | publisher  | room  | seq  | due   | filler …
//!   u32      u32          u32     u64    u64     bytes FILLER     little endian
//! ```
//! `seq` counts from 0 for each publisher in each room, so a receiver of one room sees no gaps of other
//! rooms. `due` is when the publish was to be sent, in ns of the generator's clock: the scheduled time in
//! open loop, the time of sending in closed loop.

pub const STAMP_BYTES: usize = 28;
/// Fills a payload after its stamp.
pub const FILLER: u8 = b'.';

const MAGIC: u32 = 0x4855_4253;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    pub publisher: u32,
    pub room: u32,
    /// Index among this publisher's publishes to this room, from 0.
    pub seq: u64,
    /// When it was to be sent, in ns of the generator's clock.
    pub due_ns: u64,
}

impl Stamp {
    /// Writes the stamp to the first [`STAMP_BYTES`] of `payload`.
    pub fn write(&self, payload: &mut [u8]) {
        payload[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        payload[4..8].copy_from_slice(&self.publisher.to_le_bytes());
        payload[8..12].copy_from_slice(&self.room.to_le_bytes());
        payload[12..20].copy_from_slice(&self.seq.to_le_bytes());
        payload[20..28].copy_from_slice(&self.due_ns.to_le_bytes());
    }

    /// Reads the stamp of a payload; None unless magic and filler are intact.
    pub fn read(payload: &[u8]) -> Option<Stamp> {
        let (head, filler) = payload.split_at_checked(STAMP_BYTES)?;
        if u32_at(head, 0) != MAGIC || filler.iter().fold(0, |wrong, byte| wrong | (byte ^ FILLER)) != 0 {
            return None;
        }
        Some(Stamp {
            publisher: u32_at(head, 4),
            room: u32_at(head, 8),
            seq: u64_at(head, 12),
            due_ns: u64_at(head, 20),
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("a range of 4 is 4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("a range of 8 is 8 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_back_and_a_changed_byte_is_seen() {
        let stamp = Stamp { publisher: 7, room: 99_999, seq: u64::MAX - 1, due_ns: 123_456_789_012 };
        let mut payload = vec![FILLER; 128];
        stamp.write(&mut payload);
        assert_eq!(Stamp::read(&payload), Some(stamp));
        payload[127] = b'x';
        assert_eq!(Stamp::read(&payload), None);
        payload[127] = FILLER;
        payload[0] ^= 1;
        assert_eq!(Stamp::read(&payload), None);
        assert_eq!(Stamp::read(&payload[..27]), None);
    }
}
