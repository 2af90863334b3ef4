//! One run from start to report: connect, warm up, measure a window, drain, add up.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::procfs::{self, Cpu};
use crate::publisher::Publisher;
use crate::report::{BUILD_PROFILE, Latency, Report, Sample, Server, Slow, Thread, Total, Window, histogram};
use crate::scenario::Scenario;
use crate::worker::{self, Outcome, Phase, Seat, Shared};

/// Interval of progress checks.
const TICK: Duration = Duration::from_millis(2);
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// Runs a scenario from start to report.
///
/// # Errors
/// A human-readable reason why it could not be run.
pub fn run(scenario: Scenario) -> Result<Report, String> {
    scenario.check()?;
    raise_descriptor_limit();
    let addresses = resolve(&scenario.target)?;
    let publish_addresses = if scenario.publish_target.is_empty() {
        addresses.clone()
    } else {
        resolve(&scenario.publish_target)?
    };
    let shared = Arc::new(Shared {
        addresses,
        publish_addresses,
        clock: Instant::now(),
        phase: AtomicU8::new(Phase::Connect as u8),
        window_from_ns: AtomicU64::new(u64::MAX),
        window_to_ns: AtomicU64::new(u64::MAX),
        seats: (0..scenario.threads).map(|_| Seat::default()).collect(),
        scenario,
    });
    Run { shared, samples: Vec::new() }.run()
}

fn resolve(targets: &[String]) -> Result<Vec<SocketAddr>, String> {
    let first = |target: &String| target.to_socket_addrs().ok().and_then(|mut found| found.next());
    targets
        .iter()
        .map(|target| first(target).ok_or_else(|| format!("no address: {target} (hint: HOST:PORT)")))
        .collect()
}

struct Run {
    shared: Arc<Shared>,
    samples: Vec<Sample>,
}

struct Mark {
    at: Instant,
    published: u64,
    answered: u64,
    delivered: u64,
    cpu: Option<Cpu>,
    threads_ns: Vec<u64>,
}

impl Run {
    fn run(mut self) -> Result<Report, String> {
        self.sample("before");
        let (ready, connected) = mpsc::channel();
        let threads: Vec<_> = (0..self.shared.scenario.threads)
            .map(|seat| {
                let (shared, ready) = (Arc::clone(&self.shared), ready.clone());
                thread::spawn(move || {
                    shared.seats[seat].thread.store(thread_id(), Relaxed);
                    worker::run(seat, &shared, &ready)
                })
            })
            .collect();
        let outcome = threads.iter().try_for_each(|_| connected.recv().map_err(|error| error.to_string())?);
        if let Err(error) = outcome {
            self.enter(Phase::End);
            return Err(format!("cannot connect to {}: {error}", self.shared.scenario.target.join(",")));
        }
        self.sample("connected");
        let load_from = Instant::now();
        let load_from_ns = self.shared.now_ns();
        let (from, to) = if self.shared.scenario.publishers == 0 { self.hold() } else { self.load() };
        self.drain();
        // A run by messages is measured to its last delivery.
        let to = to.unwrap_or_else(|| self.mark());
        self.sample("end");
        self.enter(Phase::End);
        let outcomes: Vec<Outcome> = threads
            .into_iter()
            .map(|thread| {
                let outcome = thread.join().map_err(|_| "a thread of the generator panicked".to_owned())?;
                outcome.map_err(|e| e.to_string())
            })
            .collect::<Result<_, String>>()?;
        debug_assert!(from.at >= load_from);
        Ok(self.report(&from, &to, outcomes, load_from_ns))
    }

    /// Publishes nothing, samples memory every second.
    fn hold(&mut self) -> (Mark, Option<Mark>) {
        let from = self.mark();
        self.enter(Phase::Load);
        let seconds = self.shared.scenario.seconds;
        for second in 1..=seconds.ceil() as u64 {
            let until = Duration::from_secs_f64(seconds.min(second as f64));
            thread::sleep(until.saturating_sub(from.at.elapsed()));
            self.sample("held");
        }
        let to = self.mark();
        self.enter(Phase::Drain);
        (from, Some(to))
    }

    fn load(&self) -> (Mark, Option<Mark>) {
        let scenario = &self.shared.scenario;
        if scenario.messages > 0 {
            self.shared.window_from_ns.store(0, Relaxed);
            let from = self.mark();
            self.enter(Phase::Load);
            self.wait_while_progress(|published, _| published >= scenario.messages, Duration::MAX);
            self.enter(Phase::Drain);
            return (from, None);
        }
        self.enter(Phase::Load);
        thread::sleep(Duration::from_secs_f64(scenario.warmup));
        self.shared.window_from_ns.store(self.shared.now_ns(), Relaxed);
        let from = self.mark();
        thread::sleep(Duration::from_secs_f64(scenario.seconds));
        self.shared.window_to_ns.store(self.shared.now_ns(), Relaxed);
        let to = self.mark();
        self.enter(Phase::Drain);
        (from, Some(to))
    }

    fn drain(&self) {
        let subscribers = u64::from(self.shared.scenario.subscribers);
        let settled = || self.shared.seats.iter().all(|seat| seat.settled.load(Relaxed));
        let is_done = |published, delivered| settled() && delivered >= published * subscribers;
        self.wait_while_progress(is_done, DRAIN_MAX);
    }

    /// Waits until `done(published, delivered)`, until there is no progress, or for `at_most`.
    fn wait_while_progress(&self, done: impl Fn(u64, u64) -> bool, at_most: Duration) {
        let quiet_max = Duration::from_secs_f64(self.shared.scenario.patience);
        let started = Instant::now();
        let (mut last, mut moved) = ((0, 0), Instant::now());
        loop {
            let counts = self.counts();
            if counts != last {
                (last, moved) = (counts, Instant::now());
            }
            if done(counts.0, counts.1) || moved.elapsed() > quiet_max || started.elapsed() > at_most {
                return;
            }
            thread::sleep(TICK);
        }
    }

    fn enter(&self, phase: Phase) {
        self.shared.phase.store(phase as u8, Relaxed);
    }

    fn sum(&self, count: impl Fn(&Seat) -> &AtomicU64) -> u64 {
        self.shared.seats.iter().map(|seat| count(seat).load(Relaxed)).sum()
    }

    fn counts(&self) -> (u64, u64) {
        (self.sum(|seat| &seat.published), self.sum(|seat| &seat.delivered))
    }

    fn mark(&self) -> Mark {
        let cpu = procfs::cpu_of_all(&self.shared.scenario.pid);
        let (published, delivered) = self.counts();
        let cpu_ns = |seat: &Seat| procfs::thread_cpu_ns(seat.thread.load(Relaxed)).unwrap_or(0);
        let threads_ns = self.shared.seats.iter().map(cpu_ns).collect();
        let answered = self.sum(|seat| &seat.answered);
        Mark { at: Instant::now(), published, answered, delivered, cpu, threads_ns }
    }

    fn sample(&mut self, moment: &'static str) {
        let at_s = self.shared.clock.elapsed().as_secs_f64();
        let server = procfs::memory_of_all(&self.shared.scenario.pid);
        self.samples.push(Sample { at_s, moment, server, kernel: procfs::kernel() });
    }

    fn report(self, from: &Mark, to: &Mark, outcomes: Vec<Outcome>, load_from_ns: u64) -> Report {
        let scenario = self.shared.scenario.clone();
        let seconds = (to.at - from.at).as_secs_f64();
        let (published, delivered) = (to.published - from.published, to.delivered - from.delivered);
        let answered = to.answered - from.answered;
        let threads =
            from.threads_ns.iter().zip(&to.threads_ns).enumerate().map(|(seat, (from_ns, to_ns))| Thread {
                publishes: scenario.shares_of(seat).0.is_some(),
                busy: to_ns.saturating_sub(*from_ns) as f64 / 1e9 / seconds,
            });
        let window = Window {
            seconds,
            published,
            answered,
            delivered,
            answered_per_second: answered as f64 / seconds,
            published_per_second: published as f64 / seconds,
            delivered_per_second: delivered as f64 / seconds,
            threads: threads.collect(),
        };
        let server = (!scenario.pid.is_empty()).then(|| {
            let spent = from.cpu.as_ref().zip(to.cpu.as_ref()).map(|(from, to)| Cpu {
                ns: to.ns.saturating_sub(from.ns),
                user_ticks: to.user_ticks - from.user_ticks,
                system_ticks: to.system_ticks - from.system_ticks,
            });
            let cpu = spent.unwrap_or_default();
            let per = |count: u64| (count > 0 && cpu.ns > 0).then(|| cpu.ns as f64 / count as f64);
            let (cpu_ns_per_delivery, cpu_ns_per_publish) = (per(delivered), per(published));
            let busy = cpu.ns as f64 / 1e9 / seconds;
            let (pids, samples) = (scenario.pid.clone(), self.samples.clone());
            Server { pids, busy, cpu_ns_per_delivery, cpu_ns_per_publish, samples, cpu }
        });
        let holders = outcomes.iter().flat_map(|outcome| &outcome.holders);
        let slow = holders.filter(|holder| holder.bytes_per_second.is_some()).map(|holder| Slow {
            bytes: holder.bytes,
            closed_s: holder.closed_ns.map(|at_ns| at_ns.saturating_sub(load_from_ns) as f64 / 1e9),
        });
        let slow = slow.collect();
        let (total, latency, replies) = add_up(&scenario, outcomes);
        Report {
            version: env!("CARGO_PKG_VERSION"),
            build_profile: BUILD_PROFILE,
            scenario,
            window,
            total,
            latency,
            replies,
            server,
            slow,
        }
    }
}

/// Adds up the threads' counts; closes every lane with the number of publishes sent into it.
fn add_up(scenario: &Scenario, outcomes: Vec<Outcome>) -> (Total, Latency, Latency) {
    let mut total = Total::default();
    let (mut latency, mut replies) = (histogram(), histogram());
    let mut publishers: Vec<Publisher> = Vec::new();
    let mut receivers = Vec::new();
    for outcome in outcomes {
        publishers.extend(outcome.publishers);
        receivers.push((outcome.subscribers, outcome.tally));
        let idle_lost =
            outcome.holders.iter().filter(|h| h.bytes_per_second.is_none() && h.socket.is_none()).count();
        total.idle_disconnected += idle_lost as u64;
    }
    publishers.sort_by_key(|publisher| publisher.index);
    for publisher in &publishers {
        total.published += publisher.sent;
        total.answered += publisher.answered;
        total.receivers += publisher.receivers;
        total.errors += publisher.errors;
        total.disconnected += u64::from(publisher.is_disconnected());
        total.error = total.error.take().or_else(|| publisher.error_last.clone());
        if let Some(waits) = &publisher.waits {
            replies.add(&waits.histogram).expect("both histograms have the same bounds");
        }
    }
    total.expected = total.published * u64::from(scenario.subscribers);
    let sent: Vec<(u32, Vec<u64>)> = publishers.into_iter().map(Publisher::into_sent).collect();
    for (subscribers, mut tally) in receivers {
        for subscriber in subscribers {
            total.disconnected += u64::from(subscriber.socket.is_none());
            for (place, room) in scenario.rooms_of(subscriber.connection).enumerate() {
                for (publisher, (first, counts)) in (0..).zip(&sent) {
                    if let Some(&count) = room.checked_sub(*first).and_then(|i| counts.get(i as usize)) {
                        let lane =
                            subscriber.lanes_at + place * scenario.lanes() + scenario.lane_of(publisher);
                        tally.ledger.close(lane, count);
                    }
                }
            }
        }
        total.delivered += tally.ledger.delivered;
        total.lost += tally.ledger.lost;
        total.doubled += tally.ledger.doubled;
        total.reordered += tally.ledger.reordered;
        total.misrouted += tally.misrouted;
        total.corrupt += tally.corrupt;
        total.errors += tally.errors;
        total.error = total.error.take().or(tally.error_last);
        latency.add(&tally.latency).expect("both histograms have the same bounds");
    }
    (total, Latency::of(&latency), Latency::of(&replies))
}

fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit that outlives both calls; failure leaves the old limit.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

#[cfg(target_os = "linux")]
fn thread_id() -> u32 {
    // SAFETY: gettid has no arguments and cannot fail.
    unsafe { libc::gettid() as u32 }
}

#[cfg(not(target_os = "linux"))]
fn thread_id() -> u32 {
    0
}
