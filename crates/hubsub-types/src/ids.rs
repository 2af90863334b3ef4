//! Identifiers. On the hot path everything is an integer: the first parse of a name yields a handle, and only
//! handles are passed on from there (docs/adr/0002).

use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// One data-plane thread of this node, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct ShardId(pub u16);

/// A node of the cluster: its index among those that this process knows, never reused while the process runs.
/// Other processes have other indexes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct NodeId(pub u16);

/// Number of a hub's configuration: it grows by 1 with each change of the leader, its process or the members;
/// from 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Term(pub u64);

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize)]
pub struct HubId(pub u32);

/// The producer that numbers records before they have an offset; 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct ProducerId(pub u64);

/// The user that a connection acts for. 0 is the default user.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PrincipalId(pub u32);

impl PrincipalId {
    /// The node itself, which alone writes to reserved names. No connection has it.
    pub const NODE: PrincipalId = PrincipalId(u32::MAX);
}

/// A connection of one shard: its slab index and the generation of that slot, so that a late reply never
/// reaches the next connection there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnKey {
    /// Index in the shard's slab.
    pub index: u32,
    /// Increases each time the slot is reused.
    pub generation: u32,
}

/// One unbroken life of a room, from creation until it is forgotten or continuity is lost. Compared for
/// equality only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Epoch(pub u64);

/// Position of a record in its room's epoch: from 1, without gaps. 0 is "before the first record".
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Seq(pub u64);

impl Seq {
    /// The next seq. The last one, which clients may send, yields itself.
    pub fn next(self) -> Seq {
        Seq(self.0.saturating_add(1))
    }
}

/// `(epoch, seq)`, from which clients resume. Written `EPOCH-SEQ`, both decimal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Position {
    pub epoch: Epoch,
    pub seq: Seq,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch.0, self.seq.0)
    }
}

/// Parse error: the text is not `EPOCH-SEQ`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadPosition;

impl FromStr for Position {
    type Err = BadPosition;

    fn from_str(text: &str) -> Result<Self, BadPosition> {
        let digits = |s: &str| {
            let plain = !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
            plain.then(|| s.parse::<u64>().ok()).flatten()
        };
        let (epoch, seq) = text.split_once('-').ok_or(BadPosition)?;
        match (digits(epoch), digits(seq)) {
            (Some(epoch), Some(seq)) => Ok(Position { epoch: Epoch(epoch), seq: Seq(seq) }),
            _ => Err(BadPosition),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_reads_back_what_it_wrote() {
        let p = Position { epoch: Epoch(u64::MAX), seq: Seq(7) };
        assert_eq!(p.to_string().parse(), Ok(p));
    }

    #[test]
    fn a_position_of_another_form_is_refused() {
        for text in ["", "-", "1-", "-1", "1", "+1-2", "1--2", "1-2-3", "18446744073709551616-1", "a-b"] {
            assert_eq!(text.parse::<Position>(), Err(BadPosition), "{text}");
        }
    }
}
