//! Rooms with a hole before records that arrived from their leader, and the messages that wait for the hole.
//!
//! Invariant: `bytes` is the memory of all buffered messages, including those that are being handled.

use super::upstreams::InterestRequest;
use crate::Attached;
use crate::rooms::RoomHandle;
use ahash::RandomState;
use hashbrown::{HashMap, HashSet};
use hubsub_message::{AskId, Record};
use hubsub_types::Seq;
use std::collections::VecDeque;
use std::sync::Arc;

/// A room that continues after a break.
#[derive(Debug, Default)]
pub struct Resume {
    /// The number of topics whose interest has to be confirmed first.
    pub pending: usize,
    /// The last record that has to be read then.
    pub upto: Seq,
    pub read: Option<AskId>,
    /// Records and confirmations that arrived meanwhile, in order.
    pub held: VecDeque<Buffered>,
}

#[derive(Debug)]
pub enum Buffered {
    /// A record, with the seq of the previous record that was due.
    Deliver(Seq, Arc<Record>),
    /// Interest that the leader has confirmed.
    Attached(AskId, InterestRequest, Attached),
}

impl Buffered {
    /// Bytes that it keeps allocated.
    pub fn weight(&self) -> usize {
        match self {
            Buffered::Deliver(_, record) => record.weight(),
            Buffered::Attached(..) => size_of::<Buffered>(),
        }
    }
}

#[derive(Debug, Default)]
pub struct Holes {
    /// Rooms with a hole before buffered records.
    pub rooms: HashMap<RoomHandle, Resume, RandomState>,
    /// Rooms that perhaps only patterns followed when a leader was lost: their next message shows a hole.
    pub suspects: HashSet<RoomHandle, RandomState>,
    bytes: usize,
}

impl Holes {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Buffers a message until the hole of a room, if there is one; returns it otherwise.
    pub fn buffer(&mut self, room: RoomHandle, held: Buffered) -> Option<Buffered> {
        let Some(resume) = self.rooms.get_mut(&room) else { return Some(held) };
        self.bytes += held.weight();
        resume.held.push_back(held);
        None
    }

    /// Buffers a message after a hole of a room up to a seq.
    pub fn open(&mut self, room: RoomHandle, upto: Seq, held: Buffered) {
        self.bytes += held.weight();
        let resume = self.rooms.entry(room).or_default();
        resume.upto = upto;
        resume.held.push_back(held);
    }

    /// A hole is closed: removes and returns its buffered messages, whose memory counts until each is handled.
    pub fn close(&mut self, room: RoomHandle) -> VecDeque<Buffered> {
        self.rooms.remove(&room).map(|resume| resume.held).unwrap_or_default()
    }

    pub fn handled(&mut self, held: &Buffered) {
        self.bytes -= held.weight();
    }

    /// Drops the selected messages of a room; returns whether there were any.
    pub fn drop_messages(&mut self, room: RoomHandle, is_meant: impl Fn(&Buffered) -> bool) -> bool {
        let Some(resume) = self.rooms.get_mut(&room) else { return false };
        let before = resume.held.len();
        let bytes = &mut self.bytes;
        resume.held.retain(|held| {
            let goes = is_meant(held);
            *bytes -= if goes { held.weight() } else { 0 };
            !goes
        });
        resume.held.len() < before
    }

    /// A room waits for no hole any more: drops its messages; returns whether there were records among them.
    pub fn remove(&mut self, room: RoomHandle) -> Option<bool> {
        let Resume { held, .. } = self.rooms.remove(&room)?;
        self.bytes -= held.iter().map(Buffered::weight).sum::<usize>();
        Some(held.iter().any(|held| matches!(held, Buffered::Deliver(..))))
    }
}
