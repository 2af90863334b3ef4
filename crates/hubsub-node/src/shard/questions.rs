//! This shard's responses to questions.

use super::clients::{client_info, is_meant};
use super::state::listings::Listing;
use crate::context::Ctx;
use crate::io::log_lines::Level;
use crate::io::questions::{ClientInfo, Listed, Part, Question, TraceStep, TraceSteps};
use crate::log::Wanted;
use hubsub_route::rooms::RoomHandle;
use hubsub_route::traces::Window;
use hubsub_route::{Ask, Busy, Namespace};
use hubsub_types::{ConnKey, ErrorCode};

/// Interval at which the counts of busy rooms halve, in s.
pub const FADE_S: u64 = 10;

/// This shard's response to a request; `None` if the log must be read for it, which sends the response
/// later.
pub(crate) fn part(ctx: &mut Ctx, question: &Question, ask: Ask) -> Option<Part> {
    let now = ctx.io.now;
    if question.room().is_some_and(|room| ctx.broker.is_outside(room)) {
        return Some(Part::Refused(ErrorCode::HubClosed));
    }
    Some(match question {
        Question::Row(query) if !ctx.broker.reaches(&query.room) => Part::Refused(ErrorCode::HubClosed),
        Question::History(query) | Question::Row(query) => {
            let past = ctx.broker.history(query, ask, now, &mut ctx.io);
            past.map_or_else(|refused| Some(Part::Refused(refused)), |part| part.map(Part::History))?
        }
        Question::DeleteRoom(name) => {
            let deleted = ctx.broker.delete_room(name, ask, now, &mut ctx.io).transpose()?;
            Part::Number(deleted.map(u64::from))
        }
        Question::Members(room) => crate::presence::asked(ctx, room, ask)?,
        Question::Rooms(glob, after, limit) => {
            let wanted = Wanted { glob: glob.clone(), after: after.clone(), limit: *limit };
            crate::shard::listings::list(ctx, Listing::rooms(wanted), ask)?
        }
        Question::Topics(namespace, glob, bytes_max) => {
            crate::shard::listings::list(ctx, Listing::topics(*namespace, glob.as_deref(), *bytes_max), ask)?
        }
        Question::TopicCounts(namespace, topics) => {
            let count = |topic: &Vec<u8>| {
                let id = ctx.broker.topics.find(*namespace, topic);
                id.map_or(0, |id| ctx.broker.topics.get(id).subs.len() as u64)
            };
            Part::Counts(topics.iter().map(count).collect())
        }
        Question::Clients(filter, bytes_max) => {
            let conns = ctx.io.conns.iter().filter(|(key, conn)| is_meant(ctx, filter, *key, conn));
            let infos = conns.map(|(key, conn)| client_info(ctx, key, conn));
            at_most(infos, *bytes_max, ClientInfo::line_bytes).map_or(Part::TooLong, Part::Clients)
        }
        Question::KillClients(filter, reason) => {
            let conns = ctx.io.conns.iter().filter(|(key, conn)| is_meant(ctx, filter, *key, conn));
            let keys: Vec<ConnKey> = conns.map(|(key, _)| key).collect();
            for &key in &keys {
                let fields = vec![("reason", reason.clone())];
                ctx.io.log_conn(Level::Info, "client killed", key, fields);
                ctx.io.close_now(key);
            }
            Part::Number(Ok(keys.len() as u64))
        }
        Question::Consumers => Part::Consumers(ctx.broker.consumers(&ctx.io)),
        Question::ForgetConsumer(source) => Part::Number(Ok(u64::from(ctx.broker.forget_consumer(source)))),
        Question::Room(name, create) => {
            if let Err(refused) = ctx.broker.check_past(name, &ctx.io) {
                return Some(Part::Rooms(Err(refused)));
            }
            let classes = ctx.broker.classes();
            let remembers = classes.get(classes.class_of_room(name)).history.is_some();
            let rooms = &mut ctx.broker.rooms;
            let found = if *create && remembers {
                let log = ctx.io.states.log.as_ref();
                rooms.create(name, now, |hub| log.and_then(|log| log.recall(hub, name))).map(Some)
            } else {
                Ok(rooms.find(name))
            };
            Part::Rooms(found.map(|room| known(ctx, name, room).into_iter().collect()))
        }
        Question::Occupancy(room) => Part::Occupancy(ctx.broker.occupancy_of(room)),
        Question::Sessions(id, after, limit) => {
            Part::Sessions(crate::mqtt::list_sessions(ctx, id.as_deref(), after.as_deref(), *limit))
        }
        Question::EndSession(id) => Part::Number(Ok(crate::mqtt::end_session(ctx, id))),
        Question::TraceStart(number, topic, bounds) => {
            let of = (Namespace::Global, &**topic);
            Part::Number(ctx.broker.start_trace(*number, of, *bounds, now).map(|()| 1))
        }
        Question::TraceSteps(number) => {
            let shard = ctx.io.shard;
            let records = ctx.broker.traces.steps(*number).iter();
            let steps = records.flat_map(|traced| {
                traced.steps.iter().map(move |step| TraceStep::new(shard, traced.position, step))
            });
            let Window { after, until, is_full } = ctx.broker.traces.window(*number);
            Part::TraceSteps(TraceSteps { after, until, is_full, steps: steps.collect() })
        }
        Question::TraceEnd(number) => Part::Number(Ok(u64::from(ctx.broker.traces.end(*number)))),
        Question::Busiest(limit) => {
            // Counts halve each interval, so a steady rate settles between one and two intervals' worth.
            let rate = |count: u64| count as f64 / (1.5 * FADE_S as f64);
            let rates = |busy: Busy| [busy.publishes, busy.bytes_in, busy.bytes_out].map(rate);
            let rooms = ctx.broker.busiest.busiest(*limit).into_iter();
            Part::Busiest(rooms.map(|(room, busy)| (room, rates(busy))).collect())
        }
    })
}

/// A room as held in memory, else as recorded in its hub's log.
fn known(ctx: &Ctx, name: &[u8], room: Option<RoomHandle>) -> Option<Listed> {
    let rooms = &ctx.broker.rooms;
    match room {
        Some(room) if rooms.is_gone(room) => None,
        Some(room) => rooms.info(room, ctx.io.shard, ctx.io.now).map(Listed::Here),
        None => {
            let (hub, log) = (rooms.log_of_name(name)?, ctx.io.states.log.as_ref()?);
            log.listing.room(hub.id, name).map(Listed::InLog)
        }
    }
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
