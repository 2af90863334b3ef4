//! Which controller a node acknowledges: the one with the greatest controller term it hears, until it has not
//! heard it for `silence_us`, its link has ended, or the controller term has ended (this node's own, or one
//! whose holder reports so).
//!
//! Invariant: an acknowledgement number identifies one unbroken period of acknowledging. Under it the node
//! never reports that it has no controller.

use crate::{Beat, Process};

/// The controller that this node acknowledges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Acknowledged {
    pub controller_term: u64,
    pub by: Process,
    heard_us: u64,
}

#[derive(Default, Debug)]
pub(crate) struct Acknowledgement {
    acknowledged: Option<Acknowledged>,
    number: u64,
}

impl Acknowledgement {
    pub fn acknowledged(&self) -> Option<Acknowledged> {
        self.acknowledged
    }

    /// The heartbeat that this node sends.
    pub fn beat(&self, controller_term: u64) -> Beat {
        let acknowledges = self.acknowledged.map_or(0, |known| known.controller_term);
        Beat { controller_term, acknowledges, acknowledgement: self.number }
    }

    /// Handles a message from the holder of a controller term. Returns true if that term is acknowledged from
    /// now on and was not before.
    pub fn hear(&mut self, by: Process, controller_term: u64, now: u64) -> bool {
        match &mut self.acknowledged {
            Some(known) if known.controller_term == controller_term => {
                known.heard_us = now;
                false
            }
            Some(known) if known.controller_term > controller_term => false,
            _ => {
                self.acknowledged = Some(Acknowledged { controller_term, by, heard_us: now });
                self.number += 1;
                true
            }
        }
    }

    /// This process is gone, or its controller term ended: nothing more will be heard from it.
    pub fn lose(&mut self, process: Process) {
        self.acknowledged.take_if(|known| known.by == process);
    }

    pub fn lapse(&mut self, now: u64, silence_us: u64) {
        self.acknowledged.take_if(|known| now >= known.heard_us + silence_us);
    }

    /// When `lapse` must be called.
    pub fn lapses_at(&self, silence_us: u64) -> u64 {
        self.acknowledged.map_or(u64::MAX, |known| known.heard_us + silence_us)
    }
}
