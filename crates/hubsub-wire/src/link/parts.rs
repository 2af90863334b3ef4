//! Field types shared by several frames of a link: node status, and a payload.

use hubsub_message::field::write_short;
use hubsub_message::{Field, Flaw, Reader};

/// A node's status in each ping and pong. Numbers are encoded like lengths, since they are small.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Status {
    pub classes: u64,
    /// The controller term that it acts under, until that expires; 0: it is no controller.
    pub controller_term: u64,
    /// Controller term of the controller that it acknowledges; 0: it hears none.
    pub acknowledged_term: u64,
    /// Acknowledgement number; it changes each time that the node starts to acknowledge a controller.
    pub acknowledgement: u64,
    /// Whether it has the patterns of all registered nodes, so that it may lead hubs and serve clients.
    pub is_ready: bool,
}

impl Field<'_> for Status {
    fn write(&self, out: &mut Vec<u8>) {
        [self.classes, self.controller_term, self.acknowledged_term, self.acknowledgement]
            .iter()
            .for_each(|&number| write_short(number, out));
        out.push(u8::from(self.is_ready));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
        let mut next = || from.short(10);
        let (classes, controller_term, acknowledged_term, acknowledgement) =
            (next()?, next()?, next()?, next()?);
        let is_ready = match u8::read(from)? {
            0 => false,
            1 => true,
            other => return Err(Flaw::Value(u64::from(other))),
        };
        Ok(Status { classes, controller_term, acknowledged_term, acknowledgement, is_ready })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Payload<'a>(pub &'a [u8]);

impl<'a> Field<'a> for Payload<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.0);
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, Flaw> {
        Ok(Payload(from.rest()))
    }
}
