//! A shard's handling of route messages: it joins the cluster, and its broker leads, follows or waits.
//! `control::routes` sends them.

use super::state::room_changes::{RouteMail, UnusedRooms};
use crate::context::Ctx;
use crate::context::events::Event;
use crate::context::io::Io;
use crate::io::log_lines::Level;
use hubsub_route::Leader;
use hubsub_route::relay::limits::PARKED_MS;
use hubsub_types::class::ClassIndex;
use hubsub_types::{ConnKey, ShardId};

/// Limit of lookups pending at the control plane, which handles some thousands per batch.
const ASKED_MAX: usize = 65_536;

pub(crate) fn route_mail(ctx: &mut Ctx, mail: RouteMail) {
    match mail {
        RouteMail::Join => join_cluster(ctx),
        // They were applied before this batch of mail.
        RouteMail::Classes => {}
        RouteMail::Leaders(rows) => {
            for (hub, (term, leader)) in rows {
                if leader == Leader::Me
                    && let Some(log) = &mut ctx.io.states.log
                {
                    log.leads(hub, term);
                }
                ctx.broker.route(hub, term, leader, ctx.io.now, &mut ctx.io);
            }
        }
        RouteMail::Serves(rows) => {
            for (hub, serves) in rows {
                ctx.broker.serve_alone(hub, serves, ctx.io.now, &mut ctx.io);
            }
        }
        RouteMail::Rooms(class, rooms) => {
            for (room, _) in rooms.iter() {
                ctx.io.states.asked.remove(room);
            }
            ctx.broker.rooms_placed(class, &rooms, ctx.io.now, &mut ctx.io);
        }
        RouteMail::Refused(rooms, code) => {
            for room in rooms.iter() {
                ctx.io.states.asked.remove(room);
                ctx.broker.room_refused(room, code, ctx.io.now, &mut ctx.io);
            }
        }
        RouteMail::Absent(rooms) => {
            for room in rooms.iter() {
                if let Some((_, false)) = ctx.io.states.asked.get(room) {
                    ctx.io.states.asked.remove(room);
                }
                ctx.broker.room_absent(room, &mut ctx.io);
            }
        }
        RouteMail::Unused(question) => answer_unused(ctx, question),
        RouteMail::Miss(class, room, makes) => ask_for_room(&mut ctx.io, class, &room, makes),
    }
}

/// Gives up unused rooms, in one turn, so that no shard sees a partial state: every shard has the mail
/// before the control plane gets the response, and thus before it places such a room again. If the table
/// is being changed, or this shard's hubs or classes are out of date, none is given up and the request is
/// repeated.
fn answer_unused(ctx: &mut Ctx, UnusedRooms { ticket, of, rooms, gives_up, changes }: UnusedRooms) {
    if !gives_up {
        let unused = ctx.broker.unused_rooms(of, rooms, &ctx.io);
        return ctx.io.control.tell(Event::Unused(ticket, unused));
    }
    let (broker, io) = (&mut ctx.broker, &mut ctx.io);
    let given_up = changes.try_make(|| {
        // Checked under the lock: a table that was replaced must send nothing more.
        let is_now = broker.topics.has_hubs(&io.classes.hubs());
        let rooms = if is_now { rooms } else { Vec::new() };
        broker.give_up_rooms(of, rooms, io)
    });
    let names = given_up.iter().flat_map(|rooms| rooms.iter()).map(|(room, _)| room.clone()).collect();
    ctx.io.control.tell(Event::Unused(ticket, names));
}

/// Moves rooms to their homes in the cluster. Clients should connect later; earlier ones are closed.
fn join_cluster(ctx: &mut Ctx) {
    let keys: Vec<ConnKey> = ctx.io.conns.iter().map(|(key, _)| key).collect();
    for key in keys {
        ctx.broker.disconnected(key, ctx.io.now, &mut ctx.io);
        ctx.broker.connected(key);
        ctx.io.log_conn(Level::Info, "client was too early", key, Vec::new());
        ctx.io.close_now(key);
    }
    ctx.io.classes_seen = ctx.io.classes.changes();
    let (classes, hubs) = ctx.io.classes.both();
    ctx.broker.join_as(&classes, hubs);
}

/// Looks a room up at the control plane, through shard 0, once while the response is awaited; again if it
/// is now to get a place.
pub(crate) fn ask_for_room(io: &mut Io, class: ClassIndex, room: &[u8], makes: bool) {
    if io.shard != ShardId(0) {
        return io.mailer.post(ShardId(0), RouteMail::Miss(class, room.into(), makes));
    }
    let now_ms = io.now.mono_ms;
    if io.states.asked.get(room).is_some_and(|&(until_ms, made)| now_ms < until_ms && (made || !makes)) {
        return;
    }
    if io.states.asked.len() >= ASKED_MAX {
        io.states.asked.retain(|_, (until_ms, _)| now_ms < *until_ms);
    }
    if io.states.asked.len() < ASKED_MAX && io.control.offer(Event::RoomMiss(class, room.into(), makes)) {
        io.states.asked.insert(room.into(), (now_ms + PARKED_MS, makes));
    }
}
