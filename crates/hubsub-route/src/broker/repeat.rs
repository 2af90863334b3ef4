//! A producer's repeated record: it gets the reply of the first one, or waits for it.

use super::Broker;
use crate::hubs::{Pending, Repeat, Waits};
use crate::rooms::RoomHandle;
use crate::{Outcome, Published, Sink, Ticket};
use hubsub_message::Record;
use hubsub_types::ErrorCode;

impl Broker {
    /// The outcome of a repeated record; none if it is new or unnumbered.
    ///
    /// # Errors
    /// It is not in the log and will not be, or its state is unknown.
    pub(super) fn repeated(
        &mut self,
        ticket: Ticket,
        room: RoomHandle,
        record: &Record,
        sink: &impl Sink,
    ) -> Result<Option<Outcome<Published>>, ErrorCode> {
        let Some(log) = self.rooms.log_of(room) else { return Ok(None) };
        let position = match log.repeat(record)? {
            None => return Ok(None),
            Some(Repeat::Committed(position)) => return Ok(Some(Outcome::Now(Published::again(position)))),
            Some(Repeat::Pending(position)) => position,
        };
        if sink.log_refuses(log.id) == Some(ErrorCode::LogFailed) {
            return Err(ErrorCode::LogFailed);
        }
        let offset = log.last();
        self.rooms.wait_for_log(Pending { offset, room, waits: Waits::Repeat(ticket, position) });
        Ok(Some(Outcome::Later))
    }
}
