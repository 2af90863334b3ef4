//! One data-plane thread: the event loop.
//!
//! A turn waits for sockets, mail or timers; takes mail; reads and executes (`intake`); continues deferred
//! work; then sends the turn's mail and writes the turn's output. Only the wait blocks.

mod clients;
mod clock;
mod debtors;
pub(crate) mod encoding;
pub(crate) mod events;
mod gauges;
mod intake;
pub(crate) mod internal;
pub(crate) mod listings;
pub(crate) mod mail;
mod questions;
pub(crate) mod room_changes;
mod routing;
mod sink;
pub(crate) mod states;
mod stopping;
mod turn;

use crate::io::conn::Flags;
use crate::io::context::{Rim, TURN_BYTES, Timer};
use crate::io::core::{Core, Hooks};
use crate::io::inbox::Letter;
use crate::io::lingering_close::LingeringClose;
use crate::io::listener::{LISTENERS, Listener};
use crate::io::log_lines::Level;
use crate::io::memory::{self, Peak};
use crate::io::spin::Spin;
use crate::io::transport::Transport;
use crate::link;
use crate::mqtt::Traveller;
use crate::presence;
use crate::shard::stopping::Stopping;
use clock::Clock;
use events::Event;
use hubsub_route::Now;
use hubsub_types::ConnKey;
use hubsub_wire::resp::Decoder;
use intake::READ_BYTES;
use mail::Mail;
use mio::{Events, Interest, Poll, Token};
use questions::FADE_S;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The functions of this floor that protocols call.
pub const HOOKS: Hooks = Hooks {
    flush: turn::flush,
    answer: questions::part,
    ask_members: presence::ask_members,
    set_gauges: gauges::set_gauges,
    is_meant: clients::is_meant,
    client_info: clients::client_info,
};

/// Token of the mailbox; connections use their index in the slab, listeners those from `LISTENERS`.
pub const MAILBOX: Token = Token(usize::MAX);

/// Limit of socket events per turn.
const EVENTS: usize = 1024;

/// A turn stops writing queues once this many bytes are written, so it may exceed them by one queue.
const QUEUED_BYTES: u64 = 64 * 1024;

/// Interval between checks of a shard that lags, in ms.
const CONGESTED_MS: u64 = 1;

/// Interval between checks for remaining work while stopping, in ms.
const STOPPING_MS: u64 = 10;

/// Time that a closing connection has to take its output, in ms.
const LINGER_MS: u64 = 5_000;

pub struct Shard {
    core: Core,
    poll: Poll,
    listeners: Vec<Listener>,
    started: Instant,
    /// Wall time when `started` was taken.
    wall: Duration,
    scratch: Vec<u8>,
    /// An empty buffer for what a connection kept and what it sent since, between two uses.
    joined: Vec<u8>,
    decoder: Decoder,
    /// Connections with input that was not read or not executed.
    ready: Vec<ConnKey>,
    /// Connections with a queue and a writable socket; each once.
    writable: VecDeque<ConnKey>,
    /// Connections whose reading is paused.
    paused: Vec<ConnKey>,
    /// Long-poll sessions whose posted input is not all taken.
    posting: Vec<ConnKey>,
    mail: Vec<Mail>,
    clock: Clock,
    /// Sockets in lingering close.
    lingering: LingeringClose,
    /// Spins briefly between a publish, its log and the next publish.
    spin: Spin,
    /// Decides when to return memory to the system.
    peak: Peak,
    /// Set once the shard is ordered to stop.
    stopping: Option<Stopping>,
}

impl Shard {
    #[must_use]
    pub fn new(core: Core, poll: Poll, listeners: Vec<Listener>, started: Instant) -> Shard {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = wall.saturating_sub(started.elapsed());
        Shard {
            core,
            poll,
            listeners,
            started,
            wall,
            scratch: vec![0; READ_BYTES],
            joined: Vec::new(),
            decoder: Decoder::default(),
            ready: Vec::new(),
            writable: VecDeque::new(),
            paused: Vec::new(),
            posting: Vec::new(),
            mail: Vec::new(),
            clock: Clock::default(),
            lingering: LingeringClose::default(),
            spin: Spin::default(),
            peak: Peak::default(),
            stopping: None,
        }
    }

    /// Runs until the shard is ordered to stop.
    ///
    /// # Errors
    /// The poll failed, which is not recoverable.
    pub fn run(mut self) -> io::Result<()> {
        crate::io::sys::be_prompt();
        let mut events = Events::with_capacity(EVENTS);
        self.core.rim.timers.set(self.core.rim.now.mono_ms + 1000, Timer::Housekeeping);
        while !self.is_done() {
            self.wait(&mut events)?;
            self.take_mail();
            self.take_events(&events);
            self.take_writable();
            crate::link::intake::resume_links(&mut self.core, &mut self.scratch);
            self.take_ready();
            self.take_timers();
            self.core.tick_links();
            self.resume_paused();
            self.take_posted();
            self.core.broker.commit_due(self.core.rim.now, &mut self.core.rim);
            self.core.broker.retry_stalled(self.core.rim.now, &mut self.core.rim);
            internal::take(&mut self.core);
            crate::shard::listings::list_on(&mut self.core);
            self.send_travellers();
            self.core.settle_credit();
            self.clock.split(false);
            turn::flush(&mut self.core);
            let told = turn::reap(&mut self.core);
            self.take_lingering(told);
            // Drained cursors and closed connections send mail, too; it must not wait for the next turn.
            self.core.rim.mailer.flush();
            self.clock.split(true);
            self.end_turn();
        }
        let Core { rim, .. } = self.core;
        rim.control.tell(Event::Stopped(rim.shard.0, None));
        Ok(())
    }

    /// Waits until there is work.
    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        let has_work = !self.ready.is_empty()
            || !self.writable.is_empty()
            || self.listeners.iter().any(|listener| listener.accepts_more)
            || turn::has_more(&self.core)
            || self.may_go_on();
        let expects_more = std::mem::take(&mut self.core.rim.expects_more) && !has_work;
        let is_news = expects_more && self.look_for_more(events)?;
        let timeout_ms = if has_work || is_news || !self.core.rim.mailer.own().may_sleep() {
            Some(0)
        } else {
            let now_ms = self.core.rim.now.mono_ms;
            let due_ms = self.core.broker.next_due_ms().map(|due| due.saturating_sub(now_ms).max(1));
            let is_held_up = self.core.broker.stalled() > 0
                || !self.paused.is_empty()
                || self.core.rim.states.links.holds_credit();
            let congested = is_held_up && self.core.rim.mailer.any_congested();
            let is_waiting = self.core.rim.waits_for_log() || self.core.broker.waits_for_nodes();
            let congested_ms = (congested || is_waiting).then_some(CONGESTED_MS);
            let stop_ms = self.stopping.as_ref().map(|_| STOPPING_MS);
            let timers_ms = self.core.rim.timers.wait_ms(now_ms);
            let links_ms = self.core.rim.states.links.wait_ms();
            let rows_ms = self.core.rim.states.mqtt.rows_pace.wait_ms();
            [due_ms, congested_ms, stop_ms, timers_ms, links_ms, rows_ms].into_iter().flatten().min()
        };
        if !is_news {
            self.poll(events, timeout_ms.map(Duration::from_millis))?;
        }
        self.core.rim.mailer.own().woke();
        if expects_more {
            self.spin.came();
        }
        let passed = self.started.elapsed();
        self.core.rim.now = Now {
            mono_ms: passed.as_millis() as u64,
            wall_us: self.wall.saturating_add(passed).as_micros() as u64,
        };
        self.core.rim.states.links.set_now(passed.as_micros() as u64, self.core.rim.now.wall_us);
        self.clock.begin_turn();
        Ok(())
    }

    /// Spins briefly for mail and socket events, since the disk or a client that got a reply often continues
    /// at once. Returns whether a socket has an event.
    fn look_for_more(&mut self, events: &mut Events) -> io::Result<bool> {
        self.spin.begin();
        while self.core.rim.mailer.own().bytes() == 0 && self.spin.looks_again() {
            self.poll(events, Some(Duration::ZERO))?;
            if !events.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn poll(&mut self, events: &mut Events, wait: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(events, wait) {
            Err(e) if e.kind() != ErrorKind::Interrupted => Err(e),
            _ => Ok(()),
        }
    }

    /// Whether held-up work may continue: the reason may have ended after the step of this turn that checks
    /// it, and no event would follow.
    fn may_go_on(&self) -> bool {
        let rim = &self.core.rim;
        let broker = &self.core.broker;
        (broker.stalled() > 0 && !rim.mailer.any_congested() && !broker.waits_for_nodes())
            || self.paused.iter().any(|&key| !crate::shard::intake::must_pause(rim, key))
    }

    fn take_mail(&mut self) {
        let mut mail = std::mem::take(&mut self.mail);
        self.core.rim.mailer.own().take(&mut mail);
        if !mail.is_empty() && self.stopping.is_some() {
            self.core.rim.info.set_quiet(self.core.rim.shard.0, false);
        }
        self.core.see_classes();
        for letter in mail.drain(..) {
            let weight = letter.weight();
            match letter {
                Mail::Stop(grace_ms) => self.begin_to_stop(grace_ms),
                Mail::Travel(traveller) => self.arrive(*traveller),
                Mail::Accept => self.listeners.iter_mut().for_each(Listener::open),
                letter => mail::receive(&mut self.core, letter),
            }
            self.core.rim.mailer.own().handled(weight);
            if self.core.rim.turn_bytes() > TURN_BYTES {
                turn::flush(&mut self.core);
            }
        }
        self.mail = mail;
    }

    fn take_events(&mut self, events: &Events) {
        for event in events {
            match event.token() {
                MAILBOX => {}
                link::LISTENER => self.core.rim.states.links.accept(),
                token @ Token(LISTENERS..) => self.accept(|listener| listener.is(token)),
                Token(link::TOKENS..) => {
                    crate::link::intake::link_event(&mut self.core, event, &mut self.scratch)
                }
                Token(index) => {
                    let Some(key) = self.core.rim.conns.key_at(index as u32) else { continue };
                    if event.is_writable() {
                        self.note_writable(key);
                    }
                    if event.is_read_closed()
                        && let Some(conn) = self.core.rim.conns.get_mut(key)
                    {
                        conn.flags.set(Flags::ENDED, true);
                    }
                    if event.is_readable() || event.is_read_closed() || event.is_error() {
                        self.read(key);
                    }
                }
            }
        }
    }

    /// Lists a writable socket if it has a queue. The system may report it with each event of the socket.
    fn note_writable(&mut self, key: ConnKey) {
        let output = self.core.rim.conns.get_mut(key).and_then(|conn| conn.output.as_mut());
        let Some(output) = output.filter(|o| !o.queue.is_empty() && !o.is_writable) else { return };
        output.is_writable = true;
        self.writable.push_back(key);
    }

    /// Writes queues, up to a limit per turn, so that lagging clients do not delay others.
    fn take_writable(&mut self) {
        let rim = &mut self.core.rim;
        rim.lagging = !self.core.broker.cursors.is_empty();
        let written = rim.metrics.bytes_out_total.get();
        while rim.metrics.bytes_out_total.get() - written < QUEUED_BYTES
            && let Some(key) = self.writable.pop_front()
        {
            if let Some(output) = rim.conns.get_mut(key).and_then(|conn| conn.output.as_mut()) {
                output.is_writable = false;
                rim.write_queue(key);
            }
        }
    }

    /// Accepts waiting connections of the selected listeners.
    fn accept(&mut self, is_meant: impl Fn(&Listener) -> bool) {
        let mut added = Vec::new();
        for listener in self.listeners.iter_mut().filter(|listener| is_meant(listener)) {
            listener.accept(&mut self.core.rim, self.poll.registry(), &mut added);
        }
        added.into_iter().for_each(|key| self.core.broker.connected(key));
    }

    fn take_ready(&mut self) {
        self.accept(|listener| listener.accepts_more);
        for key in std::mem::take(&mut self.ready) {
            self.read(key);
        }
    }

    fn take_timers(&mut self) {
        let mut due = Vec::new();
        self.core.rim.timers.due(self.core.rim.now.mono_ms, &mut due);
        for timer in due {
            match timer {
                Timer::Handshake(key) => self.end_handshake(key),
                Timer::SoftLimit(key) => self.core.rim.end_soft_limit(key),
                Timer::Silence(key) => crate::mqtt::look_for_silence(&mut self.core, key),
                Timer::Heartbeat(key) => crate::phoenix::look_for_silence(&mut self.core.rim, key),
                Timer::Beat(key) => crate::http::beat(&mut self.core.rim, key),
                Timer::Window(key) => crate::phoenix::poll::look_at_window(&mut self.core, key),
                Timer::Idle(key) => crate::http::look_whether_idle(&mut self.core.rim, key),
                Timer::Claim(of) => crate::mqtt::late(&mut self.core, &of.0, of.1),
                Timer::Presence(room) => crate::presence::tick(&mut self.core, &room),
                Timer::PresenceRecord(reference) => crate::presence::record_again(&mut self.core, reference),
                Timer::Occupancy(room) => crate::presence::tick_occupancy(&mut self.core, &room),
                Timer::Session(key) => crate::mqtt::session_timer(&mut self.core, key),
                Timer::Snapshot(key) => crate::mqtt::snapshot_timer(&mut self.core, key),
                Timer::Linger(key) => self.core.rim.end_lingering(key),
                Timer::Accept(kind) => {
                    let listener = self.listeners.iter_mut().find(|listener| listener.is(kind.token()));
                    listener.into_iter().for_each(Listener::resume);
                }
                Timer::Housekeeping => self.keep_house(),
            }
        }
    }

    /// Feeds posted long-poll frames to their sessions; each POST is answered once its input is taken.
    fn take_posted(&mut self) {
        for (key, frames) in std::mem::take(&mut self.core.rim.posted) {
            if let Some(mut frames) = crate::phoenix::poll::keep(&mut self.core.rim, key, frames) {
                self.input(key, &mut frames);
            }
            self.posting.push(key);
        }
        let posting = std::mem::take(&mut self.posting);
        self.posting = posting
            .into_iter()
            .filter(|&key| !crate::phoenix::poll::look_at_post(&mut self.core, key))
            .collect();
    }

    /// Sends connections to the shards that have their sessions.
    fn send_travellers(&mut self) {
        for (to, mut traveller) in crate::mqtt::depart(&mut self.core) {
            // It fails for a broken socket, which the next read on the other shard detects.
            let _ = self.poll.registry().deregister(traveller.source());
            if to == self.core.rim.shard {
                self.arrive(*traveller);
            } else {
                self.core.rim.mailer.post(to, Mail::Travel(traveller));
            }
        }
    }

    /// Adds a connection that another shard sent.
    fn arrive(&mut self, traveller: Traveller) {
        let registry = self.poll.registry();
        let (key, mut input, client_id) = traveller.arrive(&mut self.core);
        let Some(conn) = self.core.rim.conns.get_mut(key) else { return };
        let (token, interest) = (Token(key.index as usize), Interest::READABLE | Interest::WRITABLE);
        let is_registered = registry.register(conn.io.source(), token, interest).is_ok();
        self.input(key, &mut input);
        if let Some(client_id) = client_id {
            crate::mqtt::handed_over(&mut self.core, client_id, key);
        }
        if is_registered {
            self.ready.push(key);
        } else {
            self.core.rim.close_now(key);
        }
    }

    fn end_handshake(&mut self, key: ConnKey) {
        let rim = &mut self.core.rim;
        if rim.conns.get(key).is_some_and(|c| !c.flags.any(Flags::HANDSHAKED) && !c.is_closing()) {
            rim.metrics.handshake_timeouts_total.add(1);
            rim.log_conn(Level::Info, "no command in time", key, Vec::new());
            rim.close_now(key);
        }
    }

    fn take_lingering(&mut self, told: Vec<Transport>) {
        let Rim { now, limits, metrics, .. } = &self.core.rim;
        let closed = self.lingering.take_in(told, self.poll.registry(), now.mono_ms, limits);
        metrics.mqtt_lingering_closed_total.add(closed);
    }

    fn keep_house(&mut self) {
        let rim = &mut self.core.rim;
        let now = rim.now;
        rim.timers.set(now.mono_ms + 1000, Timer::Housekeeping);
        rim.trim_pool();
        rim.mailer.give_back();
        rim.mailer.own().give_back(&mut self.mail);
        rim.states.presence.forget_lists();
        self.lingering.drain(now.mono_ms, &mut self.scratch);
        // A drifting or stepped wall clock is followed, but never backwards within a hub.
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.wall = wall.saturating_sub(self.started.elapsed());
        self.core.broker.sweep(now, &self.core.rim);
        self.core.broker.tend_consumers(now, &mut self.core.rim);
        crate::presence::look_after(&mut self.core);
        crate::mqtt::look_at_store(&mut self.core);
        if self.stopping.is_none() {
            crate::mqtt::retry_deletes(&mut self.core);
            crate::mqtt::read_unread(&mut self.core);
            crate::mqtt::share_queued(&mut self.core);
            crate::mqtt::retry_missing(&mut self.core);
            crate::mqtt::start_takeovers(&mut self.core);
        }
        let is_over = |row: &_| crate::mqtt::retained_is_expired(row, now.wall_us);
        self.core.broker.sweep_rows(now, is_over, &mut self.core.rim);
        if u64::from(self.core.rim.second()).is_multiple_of(FADE_S) {
            self.core.broker.busiest.fade();
        }
        gauges::set_gauges(&self.core);
        if self.peak.is_over(memory::used_bytes(), self.core.rim.second()) {
            memory::give_back();
        }
    }

    fn end_turn(&mut self) {
        self.clock.end_turn(&self.core.rim.metrics);
        crate::shard::stopping::part_before_leaving(&mut self.core);
        if let Some(stopping) = &mut self.stopping {
            stopping.end_turn(&mut self.core);
        }
        self.core.linger(LINGER_MS);
    }

    fn begin_to_stop(&mut self, grace_ms: u64) {
        self.listeners.drain(..).for_each(|listener| listener.close(self.poll.registry()));
        self.core.rim.states.links.begin_to_stop();
        self.stopping = Some(Stopping::new(self.core.rim.now.mono_ms + grace_ms));
        let fields = vec![("connections", self.core.rim.conns.len().to_string())];
        self.core.rim.lines.log(Level::Info, "shard stops", fields);
    }

    fn is_done(&self) -> bool {
        self.stopping.as_ref().is_some_and(|stopping| stopping.is_done(&self.core))
    }
}
