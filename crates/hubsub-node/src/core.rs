//! A shard's broker with its I/O context: commands and mail act on both.

use crate::conn::{Conn, Flags};
use crate::listings::Listing;
use crate::log::{OpenedHub, Wanted};
use crate::mail::{ClientFilter, ClientInfo, Listed, Mail, Part, Question};
use crate::rim::{Rim, TURN_BYTES, Timer};
use crate::transport::Transport;
use hubsub_route::hubs::HubLog;
use hubsub_route::rooms::RoomHandle;
use hubsub_route::{Ask, Broker, Busy, Namespace, RoomInfo};
use hubsub_types::{ConnKey, ErrorCode};
use std::sync::Arc;

pub struct Core {
    pub broker: Broker,
    pub rim: Rim,
}

/// Interval at which the counts of busy rooms halve, in s.
pub const FADE_S: u64 = 10;

impl Core {
    pub fn receive(&mut self, mail: Mail) {
        match mail {
            Mail::Broker(msg) => self.broker.receive(msg, self.rim.now, &mut self.rim),
            Mail::Safe(hubs) => {
                self.rim.expects_more = true;
                for (hub, offset) in hubs {
                    self.broker.logged(hub, offset, self.rim.now, &mut self.rim);
                }
            }
            Mail::HubOpened(opened) => self.hub_opened(*opened),
            Mail::HubCloses(hub, told) => {
                if let Some(log) = &mut self.rim.log {
                    log.closes(hub);
                }
                // The receiver may have given up.
                let _ = told.send(());
            }
            Mail::HubClosed(hub) => {
                if let Some(log) = &mut self.rim.log {
                    log.closed(hub);
                }
            }
            Mail::LogFailed => self.broker.log_failed(self.rim.now, &mut self.rim),
            Mail::Found(read, found) => {
                if let Some(log) = &mut self.rim.log {
                    log.answered(matches!(read.then, hubsub_route::Then::Range(_)));
                }
                self.broker.log_read(*read, found, self.rim.now, &mut self.rim);
            }
            Mail::FoundHub(asked, found) => {
                if let Some(log) = &mut self.rim.log {
                    log.answered(true);
                }
                self.broker.hub_log_read(*asked, found, self.rim.now, &mut self.rim);
            }
            Mail::Ask { from, gathering, question } => self.answer_question(from, gathering, &question),
            Mail::Part { gathering, part } => self.rim.gather(gathering, part),
            Mail::Request(ticket, request) => self.request(ticket, request),
            Mail::Limits(limits) => {
                self.broker.set_limits((*limits).clone());
                self.rim.limits = (*limits).clone();
                self.rim.phoenix_rules = crate::phoenix::rules(&self.rim.info, &limits);
                self.rim.links.limits = Arc::new(crate::link::limits(&limits));
            }
            Mail::Link(mail) => self.link_mail(mail),
            Mail::Lead(mail) => self.lead_mail(mail),
            Mail::Mqtt(mail) => crate::mqtt::receive(self, mail),
            Mail::Presence(mail) => crate::presence::receive(self, mail),
            Mail::Poll(mail) => crate::http::receive(self, mail),
            Mail::PartFromSessions => self.rim.is_leaving = true,
            Mail::Route(mail) => self.route_mail(mail),
            Mail::Roster(new) => crate::redis::cluster::learn(self, &new),
            Mail::RosterKnown(roster) => crate::redis::cluster::follow(self, &roster),
            Mail::Stop(_) | Mail::Accept | Mail::Travel(_) => unreachable!("the shard takes these out"),
        }
    }

    /// Adds a hub that was opened on this shard. Its log must exist before the broker learns of the hub.
    fn hub_opened(&mut self, opened: OpenedHub) {
        let OpenedHub { hub, seed, producers, rows } = opened;
        if let Some(log) = &mut self.rim.log {
            log.opened(seed.id, hub);
        }
        self.broker.open_log(&seed, producers.unwrap_or_default());
        self.broker.set_rows(seed.id, rows);
    }

    /// Writes what this turn produced. Mail goes first, so that a client never sees an effect before the
    /// other shards know of it. Lagging connections that have room get their next records, which the next
    /// turn writes.
    pub fn flush(&mut self) {
        crate::mqtt::learn_ends(self);
        crate::mqtt::read_retained(self);
        crate::presence::tell_changed(self);
        if let Some(log) = &mut self.rim.log {
            log.flush();
        }
        self.rim.mailer.flush();
        self.rim.links.flush(&self.rim.metrics);
        self.rim.lagging = !self.broker.cursors.is_empty();
        self.rim.flush();
        let mut drained = std::mem::take(&mut self.rim.drained).into_iter();
        // The rest is handled after this batch is written, so that many lagging clients do not exceed a
        // turn's memory.
        while self.rim.turn_bytes() <= TURN_BYTES
            && let Some(key) = drained.next()
        {
            self.rim.pump_slots(key);
            self.rim.pump_mqtt(key);
            crate::mqtt::read_on(self, key);
            if self.rim.conns.get(key).is_some() && self.broker.cursors.has(key.index) {
                self.broker.drained(key, self.rim.now, &mut self.rim);
            }
        }
        self.rim.drained.extend(drained);
        for key in std::mem::take(&mut self.rim.polled) {
            crate::http::tell(self, key);
        }
        self.rim.mailer.flush();
    }

    /// Whether there is output that the next turn must write.
    #[must_use]
    pub fn has_more(&self) -> bool {
        !self.rim.dirty.is_empty()
            || !self.rim.drained.is_empty()
            || !self.rim.polled.is_empty()
            || !self.rim.answered.is_empty()
            || !self.rim.listings.is_empty()
            || self.rim.own.has_work()
            || self.broker.occupancy.has_changed()
            || self.rim.links.has_work()
    }

    /// Removes connections that are marked for closing and have no output left. Returns the sockets of
    /// clients that were sent a reason; they are closed later ([`crate::parting`]).
    pub fn reap(&mut self) -> Vec<Transport> {
        self.close_debtors();
        let (mut waiting, mut gone, mut told) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(key) = self.rim.closing.pop() {
            let Some(conn) = self.rim.conns.get(key) else { continue };
            let has_output = conn.output.as_ref().is_some_and(|o| !o.is_idle());
            if has_output && !conn.flags.any(Flags::CLOSE_NOW) {
                waiting.push(key);
                continue;
            }
            let outlives = conn.mqtt.as_ref().is_some_and(|client| client.outlives());
            let left = if outlives {
                self.rim.conns.vacate(key)
            } else {
                self.broker.disconnected(key, self.rim.now, &mut self.rim);
                self.rim.conns.remove(key)
            };
            let mut conn = left.expect("it was there a moment ago");
            if let Some(output) = &conn.output {
                self.rim.output_bytes -= output.queue_bytes + output.slot_bytes + output.long_bytes;
                self.rim.reply_bytes -= output.counted_replies;
            }
            self.rim.input_bytes -= conn.unfinished_bytes();
            let was_told = (conn.mqtt.as_ref().is_some_and(|client| client.was_told)
                || conn.phoenix.as_ref().is_some_and(|client| client.was_told)
                || conn.extra.as_ref().is_some_and(|extra| extra.was_told)
                || conn.io.is_http())
                && !conn.flags.any(Flags::CLOSE_NOW.or(Flags::ENDED));
            if let Some(client) = conn.mqtt.take() {
                crate::mqtt::gone(self, key, client, outlives);
            }
            self.rim.phoenix_clients -= usize::from(conn.phoenix.is_some());
            crate::presence::ends(self, key);
            self.broker.publisher_gone(key.index);
            self.rim.events_clients -= usize::from(conn.io.is_events());
            if let Some(extra) = &mut conn.extra {
                crate::consumers::give_away(self, std::mem::take(&mut extra.consumed));
            }
            if let Transport::Polled(polled) = conn.io {
                crate::http::ended(self, key, *polled);
                self.rim.info.connections.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
                continue;
            }
            conn.io.leave();
            if was_told {
                told.push(conn.io);
            } else {
                gone.push(conn);
            }
            self.rim.info.connections.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        }
        self.rim.closing = waiting;
        // Once a client's end is visible, no other shard may still count it.
        self.rim.mailer.flush();
        drop(gone);
        told
    }

    /// Gives closing connections at most `linger_ms` to take their output.
    pub fn linger(&mut self, linger_ms: u64) {
        let due_ms = self.rim.now.mono_ms + linger_ms;
        for &key in &self.rim.closing {
            if let Some(conn) = self.rim.conns.get_mut(key)
                && !conn.flags.any(Flags::LINGERS)
            {
                conn.flags.set(Flags::LINGERS, true);
                self.rim.timers.set(due_ms, Timer::Linger(key));
            }
        }
    }

    /// Updates the gauges that are not maintained incrementally.
    pub fn set_gauges(&self) {
        let (broker, metrics) = (&self.broker, &self.rim.metrics);
        let (history_bytes, history_records) = broker.rooms.history_size();
        let gauges = [
            (&metrics.connections, self.rim.conns.len() as u64),
            (&metrics.mqtt_connections, self.rim.mqtt_clients as u64),
            (&metrics.phoenix_connections, self.rim.phoenix_clients as u64),
            (&metrics.events_connections, self.rim.events_clients as u64),
            (&metrics.longpoll_sessions, self.rim.polled_clients as u64),
            (&metrics.mqtt_large_bytes, self.rim.long_messages.bytes() as u64),
            (&metrics.mqtt_subscriptions, self.rim.mqtt_subscriptions as u64),
            (&metrics.mqtt_sessions, (self.rim.sessions.connected + self.rim.sessions.absent()) as u64),
            (&metrics.mqtt_sessions_incomplete, self.rim.sessions.lacking() as u64),
            (&metrics.mqtt_session_ends_pending, self.rim.sessions.endings_pending() as u64),
            (&metrics.listings, self.rim.listings.len() as u64),
            (&metrics.retained_unread, self.rim.unread.len() as u64),
            (&metrics.rooms, broker.rooms.len() as u64),
            (&metrics.rooms_logged, self.rooms_logged()),
            (&metrics.topics, broker.topics.len() as u64),
            (&metrics.channels, broker.rooms.subscribed(Namespace::Global)),
            (&metrics.shard_channels, broker.rooms.subscribed(Namespace::Shard)),
            (&metrics.presence_members, self.rim.presence.edge.members()),
            (&metrics.presence_rooms, self.rim.presence.rooms() as u64),
            (&metrics.presence_unlisted_total, self.rim.presence.unlisted()),
            (&metrics.presence_records_waiting, self.rim.presence.records.waiting()),
            (&metrics.presence_records_lost_total, self.rim.presence.records.lost),
            (&metrics.publishers_uncounted_total, broker.occupancy.uncounted()),
            (&metrics.patterns, broker.patterns.len() as u64),
            (&metrics.patterns_search, broker.patterns.search() as u64),
            (&metrics.patterns_bytes, (broker.patterns.bytes() + broker.groups.table.bytes()) as u64),
            (&metrics.cursors, broker.cursors.behind() as u64),
            (&metrics.stalled, broker.stalled() as u64),
            (&metrics.unlogged, broker.unlogged() as u64),
            (&metrics.log_reads_blocked, self.rim.log.as_ref().map_or(0, |log| log.waiting() as u64)),
            (&metrics.retained_messages, self.broker.rows_size().0),
            (&metrics.retained_bytes, self.broker.rows_size().1),
            (&metrics.retained_refused_total, broker.retained_refused),
            (&metrics.history_records, history_records),
            (&metrics.history_bytes, history_bytes),
            (&metrics.history_expired_total, broker.rooms.expired),
            (&metrics.rooms_refused_total, broker.rooms.refused),
            (&metrics.catch_ups_total, broker.catch_ups),
            (&metrics.groups, broker.groups.table.len() as u64),
            (&metrics.shares_delivered_total, broker.groups.given),
            (&metrics.shares_redelivered_total, broker.groups.given_again),
            (&metrics.shares_lost_total, broker.groups.lost),
            (&metrics.consumers_redelivered_total, broker.consumers_given_again),
            (&metrics.consumers_missed_total, broker.consumers_missed),
            (&metrics.consumers_full_total, broker.consumers_full),
            (&metrics.output_bytes, self.rim.output_bytes as u64),
            (&metrics.reply_bytes, self.rim.reply_bytes as u64),
            (&metrics.input_bytes, self.rim.input_bytes as u64),
            (&metrics.pool_bytes, self.rim.pool_bytes() as u64),
            (&metrics.waiting_bytes, crate::shared::waiting_bytes() as u64),
            (&metrics.connections_bytes, (self.rim.conns.bytes() + broker.clients_bytes()) as u64),
            (&metrics.rooms_bytes, broker.rooms.table_bytes() as u64),
            (&metrics.topics_bytes, broker.topics.table_bytes() as u64),
            (&metrics.mailbox_bytes, self.rim.mailer.own().bytes() as u64),
        ];
        gauges.iter().for_each(|(gauge, value)| gauge.set(*value));
    }

    /// This shard's response to a request; `None` if the log must be read for it, which sends the response
    /// later.
    pub fn part(&mut self, question: &Question, ask: Ask) -> Option<Part> {
        let now = self.rim.now;
        if question.room().is_some_and(|room| self.broker.is_outside(room)) {
            return Some(Part::Refused(ErrorCode::HubClosed));
        }
        match question {
            Question::Row(query) if !self.broker.reaches(&query.room) => {
                Some(Part::Refused(ErrorCode::HubClosed))
            }
            Question::History(query) | Question::Row(query) => {
                let past = self.broker.history(query, ask, now, &mut self.rim);
                past.map_or_else(|refused| Some(Part::Refused(refused)), |part| part.map(Part::History))
            }
            Question::DeleteRoom(name) => {
                let deleted = self.broker.delete_room(name, ask, now, &mut self.rim);
                deleted.transpose().map(|deleted| Part::Number(deleted.map(u64::from)))
            }
            Question::Members(room) => crate::presence::asked(self, room, ask),
            Question::Rooms(glob, after, limit) => {
                let wanted = Wanted { glob: glob.clone(), after: after.clone(), limit: *limit };
                self.list(Listing::rooms(wanted), ask)
            }
            Question::Topics(namespace, glob, bytes_max) => {
                self.list(Listing::topics(*namespace, glob.as_deref(), *bytes_max), ask)
            }
            _ => Some(self.part_at_once(question)),
        }
    }

    fn part_at_once(&mut self, question: &Question) -> Part {
        let now = self.rim.now;
        match question {
            Question::TopicCounts(namespace, topics) => {
                let count = |topic: &Vec<u8>| {
                    let id = self.broker.topics.find(*namespace, topic);
                    id.map_or(0, |id| self.broker.topics.get(id).subs.len() as u64)
                };
                Part::Counts(topics.iter().map(count).collect())
            }
            Question::Clients(filter, bytes_max) => {
                let conns = self.rim.conns.iter().filter(|(key, conn)| self.is_meant(filter, *key, conn));
                let infos = conns.map(|(key, conn)| self.client_info(key, conn));
                at_most(infos, *bytes_max, ClientInfo::line_bytes).map_or(Part::TooLong, Part::Clients)
            }
            Question::KillClients(filter, reason) => {
                let conns = self.rim.conns.iter().filter(|(key, conn)| self.is_meant(filter, *key, conn));
                let keys: Vec<ConnKey> = conns.map(|(key, _)| key).collect();
                for &key in &keys {
                    let fields = vec![("reason", reason.clone())];
                    self.rim.log_conn(crate::control::Level::Info, "client killed", key, fields);
                    self.rim.close_now(key);
                }
                Part::Number(Ok(keys.len() as u64))
            }
            Question::Consumers => Part::Consumers(self.broker.consumers(&self.rim)),
            Question::ForgetConsumer(source) => {
                Part::Number(Ok(u64::from(self.broker.forget_consumer(source))))
            }
            Question::Room(name, create) => {
                if let Some(refused) = self.broker.refuses_past(name, &self.rim) {
                    return Part::Rooms(Err(refused));
                }
                let classes = self.broker.classes();
                let remembers = classes.get(classes.class_of_room(name)).history.is_some();
                let rooms = &mut self.broker.rooms;
                let found = if *create && remembers {
                    let log = self.rim.log.as_ref();
                    rooms.create(name, now, |hub| log.and_then(|log| log.recall(hub, name))).map(Some)
                } else {
                    Ok(rooms.find(name))
                };
                Part::Rooms(found.map(|room| self.known(name, room).into_iter().collect()))
            }
            Question::Occupancy(room) => Part::Occupancy(self.broker.occupancy_of(room)),
            Question::Sessions(id, after, limit) => {
                Part::Sessions(crate::mqtt::list_sessions(self, id.as_deref(), after.as_deref(), *limit))
            }
            Question::EndSession(id) => Part::Number(Ok(crate::mqtt::end_session(self, id))),
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
                let rooms = self.broker.busiest.busiest(*limit).into_iter();
                Part::Busiest(rooms.map(|(room, busy)| (room, rates(busy))).collect())
            }
        }
    }

    /// A room as held in memory, else as recorded in its hub's log.
    fn known(&self, name: &[u8], room: Option<RoomHandle>) -> Option<Listed> {
        let rooms = &self.broker.rooms;
        match room {
            Some(room) if rooms.is_gone(room) => None,
            Some(room) => self.room_info(room).map(Listed::Here),
            None => {
                let (hub, log) = (rooms.log_of_name(name)?, self.rim.log.as_ref()?);
                log.room(hub.id, name).map(Listed::InLog)
            }
        }
    }

    fn rooms_logged(&self) -> u64 {
        self.rim.log.as_ref().map_or(0, |log| log.count_rooms(self.hub_logs().map(|hub| hub.id)))
    }

    pub(crate) fn hub_logs(&self) -> impl Iterator<Item = &HubLog> {
        self.broker.rooms.hubs.iter().filter_map(|hub| hub.log.as_ref())
    }

    fn room_info(&self, room: RoomHandle) -> Option<RoomInfo> {
        self.broker.rooms.info(room, self.rim.shard, self.rim.now)
    }

    /// Whether a connection matches a filter.
    pub fn is_meant(&self, filter: &ClientFilter, key: ConnKey, conn: &Conn) -> bool {
        let is = |wanted: &Option<String>, is: String| wanted.as_ref().is_none_or(|w| *w == is);
        !conn.is_closing()
            && (filter.ids.is_empty() || filter.ids.binary_search(&conn.id).is_ok())
            && (filter.client_ids.is_empty()
                || conn.mqtt.as_ref().is_some_and(|c| c.is_any_of(&filter.client_ids)))
            && filter.except != Some(conn.id)
            && u64::from(self.rim.second().saturating_sub(conn.created_s)) >= filter.age_s_min
            && filter.user.as_ref().is_none_or(|user| user == "default")
            && filter.kind.as_ref().is_none_or(|kind| kind == self.kind(key))
            && (filter.addr.is_none() || is(&filter.addr, address(conn.io.peer())))
            && (filter.laddr.is_none() || is(&filter.laddr, address(conn.io.local())))
    }

    /// The client type that Redis would report.
    fn kind(&self, key: ConnKey) -> &'static str {
        let (topics, patterns, shard) = self.broker.counts(key);
        if topics + patterns + shard > 0 { "pubsub" } else { "normal" }
    }

    /// The details of a connection that CLIENT LIST and the API show.
    pub fn client_info(&self, key: ConnKey, conn: &Conn) -> ClientInfo {
        let (topics, patterns, shard) = self.broker.counts(key);
        let second = self.rim.second();
        let rates = conn.meter.rates(second);
        let extra = conn.extra.as_deref();
        let multi = extra.and_then(|e| e.transaction.as_ref()).map(|t| t.commands.len() as u64);
        let mut flags = String::new();
        let marks = [('P', topics + patterns + shard > 0), ('x', multi.is_some())];
        let more = [('e', conn.flags.any(Flags::NO_EVICT)), ('T', conn.flags.any(Flags::NO_TOUCH))];
        flags.extend(marks.iter().chain(&more).filter(|(_, on)| *on).map(|(c, _)| c));
        if flags.is_empty() {
            flags.push('N');
        }
        let output = conn.output.as_deref();
        let machine = conn.mqtt.as_ref().map(|client| &client.machine);
        let pending = conn.mqtt.as_ref().map(|client| &client.pending);
        ClientInfo {
            id: conn.id,
            shard: self.rim.shard.0,
            addr: address(conn.io.peer()),
            laddr: address(conn.io.local()),
            descriptor: conn.io.descriptor(),
            name: match machine {
                Some(machine) => machine.client_id().to_owned(),
                None => extra.map_or_else(String::new, |e| e.name.to_string()),
            },
            lib_name: extra.map_or_else(String::new, |e| e.lib_name.to_string()),
            lib_ver: extra.map_or_else(String::new, |e| e.lib_ver.to_string()),
            protocol: conn.protocol(),
            age_s: u64::from(second - conn.created_s.min(second)),
            idle_s: u64::from(second - conn.active_s.min(second)),
            flags,
            subscriptions: topics as u64,
            patterns: patterns as u64,
            shard_subscriptions: shard as u64,
            multi,
            query_bytes: conn.input.as_ref().map_or(0, |i| i.bytes.len() as u64),
            pending_bytes: (output.map_or(0, |o| o.pending_bytes()) + pending.map_or(0, |p| p.bytes()))
                as u64,
            pending_frames: (output.map_or(0, |o| o.queue.len() + o.slots.len())
                + pending.map_or(0, |p| p.len())) as u64,
            keep_alive_s: machine.map_or(0, |m| m.keep_alive_s()),
            inflight: machine.map_or(0, |m| m.window.len() as u64),
            inflight_max: machine.map_or(0, |m| m.window.size() as u64),
            waiting: pending.map_or(0, |p| p.len() as u64),
            dropped: extra.map_or(0, |e| e.dropped),
            lagging: self.broker.cursors.count(key.index) as u64,
            command: crate::redis::command_name(conn.command),
            totals: conn.meter.totals,
            per_second: rates.second,
            per_minute: rates.minute,
        }
    }

    /// Number of a connection's subscriptions in a namespace, on this shard.
    #[must_use]
    pub fn subscriptions(&self, key: ConnKey, namespace: Namespace) -> usize {
        let (topics, patterns, shard) = self.broker.counts(key);
        if namespace == Namespace::Shard { shard } else { topics + patterns }
    }

    /// Counts a refused publish or subscription.
    pub fn count_refusal(&self, is_publish: bool) {
        let metrics = &self.rim.metrics;
        if is_publish {
            metrics.publishes_refused_total.add(1)
        } else {
            metrics.subscriptions_refused_total.add(1)
        }
    }
}

fn address(address: Option<std::net::SocketAddr>) -> String {
    address.map_or_else(|| "?:0".to_owned(), |a| a.to_string())
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
