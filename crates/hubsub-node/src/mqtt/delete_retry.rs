//! Executes the retries of session deletes ([`SessionDelete`]).

use super::state::work::{Work, Written};
use super::store;
use super::wills::publish_will_of;
use crate::context::Ctx;
use crate::context::io::Io;
use crate::context::scatter_gather::Then;
use crate::io::questions::{Part, Question};
use hubsub_mqtt::rooms::snapshot_room;
use hubsub_mqtt::{SessionDelete, snapshot_query};
use hubsub_route::rooms::HistoryPart;
use hubsub_types::ErrorCode;

/// Handles the outcome of a delete.
pub(super) fn done(io: &mut Io, delete: SessionDelete, outcome: Result<u64, ErrorCode>) {
    let is_lost = io.states.mqtt.sessions.deletes.done(delete, outcome, io.now.mono_ms);
    io.metrics.mqtt_session_ends_lost_total.add(u64::from(is_lost));
}

/// Handles the outcome of a retried delete.
pub(super) fn retried(io: &mut Io, delete: SessionDelete, outcome: Result<u64, ErrorCode>) {
    let is_lost = io.states.mqtt.sessions.deletes.retried(delete, outcome, io.now.mono_ms);
    io.metrics.mqtt_session_ends_lost_total.add(u64::from(is_lost));
}

/// Deletes whatever session a client id has now, once its snapshot can be read.
pub(super) fn retry_later(io: &mut Io, id: Box<str>) {
    let delete = SessionDelete::of_unknown(id, io.now.wall_us);
    done(io, delete, Err(ErrorCode::HubClosed));
}

/// Retries the deletes that are due. Runs once a second.
pub fn retry_deletes(ctx: &mut Ctx) {
    for delete in ctx.io.states.mqtt.sessions.deletes.due(ctx.io.now.mono_ms) {
        match delete.session() {
            Some(of) => store::end(ctx, delete.id.clone(), of, Written::DeletedAgain(delete)),
            None => {
                let query = snapshot_query(&delete.id);
                let room = snapshot_room(&delete.id);
                let then = move |part| Work::Ended(Box::new(delete), Part::history(part));
                ctx.ask_home(&room, Question::Row(query), Then::work(then));
            }
        }
    }
}

/// The snapshot to delete was looked up.
pub(super) fn found(ctx: &mut Ctx, delete: SessionDelete, part: Result<HistoryPart, ErrorCode>) {
    let part = match part {
        Ok(part) => part,
        Err(code) => return retried(&mut ctx.io, delete, Err(code)),
    };
    let snapshot = part.records.last();
    let Some((snapshot, epoch)) = snapshot.and_then(|it| Some((it, delete.epoch_for(it)?))) else {
        return retried(&mut ctx.io, delete, Ok(0));
    };
    let key = ctx.own_key();
    let born = publish_will_of(ctx, key, &delete.id, snapshot.payload());
    let delete = SessionDelete::new(delete.id, epoch, born);
    store::end(ctx, delete.id.clone(), (epoch, born), Written::DeletedAgain(delete));
}
