//! A shard's handling of route messages: it joins the cluster, and its broker leads, follows or waits.
//! `control::routes` sends them.

use super::events::Event;
use super::room_changes::{RouteMail, UnusedRooms};
use crate::io::context::Rim;
use crate::io::core::Core;
use crate::io::log_lines::Level;
use hubsub_route::Leader;
use hubsub_route::relay::limits::PARKED_MS;
use hubsub_types::class::ClassIndex;
use hubsub_types::{ConnKey, ShardId};

/// Limit of lookups pending at the control plane, which handles some thousands per batch.
const ASKED_MAX: usize = 65_536;

pub(crate) fn route_mail(core: &mut Core, mail: RouteMail) {
    match mail {
        RouteMail::Join => join_cluster(core),
        // They were applied before this batch of mail.
        RouteMail::Classes => {}
        RouteMail::Leaders(rows) => {
            for (hub, term, leader) in rows {
                if leader == Leader::Me
                    && let Some(log) = &mut core.rim.states.log
                {
                    log.leads(hub, term);
                }
                core.broker.route(hub, term, leader, core.rim.now, &mut core.rim);
            }
        }
        RouteMail::Serves(rows) => {
            for (hub, serves) in rows {
                core.broker.serve_alone(hub, serves, core.rim.now, &mut core.rim);
            }
        }
        RouteMail::Rooms(class, rooms) => {
            for (room, _) in rooms.iter() {
                core.rim.states.asked.remove(room);
            }
            core.broker.rooms_placed(class, &rooms, core.rim.now, &mut core.rim);
        }
        RouteMail::Refused(rooms, code) => {
            for room in rooms.iter() {
                core.rim.states.asked.remove(room);
                core.broker.room_refused(room, code, core.rim.now, &mut core.rim);
            }
        }
        RouteMail::Absent(rooms) => {
            for room in rooms.iter() {
                if let Some((_, false)) = core.rim.states.asked.get(room) {
                    core.rim.states.asked.remove(room);
                }
                core.broker.room_absent(room, &mut core.rim);
            }
        }
        RouteMail::Unused(question) => answer_unused(core, question),
        RouteMail::Miss(class, room, makes) => ask_for_room(&mut core.rim, class, &room, makes),
    }
}

/// Gives up unused rooms, in one turn, so that no shard sees a partial state: every shard has the mail
/// before the control plane gets the response, and thus before it places such a room again. If the table
/// is being changed, or this shard's hubs or classes are out of date, none is given up and the request is
/// repeated.
fn answer_unused(core: &mut Core, UnusedRooms { ticket, of, rooms, gives_up, changes }: UnusedRooms) {
    if !gives_up {
        let unused = core.broker.unused_rooms(of, rooms, &core.rim);
        return core.rim.control.tell(Event::Unused(ticket, unused));
    }
    let (broker, rim) = (&mut core.broker, &mut core.rim);
    let given_up = changes.try_make(|| {
        // Checked under the lock: a table that was replaced must send nothing more.
        let is_now = broker.topics.has_hubs(&rim.classes.hubs());
        let rooms = if is_now { rooms } else { Vec::new() };
        broker.give_up_rooms(of, rooms, rim)
    });
    let names = given_up.iter().flat_map(|rooms| rooms.iter()).map(|(room, _)| room.clone()).collect();
    core.rim.control.tell(Event::Unused(ticket, names));
}

/// Moves rooms to their homes in the cluster. Clients should connect later; earlier ones are closed.
fn join_cluster(core: &mut Core) {
    let keys: Vec<ConnKey> = core.rim.conns.iter().map(|(key, _)| key).collect();
    for key in keys {
        core.broker.disconnected(key, core.rim.now, &mut core.rim);
        core.broker.connected(key);
        core.rim.log_conn(Level::Info, "client was too early", key, Vec::new());
        core.rim.close_now(key);
    }
    core.rim.classes_seen = core.rim.classes.changes();
    let (classes, hubs) = core.rim.classes.both();
    core.broker.join_as(&classes, hubs);
}

/// Looks a room up at the control plane, through shard 0, once while the response is awaited; again if it
/// is now to get a place.
pub(crate) fn ask_for_room(rim: &mut Rim, class: ClassIndex, room: &[u8], makes: bool) {
    if rim.shard != ShardId(0) {
        return rim.mailer.post(ShardId(0), RouteMail::Miss(class, room.into(), makes));
    }
    let now_ms = rim.now.mono_ms;
    if rim.states.asked.get(room).is_some_and(|&(until_ms, made)| now_ms < until_ms && (made || !makes)) {
        return;
    }
    if rim.states.asked.len() >= ASKED_MAX {
        rim.states.asked.retain(|_, (until_ms, _)| now_ms < *until_ms);
    }
    if rim.states.asked.len() < ASKED_MAX && rim.control.offer(Event::RoomMiss(class, room.into(), makes)) {
        rim.states.asked.insert(room.into(), (now_ms + PARKED_MS, makes));
    }
}
