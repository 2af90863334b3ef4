//! The definition of a run: the command line, validated once, and the resulting topology.
//!
//! Subscription `j` of `rooms × subscribers` belongs to room `j / subscribers` and to connection `j %
//! connections`, so connections share the load evenly and none subscribes to a room twice.

use clap::{Parser, ValueEnum};
use serde::Serialize;

use crate::phoenix::PAYLOAD_BYTES_MIN;
use crate::stamp::STAMP_BYTES;

/// Digits of a room's number in its name.
pub const ROOM_DIGITS: usize = 8;
const ROOM_PREFIX: &str = "room:";
/// Number of packet ids of an MQTT connection.
const IN_FLIGHT_MQTT_MAX: u64 = 65_535;
/// Maximum number of lanes of a run (8 bytes each).
const LANES_MAX: u64 = 1 << 28;

/// Every `.1`-th index from `.0` on.
pub type Share = (usize, usize);

/// Publishes to rooms of a Redis server or an MQTT broker and counts every delivery; prints one JSON line.
#[derive(Parser, Serialize, Clone, Debug)]
#[command(name = "hubsub-load", version, about)]
pub struct Scenario {
    /// Addresses of the servers, separated by commas; room i uses address i modulo their number.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', default_value = "127.0.0.1:6379")]
    pub target: Vec<String>,
    /// Addresses for publishers, if they differ; assigned to rooms in the same way.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub publish_target: Vec<String>,
    /// Process ids of the servers, separated by commas, to read the sum of their CPU time and memory.
    #[arg(long, value_delimiter = ',')]
    pub pid: Vec<u32>,
    /// Number of rooms to publish to.
    #[arg(long, default_value_t = 1)]
    pub rooms: u32,
    /// Numbers in the names of the rooms, separated by commas; default: 0, 1, 2, …
    #[arg(long, value_delimiter = ',')]
    pub numbers: Vec<u32>,
    /// Number of subscribers per room.
    #[arg(long, default_value_t = 1)]
    pub subscribers: u32,
    /// Connections that hold the subscriptions; 0 for one each.
    #[arg(long, default_value_t = 0)]
    pub connections: u32,
    /// Number of publishing connections.
    #[arg(long, default_value_t = 1)]
    pub publishers: u32,
    /// Rooms to which a publisher publishes.
    #[arg(long, value_enum, default_value_t = PublishTo::Spread)]
    pub publish_to: PublishTo,
    /// Closed loop: publishes in flight per publisher.
    #[arg(long, default_value_t = 1)]
    pub in_flight: u64,
    /// Open loop: publishes per second of all publishers together; 0 for closed loop.
    #[arg(long, default_value_t = 0.0)]
    pub rate: f64,
    /// Number of bytes per payload.
    #[arg(long, default_value_t = 128)]
    pub payload: usize,
    /// Seconds to measure; if nothing is published, how long connections are held.
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Seconds of load before the measurement.
    #[arg(long, default_value_t = 1.0)]
    pub warmup: f64,
    /// Stop after so many publishes instead of by time, without warm-up; 0 for by time.
    #[arg(long, default_value_t = 0)]
    pub messages: u64,
    /// Seconds without any progress after which a run by messages, or a drain, is aborted.
    #[arg(long, default_value_t = 2.0)]
    pub patience: f64,
    /// Protocol of the clients.
    #[arg(long, value_enum, default_value_t = Protocol::Redis)]
    pub protocol: Protocol,
    /// QoS of MQTT publishes and subscriptions, 0 to 2.
    #[arg(long, default_value_t = 0)]
    pub qos: u8,
    /// Version of RESP, 2 or 3.
    #[arg(long, default_value_t = 2)]
    pub resp: u8,
    /// Number of the generator's threads.
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Threads that own the publishers, the others own the subscribers; 0: every thread owns some of both.
    #[arg(long, default_value_t = 0)]
    pub publisher_threads: usize,
    /// Poll without sleeping (publisher threads in open loop always do).
    #[arg(long)]
    pub spin: bool,
    /// Open loop: sleep up to 1 ms instead of polling; this adds to the latency.
    #[arg(long, conflicts_with = "spin")]
    pub sleep: bool,
    /// Further connections that nobody publishes to.
    #[arg(long, default_value_t = 0)]
    pub idle: u32,
    /// Rooms that an idle connection subscribes to.
    #[arg(long, value_enum, default_value_t = IdleTo::Own)]
    pub idle_to: IdleTo,
    /// Further subscribers that read slowly or not at all; assigned to rooms in turn.
    #[arg(long, default_value_t = 0)]
    pub slow: u32,
    /// Bytes per second that a slow subscriber reads; 0 for none.
    #[arg(long, default_value_t = 0)]
    pub slow_bytes_per_second: u64,
    /// Command that publishers use.
    #[arg(long, value_enum, default_value_t = Verb::Publish)]
    pub verb: Verb,
    /// Measure how long each publish waits for its reply.
    #[arg(long)]
    pub replies: bool,
    /// Seed for the choice of rooms.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Protocol of the clients.
#[derive(ValueEnum, Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// RESP2 or RESP3 of Redis.
    Redis,
    /// MQTT 3.1.1, with any QoS.
    Mqtt,
    /// Phoenix channels over WebSockets, for subscribers; Redis clients publish to `--publish-target`.
    Phoenix,
}

/// The command of a publish.
#[derive(ValueEnum, Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// `PUBLISH room payload`, answered with an integer.
    Publish,
    /// `SPUBLISH room payload`, answered with an integer; subscribers use SSUBSCRIBE.
    Spublish,
    /// `XADD room * d payload`, answered with the entry's id.
    Xadd,
}

/// Rooms to which a publisher publishes.
#[derive(ValueEnum, Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum PublishTo {
    /// All rooms, picked at random.
    Spread,
    /// One room: publisher p to room p modulo the number of rooms.
    Own,
}

/// Rooms that an idle connection subscribes to.
#[derive(ValueEnum, Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum IdleTo {
    /// A room of its own.
    Own,
    /// The same room for all.
    One,
    /// Nothing; it has sent a PING.
    Nothing,
}

impl Scenario {
    /// Rejects invalid options; the error has the value and a hint.
    pub fn check(&self) -> Result<(), String> {
        let no = |text: String| Err(text);
        if self.rooms == 0 || u64::from(self.rooms) >= 10u64.pow(ROOM_DIGITS as u32) {
            return no(format!("--rooms is out of range: {} (hint: 1 to 99999999)", self.rooms));
        }
        if !self.numbers.is_empty() && self.numbers.len() != self.rooms as usize {
            return no(format!("--numbers are not as many as --rooms: {}", self.numbers.len()));
        }
        if let Some(number) = self.numbers.iter().find(|&&n| u64::from(n) >= 10u64.pow(ROOM_DIGITS as u32)) {
            return no(format!("a number of --numbers is out of range: {number} (hint: 0 to 99999999)"));
        }
        let is_spread = self.publishers > 0 && self.publish_to == PublishTo::Spread;
        if self.target.len().max(self.publish_target.len()) > 1 && (self.connections > 0 || is_spread) {
            return no(format!(
                "a connection has one address: {} (hint: --publish-to own and --connections 0 with several)",
                self.target.join(",")
            ));
        }
        if self.payload < STAMP_BYTES {
            return no(format!(
                "--payload is too small: {} (hint: a payload carries a stamp of {STAMP_BYTES} bytes)",
                self.payload
            ));
        }
        if self.subscribers > self.connection_count().max(1) {
            return no(format!(
                "--connections is too small: {} (hint: at least --subscribers)",
                self.connections
            ));
        }
        if self.publish_to == PublishTo::Own && self.publishers > 0 && self.publishers < self.rooms {
            return no(format!(
                "--publishers is too small: {} (hint: at least --rooms with --publish-to own)",
                self.publishers
            ));
        }
        if !(2..=3).contains(&self.resp) {
            return no(format!("--resp is unknown: {} (hint: 2 or 3)", self.resp));
        }
        let is_mqtt = self.protocol == Protocol::Mqtt;
        if self.qos > 2 || (self.qos > 0 && !is_mqtt) {
            return no(format!("--qos is out of range: {} (hint: 0 to 2, with --protocol mqtt)", self.qos));
        }
        if is_mqtt && (self.verb != Verb::Publish || self.in_flight > IN_FLIGHT_MQTT_MAX) {
            return no(format!(
                "MQTT has one way to publish, and {IN_FLIGHT_MQTT_MAX} packet ids: --verb {:?}, --in-flight {}",
                self.verb, self.in_flight
            ));
        }
        if self.protocol == Protocol::Phoenix {
            if self.publishers > 0 && self.publish_target.is_empty() {
                return no(
                    "pages do not publish here (hint: --publish-target, where Redis clients do)".to_owned()
                );
            }
            if self.verb != Verb::Publish || self.payload < PAYLOAD_BYTES_MIN {
                return no(format!(
                    "pages read JSON of at least {PAYLOAD_BYTES_MIN} bytes, by --verb publish: --payload {}",
                    self.payload
                ));
            }
        }
        if self.threads == 0 || self.threads > 64 {
            return no(format!("--threads is out of range: {} (hint: 1 to 64)", self.threads));
        }
        if self.publisher_threads >= self.threads {
            return no(format!(
                "--publisher-threads is out of range: {} (hint: 0 to --threads less 1)",
                self.publisher_threads
            ));
        }
        if self.in_flight == 0
            || self.rate < 0.0
            || !self.rate.is_finite()
            || self.warmup < 0.0
            || self.seconds <= 0.0
            || !(0.0..=3600.0).contains(&self.patience)
        {
            return no(
                "--in-flight and --seconds must be above 0, --rate, --warmup and --patience not negative"
                    .to_owned(),
            );
        }
        let lanes = self.subscriptions() * self.lanes() as u64;
        if lanes > LANES_MAX {
            return no(format!(
                "too many subscription-publisher pairs to count: {lanes} (hint: fewer --publishers, or --publish-to own)"
            ));
        }
        Ok(())
    }

    #[inline]
    pub fn number_of(&self, room: u32) -> u32 {
        self.numbers.get(room as usize).copied().unwrap_or(room)
    }

    /// Subscriptions to rooms that are published to, without slow ones.
    pub fn subscriptions(&self) -> u64 {
        u64::from(self.rooms) * u64::from(self.subscribers)
    }

    /// Connections that hold these subscriptions.
    pub fn connection_count(&self) -> u32 {
        let one_each = u32::try_from(self.subscriptions()).unwrap_or(u32::MAX);
        if self.connections == 0 { one_each } else { self.connections.min(one_each) }
    }

    /// The publishers and the subscribers that thread `seat` owns: the first index and the step; None for
    /// none.
    pub fn shares_of(&self, seat: usize) -> (Option<Share>, Option<Share>) {
        match self.publisher_threads {
            0 => (Some((seat, self.threads)), Some((seat, self.threads))),
            publishing if seat < publishing => (Some((seat, publishing)), None),
            publishing => (None, Some((seat - publishing, self.threads - publishing))),
        }
    }

    /// Rooms of a connection, in order.
    pub fn rooms_of(&self, connection: u32) -> impl Iterator<Item = u32> {
        let subscribers = u64::from(self.subscribers.max(1));
        (u64::from(connection)..self.subscriptions())
            .step_by(self.connection_count().max(1) as usize)
            .map(move |j| (j / subscribers) as u32)
    }

    /// Index of `room` among the rooms of a connection.
    pub fn place_of(&self, connection: u32, room: u32) -> Option<usize> {
        let (subscribers, connections) = (u64::from(self.subscribers), u64::from(self.connection_count()));
        let low = u64::from(room) * subscribers;
        let j = low + (u64::from(connection) + connections - low % connections) % connections;
        (room < self.rooms && j < low + subscribers)
            .then_some(((j - u64::from(connection)) / connections) as usize)
    }

    /// The first room and the number of rooms of a publisher.
    pub fn rooms_of_publisher(&self, publisher: u32) -> (u32, u32) {
        match self.publish_to {
            PublishTo::Spread => (0, self.rooms),
            PublishTo::Own => (publisher % self.rooms, 1),
        }
    }

    /// Number of publishers that may publish to one room.
    pub fn lanes(&self) -> usize {
        match self.publish_to {
            PublishTo::Spread => self.publishers as usize,
            PublishTo::Own => self.publishers.div_ceil(self.rooms) as usize,
        }
    }

    /// Index of a publisher among those of its rooms.
    pub fn lane_of(&self, publisher: u32) -> usize {
        match self.publish_to {
            PublishTo::Spread => publisher as usize,
            PublishTo::Own => (publisher / self.rooms) as usize,
        }
    }

    pub fn quota_of(&self, publisher: u32) -> u64 {
        if self.messages == 0 {
            return u64::MAX;
        }
        let publishers = u64::from(self.publishers);
        self.messages / publishers + u64::from(u64::from(publisher) < self.messages % publishers)
    }
}

pub fn room_name(number: u32) -> String {
    format!("{ROOM_PREFIX}{number:0width$}", width = ROOM_DIGITS)
}

pub fn idle_room_name(connection: u32, to: IdleTo) -> Option<String> {
    match to {
        IdleTo::Own => Some(format!("idle:{connection:0width$}", width = ROOM_DIGITS)),
        IdleTo::One => Some("idle:all".to_owned()),
        IdleTo::Nothing => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn scenario(args: &[&str]) -> Scenario {
        Scenario::try_parse_from(["hubsub-load"].iter().chain(args)).expect("the test's arguments are valid")
    }

    #[test]
    fn every_subscription_has_one_connection_and_one_place() {
        for args in [
            ["--rooms", "7", "--subscribers", "3", "--connections", "0"],
            ["--rooms", "7", "--subscribers", "3", "--connections", "5"],
            ["--rooms", "100", "--subscribers", "1", "--connections", "10"],
            ["--rooms", "1", "--subscribers", "9", "--connections", "9"],
        ] {
            let s = scenario(&args);
            s.check().expect("the test's scenario is valid");
            let mut times = vec![0; s.rooms as usize];
            for connection in 0..s.connection_count() {
                let rooms: Vec<u32> = s.rooms_of(connection).collect();
                assert_eq!(
                    rooms.iter().collect::<HashSet<_>>().len(),
                    rooms.len(),
                    "a room twice on one connection"
                );
                for room in 0..s.rooms {
                    assert_eq!(s.place_of(connection, room), rooms.iter().position(|&r| r == room));
                }
                rooms.iter().for_each(|&room| times[room as usize] += 1);
            }
            assert!(times.iter().all(|&n| n == s.subscribers));
        }
    }

    #[test]
    fn publishers_of_one_room_have_lanes_of_their_own() {
        let s = scenario(&["--rooms", "3", "--publishers", "7", "--publish-to", "own"]);
        let mut seen = HashSet::new();
        for publisher in 0..7 {
            let (room, count) = s.rooms_of_publisher(publisher);
            assert_eq!(count, 1);
            assert!(s.lane_of(publisher) < s.lanes());
            assert!(seen.insert((room, s.lane_of(publisher))));
        }
    }

    #[test]
    fn threads_share_all_publishers_and_subscribers() {
        for publishing in ["0", "1", "2"] {
            let s = scenario(&["--threads", "3", "--publisher-threads", publishing]);
            let of =
                |share: Option<Share>| share.into_iter().flat_map(|(first, step)| (first..10).step_by(step));
            let mut publishers: Vec<usize> = (0..3).flat_map(|seat| of(s.shares_of(seat).0)).collect();
            let mut subscribers: Vec<usize> = (0..3).flat_map(|seat| of(s.shares_of(seat).1)).collect();
            publishers.sort_unstable();
            subscribers.sort_unstable();
            assert_eq!(publishers, (0..10).collect::<Vec<_>>());
            assert_eq!(subscribers, publishers);
        }
    }

    #[test]
    fn quotas_add_up_to_the_messages() {
        let s = scenario(&["--publishers", "7", "--messages", "100"]);
        assert_eq!((0..7).map(|p| s.quota_of(p)).sum::<u64>(), 100);
    }

    #[test]
    fn what_cannot_be_run_is_refused_with_its_value() {
        for (args, named) in [
            (vec!["--payload", "8"], "--payload is too small: 8"),
            (vec!["--rooms", "0"], "--rooms is out of range: 0"),
            (vec!["--subscribers", "5", "--connections", "2"], "--connections is too small: 2"),
            (vec!["--rooms", "5", "--publish-to", "own"], "--publishers is too small: 1"),
            (vec!["--resp", "4"], "--resp is unknown: 4"),
            (vec!["--qos", "1"], "--qos is out of range: 1"),
            (vec!["--protocol", "mqtt", "--in-flight", "65536"], "65535 packet ids"),
            (vec!["--protocol", "phoenix"], "--publish-target"),
            (vec!["--protocol", "phoenix", "--publish-target", "a:1", "--payload", "63"], "--payload 63"),
            (vec!["--rooms", "2", "--numbers", "7"], "--numbers are not as many as --rooms: 1"),
            (vec!["--numbers", "100000000"], "a number of --numbers is out of range: 100000000"),
            (vec!["--target", "a:1,b:2"], "a connection has one address: a:1,b:2"),
            (vec!["--threads", "2", "--publisher-threads", "2"], "--publisher-threads is out of range: 2"),
        ] {
            let error = scenario(&args).check().expect_err("the scenario cannot be run");
            assert!(error.contains(named), "{error}");
        }
    }
}
