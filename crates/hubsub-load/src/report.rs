//! The result of a run: one JSON object with raw values. Times in ns, memory in bytes.

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::procfs::{Cpu, Kernel, Memory};
use crate::scenario::Scenario;

/// `debug` or `release`: a debug build mainly measures itself.
pub const BUILD_PROFILE: &str = if cfg!(debug_assertions) { "debug" } else { "release" };

#[derive(Serialize)]
pub struct Report {
    pub version: &'static str,
    /// `debug` or `release`: a debug build mainly measures itself.
    pub build_profile: &'static str,
    pub scenario: Scenario,
    pub window: Window,
    /// Results from start to end, including warm-up and drain.
    pub total: Total,
    /// From publish to delivery, of publishes due in the window.
    pub latency: Latency,
    /// From publish to its reply, of publishes due in the window, if requested.
    pub replies: Latency,
    pub server: Option<Server>,
    pub slow: Vec<Slow>,
}

#[derive(Serialize, Default)]
pub struct Window {
    pub seconds: f64,
    pub published: u64,
    /// Publishes answered, including errors.
    pub answered: u64,
    pub delivered: u64,
    pub published_per_second: f64,
    pub answered_per_second: f64,
    pub delivered_per_second: f64,
    /// The generator's threads. A `busy` near 1 means that the generator is the bottleneck, unless it spins.
    pub threads: Vec<Thread>,
}

#[derive(Serialize)]
pub struct Thread {
    pub publishes: bool,
    /// Share of a core in the window.
    pub busy: f64,
}

#[derive(Serialize, Default)]
pub struct Total {
    pub published: u64,
    /// Publishes answered, including errors.
    pub answered: u64,
    /// Sum of the receivers in the answers.
    pub receivers: u64,
    /// Expected deliveries: publishes times subscribers of their room, without slow ones.
    pub expected: u64,
    /// Deliveries that arrived, including doubled ones.
    pub delivered: u64,
    pub lost: u64,
    pub doubled: u64,
    /// Deliveries after a later one of the same publisher and room.
    pub reordered: u64,
    pub misrouted: u64,
    /// Deliveries whose bytes differ from the published ones.
    pub corrupt: u64,
    pub errors: u64,
    /// Publishers and subscribers whose connection was lost.
    pub disconnected: u64,
    pub idle_disconnected: u64,
    pub error: Option<String>,
}

/// Higher latencies are recorded as this value.
const LATENCY_NS_MAX: u64 = 120_000_000_000;

pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("the bounds are valid")
}

#[derive(Serialize)]
pub struct Latency {
    pub count: u64,
    pub min_ns: u64,
    pub mean_ns: f64,
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    pub p9999_ns: u64,
    pub max_ns: u64,
    /// The distribution: `[quantile, value in ns, deliveries up to it]`.
    pub curve: Vec<(f64, u64, u64)>,
}

impl Latency {
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

#[derive(Serialize)]
pub struct Server {
    /// Ids of its processes; the other values are totals of all of them.
    pub pids: Vec<u32>,
    /// CPU time of all threads in the window.
    pub cpu: Cpu,
    /// Average number of busy cores in the window.
    pub busy: f64,
    pub cpu_ns_per_delivery: Option<f64>,
    pub cpu_ns_per_publish: Option<f64>,
    /// Before the first connection, after the last one, then every second if nothing is published, and at the
    /// end.
    pub samples: Vec<Sample>,
}

#[derive(Serialize, Clone)]
pub struct Sample {
    pub at_s: f64,
    /// Phase of the run: `before`, `connected`, `held`, `end`.
    pub moment: &'static str,
    pub server: Option<Memory>,
    /// Memory of the machine's kernel, for both ends of every loopback connection.
    pub kernel: Option<Kernel>,
}

#[derive(Serialize)]
pub struct Slow {
    /// Bytes it read while slow.
    pub bytes: u64,
    /// Seconds from the start of the load until the server closed its connection; None if it did not.
    pub closed_s: Option<f64>,
}
