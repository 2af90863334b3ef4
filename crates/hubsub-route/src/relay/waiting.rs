//! Publishes, reads and requests about rooms that wait on a home shard for the leader of their hub.
//!
//! Invariants: `parked` is the number and memory of waiting publishes and requests, of all hubs; publishes of a hub
//! wait in the order of their numbers.

use super::Leader;
use super::parked::{Missing, Parked, Question};
use super::state::Relay;
use crate::cursors::{CURSORS_MAX, Read};
use crate::hubread::HubRead;

impl Relay {
    /// Whether there is no space for a waiting publish of this weight.
    pub fn is_full(&self, weight: usize) -> bool {
        self.parked.is_full(weight, (self.limits.parked_max, self.limits.parked_bytes_max))
    }

    pub fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub fn park(&mut self, slot: u16, parked: Parked) {
        self.parked.add(parked.record.weight());
        self.wake_by(parked.since_ms + self.limits.parked_ms);
        let queue = &mut self.hub_mut(slot).queue;
        let at = queue.partition_point(|other| other.number < parked.number);
        queue.insert(at, parked);
        self.settle(slot);
    }

    pub fn unpark(&mut self, slot: u16) -> Option<Parked> {
        let parked = self.hub_mut(slot).queue.pop_front()?;
        self.parked.remove(parked.record.weight());
        Some(parked)
    }

    /// Removes and returns the waiting publishes of a hub for which `is_meant` is true, in order.
    pub fn unpark_all(&mut self, slot: u16, is_meant: impl Fn(&Parked) -> bool) -> Vec<Parked> {
        let queue = std::mem::take(&mut self.hub_mut(slot).queue);
        let (taken, left): (Vec<Parked>, Vec<Parked>) = queue.into_iter().partition(is_meant);
        self.hub_mut(slot).queue = left.into();
        self.uncount(&taken);
        self.settle(slot);
        taken
    }

    /// These publishes wait no longer.
    pub fn uncount(&mut self, taken: &[Parked]) {
        taken.iter().for_each(|parked| self.parked.remove(parked.record.weight()));
    }

    /// Keeps a cursor's read until its hub has a leader.
    pub fn keep_read(&mut self, slot: u16, read: Read) {
        let reads = &mut self.hub_mut(slot).reads;
        if reads.len() >= CURSORS_MAX {
            // There can be no more cursors than that: the oldest read is of a closed connection.
            reads.swap_remove(0);
        }
        reads.push(read);
    }

    /// Updates whether a publish to a hub commits at once.
    pub fn settle(&mut self, slot: u16) {
        let hub = self.hub_mut(slot);
        let is_free = hub.former == 0 && hub.handover.interest_wait.is_none();
        hub.is_clear = hub.leader == Leader::Me && hub.queue.is_empty() && is_free;
    }

    pub fn keep_hub_read(&mut self, slot: u16, read: HubRead) {
        read.wait_among(&mut self.hub_mut(slot).hub_reads);
    }

    /// Buffers a request until its hub has a reachable leader; returned if the buffer is full.
    pub fn wait_for_leader(&mut self, slot: u16, question: Question) -> Result<(), Question> {
        let weight = question.what.weight();
        if self.is_full(weight) {
            return Err(question);
        }
        self.parked.add(weight);
        self.wake_by(question.until_ms);
        let waiting = &mut self.hub_mut(slot).questions;
        let at = waiting.partition_point(|other| other.until_ms <= question.until_ms);
        waiting.insert(at, question);
        Ok(())
    }

    pub fn take_rows(&mut self, slot: u16) -> Vec<Question> {
        let questions = std::mem::take(&mut self.hub_mut(slot).questions);
        let is_rows = |question: &Question| matches!(question.what, Missing::Rows(_));
        let (rows, others): (Vec<_>, Vec<_>) = questions.into_iter().partition(is_rows);
        self.hub_mut(slot).questions = others.into();
        rows.iter().for_each(|question| self.parked.remove(question.what.weight()));
        rows
    }

    pub fn take_question(&mut self, slot: u16) -> Option<Question> {
        let question = self.hub_mut(slot).questions.pop_front()?;
        self.parked.remove(question.what.weight());
        Some(question)
    }
}
