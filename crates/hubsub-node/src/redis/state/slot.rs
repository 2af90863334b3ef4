//! Hash slots of Redis's cluster specification: the CRC16 of a name, or of its hash tag, modulo 16,384.

use hubsub_types::names::hash_tag;

pub const SLOTS: u16 = 16_384;

pub fn slot_of(name: &[u8]) -> u16 {
    crc16(hash_tag(name).unwrap_or(name)) % SLOTS
}

/// CRC-16/XMODEM: polynomial 0x1021, initial value 0, no reflection.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

static TABLE: [u16; 256] = table();

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
    }

    #[test]
    fn names_have_the_slots_that_redis_gives_them() {
        let slots = [("foo", 12_182), ("a", 15_495), ("b", 3_300), ("c", 7_365), ("", 0)];
        for (name, slot) in slots {
            assert_eq!(slot_of(name.as_bytes()), slot, "{name}");
        }
    }

    #[test]
    fn a_name_with_a_tag_has_the_slot_of_the_tag() {
        for name in ["{a}b", "x{a}", "x{a}{b}", "x{a}}"] {
            assert_eq!(slot_of(name.as_bytes()), slot_of(b"a"), "{name}");
        }
        for name in ["{}a", "{a", "a}", "{}{a}"] {
            assert_eq!(slot_of(name.as_bytes()), crc16(name.as_bytes()) % SLOTS, "{name}");
        }
    }
}
