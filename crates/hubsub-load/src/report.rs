//! What a run found: one JSON object, everything raw. Times in ns, memory in bytes.

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::procfs::{Cpu, Kernel, Memory};
use crate::scenario::Scenario;

/// `debug` or `release`: a debug build measures itself.
pub const BUILD_PROFILE: &str = if cfg!(debug_assertions) { "debug" } else { "release" };

/// The result of a run.
#[derive(Serialize)]
pub struct Report {
    /// Version of the generator.
    pub version: &'static str,
    /// `debug` or `release`: a debug build measures itself.
    pub build_profile: &'static str,
    /// What was asked for.
    pub scenario: Scenario,
    /// What happened in the measured window.
    pub window: Window,
    /// What happened from start to end, warm-up and drain included.
    pub total: Total,
    /// Publish to delivery, of publishes due in the window.
    pub latency: Latency,
    /// Publish to its reply, of publishes due in the window, where that was asked for.
    pub replies: Latency,
    /// What the server spent.
    pub server: Option<Server>,
    /// Slow subscribers.
    pub slow: Vec<Slow>,
}

/// The measured window.
#[derive(Serialize, Default)]
pub struct Window {
    /// Its length.
    pub seconds: f64,
    /// Publishes sent.
    pub published: u64,
    /// Publishes answered, errors included.
    pub answered: u64,
    /// Deliveries counted.
    pub delivered: u64,
    /// Publishes sent a second.
    pub published_per_second: f64,
    /// Answers a second.
    pub answered_per_second: f64,
    /// Deliveries a second.
    pub delivered_per_second: f64,
    /// The generator's threads: share of a core each; near 1 it is the bottleneck, unless it spins.
    pub threads: Vec<Thread>,
}

/// One thread of the generator.
#[derive(Serialize)]
pub struct Thread {
    /// Whether it owns publishers.
    pub publishes: bool,
    /// Share of a core in the window.
    pub busy: f64,
}

/// The whole run.
#[derive(Serialize, Default)]
pub struct Total {
    /// Publishes sent.
    pub published: u64,
    /// Publishes answered, errors included.
    pub answered: u64,
    /// Sum of receivers that the answers name.
    pub receivers: u64,
    /// Deliveries that were to come: publishes by subscribers of their room, slow ones apart.
    pub expected: u64,
    /// Deliveries that came.
    pub delivered: u64,
    /// Deliveries that never came.
    pub lost: u64,
    /// Deliveries that had come before.
    pub doubled: u64,
    /// Deliveries behind a later one of the same publisher and room.
    pub reordered: u64,
    /// Deliveries under a wrong channel.
    pub misrouted: u64,
    /// Deliveries with other bytes than published.
    pub corrupt: u64,
    /// Error replies.
    pub errors: u64,
    /// Publishers and subscribers whose connection was lost.
    pub disconnected: u64,
    /// Idle connections that were lost.
    pub idle_disconnected: u64,
    /// Text of an error, if there was one.
    pub error: Option<String>,
}

/// Latency of deliveries.
#[derive(Serialize)]
pub struct Latency {
    /// Deliveries measured.
    pub count: u64,
    /// Smallest.
    pub min_ns: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Half are at most this.
    pub p50_ns: u64,
    /// 90 % are at most this.
    pub p90_ns: u64,
    /// 99 % are at most this.
    pub p99_ns: u64,
    /// 99.9 % are at most this.
    pub p999_ns: u64,
    /// 99.99 % are at most this.
    pub p9999_ns: u64,
    /// Largest.
    pub max_ns: u64,
    /// The distribution: `[quantile, value in ns, deliveries up to it]`.
    pub curve: Vec<(f64, u64, u64)>,
}

impl Latency {
    /// The figures of a histogram.
    pub fn of(histogram: &Histogram<u64>) -> Latency {
        let at = |quantile| histogram.value_at_quantile(quantile);
        let mut count = 0;
        let curve = histogram.iter_quantiles(4).map(|step| {
            count += step.count_since_last_iteration();
            (step.quantile_iterated_to(), step.value_iterated_to(), count)
        });
        Latency {
            count: histogram.len(),
            min_ns: if histogram.is_empty() { 0 } else { histogram.min() },
            mean_ns: histogram.mean(),
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            p9999_ns: at(0.9999),
            max_ns: histogram.max(),
            curve: if histogram.is_empty() { Vec::new() } else { curve.collect() },
        }
    }
}

/// What the server spent.
#[derive(Serialize)]
pub struct Server {
    /// Its processes; what follows is of all of them together.
    pub pids: Vec<u32>,
    /// CPU time in the window, all threads.
    pub cpu: Cpu,
    /// Cores that it kept busy in the window.
    pub busy: f64,
    /// CPU time in the window by deliveries.
    pub cpu_ns_per_delivery: Option<f64>,
    /// CPU time in the window by publishes.
    pub cpu_ns_per_publish: Option<f64>,
    /// Before the first connection, when all were made, then every second where nothing is published, at the end.
    pub samples: Vec<Sample>,
}

/// Memory at one time.
#[derive(Serialize, Clone)]
pub struct Sample {
    /// Seconds since the start.
    pub at_s: f64,
    /// What it is of: `before`, `connected`, `held`, `end`.
    pub moment: &'static str,
    /// The server's.
    pub server: Option<Memory>,
    /// The machine's: both ends of every loopback connection.
    pub kernel: Option<Kernel>,
}

/// One slow subscriber.
#[derive(Serialize)]
pub struct Slow {
    /// Bytes it read while slow.
    pub bytes: u64,
    /// Seconds from the start of the load to its close by the server; None if it was kept.
    pub closed_s: Option<f64>,
}
