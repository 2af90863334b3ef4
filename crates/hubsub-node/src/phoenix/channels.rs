//! Handling of browsers' messages: a join subscribes, a leave unsubscribes, a push publishes.
//!
//! Invariants: the reply to a join precedes all other output of its topic; each push gets one reply, in
//! order.

use crate::context::Ctx;
use crate::context::encoding::{write_message, write_text};
use crate::context::io::Io;
use crate::context::session::Session;
use crate::io::access;
use crate::io::output::{Pending, Slot};
use crate::presence::state::{Refusal, Wish as SeatWish};
use hubsub_route::{Answer, Asker, Attached, Draft, Headers, Namespace, Outcome, Publisher, Start, Wish};
use hubsub_types::{ConnKey, ErrorCode, Qos};
use hubsub_wire::phoenix::{self, Action, EVENT_HEADER, FORM_HEADER, Form, Payload, joined_at};

type Joined = Outcome<Result<Attached, ErrorCode>>;

/// Error for a class that accepts no events from browsers.
const NO_EVENTS: &str = "not_allowed: the class of this topic takes no events of browsers";

/// Error for an update by a client that did not join as a member.
const NO_MEMBER: &str = "no member; hint: join with {\"presence\": {\"key\": …}}";

/// Carries out a message. Returns the outcome of a join.
pub(super) fn act(ctx: &mut Ctx, key: ConnKey, action: Action<'_>) -> Option<Joined> {
    match action {
        Action::Send(message) => {
            let Session::Phoenix(version, _) = ctx.io.conns.get(key)?.session else { return None };
            ctx.io.push(key, |out, _| write_message(out, version, &message));
        }
        Action::Leave { topic } => {
            let now = ctx.io.now;
            ctx.broker.unsubscribe(key, Namespace::Global, topic.as_bytes(), now, &mut ctx.io);
            (ctx.hooks.leave_seat)(ctx, key, topic);
        }
        Action::Join { topic, start, presence, .. } => return Some(join(ctx, key, topic, start, presence)),
        Action::Update { topic, meta, answer } => update(ctx, key, topic, meta, &answer),
        Action::Publish { topic, event, payload, answer } => {
            publish(ctx, key, (topic, event, payload), answer)
        }
    }
    None
}

fn join(
    ctx: &mut Ctx,
    key: ConnKey,
    topic: &str,
    start: phoenix::Start,
    wanted: Option<phoenix::PresenceRequest>,
) -> Joined {
    let Some(principal) = ctx.io.conns.get(key).map(|conn| conn.principal) else {
        return Outcome::Now(Err(ErrorCode::Stopping));
    };
    if !ctx.io.access.allowed(principal, access::Action::Subscribe, topic.as_bytes()) {
        return Outcome::Now(Err(ErrorCode::NotAllowed));
    }
    if let Some(wanted) = wanted {
        // With a hash tag a client can name any room: its members are shown only if the room itself may be
        // joined.
        if let Some(tag) = ctx.broker.classes().tag(topic.as_bytes())
            && !(ctx.io.states.phoenix.rules.opens(tag)
                && ctx.io.access.allowed(principal, access::Action::Subscribe, tag))
        {
            return Outcome::Now(Err(ErrorCode::NotAllowed));
        }
        let who = wanted.member.map(|member| (member.key, member.meta.into_boxed_bytes()));
        let room = ctx.broker.classes().room(topic.as_bytes()).into_owned();
        let wish = SeatWish { topic, room: &room, who, watches: true, request: None };
        if let Err(refused) = (ctx.hooks.reserve_seat)(ctx, key, wish) {
            return Outcome::Now(Err(refused));
        }
    }
    let (ticket, now) = (ctx.io.ticket(key), ctx.io.now);
    let start = match start {
        phoenix::Start::Live => Start::Live,
        phoenix::Start::Last(count) => Start::Last(count),
        phoenix::Start::Past { ms } => Start::Since(now.wall_us.saturating_sub(ms.saturating_mul(1000))),
        phoenix::Start::After(position) => Start::After(position),
    };
    let wish = Wish { topic: topic.as_bytes(), namespace: Namespace::Global, start };
    ctx.broker.subscribe(ticket, key, wish, now, &mut ctx.io)
}

/// Replies to a join, now or in a slot.
pub(super) fn joined(ctx: &mut Ctx, key: ConnKey, topic: &str, outcome: Joined) {
    match outcome {
        Outcome::Later => ctx.io.wait(key, Pending::Join(topic.into())),
        Outcome::Now(attached) => {
            if attached.is_err() {
                ctx.count_refusal(false);
            }
            let reply = settle_join(&mut ctx.io, key, topic, attached);
            ctx.io.push(key, |out, _| write_text(out, &reply));
            // The records that it missed follow.
            ctx.broker.drained(key, ctx.io.now, &mut ctx.io);
        }
    }
}

/// Updates a member's metadata and replies.
fn update(ctx: &mut Ctx, key: ConnKey, topic: &str, meta: &str, answer: &phoenix::Answer) {
    let outcome = (ctx.hooks.update_member)(ctx, key, topic, meta);
    let reply = match outcome {
        Ok(()) => text_of(answer, Ok("{}")),
        Err(Refusal::NoMember) => text_of(answer, Err(NO_MEMBER)),
        Err(Refusal::Code(refused)) => text_of(answer, Err(&reason(refused))),
    };
    ctx.io.push(key, |out, _| write_text(out, &reply));
}

type Said<'a> = (&'a str, &'a str, Payload<'a>);

fn publish(ctx: &mut Ctx, key: ConnKey, said: Said<'_>, answer: phoenix::Answer) {
    let (topic, event, payload) = said;
    let namespace = Namespace::Global;
    let refusal = match ctx.may_publish(key, topic.as_bytes()) {
        Err(refused) => Some(reason(refused)),
        Ok(()) if !ctx.broker.class_of(namespace, topic.as_bytes()).browser_events => {
            Some(NO_EVENTS.to_owned())
        }
        Ok(()) => None,
    };
    if let Some(why) = refusal {
        ctx.count_refusal(true);
        return ctx.io.push(key, |out, _| write_text(out, &text_of(&answer, Err(&why))));
    }
    ctx.io.metrics.phoenix_published_total.add(1);
    let (ticket, now) = (ctx.io.ticket(key), ctx.io.now);
    let draft = Draft {
        namespace,
        topic: topic.as_bytes(),
        payload: payload.as_bytes(),
        headers: headers(event, payload),
        publisher: Publisher::Conn(key.index),
        producer: None,
        qos: Qos::ExactlyOnce,
        retain: false,
    };
    match ctx.broker.publish(ticket, draft, now, &mut ctx.io) {
        Outcome::Now(outcome) => {
            if outcome.is_err() {
                ctx.count_refusal(true);
            }
            let reply = text_of_outcome(&answer, outcome.map(|_| ()));
            ctx.io.push(key, |out, _| write_text(out, &reply));
        }
        Outcome::Later => {
            ctx.io.wait(key, Pending::Answer(Box::new(answer)));
            if ctx.broker.is_logged(namespace, topic.as_bytes())
                && let Asker::Client { slot, .. } = ticket.asker
            {
                ctx.io.note_logged(key, slot);
            }
        }
    }
}

fn headers(event: &str, payload: Payload<'_>) -> Headers {
    let form = Form::of(payload).map(|form| (FORM_HEADER, form.as_str()));
    let pairs = [Some((EVENT_HEADER, event)), form].into_iter().flatten();
    Some(pairs.map(|(name, value)| (name.into(), value.into())).collect())
}

/// Text of a refusal: its stable code, and the message.
fn reason(refused: ErrorCode) -> String {
    let words = refused.resp();
    format!("{}: {}", refused.code(), words.split_once(' ').map_or(words, |(_, words)| words))
}

fn text_of(answer: &phoenix::Answer, outcome: Result<&str, &str>) -> Vec<u8> {
    let mut text = Vec::new();
    answer.write(outcome, &mut text);
    text
}

fn text_of_outcome(answer: &phoenix::Answer, outcome: Result<(), ErrorCode>) -> Vec<u8> {
    match outcome {
        Ok(()) => text_of(answer, Ok("{}")),
        Err(refused) => text_of(answer, Err(&reason(refused))),
    }
}

/// Completes a join. Returns its reply; records that wait for it may follow.
fn settle_join(io: &mut Io, key: ConnKey, topic: &str, attached: Result<Attached, ErrorCode>) -> Vec<u8> {
    let mut reply = Vec::new();
    let Some(client) = io.conns.get_mut(key).and_then(|conn| conn.session.browser_mut()) else {
        return reply;
    };
    let is_done = attached.is_ok();
    match attached {
        Ok(Attached { position, recovered, .. }) => {
            client.socket.joined(topic, Ok(&joined_at(position, recovered)), &mut reply);
        }
        Err(refused) => client.socket.joined(topic, Err(&reason(refused)), &mut reply),
    }
    client.is_early = false;
    if let Some(seat) = io.states.presence.edge.seat_of(key, topic) {
        io.own.join(key, seat, is_done);
    }
    reply
}

/// Fills the slot of a browser's request with the broker's reply.
pub(crate) fn answer_phoenix(io: &mut Io, key: ConnKey, slot: u32, answer: Answer) {
    let output = io.conns.get_mut(key).and_then(|conn| conn.output.as_mut());
    let Some(place) = output.and_then(|output| output.waiting(slot)) else { return };
    let reply = match (answer, place) {
        (Answer::Attached(attached), Slot::Waiting(Pending::Join(topic))) => {
            let topic = std::mem::take(topic);
            if attached.is_err() {
                io.metrics.subscriptions_refused_total.add(1);
            }
            settle_join(io, key, &topic, attached)
        }
        (Answer::Published(published), Slot::Waiting(Pending::Answer(answer))) => {
            let reply = text_of_outcome(answer, published.map(|_| ()));
            if published.is_err() {
                io.metrics.publishes_refused_total.add(1);
            }
            reply
        }
        (answer, _) => unreachable!("a slot is opened for its own answer: {answer:?}"),
    };
    io.resolve(key, slot, |out, _, _| write_text(out, &reply));
}
