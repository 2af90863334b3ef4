//! Which controller a node acknowledges: the one with the greatest controller term it hears, until it has not
//! heard it for `silence_us`, its link has ended, or the controller term has ended (this node's own, or one
//! whose holder reports so).
//!
//! Invariant: an acknowledgement number identifies one unbroken period of acknowledging. Under it the node
//! never reports that it has no controller.

use crate::{Beat, Process};

/// The controller that this node acknowledges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Heeded {
    pub mandate: u64,
    pub by: Process,
    heard_us: u64,
}

#[derive(Default, Debug)]
pub(crate) struct Heed {
    heeded: Option<Heeded>,
    number: u64,
}

impl Heed {
    pub fn heeded(&self) -> Option<Heeded> {
        self.heeded
    }

    /// The heartbeat that this node sends.
    pub fn beat(&self, mandate: u64) -> Beat {
        Beat { mandate, heeds: self.heeded.map_or(0, |heeded| heeded.mandate), heed: self.number }
    }

    /// Handles a message from the holder of a controller term. Returns true if that term is acknowledged from
    /// now on and was not before.
    pub fn hear(&mut self, by: Process, mandate: u64, now: u64) -> bool {
        match &mut self.heeded {
            Some(heeded) if heeded.mandate == mandate => {
                heeded.heard_us = now;
                false
            }
            Some(heeded) if heeded.mandate > mandate => false,
            _ => {
                self.heeded = Some(Heeded { mandate, by, heard_us: now });
                self.number += 1;
                true
            }
        }
    }

    /// This process is gone, or its controller term ended: nothing more will be heard from it.
    pub fn lose(&mut self, process: Process) {
        self.heeded.take_if(|heeded| heeded.by == process);
    }

    pub fn lapse(&mut self, now: u64, silence_us: u64) {
        self.heeded.take_if(|heeded| now >= heeded.heard_us + silence_us);
    }

    /// When `lapse` must be called.
    pub fn lapses_at(&self, silence_us: u64) -> u64 {
        self.heeded.map_or(u64::MAX, |heeded| heeded.heard_us + silence_us)
    }
}
