//! A shard's handling of route messages: it joins the cluster, and its broker leads, follows or waits.
//! `routes` sends them.

use crate::control::Event;
use crate::control::routes::{RouteMail, UnusedRooms};
use crate::io::context::Rim;
use crate::io::core::Core;
use crate::io::log_lines::Level;
use hubsub_route::Leader;
use hubsub_route::relay::limits::PARKED_MS;
use hubsub_types::class::ClassIndex;
use hubsub_types::{ConnKey, ShardId};

/// Limit of lookups pending at the control plane, which handles some thousands per batch.
const ASKED_MAX: usize = 65_536;

impl Core {
    pub fn route_mail(&mut self, mail: RouteMail) {
        match mail {
            RouteMail::Join => self.join_cluster(),
            // They were applied before this batch of mail.
            RouteMail::Classes => {}
            RouteMail::Leaders(rows) => {
                for (hub, term, leader) in rows {
                    if leader == Leader::Me
                        && let Some(log) = &mut self.rim.states.log
                    {
                        log.leads(hub, term);
                    }
                    self.broker.route(hub, term, leader, self.rim.now, &mut self.rim);
                }
            }
            RouteMail::Serves(rows) => {
                for (hub, serves) in rows {
                    self.broker.serve_alone(hub, serves, self.rim.now, &mut self.rim);
                }
            }
            RouteMail::Rooms(class, rooms) => {
                for (room, _) in rooms.iter() {
                    self.rim.states.asked.remove(room);
                }
                self.broker.rooms_placed(class, &rooms, self.rim.now, &mut self.rim);
            }
            RouteMail::Refused(rooms, code) => {
                for room in rooms.iter() {
                    self.rim.states.asked.remove(room);
                    self.broker.room_refused(room, code, self.rim.now, &mut self.rim);
                }
            }
            RouteMail::Absent(rooms) => {
                for room in rooms.iter() {
                    if let Some((_, false)) = self.rim.states.asked.get(room) {
                        self.rim.states.asked.remove(room);
                    }
                    self.broker.room_absent(room, &mut self.rim);
                }
            }
            RouteMail::Unused(question) => self.answer_unused(question),
            RouteMail::Miss(class, room, makes) => self.rim.ask_for_room(class, &room, makes),
        }
    }

    /// Gives up unused rooms, in one turn, so that no shard sees a partial state: every shard has the mail
    /// before the control plane gets the response, and thus before it places such a room again. If the table
    /// is being changed, or this shard's hubs or classes are out of date, none is given up and the request is
    /// repeated.
    fn answer_unused(&mut self, UnusedRooms { ticket, of, rooms, gives_up, changes }: UnusedRooms) {
        if !gives_up {
            let unused = self.broker.unused_rooms(of, rooms, &self.rim);
            return self.rim.control.tell(Event::Unused(ticket, unused));
        }
        let (broker, rim) = (&mut self.broker, &mut self.rim);
        let given_up = changes.try_make(|| {
            // Checked under the lock: a table that was replaced must send nothing more.
            let is_now = broker.topics.has_hubs(&rim.classes.hubs());
            let rooms = if is_now { rooms } else { Vec::new() };
            broker.give_up_rooms(of, rooms, rim)
        });
        let names = given_up.iter().flat_map(|rooms| rooms.iter()).map(|(room, _)| room.clone()).collect();
        self.rim.control.tell(Event::Unused(ticket, names));
    }

    /// Moves rooms to their homes in the cluster. Clients should connect later; earlier ones are closed.
    fn join_cluster(&mut self) {
        let keys: Vec<ConnKey> = self.rim.conns.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.broker.disconnected(key, self.rim.now, &mut self.rim);
            self.broker.connected(key);
            self.rim.log_conn(Level::Info, "client was too early", key, Vec::new());
            self.rim.close_now(key);
        }
        self.rim.classes_seen = self.rim.classes.changes();
        let (classes, hubs) = self.rim.classes.both();
        self.broker.join_as(&classes, hubs);
    }
}

impl Rim {
    /// Looks a room up at the control plane, through shard 0, once while the response is awaited; again if it
    /// is now to get a place.
    pub(crate) fn ask_for_room(&mut self, class: ClassIndex, room: &[u8], makes: bool) {
        if self.shard != ShardId(0) {
            return self.mailer.post(ShardId(0), RouteMail::Miss(class, room.into(), makes));
        }
        let now_ms = self.now.mono_ms;
        if self.states.asked.get(room).is_some_and(|&(until_ms, made)| now_ms < until_ms && (made || !makes))
        {
            return;
        }
        if self.states.asked.len() >= ASKED_MAX {
            self.states.asked.retain(|_, (until_ms, _)| now_ms < *until_ms);
        }
        if self.states.asked.len() < ASKED_MAX
            && self.control.offer(Event::RoomMiss(class, room.into(), makes))
        {
            self.states.asked.insert(room.into(), (now_ms + PARKED_MS, makes));
        }
    }
}
