//! Completes what waited for a write of a session.

use super::changes::{persistence_of, request_snapshot_later};
use super::client::{client_mut, end, is_open, ticket, with_client};
use super::connack::{connected, displaced, forgo_will, refused};
use super::state::work::Written;
use super::{claims, delete_retry, packets, sending, session, suback, takeover, takeover_read};
use crate::context::Ctx;
use hubsub_mqtt::{AfterWrite, Fault, Intended, Wait};
use hubsub_route::{Outcome, Producer};
use hubsub_types::{ConnKey, ErrorCode, ProducerId};
use hubsub_wire::mqtt::Reason;

pub fn written(ctx: &mut Ctx, what: Written, outcome: Result<u64, ErrorCode>) {
    if outcome.is_err() {
        ctx.io.metrics.mqtt_session_unwritten_total.add(1);
    }
    let (is_safe, has_store) = (outcome.is_ok(), ctx.io.states.mqtt.store.is_some());
    match what {
        Written::Snapshot(key, visit, waits) => {
            let Some(persistence) = persistence_of(&mut ctx.io, key) else { return };
            let AfterWrite { is_current, must_retry } =
                persistence.snapshot_written(visit, outcome, has_store);
            if must_retry {
                request_snapshot_later(&mut ctx.io, key);
            }
            for wait in waits.into_iter().filter(|_| is_current) {
                match wait {
                    // A later holder has written the snapshot.
                    Wait::Connected(_) if outcome == Err(ErrorCode::NotAllowed) => displaced(ctx, key),
                    wait => resume_wait(ctx, key, wait, is_safe),
                }
            }
            write_done(ctx, key, true);
        }
        Written::Entry(key, visit, number, waits) => {
            let Some(persistence) = persistence_of(&mut ctx.io, key) else { return };
            let AfterWrite { is_current, must_retry } = persistence.entry_written(visit, number, is_safe);
            if must_retry {
                request_snapshot_later(&mut ctx.io, key);
            }
            for wait in waits {
                match wait {
                    Wait::Intended(what) => publish(ctx, key, *what, is_safe),
                    wait if is_current => resume_wait(ctx, key, wait, is_safe),
                    _ => {}
                }
            }
            if is_safe {
                sending::pump(&mut ctx.io, key);
            } else if is_current && is_open(&ctx.io, key) {
                // The session's snapshot contains what waits, once its connection has ended.
                end(ctx, key, Fault::of(Reason::ImplementationSpecific));
            }
            write_done(ctx, key, false);
        }
        Written::All(all) => {
            for what in all {
                written(ctx, what, outcome);
            }
        }
        Written::Deleted(key, delete) => {
            let id = delete.id.clone();
            delete_retry::done(&mut ctx.io, delete, outcome);
            claims::release(ctx, id, claims::here(ctx, key));
        }
        Written::DeletedAgain(delete) => delete_retry::retried(&mut ctx.io, delete, outcome),
        Written::Fence(key) => takeover_read::fenced(ctx, key, is_safe),
        Written::Cleared(key, delete) => takeover::cleared(ctx, key, delete, outcome),
    }
}

/// Resumes an operation after its write succeeded or failed.
fn resume_wait(ctx: &mut Ctx, key: ConnKey, wait: Wait, is_safe: bool) {
    if !is_open(&ctx.io, key) {
        return;
    }
    match wait {
        Wait::Connected(present) if is_safe => connected(ctx, key, present),
        Wait::Connected(_) if forgo_will(&mut ctx.io, key) => connected(ctx, key, false),
        Wait::Connected(_) => refused(ctx, key, Reason::ServerUnavailable),
        Wait::Granted(number) if is_safe => suback::answer_now(&mut ctx.io, key, number, Ok(())),
        Wait::Unsubscribed(number) if is_safe => {
            with_client(&mut ctx.io, key, |client, out| client.machine.unsubscribed(number, out));
        }
        Wait::Recorded(number) if is_safe => {
            with_client(&mut ctx.io, key, |client, out| client.machine.recorded(number, out));
        }
        Wait::Intended(_) => unreachable!("it waits for an entry"),
        // The client must not get a success for a session that may be lost.
        Wait::Granted(_) | Wait::Unsubscribed(_) | Wait::Recorded(_) => {
            end(ctx, key, Fault::of(Reason::ImplementationSpecific))
        }
    }
}

/// The number was persisted, or the write failed.
fn publish(ctx: &mut Ctx, key: ConnKey, what: Intended, is_safe: bool) {
    let Intended { number, intent, record } = what;
    let Some(persistence) = persistence_of(&mut ctx.io, key) else { return };
    let producer = Producer { id: ProducerId(persistence.head.born), sequence: intent };
    let ticket = ticket(&ctx.io, key, number);
    let outcome = if is_safe {
        let record = record.from_producer(Some(producer));
        ctx.broker.publish_record(ticket, record, ctx.io.now, &mut ctx.io)
    } else {
        Outcome::Now(Err(ErrorCode::LogFailed))
    };
    match (outcome, ctx.io.states.mqtt.sessions.get_mut(key)) {
        (Outcome::Now(outcome), Some(offline)) => offline.published(number, outcome.is_ok()),
        (Outcome::Now(outcome), None) => {
            packets::published(ctx, key, number, outcome.map(|published| published.receivers));
        }
        (Outcome::Later, _) => {
            ctx.io.expects_more = true;
            if let Some(client) = client_mut(&mut ctx.io, key) {
                client.waits_for_log = client.machine.publishes();
            }
        }
    }
}

/// A write has completed. A session that moves to another node proceeds to its next step.
fn write_done(ctx: &mut Ctx, key: ConnKey, is_snapshot: bool) {
    let Some(persistence) = persistence_of(&mut ctx.io, key) else { return };
    if is_snapshot && persistence.handover_written() {
        session::comes_to_rest(ctx, key);
    }
    let Some(persistence) = persistence_of(&mut ctx.io, key) else { return };
    if persistence.is_handed_over() {
        session::part(ctx, key);
    } else if let Some(offline) = ctx.io.states.mqtt.sessions.get_mut(key) {
        offline.session.persistence.iter_mut().for_each(|persistence| persistence.shrink());
    }
}
