//! This shard's responses to questions.

use super::clients::{client_info, is_meant};
use super::listings::Listing;
use crate::io::core::Core;
use crate::io::log_lines::Level;
use crate::io::questions::{ClientInfo, Listed, Part, Question};
use crate::log::Wanted;
use hubsub_route::rooms::RoomHandle;
use hubsub_route::{Ask, Busy, RoomInfo};
use hubsub_types::{ConnKey, ErrorCode};

/// Interval at which the counts of busy rooms halve, in s.
pub const FADE_S: u64 = 10;

/// This shard's response to a request; `None` if the log must be read for it, which sends the response
/// later.
pub(crate) fn part(core: &mut Core, question: &Question, ask: Ask) -> Option<Part> {
    let now = core.rim.now;
    if question.room().is_some_and(|room| core.broker.is_outside(room)) {
        return Some(Part::Refused(ErrorCode::HubClosed));
    }
    match question {
        Question::Row(query) if !core.broker.reaches(&query.room) => {
            Some(Part::Refused(ErrorCode::HubClosed))
        }
        Question::History(query) | Question::Row(query) => {
            let past = core.broker.history(query, ask, now, &mut core.rim);
            past.map_or_else(|refused| Some(Part::Refused(refused)), |part| part.map(Part::History))
        }
        Question::DeleteRoom(name) => {
            let deleted = core.broker.delete_room(name, ask, now, &mut core.rim);
            deleted.transpose().map(|deleted| Part::Number(deleted.map(u64::from)))
        }
        Question::Members(room) => crate::presence::asked(core, room, ask),
        Question::Rooms(glob, after, limit) => {
            let wanted = Wanted { glob: glob.clone(), after: after.clone(), limit: *limit };
            crate::shard::listings::list(core, Listing::rooms(wanted), ask)
        }
        Question::Topics(namespace, glob, bytes_max) => {
            crate::shard::listings::list(core, Listing::topics(*namespace, glob.as_deref(), *bytes_max), ask)
        }
        _ => Some(part_at_once(core, question)),
    }
}

fn part_at_once(core: &mut Core, question: &Question) -> Part {
    let now = core.rim.now;
    match question {
        Question::TopicCounts(namespace, topics) => {
            let count = |topic: &Vec<u8>| {
                let id = core.broker.topics.find(*namespace, topic);
                id.map_or(0, |id| core.broker.topics.get(id).subs.len() as u64)
            };
            Part::Counts(topics.iter().map(count).collect())
        }
        Question::Clients(filter, bytes_max) => {
            let conns = core.rim.conns.iter().filter(|(key, conn)| is_meant(core, filter, *key, conn));
            let infos = conns.map(|(key, conn)| client_info(core, key, conn));
            at_most(infos, *bytes_max, ClientInfo::line_bytes).map_or(Part::TooLong, Part::Clients)
        }
        Question::KillClients(filter, reason) => {
            let conns = core.rim.conns.iter().filter(|(key, conn)| is_meant(core, filter, *key, conn));
            let keys: Vec<ConnKey> = conns.map(|(key, _)| key).collect();
            for &key in &keys {
                let fields = vec![("reason", reason.clone())];
                core.rim.log_conn(Level::Info, "client killed", key, fields);
                core.rim.close_now(key);
            }
            Part::Number(Ok(keys.len() as u64))
        }
        Question::Consumers => Part::Consumers(core.broker.consumers(&core.rim)),
        Question::ForgetConsumer(source) => Part::Number(Ok(u64::from(core.broker.forget_consumer(source)))),
        Question::Room(name, create) => {
            if let Some(refused) = core.broker.refuses_past(name, &core.rim) {
                return Part::Rooms(Err(refused));
            }
            let classes = core.broker.classes();
            let remembers = classes.get(classes.class_of_room(name)).history.is_some();
            let rooms = &mut core.broker.rooms;
            let found = if *create && remembers {
                let log = core.rim.states.log.as_ref();
                rooms.create(name, now, |hub| log.and_then(|log| log.recall(hub, name))).map(Some)
            } else {
                Ok(rooms.find(name))
            };
            Part::Rooms(found.map(|room| known(core, name, room).into_iter().collect()))
        }
        Question::Occupancy(room) => Part::Occupancy(core.broker.occupancy_of(room)),
        Question::Sessions(id, after, limit) => {
            Part::Sessions(crate::mqtt::list_sessions(core, id.as_deref(), after.as_deref(), *limit))
        }
        Question::EndSession(id) => Part::Number(Ok(crate::mqtt::end_session(core, id))),
        Question::Rooms(..)
        | Question::Topics(..)
        | Question::DeleteRoom(_)
        | Question::History(_)
        | Question::Row(_)
        | Question::Members(_) => {
            unreachable!("`part` has answered it")
        }
        Question::Busiest(limit) => {
            // Counts halve each interval, so a steady rate settles between one and two intervals' worth.
            let rate = |count: u64| count as f64 / (1.5 * FADE_S as f64);
            let rates = |busy: Busy| [busy.publishes, busy.bytes_in, busy.bytes_out].map(rate);
            let rooms = core.broker.busiest.busiest(*limit).into_iter();
            Part::Busiest(rooms.map(|(room, busy)| (room, rates(busy))).collect())
        }
    }
}

/// A room as held in memory, else as recorded in its hub's log.
fn known(core: &Core, name: &[u8], room: Option<RoomHandle>) -> Option<Listed> {
    let rooms = &core.broker.rooms;
    match room {
        Some(room) if rooms.is_gone(room) => None,
        Some(room) => room_info(core, room).map(Listed::Here),
        None => {
            let (hub, log) = (rooms.log_of_name(name)?, core.rim.states.log.as_ref()?);
            log.room(hub.id, name).map(Listed::InLog)
        }
    }
}

fn room_info(core: &Core, room: RoomHandle) -> Option<RoomInfo> {
    core.broker.rooms.info(room, core.rim.shard, core.rim.now)
}

/// Collects all items if their bytes total at most `bytes_max`, else `None`.
fn at_most<T>(all: impl Iterator<Item = T>, bytes_max: u64, bytes: impl Fn(&T) -> u64) -> Option<Vec<T>> {
    let (mut some, mut sum) = (Vec::new(), 0);
    for one in all {
        sum += bytes(&one);
        if sum > bytes_max {
            return None;
        }
        some.push(one);
    }
    Some(some)
}
