//! Presence of this shard's connections: a seat for each topic that a connection joined as a member or
//! watches. A seat exists from the start of the join and counts once that is confirmed.

use super::records::record;
use super::shown::Forms;
use super::{PresenceMail, Shown, Told, room_bytes_max, tell_home};
use crate::context::Ctx;
use crate::context::io::TURN_BYTES;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_route::presence::Member;
use hubsub_route::{CloseReason, Sink};
use hubsub_types::class::Membership;
use hubsub_types::{ConnKey, ErrorCode, ShardId};
use hubsub_wire::phoenix::Version;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A member's key and metadata, a JSON object.
pub type Who = (Box<str>, Box<[u8]>);

/// The seats of this shard's connections.
#[derive(Default)]
pub struct Edge {
    /// The last number assigned, with the shard in its upper bits, so that it is unique in the node.
    last: u64,
    seats: HashMap<u64, Seat, RandomState>,
    /// The seats of each connection.
    of_conns: HashMap<ConnKey, Places, RandomState>,
    /// By room and seat number.
    watchers: HashMap<Arc<[u8]>, BTreeMap<u64, Watcher>, RandomState>,
    /// The encoded member lists for rooms with new watchers, reused within a second.
    lists: HashMap<Arc<[u8]>, (Arc<Shown>, Forms), RandomState>,
    /// The number of seats that are members.
    members: u64,
    /// Bytes of the topic names of all seats.
    name_bytes: u64,
}

/// The seats of one connection, which may have as many as it has topics.
#[derive(Default)]
struct Places {
    /// By topic; one each.
    topics: HashMap<Arc<str>, u64, RandomState>,
    /// Seats that requests of an MQTT client join, by request number.
    requests: HashMap<u32, u64, RandomState>,
    /// The number of seats that watch presence.
    watching: usize,
    /// Bytes of their topic names.
    name_bytes: u64,
}

struct Seat {
    topic: Arc<str>,
    room: Arc<[u8]>,
    /// The member; its reference number changes with its metadata.
    member: Option<(u64, Who)>,
    /// The reference number at the join, used in its records.
    came: u64,
    /// True if its connection watches presence.
    watches: bool,
    /// The number of an MQTT client's request that joins it.
    request: Option<u32>,
    is_joined: bool,
}

/// The request for a seat in a topic that a connection is about to join.
pub struct Wish<'a> {
    /// The topic; for an MQTT client, the filter.
    pub topic: &'a str,
    pub room: &'a [u8],
    /// Its key and metadata, if it will be a member.
    pub who: Option<Who>,
    /// True if it will watch presence.
    pub watches: bool,
    /// The number of an MQTT client's request.
    pub request: Option<u32>,
}

struct Watcher {
    conn: ConnKey,
    topic: Arc<str>,
    is_told: bool,
}

impl Edge {
    #[must_use]
    pub fn new(shard: ShardId) -> Edge {
        Edge { last: u64::from(shard.0) << 48, ..Edge::default() }
    }

    /// The number of members on this shard.
    #[must_use]
    pub fn members(&self) -> u64 {
        self.members
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The number of a connection's seat in a topic.
    #[must_use]
    pub fn seat_of(&self, key: ConnKey, topic: &str) -> Option<u64> {
        self.of_conns.get(&key)?.topics.get(topic).copied()
    }

    /// The number of a connection's seats that watch presence.
    #[must_use]
    pub fn watched_by(&self, key: ConnKey) -> usize {
        self.of_conns.get(&key).map_or(0, |places| places.watching)
    }

    /// Bytes of the topic names of a connection's seats, and of all seats.
    #[must_use]
    pub fn name_bytes(&self, key: ConnKey) -> (u64, u64) {
        (self.of_conns.get(&key).map_or(0, |places| places.name_bytes), self.name_bytes)
    }

    /// The number of the seat that an MQTT client's request joins.
    #[must_use]
    pub fn seat_of_request(&self, key: ConnKey, request: u32) -> Option<u64> {
        self.of_conns.get(&key)?.requests.get(&request).copied()
    }

    /// Drops the encoded lists; later watchers get new ones.
    pub fn forget_lists(&mut self) {
        self.lists = HashMap::default();
    }

    /// Adds a seat in a topic where the connection has none; returns its number.
    fn add(&mut self, key: ConnKey, seat: Seat) -> u64 {
        let number = self.number();
        let places = self.of_conns.entry(key).or_default();
        let before = places.topics.insert(seat.topic.clone(), number);
        debug_assert!(before.is_none(), "who joins again has left before");
        places.watching += usize::from(seat.watches);
        places.name_bytes += seat.topic.len() as u64;
        self.name_bytes += seat.topic.len() as u64;
        if let Some(request) = seat.request {
            places.requests.insert(request, number);
        }
        self.members += u64::from(seat.member.is_some());
        self.seats.insert(number, seat);
        number
    }

    /// Marks a seat as joined; none if it already was.
    fn join(&mut self, key: ConnKey, number: u64) -> Option<&Seat> {
        let seat = self.seats.get_mut(&number).filter(|seat| !seat.is_joined)?;
        seat.is_joined = true;
        if let (Some(request), Some(places)) = (seat.request, self.of_conns.get_mut(&key)) {
            places.requests.remove(&request);
        }
        Some(seat)
    }

    fn take(&mut self, key: ConnKey, number: u64) -> Option<Seat> {
        let seat = self.seats.remove(&number)?;
        self.members -= u64::from(seat.member.is_some());
        self.name_bytes -= seat.topic.len() as u64;
        let places = self.of_conns.get_mut(&key)?;
        places.topics.remove(&seat.topic);
        places.watching -= usize::from(seat.watches);
        places.name_bytes -= seat.topic.len() as u64;
        if let Some(request) = seat.request.filter(|_| !seat.is_joined) {
            places.requests.remove(&request);
        }
        if places.topics.is_empty() {
            self.of_conns.remove(&key);
        }
        Some(seat)
    }
}

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

/// The join is confirmed: the member is added, and a watcher gets the member list.
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

/// The join was refused, or the seat is left.
pub fn refused(ctx: &mut Ctx, key: ConnKey, number: u64) {
    if let Some(seat) = ctx.io.states.presence.edge.take(key, number) {
        vacate(ctx, number, seat);
    }
}

/// A connection leaves a topic.
pub fn left(ctx: &mut Ctx, key: ConnKey, topic: &str) {
    if let Some(number) = ctx.io.states.presence.edge.seat_of(key, topic) {
        refused(ctx, key, number);
    }
}

/// A connection has ended.
pub fn ends(ctx: &mut Ctx, key: ConnKey) {
    let places = ctx.io.states.presence.edge.of_conns.get(&key);
    let numbers: Vec<u64> =
        places.map(|places| places.topics.values().copied().collect()).unwrap_or_default();
    for number in numbers {
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

/// Replaces a member's metadata.
///
/// # Errors
/// If it is no member, or the metadata is too long.
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

/// Why a member's update is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The connection is no member in this topic.
    NoMember,
    Code(ErrorCode),
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
    match reads {
        Reads::Page(version) => {
            let frames = list.1.frames(version, &topic, &**shown);
            ctx.io.push_shared(conn, &frames);
        }
        Reads::Device => {
            let json = list.1.json(&**shown);
            (ctx.hooks.send_members)(&mut ctx.io, conn, &topic, &json, true);
        }
    }
    // Many connections may have waited for a long list.
    if ctx.io.turn_bytes() > TURN_BYTES {
        ctx.flush();
    }
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
        match reads {
            Reads::Page(version) => {
                let frames = forms.frames(version, &topic, told);
                ctx.io.push_shared(conn, &frames);
            }
            Reads::Device => (ctx.hooks.send_members)(&mut ctx.io, conn, &topic, &forms.json(told), false),
        }
        if ctx.io.turn_bytes() > TURN_BYTES {
            ctx.flush();
        }
    }
}

/// The form in which a connection reads presence.
enum Reads {
    /// Events of its Phoenix channel.
    Page(Version),
    /// Messages of `$presence/ROOM`, for MQTT clients.
    Device,
}

fn reads(ctx: &Ctx, conn: ConnKey) -> Option<Reads> {
    let conn = ctx.io.conns.get(conn).filter(|conn| !conn.is_closing())?;
    let page = conn.phoenix_version.map(Reads::Page);
    page.or_else(|| conn.mqtt.as_ref().map(|_| Reads::Device))
}
