//! SUBACK: a filter is granted or refused. The client of a persistent session gets it after the snapshot.

use super::changes::request_snapshot;
use super::client::{client_mut, update_plain, with_client};
use super::retained;
use crate::context::io::Io;
use hubsub_mqtt::{Wait, reason_of};
use hubsub_types::{ConnKey, ErrorCode};
use hubsub_wire::mqtt::Reason;

/// A pending subscription is confirmed or refused.
pub(super) fn confirmed(io: &mut Io, key: ConnKey, number: u32, granted: Result<(), ErrorCode>) {
    // An earlier connection of the session may have requested it.
    if let Some(client) = client_mut(io, key)
        && client.machine.waits_for(number)
    {
        client.unconfirmed = client.unconfirmed.saturating_sub(1);
    }
    answer(io, key, number, granted);
}

/// A subscription is confirmed or refused. A persistent session gets its SUBACK after the snapshot.
pub(super) fn answer(io: &mut Io, key: ConnKey, number: u32, granted: Result<(), ErrorCode>) {
    if granted.is_ok()
        && let Some(client) = client_mut(io, key)
    {
        client.machine.confirm(number);
        if request_snapshot(io, key, Some(Wait::Granted(number))) {
            return;
        }
    }
    answer_now(io, key, number, granted);
}

pub(super) fn answer_now(io: &mut Io, key: ConnKey, number: u32, granted: Result<(), ErrorCode>) {
    if let Some(seat) = io.states.presence.edge.seat_of_request(key, number) {
        io.own.join(key, seat, granted.is_ok());
    }
    let granted = granted.map_err(|refused| match refused {
        ErrorCode::TopicLength => Reason::TopicFilterInvalid,
        refused => reason_of(refused),
    });
    let due = with_client(io, key, |client, out| client.machine.granted(number, granted, out)).flatten();
    if let Some(filter) = due {
        retained::read(io, key, filter);
    }
    update_plain(io, key.index);
}
