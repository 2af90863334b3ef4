//! Properties of a client that sends anything after its CONNECT, however the input is split and however late
//! results arrive: the actions and the output are the same, the output is packets of its version, and the
//! stored state stays within its limits. The fuzz target `mqtt_client` and the test of its sample use this
//! file.
//!
//! The first byte of an input selects the version, whether the Receive Maximum is strict, how late results
//! arrive and whether the session is recorded; the rest is the client's input.

use crate::any_input::{VERSIONS, WIDE, begun};
use hubsub_mqtt::{Machine, Opened, Step, Terms};
use hubsub_wire::mqtt::{Connect, DecodeLimits, Decoded, Packet, Peer, Properties, Qos, Reason, Version};
use std::collections::VecDeque;

const RECEIVE_MAX: u16 = 4;
const INFLIGHT_MAX: u16 = 3;

/// Requests of a client that a caller leaves pending.
const PENDING_MAX: usize = 16;

fn terms(is_strict: bool) -> Terms {
    Terms {
        packet_bytes_max: 2_000,
        receive_max: RECEIVE_MAX,
        is_strict,
        inflight_max: INFLIGHT_MAX,
        aliases_max: 2,
        keep_alive_s_max: 0,
        retains: true,
        long_ids: false,
        session_expiry_s_max: 0,
        session_expiry_s_default: 0,
        has_shares: true,
    }
}

const LIMITS: DecodeLimits =
    DecodeLimits { packet_bytes_max: 2_000, connect_bytes_max: 300, whole_bytes_max: 2_000 };

/// The reaction to an input.
#[derive(PartialEq, Debug, Default)]
pub struct Outcome {
    /// Instructions to the caller, as text.
    pub steps: Vec<String>,
    /// Output to the client.
    pub told: Vec<u8>,
    /// Why it ended, if it did.
    pub end: Option<String>,
}

/// Checks all properties of an input.
///
/// # Panics
/// A property is violated.
pub fn check(input: &[u8]) {
    let whole = outcome(input, usize::MAX);
    for cut in [1, 2, 7] {
        assert_eq!(outcome(input, cut), whole, "cut at each {cut}");
    }
}

/// The reaction to an input that arrives in pieces of this many bytes.
pub fn outcome(input: &[u8], piece: usize) -> Outcome {
    let Some((&how, said)) = input.split_first() else { return Outcome::default() };
    let version = VERSIONS[usize::from(how % 3)];
    let mut client = Client::new(version, how & 4 != 0, usize::from(how >> 3 & 7));
    if how & 64 != 0 {
        client.machine.record();
    }
    let mut decoder = begun(Peer::Client, version);
    let (mut taken, mut known) = (0, 0);
    while client.outcome.end.is_none() {
        match decoder.decode(&said[taken..known], &LIMITS) {
            Ok(Decoded::Packet { packet, len }) => {
                taken += len;
                client.take(packet);
            }
            Ok(Decoded::Incomplete { .. }) if known == said.len() => break,
            Ok(Decoded::Incomplete { .. }) => known = said.len().min(known.saturating_add(piece)),
            Ok(other) => panic!("a packet that is taken is kept whole: {other:?}"),
            Err(error) => {
                error.write(&mut client.outcome.told);
                client.outcome.end = Some(error.to_string());
            }
        }
    }
    client.settle(0);
    are_packets(version, &client.outcome.told);
    client.outcome
}

/// A result that comes later.
#[derive(Clone, Copy)]
enum Waits {
    Message(Qos),
    Filter,
    /// An event of the session must be recorded.
    Record,
    /// The end of some subscriptions must be recorded.
    Unsubscribed,
}

struct Client {
    machine: Machine,
    /// With the numbers of their results.
    waiting: VecDeque<(Waits, u32)>,
    /// Most results that may wait.
    late: usize,
    is_strict: bool,
    outcome: Outcome,
}

impl Client {
    fn new(version: Version, is_strict: bool, late: usize) -> Client {
        let connect = Connect {
            version,
            clean_start: true,
            keep_alive_s: 10,
            client_id: "c",
            will: None,
            user_name: None,
            password: None,
            properties: Properties::default(),
        };
        let Ok(Opened { machine, .. }) = Machine::open(&connect, &terms(is_strict), 0, || unreachable!())
        else {
            panic!("nothing is wrong with it")
        };
        let (waiting, outcome) = (VecDeque::new(), Outcome::default());
        // Older versions have no Receive Maximum.
        Client { machine, waiting, late, is_strict: is_strict && version == Version::V5, outcome }
    }

    fn take(&mut self, packet: Packet<'_>) {
        let step = match self.machine.take(packet, 0, &mut self.outcome.told) {
            Ok(step) => step,
            Err(fault) => return self.end(fault.what),
        };
        self.outcome.steps.push(match &step {
            Step::Publish(incoming) => {
                format!("publish {} {:?}", incoming.topic.as_str(), incoming.payload)
            }
            other => format!("{other:?}"),
        });
        match step {
            Step::Publish(incoming) => {
                if incoming.qos == Qos::AtMostOnce {
                    self.machine.awaits(incoming.number);
                }
                self.waiting.push_back((Waits::Message(incoming.qos), incoming.number));
            }
            Step::Subscribe { filters, first, .. } => {
                self.waiting.extend((first..).zip(filters.iter()).map(|(number, _)| (Waits::Filter, number)));
            }
            Step::Received { number, .. } | Step::Released { number, .. } => {
                self.waiting.push_back((Waits::Record, number));
            }
            Step::Goodbye => return self.end("goodbye"),
            Step::Unsubscribe { number: Some(number), .. } => {
                self.waiting.push_back((Waits::Unsubscribed, number));
            }
            Step::Unsubscribe { .. } | Step::Acknowledged { .. } | Step::Done => {}
        }
        // The server sends messages of its own, which the client's acknowledgements may refer to.
        let qos = [Qos::AtLeastOnce, Qos::ExactlyOnce][self.outcome.steps.len() % 2];
        let was_full = self.machine.window.is_full();
        assert_eq!(self.machine.window.send(qos, 0).is_none(), was_full);
        assert!(self.machine.window.len() <= usize::from(INFLIGHT_MAX));
        let is_answered =
            |(waits, _): &&(Waits, u32)| matches!(waits, Waits::Message(qos) if *qos > Qos::AtMostOnce);
        let unanswered = self.waiting.iter().filter(is_answered);
        assert!(!self.is_strict || unanswered.count() <= usize::from(RECEIVE_MAX));
        self.settle(self.late);
        if self.machine.pending() > PENDING_MAX {
            self.settle(0);
        }
    }

    /// Delivers all results but the last `but`.
    fn settle(&mut self, but: usize) {
        while self.waiting.len() > but
            && self.outcome.end.is_none()
            && let Some((waits, number)) = self.waiting.pop_front()
        {
            let fails = number % 5 == 4;
            let told = &mut self.outcome.told;
            match waits {
                Waits::Message(_) => {
                    let reason = if fails { Reason::QuotaExceeded } else { Reason::Success };
                    if let Err(fault) = self.machine.published(number, reason, told) {
                        self.end(fault.what);
                    }
                }
                Waits::Filter => {
                    let granted = if fails { Err(Reason::NotAuthorized) } else { Ok(()) };
                    self.machine.granted(number, granted, told);
                }
                Waits::Record => self.machine.recorded(number, told),
                Waits::Unsubscribed => self.machine.unsubscribed(number, told),
            }
        }
    }

    fn end(&mut self, why: &str) {
        self.outcome.end = Some(why.to_owned());
    }
}

/// Checks that the output consists of complete packets of its version.
fn are_packets(version: Version, mut told: &[u8]) {
    let mut decoder = begun(Peer::Server, version);
    while !told.is_empty() {
        match decoder.decode(told, &WIDE) {
            Ok(Decoded::Packet { len, .. }) => told = &told[len..],
            other => panic!("{other:?} of {told:?}"),
        }
    }
}
