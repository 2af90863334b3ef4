//! Presence of this shard's connections: joins, leaves and watches of their seats.

use super::records::record;
use super::rooms::{room_bytes_max, tell_home};
use super::shown::Tells;
use super::state::{Forms, PresenceMail, Refusal, Seat, Told, Watcher, Who, Wish};
use crate::context::Ctx;
use crate::context::io::TURN_BYTES;
use crate::context::session::Session;
use crate::io::questions::Shown;
use hubsub_route::presence::Member;
use hubsub_route::{CloseReason, Sink};
use hubsub_types::class::Membership;
use hubsub_types::shared::Shared;
use hubsub_types::{ConnKey, ErrorCode};
use hubsub_wire::phoenix::Version;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Reserves a seat for a connection that is about to join a topic; returns its number.
///
/// # Errors
/// If the class has no members, the name or the member is too long, or there are too many.
pub fn reserve(ctx: &mut Ctx, key: ConnKey, wish: Wish<'_>) -> Result<u64, ErrorCode> {
    if let Err(refused) = admit(ctx, &wish) {
        ctx.io.metrics.presence_refused_total.add(1);
        return Err(refused);
    }
    let Wish { topic, room, who, watches, request } = wish;
    let edge = &mut ctx.io.states.presence.edge;
    let member = who.map(|who| (edge.number(), who));
    let came = member.as_ref().map_or(0, |(reference, _)| *reference);
    let (topic, room) = (topic.into(), room.into());
    Ok(edge.add(key, Seat { topic, room, member, came, watches, request, is_joined: false }))
}

fn admit(ctx: &Ctx, wish: &Wish<'_>) -> Result<(), ErrorCode> {
    let classes = ctx.broker.classes();
    if classes.get(classes.class_of_room(wish.room)).presence == Membership::Off {
        return Err(ErrorCode::NotAllowed);
    }
    if wish.room.is_empty() || wish.room.len() > room_bytes_max(ctx.io.limits.topic_bytes_max) {
        return Err(ErrorCode::TopicLength);
    }
    if let Some(who) = &wish.who {
        fits(ctx, who)?;
        let members = &ctx.io.info.members;
        if members.fetch_add(1, Ordering::Relaxed) >= ctx.io.limits.presence_members_max {
            members.fetch_sub(1, Ordering::Relaxed);
            return Err(ErrorCode::TooManyMembers);
        }
    }
    Ok(())
}

fn fits(ctx: &Ctx, (key, meta): &Who) -> Result<(), ErrorCode> {
    let fits = (key.len() + meta.len()) as u64 <= ctx.io.limits.presence_member_bytes_max;
    if fits { Ok(()) } else { Err(ErrorCode::MemberLength) }
}

pub fn joined(ctx: &mut Ctx, key: ConnKey, number: u64) {
    let Some(seat) = ctx.io.states.presence.edge.join(key, number) else { return };
    let (topic, room, watches) = (seat.topic.clone(), seat.room.clone(), seat.watches);
    let member = seat.member.as_ref().map(|(reference, (key, meta))| Member {
        reference: *reference,
        former: 0,
        key: key.clone(),
        meta: meta.clone(),
    });
    if let Some(member) = member {
        record(ctx, &room, "join", (member.reference, &member.key));
        ctx.broker.count_member(&room, true);
        tell_home(ctx, &room, PresenceMail::Join(room.clone(), member));
    }
    if watches {
        let watcher = Watcher { conn: key, topic, is_told: false };
        ctx.io.states.presence.edge.watchers.entry(room.clone()).or_default().insert(number, watcher);
        let shard = ctx.io.shard;
        tell_home(ctx, &room, PresenceMail::Watch(room.clone(), shard, number));
    }
}

pub fn refused(ctx: &mut Ctx, key: ConnKey, number: u64) {
    if let Some(seat) = ctx.io.states.presence.edge.take(key, number) {
        vacate(ctx, number, seat);
    }
}

pub fn left(ctx: &mut Ctx, key: ConnKey, topic: &str) {
    if let Some(number) = ctx.io.states.presence.edge.seat_of(key, topic) {
        refused(ctx, key, number);
    }
}

pub fn ends(ctx: &mut Ctx, key: ConnKey) {
    for number in ctx.io.states.presence.edge.seats_of(key) {
        refused(ctx, key, number);
    }
}

fn vacate(ctx: &mut Ctx, number: u64, seat: Seat) {
    let Seat { room, member, came, watches, is_joined, .. } = seat;
    if member.is_some() {
        ctx.io.info.members.fetch_sub(1, Ordering::Relaxed);
    }
    if !is_joined {
        return;
    }
    if let Some((reference, (name, _))) = member {
        record(ctx, &room, "leave", (came, &name));
        ctx.broker.count_member(&room, false);
        tell_home(ctx, &room, PresenceMail::Leave(room.clone(), reference));
    }
    if !watches {
        return;
    }
    let watchers = &mut ctx.io.states.presence.edge.watchers;
    if let Some(of_room) = watchers.get_mut(&room) {
        of_room.remove(&number);
        if of_room.is_empty() {
            watchers.remove(&room);
        }
    }
    let shard = ctx.io.shard;
    tell_home(ctx, &room, PresenceMail::Unwatch(room.clone(), shard, number));
}

pub fn update(ctx: &mut Ctx, key: ConnKey, topic: &str, meta: &str) -> Result<(), Refusal> {
    let edge = &mut ctx.io.states.presence.edge;
    let Some(number) = edge.seat_of(key, topic) else { return Err(Refusal::NoMember) };
    let Some(seat) = edge.seats.get(&number) else { return Err(Refusal::NoMember) };
    let Some((former, (name, _))) = seat.member.clone() else { return Err(Refusal::NoMember) };
    let room = seat.room.clone();
    let who = (name, meta.as_bytes().into());
    if let Err(refused) = fits(ctx, &who) {
        ctx.io.metrics.presence_refused_total.add(1);
        return Err(Refusal::Code(refused));
    }
    let reference = ctx.io.states.presence.edge.number();
    if let Some(seat) = ctx.io.states.presence.edge.seats.get_mut(&number) {
        seat.member = Some((reference, who.clone()));
    }
    let member = Member { reference, former, key: who.0, meta: who.1 };
    tell_home(ctx, &room, PresenceMail::Leave(room.clone(), former));
    tell_home(ctx, &room, PresenceMail::Join(room.clone(), member));
    Ok(())
}

/// Sends the member list to a seat, which gets changes from then on.
pub fn show(ctx: &mut Ctx, room: &Arc<[u8]>, seat: u64, shown: &Arc<Shown>) {
    let watchers = ctx.io.states.presence.edge.watchers.get_mut(room);
    let Some(watcher) = watchers.and_then(|watchers| watchers.get_mut(&seat)) else { return };
    watcher.is_told = true;
    let (conn, topic) = (watcher.conn, watcher.topic.clone());
    let Some(reads) = reads(ctx, conn) else { return };
    if ctx.io.is_full_at(conn.index) {
        return ctx.io.close(conn.index, CloseReason::OutputLimit);
    }
    let lists = &mut ctx.io.states.presence.edge.lists;
    let list = lists.entry(room.clone()).or_insert_with(|| (Arc::clone(shown), Forms::default()));
    if !Arc::ptr_eq(&list.0, shown) {
        *list = (Arc::clone(shown), Forms::default());
    }
    let encoded = reads.encoded(&mut list.1, &topic, &**shown);
    reads.send(ctx, conn, &topic, &encoded, true);
}

/// Sends a change to all seats of a room that have the member list.
pub fn tell(ctx: &mut Ctx, room: &[u8], told: &Told) {
    ctx.io.states.presence.edge.lists.remove(room);
    let Some(watchers) = ctx.io.states.presence.edge.watchers.get(room) else { return };
    let told_before = watchers.values().filter(|watcher| watcher.is_told);
    let watchers: Vec<_> = told_before.map(|watcher| (watcher.conn, watcher.topic.clone())).collect();
    let mut forms = Forms::default();
    for (conn, topic) in watchers {
        let Some(reads) = reads(ctx, conn) else { continue };
        if ctx.io.is_full_at(conn.index) {
            // It reconnects and gets a new member list.
            ctx.io.close(conn.index, CloseReason::OutputLimit);
            continue;
        }
        let encoded = reads.encoded(&mut forms, &topic, told);
        reads.send(ctx, conn, &topic, &encoded, false);
    }
}

/// The form in which a connection reads presence.
enum Reads {
    /// Events of its Phoenix channel.
    Page(Version),
    /// Messages of `$presence/ROOM`, for MQTT clients.
    Device,
}

impl Reads {
    fn encoded(&self, forms: &mut Forms, topic: &Arc<str>, what: &impl Tells) -> Shared {
        match *self {
            Reads::Page(version) => {
                forms.frames(version, topic, |version, topic| what.frames(version, topic))
            }
            Reads::Device => forms.json(|| what.json()),
        }
    }

    fn send(&self, ctx: &mut Ctx, conn: ConnKey, topic: &str, encoded: &Shared, is_state: bool) {
        match self {
            Reads::Page(_) => ctx.io.push_shared(conn, encoded),
            Reads::Device => (ctx.hooks.send_members)(&mut ctx.io, conn, topic, encoded, is_state),
        }
        // Many connections may have waited for a long list.
        if ctx.io.turn_bytes() > TURN_BYTES {
            ctx.flush();
        }
    }
}

fn reads(ctx: &Ctx, conn: ConnKey) -> Option<Reads> {
    let conn = ctx.io.conns.get(conn).filter(|conn| !conn.is_closing())?;
    match &conn.session {
        Session::Phoenix(version, _) => Some(Reads::Page(*version)),
        session => session.mqtt().map(|_| Reads::Device),
    }
}
