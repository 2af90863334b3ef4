//! One data-plane thread: the event loop.
//!
//! A turn waits for sockets, mail or timers; takes mail; reads and executes (`intake`); continues deferred
//! work; then sends the turn's mail and writes the turn's output. Only the wait blocks.

mod clients;
mod clock;
mod debtors;
mod gauges;
mod intake;
pub(crate) mod internal;
pub(crate) mod listings;
pub(crate) mod mail;
mod questions;
mod routing;
mod sink;
pub(crate) mod state;
mod stopping;
mod turn;

use crate::context::conn::Flags;
use crate::context::events::Event;
use crate::context::io::{Io, TURN_BYTES, Timer};
use crate::context::mail::Mail;
use crate::context::{Ctx, Hooks};
use crate::io::inbox::Letter;
use crate::io::lingering_close::LingeringClose;
use crate::io::listener::{LISTENERS, Listener};
use crate::io::log_lines::Level;
use crate::io::memory::{self, Peak};
use crate::io::spin::Spin;
use crate::mqtt::state::mail::Traveller;
use crate::shard::stopping::Stopping;
use crate::{link, presence};
use clock::Clock;
use hubsub_route::Now;
use hubsub_types::ConnKey;
use hubsub_wire::resp::Decoder;
use intake::READ_BYTES;
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
    reserve_seat: presence::reserve,
    leave_seat: presence::left,
    update_member: presence::update,
    process_changed: presence::process_changed,
    send_members: crate::mqtt::send_members,
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
    ctx: Ctx,
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
    paused: Vec<ConnKey>,
    /// Long-poll sessions whose posted input is not all taken.
    posting: Vec<ConnKey>,
    mail: Vec<Mail>,
    clock: Clock,
    lingering: LingeringClose,
    /// Spins briefly between a publish, its log and the next publish.
    spin: Spin,
    peak: Peak,
    /// Set once the shard is ordered to stop.
    stopping: Option<Stopping>,
}

impl Shard {
    pub fn new(ctx: Ctx, poll: Poll, listeners: Vec<Listener>, started: Instant) -> Shard {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = wall.saturating_sub(started.elapsed());
        Shard {
            ctx,
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
        self.ctx.io.timers.set(self.ctx.io.now.mono_ms + 1000, Timer::Housekeeping);
        while !self.is_done() {
            self.wait(&mut events)?;
            self.take_mail();
            self.take_events(&events);
            self.take_writable();
            crate::link::intake::resume_links(&mut self.ctx, &mut self.scratch);
            self.take_ready();
            self.take_timers();
            link::dispatch::tick(&mut self.ctx);
            self.resume_paused();
            self.take_posted();
            self.ctx.broker.commit_due(self.ctx.io.now, &mut self.ctx.io);
            self.ctx.broker.retry_stalled(self.ctx.io.now, &mut self.ctx.io);
            internal::take(&mut self.ctx);
            crate::shard::listings::list_on(&mut self.ctx);
            self.send_travellers();
            link::settle_credit(&mut self.ctx);
            self.clock.split(false);
            turn::flush(&mut self.ctx);
            let told = turn::reap(&mut self.ctx);
            let Io { now, limits, metrics, .. } = &self.ctx.io;
            let closed = self.lingering.take_in(told, self.poll.registry(), now.mono_ms, limits);
            metrics.mqtt_lingering_closed_total.add(closed);
            // Drained cursors and closed connections send mail, too; it must not wait for the next turn.
            self.ctx.io.mailer.flush();
            self.clock.split(true);
            self.end_turn();
        }
        let Ctx { io, .. } = self.ctx;
        io.control.tell(Event::Stopped(io.shard.0, None));
        Ok(())
    }

    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        let has_work = !self.ready.is_empty()
            || !self.writable.is_empty()
            || self.listeners.iter().any(|listener| listener.accepts_more)
            || turn::has_more(&self.ctx)
            || self.may_go_on();
        let expects_more = std::mem::take(&mut self.ctx.io.expects_more) && !has_work;
        let is_news = expects_more && self.look_for_more(events)?;
        let timeout_ms = if has_work || is_news || !self.ctx.io.mailer.own().may_sleep() {
            Some(0)
        } else {
            let now_ms = self.ctx.io.now.mono_ms;
            let due_ms = self.ctx.broker.next_due_ms().map(|due| due.saturating_sub(now_ms).max(1));
            let is_held_up = self.ctx.broker.stalled() > 0
                || !self.paused.is_empty()
                || self.ctx.io.states.links.holds_credit();
            let congested = is_held_up && self.ctx.io.mailer.any_congested();
            let is_waiting = self.ctx.io.waits_for_log() || self.ctx.broker.waits_for_nodes();
            let congested_ms = (congested || is_waiting).then_some(CONGESTED_MS);
            let stop_ms = self.stopping.as_ref().map(|_| STOPPING_MS);
            let timers_ms = self.ctx.io.timers.wait_ms(now_ms);
            let links_ms = self.ctx.io.states.links.wait_ms();
            let rows_ms = self.ctx.io.states.mqtt.rows_pace.wait_ms();
            [due_ms, congested_ms, stop_ms, timers_ms, links_ms, rows_ms].into_iter().flatten().min()
        };
        if !is_news {
            self.poll(events, timeout_ms.map(Duration::from_millis))?;
        }
        self.ctx.io.mailer.own().woke();
        if expects_more {
            self.spin.came();
        }
        let passed = self.started.elapsed();
        self.ctx.io.now = Now {
            mono_ms: passed.as_millis() as u64,
            wall_us: self.wall.saturating_add(passed).as_micros() as u64,
        };
        self.ctx.io.states.links.set_now(passed.as_micros() as u64, self.ctx.io.now.wall_us);
        self.clock.begin_turn();
        Ok(())
    }

    /// Spins briefly for mail and socket events, since the disk or a client that got a reply often continues
    /// at once. Returns whether a socket has an event.
    fn look_for_more(&mut self, events: &mut Events) -> io::Result<bool> {
        self.spin.begin();
        while self.ctx.io.mailer.own().bytes() == 0 && self.spin.looks_again() {
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
        let io = &self.ctx.io;
        let broker = &self.ctx.broker;
        (broker.stalled() > 0 && !io.mailer.any_congested() && !broker.waits_for_nodes())
            || self.paused.iter().any(|&key| !crate::shard::intake::must_pause(io, key))
    }

    fn take_mail(&mut self) {
        let mut mail = std::mem::take(&mut self.mail);
        self.ctx.io.mailer.own().take(&mut mail);
        if !mail.is_empty() && self.stopping.is_some() {
            self.ctx.io.info.set_quiet(self.ctx.io.shard.0, false);
        }
        self.ctx.see_classes();
        for letter in mail.drain(..) {
            let weight = letter.weight();
            match letter {
                Mail::Stop(grace_ms) => self.begin_to_stop(grace_ms),
                Mail::Travel(traveller) => self.arrive(*traveller),
                Mail::Accept => self.listeners.iter_mut().for_each(Listener::open),
                letter => mail::receive(&mut self.ctx, letter),
            }
            self.ctx.io.mailer.own().handled(weight);
            if self.ctx.io.turn_bytes() > TURN_BYTES {
                turn::flush(&mut self.ctx);
            }
        }
        self.mail = mail;
    }

    fn take_events(&mut self, events: &Events) {
        for event in events {
            match event.token() {
                MAILBOX => {}
                link::LISTENER => self.ctx.io.states.links.accept(),
                token @ Token(LISTENERS..) => self.accept(|listener| listener.is(token)),
                Token(link::TOKENS..) => {
                    crate::link::intake::link_event(&mut self.ctx, event, &mut self.scratch)
                }
                Token(index) => {
                    let Some(key) = self.ctx.io.conns.key_at(index as u32) else { continue };
                    if event.is_writable() {
                        self.note_writable(key);
                    }
                    if event.is_read_closed()
                        && let Some(conn) = self.ctx.io.conns.get_mut(key)
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
        let output = self.ctx.io.conns.get_mut(key).and_then(|conn| conn.output.as_mut());
        let Some(output) = output.filter(|o| !o.queue.is_empty() && !o.is_writable) else { return };
        output.is_writable = true;
        self.writable.push_back(key);
    }

    /// Writes queues, up to a limit per turn, so that lagging clients do not delay others.
    fn take_writable(&mut self) {
        let io = &mut self.ctx.io;
        io.lagging = !self.ctx.broker.cursors.is_empty();
        let written = io.metrics.bytes_out_total.get();
        while io.metrics.bytes_out_total.get() - written < QUEUED_BYTES
            && let Some(key) = self.writable.pop_front()
        {
            if let Some(output) = io.conns.get_mut(key).and_then(|conn| conn.output.as_mut()) {
                output.is_writable = false;
                io.write_queue(key);
            }
        }
    }

    /// Accepts waiting connections of the selected listeners.
    fn accept(&mut self, is_meant: impl Fn(&Listener) -> bool) {
        let mut added = Vec::new();
        for listener in self.listeners.iter_mut().filter(|listener| is_meant(listener)) {
            self.ctx.io.accept(listener, self.poll.registry(), &mut added);
        }
        added.into_iter().for_each(|key| self.ctx.broker.connected(key));
    }

    fn take_ready(&mut self) {
        self.accept(|listener| listener.accepts_more);
        for key in std::mem::take(&mut self.ready) {
            self.read(key);
        }
    }

    fn take_timers(&mut self) {
        let mut due = Vec::new();
        self.ctx.io.timers.due(self.ctx.io.now.mono_ms, &mut due);
        for timer in due {
            match timer {
                Timer::Handshake(key) => self.end_handshake(key),
                Timer::SoftLimit(key) => self.ctx.io.end_soft_limit(key),
                Timer::Silence(key) => crate::mqtt::look_for_silence(&mut self.ctx, key),
                Timer::Heartbeat(key) => crate::phoenix::look_for_silence(&mut self.ctx.io, key),
                Timer::Beat(key) => crate::http::beat(&mut self.ctx.io, key),
                Timer::Window(key) => crate::phoenix::poll::look_at_window(&mut self.ctx, key),
                Timer::Idle(key) => crate::http::look_whether_idle(&mut self.ctx.io, key),
                Timer::Claim(of) => crate::mqtt::late(&mut self.ctx, &of.0, of.1),
                Timer::Presence(room) => crate::presence::tick(&mut self.ctx, &room),
                Timer::PresenceRecord(reference) => crate::presence::record_again(&mut self.ctx, reference),
                Timer::Occupancy(room) => crate::presence::tick_occupancy(&mut self.ctx, &room),
                Timer::Session(key) => crate::mqtt::session_timer(&mut self.ctx, key),
                Timer::Snapshot(key) => crate::mqtt::snapshot_timer(&mut self.ctx, key),
                Timer::Linger(key) => self.ctx.io.end_lingering(key),
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
        for (key, frames) in std::mem::take(&mut self.ctx.io.posted) {
            if let Some(mut frames) = crate::phoenix::poll::keep(&mut self.ctx.io, key, frames) {
                self.input(key, &mut frames);
            }
            self.posting.push(key);
        }
        let posting = std::mem::take(&mut self.posting);
        self.posting = posting
            .into_iter()
            .filter(|&key| !crate::phoenix::poll::look_at_post(&mut self.ctx, key))
            .collect();
    }

    /// Sends connections to the shards that have their sessions.
    fn send_travellers(&mut self) {
        for (to, mut traveller) in crate::mqtt::depart(&mut self.ctx) {
            // It fails for a broken socket, which the next read on the other shard detects.
            let _ = self.poll.registry().deregister(traveller.io.source());
            if to == self.ctx.io.shard {
                self.arrive(*traveller);
            } else {
                self.ctx.io.mailer.post(to, Mail::Travel(traveller));
            }
        }
    }

    fn arrive(&mut self, traveller: Traveller) {
        let registry = self.poll.registry();
        let (key, mut input, client_id) = crate::mqtt::arrive(&mut self.ctx, traveller);
        let Some(conn) = self.ctx.io.conns.get_mut(key) else { return };
        let (token, interest) = (Token(key.index as usize), Interest::READABLE | Interest::WRITABLE);
        let is_registered = registry.register(conn.io.source(), token, interest).is_ok();
        self.input(key, &mut input);
        if let Some(client_id) = client_id {
            crate::mqtt::handed_over(&mut self.ctx, client_id, key);
        }
        if is_registered {
            self.ready.push(key);
        } else {
            self.ctx.io.close_now(key);
        }
    }

    fn end_handshake(&mut self, key: ConnKey) {
        let io = &mut self.ctx.io;
        if io.conns.get(key).is_some_and(|c| !c.flags.any(Flags::HANDSHAKED) && !c.is_closing()) {
            io.metrics.handshake_timeouts_total.add(1);
            io.log_conn(Level::Info, "no command in time", key, Vec::new());
            io.close_now(key);
        }
    }

    fn keep_house(&mut self) {
        let io = &mut self.ctx.io;
        let now = io.now;
        io.timers.set(now.mono_ms + 1000, Timer::Housekeeping);
        io.trim_pool();
        io.mailer.give_back();
        io.mailer.own().give_back(&mut self.mail);
        io.states.presence.forget_lists();
        self.lingering.drain(now.mono_ms, &mut self.scratch);
        // A drifting or stepped wall clock is followed, but never backwards within a hub.
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.wall = wall.saturating_sub(self.started.elapsed());
        self.ctx.broker.sweep(now, &self.ctx.io);
        self.ctx.broker.tend_consumers(now, &mut self.ctx.io);
        crate::presence::look_after(&mut self.ctx);
        crate::mqtt::look_at_store(&mut self.ctx);
        if self.stopping.is_none() {
            crate::mqtt::retry_deletes(&mut self.ctx);
            crate::mqtt::read_unread(&mut self.ctx);
            crate::mqtt::share_queued(&mut self.ctx);
            crate::mqtt::retry_missing(&mut self.ctx);
            crate::mqtt::start_takeovers(&mut self.ctx);
        }
        let is_over = |row: &_| hubsub_mqtt::is_expired(row, now.wall_us);
        self.ctx.broker.sweep_rows(now, is_over, &mut self.ctx.io);
        if u64::from(self.ctx.io.second()).is_multiple_of(FADE_S) {
            self.ctx.broker.busiest.fade();
        }
        gauges::set_gauges(&self.ctx);
        if self.peak.is_over(memory::used_bytes(), self.ctx.io.second()) {
            memory::give_back();
        }
    }

    fn end_turn(&mut self) {
        self.clock.end_turn(&self.ctx.io.metrics);
        crate::shard::stopping::part_before_leaving(&mut self.ctx);
        if let Some(stopping) = &mut self.stopping {
            stopping.end_turn(&mut self.ctx);
        }
        self.ctx.linger(LINGER_MS);
    }

    fn begin_to_stop(&mut self, grace_ms: u64) {
        self.listeners.drain(..).for_each(|listener| listener.close(self.poll.registry()));
        self.ctx.io.states.links.begin_to_stop();
        self.stopping = Some(Stopping::new(self.ctx.io.now.mono_ms + grace_ms));
        let fields = vec![("connections", self.ctx.io.conns.len().to_string())];
        self.ctx.io.lines.log(Level::Info, "shard stops", fields);
    }

    fn is_done(&self) -> bool {
        self.stopping.as_ref().is_some_and(|stopping| stopping.is_done(&self.ctx))
    }
}
