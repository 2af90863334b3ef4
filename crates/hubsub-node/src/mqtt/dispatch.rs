//! Passes mail, queued work and answers of the broker to their modules.

use super::client::NOBODY;
use super::missing_subscriptions::note_missing;
use super::state::mail::MqttMail;
use super::state::work::Work;
use super::written::written;
use super::{
    claims, connack, connect, delete_retry, handover, packets, persist, session_cursors, store, suback,
    takeover, takeover_read,
};
use crate::context::Ctx;
use crate::context::io::Io;
use hubsub_route::Answer;
use hubsub_types::ConnKey;
use hubsub_wire::mqtt::Reason;

pub fn receive(ctx: &mut Ctx, mail: MqttMail) {
    match mail {
        MqttMail::Claim(id, claimant) => claims::claimed(ctx, id, claimant),
        MqttMail::Keep(id, holder) => claims::kept(ctx, &id, holder),
        MqttMail::Release(id, holder) => claims::released(ctx, &id, holder),
        MqttMail::Granted(key) => connect::granted(ctx, key),
        MqttMail::Refused(key) | MqttMail::Displaced(key) if takeover_read::is_refused(ctx, key) => {}
        MqttMail::Refused(key) => connack::refused(ctx, key, Reason::ServerUnavailable),
        MqttMail::Displaced(key) => connack::displaced(ctx, key),
        MqttMail::Yield(key, to) => handover::yields(ctx, key, to),
        // It moves once its input is processed.
        MqttMail::Call(key, to) => ctx.io.states.mqtt.called.push((key, to)),
        MqttMail::Abandon(key) => handover::abandoned(ctx, key),
        MqttMail::Restore(found) => takeover::restore_previous(ctx, *found),
        MqttMail::TakeOver(id) => takeover_read::claim(ctx, id),
        MqttMail::Stored(answer) => {
            if let Some((what, outcome)) = store::answered(ctx, *answer) {
                written(ctx, what, outcome);
            }
        }
    }
}

pub fn work(ctx: &mut Ctx, work: Work) {
    match work {
        Work::Mail(mail) => receive(ctx, mail),
        Work::Record(key) => persist::persist(ctx, key),
        Work::Past(key, part) => takeover_read::came(ctx, key, part),
        Work::Ended(delete, part) => delete_retry::found(ctx, *delete, part),
        Work::Follows(key, is_held) => connack::followed(ctx, key, is_held),
    }
}

pub fn answer(io: &mut Io, key: ConnKey, number: u32, answer: Answer) {
    match answer {
        Answer::HubEnds(ends) => io.states.mqtt.ends.push((key, (number, ends))),
        // That of a will, which is no subscription.
        Answer::Published(_) if number == NOBODY => {}
        answer if number == NOBODY => connack::resumed(io, key, &answer),
        Answer::Published(outcome) => {
            io.expects_more |= outcome.is_ok();
            packets::answer_publish(io, key, number, outcome.map(|published| published.receivers));
        }
        Answer::Attached(outcome) => {
            session_cursors::confirmed(io, key, number, &outcome);
            suback::confirmed(io, key, number, outcome.map(|_| ()));
        }
        Answer::PatternHeld => suback::confirmed(io, key, number, Ok(())),
        Answer::Counted(_) | Answer::Settled | Answer::Rows(_) => {
            unreachable!("no packet asks for that")
        }
    }
}

pub fn answer_offline(io: &mut Io, key: ConnKey, number: u32, answer: Answer) {
    match answer {
        Answer::Published(outcome) => {
            if let Some(offline) = io.states.mqtt.sessions.get_mut(key) {
                offline.published(number, outcome.is_ok());
            }
        }
        Answer::HubEnds(ends) => io.states.mqtt.ends.push((key, (number, ends))),
        Answer::Attached(Err(refused)) if number == NOBODY => note_missing(io, key, refused),
        _ => {}
    }
}
