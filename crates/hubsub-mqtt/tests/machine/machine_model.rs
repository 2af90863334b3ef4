//! Random orders of a client's packets, split anywhere, and of results, against a model of the replies to the
//! client and the actions of the server.

use hubsub_mqtt::*;
use hubsub_wire::mqtt::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Debug)]
enum Event {
    Publish {
        qos: u8,
        id: u16,
        dup: bool,
    },
    Pubrel(u16),
    Subscribe {
        id: u16,
        filters: Vec<String>,
    },
    Unsubscribe {
        id: u16,
        filters: Vec<String>,
    },
    Ping,
    /// The server learns the result of a pending request.
    Answer {
        which: usize,
        fails: bool,
    },
    /// The server sends a message to the client.
    Deliver {
        qos: u8,
    },
    /// The client sends the next acknowledgement of one of its received messages.
    Acknowledge {
        which: usize,
        fails: bool,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let filters = || proptest::collection::vec("a|b|a/\\+|#|\\$share/g/a", 1..4);
    let id = || 1..6_u16;
    let which = || 0..8_usize;
    prop_oneof![
        6 => (0..3_u8, id(), any::<bool>()).prop_map(|(qos, id, dup)| Event::Publish { qos, id, dup }),
        3 => id().prop_map(Event::Pubrel),
        2 => (id(), filters()).prop_map(|(id, filters)| Event::Subscribe { id, filters }),
        1 => (id(), filters()).prop_map(|(id, filters)| Event::Unsubscribe { id, filters }),
        1 => Just(Event::Ping),
        6 => (which(), any::<bool>()).prop_map(|(which, fails)| Event::Answer { which, fails }),
        4 => (0..3_u8).prop_map(|qos| Event::Deliver { qos }),
        4 => (which(), any::<bool>()).prop_map(|(which, fails)| Event::Acknowledge { which, fails }),
    ]
}

/// One request of the client: the start of its expected reply, and its parts as they become known.
#[derive(Debug)]
enum Asked {
    Publish { qos: Qos, id: u16, number: Option<u32>, reason: Option<Reason> },
    Subscribe { id: u16, numbers: Vec<(u32, Option<Reason>, Qos)> },
    Unsubscribe { id: u16, filters: usize },
}

/// A pending part: its number, QoS and id if it is a message, and its result.
type Part<'a> = (u32, Option<(Qos, u16)>, &'a mut Option<Reason>);

const RECEIVE_MAX: u16 = 5;
const INFLIGHT_MAX: u16 = 3;

fn terms() -> Terms {
    Terms {
        packet_bytes_max: 1 << 20,
        receive_max: RECEIVE_MAX,
        is_strict: true,
        inflight_max: INFLIGHT_MAX,
        aliases_max: 0,
        keep_alive_s_max: 0,
        retains: true,
        long_ids: false,
        session_expiry_s_max: 0,
        session_expiry_s_default: 0,
        has_shares: true,
    }
}

/// The server's side, and a client that records everything.
struct World {
    version: Version,
    decoder: Decoder,
    machine: Machine,
    answers: Decoder,
    asked: VecDeque<Asked>,
    /// Ids of unreleased QoS 2 messages; whether they were answered.
    taken: BTreeMap<u16, bool>,
    /// Messages that the client has received, and its next acknowledgement: 4 PUBACK, 5 PUBREC, 7 PUBCOMP.
    had: Vec<(PacketId, u8)>,
    /// Messages sent to the client.
    sent: u64,
    is_over: bool,
}

const LIMITS: DecodeLimits =
    DecodeLimits { packet_bytes_max: 1 << 20, connect_bytes_max: 1 << 20, whole_bytes_max: 1 << 20 };

fn id(number: u16) -> PacketId {
    PacketId::new(number).expect("ids are from 1 on")
}

impl World {
    fn new(version: Version) -> World {
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
        let Ok(Opened { machine, accepted, .. }) =
            Machine::open(&connect, &terms(), 0, || unreachable!("it has one"))
        else {
            panic!("nothing is wrong with it")
        };
        let mut bytes = Vec::new();
        Packet::Connect(connect).write(&mut bytes, version, usize::MAX).unwrap();
        let mut decoder = Decoder::of_client();
        decoder.decode(&bytes, &LIMITS).unwrap();
        let mut answers = Decoder::of_server(version);
        let mut connack = Vec::new();
        accepted.write(false, &mut connack);
        answers.decode(&connack, &LIMITS).unwrap();
        let (asked, taken, had) = (VecDeque::new(), BTreeMap::new(), Vec::new());
        World { version, decoder, machine, answers, asked, taken, had, sent: 0, is_over: false }
    }

    /// Passes a packet to the server in pieces of this many bytes.
    fn say(&mut self, packet: Packet<'_>, cut: usize) {
        let mut bytes = Vec::new();
        packet.write(&mut bytes, self.version, usize::MAX).unwrap();
        let mut known = 0;
        loop {
            known = (known + cut).min(bytes.len());
            match self.decoder.decode(&bytes[..known], &LIMITS).unwrap() {
                Decoded::Incomplete { .. } => assert!(known < bytes.len(), "a whole packet is taken"),
                Decoded::Packet { packet, len } => {
                    assert_eq!(len, bytes.len());
                    return self.heard(packet);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn heard(&mut self, packet: Packet<'_>) {
        let mut out = Vec::new();
        let unanswered = self.unanswered();
        let may_be_refused = matches!(packet, Packet::Publish(p) if p.qos > Qos::AtMostOnce
            && !(p.qos == Qos::ExactlyOnce && self.taken.contains_key(&p.id.unwrap().get())))
            && self.version == Version::V5
            && unanswered >= usize::from(RECEIVE_MAX);
        match self.machine.take(packet, 0, &mut out) {
            Err(fault) => {
                assert!(may_be_refused, "{fault:?} of {packet:?}");
                assert_eq!(fault.reason, Reason::ReceiveMaximumExceeded);
                self.is_over = true;
            }
            Ok(step) => {
                assert!(!may_be_refused, "{packet:?} is one too many");
                self.noted(packet, step);
                self.told(&out, packet);
            }
        }
    }

    /// QoS 1 and 2 messages that the client may count as unacknowledged.
    fn unanswered(&self) -> usize {
        let once = |asked: &&Asked| matches!(asked, Asked::Publish { qos: Qos::AtLeastOnce, .. });
        self.asked.iter().filter(once).count() + self.taken.len()
    }

    /// Checks the server's action for a packet.
    fn noted(&mut self, packet: Packet<'_>, step: Step<'_>) {
        match (packet, step) {
            (Packet::Publish(publish), Step::Publish(incoming)) => {
                assert_eq!((incoming.topic.as_str(), incoming.payload), (publish.topic, publish.payload));
                let id = publish.id.map_or(0, PacketId::get);
                if publish.qos == Qos::ExactlyOnce {
                    assert_eq!(self.taken.insert(id, false), None, "a message of QoS 2 is published once");
                }
                if publish.qos == Qos::AtMostOnce {
                    self.machine.awaits(incoming.number);
                }
                let number = Some(incoming.number);
                self.asked.push_back(Asked::Publish { qos: publish.qos, id, number, reason: None });
            }
            (Packet::Publish(publish), Step::Done) => {
                let id = publish.id.expect("of QoS 2").get();
                if self.taken[&id] {
                    let reason = Some(Reason::Success);
                    self.asked.push_back(Asked::Publish { qos: Qos::ExactlyOnce, id, number: None, reason });
                }
            }
            (Packet::Subscribe(subscribe), Step::Subscribe { filters, first, .. }) => {
                let numbers = (0..)
                    .zip(filters.iter())
                    .map(|(i, (_, options))| (first.wrapping_add(i), None, options.qos))
                    .collect();
                self.asked.push_back(Asked::Subscribe { id: subscribe.id.get(), numbers });
            }
            (Packet::Unsubscribe(unsubscribe), Step::Unsubscribe { filters: names, .. }) => {
                let (id, filters) = (unsubscribe.id.get(), names.iter().count());
                self.asked.push_back(Asked::Unsubscribe { id, filters });
            }
            (_, Step::Done) => {}
            (Packet::Puback(ack) | Packet::Pubcomp(ack) | Packet::Pubrec(ack), step) => {
                let Step::Acknowledged { id, key, .. } = step else { panic!("{step:?} ends no message") };
                assert_eq!((id, key), (ack.id, u64::from(id.get())), "it has the key of its id");
            }
            (packet, step) => panic!("{packet:?} is no reason to {step:?}"),
        }
    }

    /// Checks the output to the client: replies that are complete, in order, and the immediate reply to this
    /// packet.
    fn told(&mut self, out: &[u8], cause: Packet<'_>) {
        let mut rest = out;
        let mut at_once = match cause {
            Packet::Pingreq => Some((13, 0, Reason::Success)),
            Packet::Pubrel(ack) => {
                let is_known = self.taken.get(&ack.id.get()) == Some(&true);
                if is_known {
                    self.taken.remove(&ack.id.get());
                }
                let reason = if is_known { Reason::Success } else { Reason::PacketIdNotFound };
                Some((7, ack.id.get(), reason))
            }
            Packet::Pubrec(ack) if !ack.reason.is_failure() => Some((6, ack.id.get(), Reason::Success)),
            _ => None,
        };
        let is_v5 = self.version == Version::V5;
        let seen = |reason: Reason| if is_v5 { reason } else { Reason::Success };
        while !rest.is_empty() {
            let Ok(Decoded::Packet { packet, len }) = self.answers.decode(rest, &LIMITS) else {
                panic!("the client is told whole packets")
            };
            rest = &rest[len..];
            let answers = match packet {
                Packet::Pingresp => {
                    assert_eq!(at_once.take().map(|at_once| at_once.0), Some(13));
                    continue;
                }
                Packet::Pubcomp(ack) => {
                    let (kind, id, reason) = at_once.take().expect("it answers a packet");
                    assert_eq!((7, ack.id.get(), ack.reason), (kind, id, seen(reason)));
                    continue;
                }
                Packet::Pubrel(ack) => {
                    let (kind, id, _) = at_once.take().expect("it answers a packet");
                    assert_eq!((6, ack.id.get(), ack.reason), (kind, id, Reason::Success));
                    continue;
                }
                Packet::Puback(ack) => (4, ack.id.get(), vec![ack.reason]),
                Packet::Pubrec(ack) => (5, ack.id.get(), vec![ack.reason]),
                Packet::Suback(suback) => (9, suback.id.get(), suback.reasons.iter().collect()),
                Packet::Unsuback(unsuback) => (11, unsuback.id.get(), unsuback.reasons.iter().collect()),
                other => panic!("{other:?} answers nothing"),
            };
            let expected = loop {
                match self.asked.pop_front().expect("only what was asked is answered") {
                    Asked::Publish { qos: Qos::AtMostOnce, reason, .. } => {
                        assert!(reason.is_some(), "it waits")
                    }
                    Asked::Publish { qos, id, reason, .. } => {
                        let reason = reason.expect("none is answered before its answer is known");
                        break (if qos == Qos::AtLeastOnce { 4 } else { 5 }, id, vec![seen(reason)]);
                    }
                    Asked::Subscribe { id, numbers } => {
                        let granted =
                            |(_, reason, qos): &(u32, Option<Reason>, Qos)| match reason.expect("known") {
                                Reason::Success => Reason::from_number(*qos as u8).expect("it is a QoS"),
                                // 3.1.1 has one code for all failures.
                                _ if !is_v5 => Reason::Unspecified,
                                refused => refused,
                            };
                        break (9, id, numbers.iter().map(granted).collect());
                    }
                    Asked::Unsubscribe { id, filters } => {
                        // machine_tests.rs checks which of them existed.
                        assert_eq!(answers.2.len(), if is_v5 { filters } else { 0 });
                        break (11, id, answers.2.clone());
                    }
                }
            };
            assert_eq!(answers, expected);
        }
        assert_eq!(at_once, None, "{cause:?} is answered at once");
        while let Some(Asked::Publish { qos: Qos::AtMostOnce, reason: Some(_), .. }) = self.asked.front() {
            self.asked.pop_front();
        }
        let known = match self.asked.front() {
            Some(Asked::Publish { reason, .. }) => reason.is_some(),
            Some(Asked::Subscribe { numbers, .. }) => numbers.iter().all(|(_, reason, _)| reason.is_some()),
            Some(Asked::Unsubscribe { .. }) => true,
            None => false,
        };
        assert!(!known, "what is known is told: {:?}", self.asked.front());
    }

    /// One of the pending parts gets its result.
    fn answer(&mut self, which: usize, fails: bool) {
        let fails = fails && self.version == Version::V5;
        let mut waiting: Vec<Part<'_>> = Vec::new();
        for asked in &mut self.asked {
            match asked {
                Asked::Publish { qos, id, number: Some(number), reason } if reason.is_none() => {
                    waiting.push((*number, Some((*qos, *id)), reason));
                }
                Asked::Subscribe { numbers, .. } => {
                    let open = numbers.iter_mut().filter(|(_, reason, _)| reason.is_none());
                    waiting.extend(open.map(|(number, reason, _)| (*number, None, reason)));
                }
                _ => {}
            }
        }
        if waiting.is_empty() {
            return;
        }
        let which = which % waiting.len();
        let (number, published, reason) = waiting.swap_remove(which);
        let came = if fails { Reason::QuotaExceeded } else { Reason::Success };
        *reason = Some(came);
        let mut out = Vec::new();
        match published {
            None => {
                let granted = if fails { Err(came) } else { Ok(()) };
                self.machine.granted(number, granted, &mut out);
            }
            Some((qos, id)) => {
                self.machine.published(number, came, &mut out).expect("5.0 has words for it");
                if qos == Qos::ExactlyOnce && fails {
                    self.taken.remove(&id);
                } else if qos == Qos::ExactlyOnce {
                    self.taken.insert(id, true);
                }
            }
        }
        // A packet without an immediate reply.
        self.told(&out, Packet::Pingresp);
    }

    fn deliver(&mut self, qos: u8) {
        let qos = Qos::from_bits(qos).expect("below 3");
        if qos == Qos::AtMostOnce {
            return;
        }
        // Ids increase by one, and no test is long enough to wrap around.
        self.sent += 1;
        match self.machine.window.send(qos, self.sent) {
            None => {
                self.sent -= 1;
                assert_eq!(self.had.len(), usize::from(INFLIGHT_MAX), "the window is full");
            }
            Some(id) => {
                assert!(self.had.len() < usize::from(INFLIGHT_MAX));
                assert!(self.had.iter().all(|(other, _)| *other != id), "{id} is in use");
                self.had.push((id, if qos == Qos::AtLeastOnce { 4 } else { 5 }));
            }
        }
    }

    fn acknowledge(&mut self, which: usize, fails: bool, cut: usize) {
        if self.had.is_empty() {
            return;
        }
        let which = which % self.had.len();
        let (id, next) = self.had[which];
        let fails = fails && self.version == Version::V5;
        let reason = if fails && next < 7 { Reason::QuotaExceeded } else { Reason::Success };
        let ack = Ack { id, reason, properties: Properties::default() };
        if next == 5 && !fails {
            self.had[which].1 = 7;
        } else {
            self.had.swap_remove(which);
        }
        let packet = match next {
            4 => Packet::Puback(ack),
            5 => Packet::Pubrec(ack),
            _ => Packet::Pubcomp(ack),
        };
        self.say(packet, cut);
        assert_eq!(self.machine.window.len(), self.had.len());
    }

    fn act(&mut self, event: &Event, cut: usize) {
        match event {
            Event::Publish { qos, id: number, dup } => {
                let qos = Qos::from_bits(*qos).expect("below 3");
                let is_once = self.asked.iter().any(|asked| {
                    matches!(asked,
                    Asked::Publish { id, reason: None, .. } if id == number)
                });
                if qos == Qos::AtLeastOnce && (is_once || self.taken.contains_key(number)) {
                    // A client does not use an id for two messages.
                    return;
                }
                let packet = Publish {
                    dup: *dup && qos > Qos::AtMostOnce,
                    qos,
                    retain: false,
                    topic: "t",
                    id: (qos > Qos::AtMostOnce).then(|| id(*number)),
                    properties: Properties::default(),
                    payload: b"payload",
                };
                self.say(Packet::Publish(packet), cut);
            }
            Event::Pubrel(number) => {
                let ack = Ack { id: id(*number), reason: Reason::Success, properties: Properties::default() };
                self.say(Packet::Pubrel(ack), cut);
            }
            Event::Subscribe { id: number, filters } => {
                let mut raw = Vec::new();
                for (qos, filter) in (0..3).cycle().zip(filters) {
                    let qos = Qos::from_bits(qos).expect("below 3");
                    Filters::push(&mut raw, filter, Options { qos, ..Options::default() }).unwrap();
                }
                let filters = Filters::new(&raw, self.version).unwrap();
                let properties = Properties::default();
                self.say(Packet::Subscribe(Subscribe { id: id(*number), properties, filters }), cut);
            }
            Event::Unsubscribe { id: number, filters } => {
                let mut raw = Vec::new();
                filters.iter().for_each(|filter| Names::push(&mut raw, filter).unwrap());
                let filters = Names::new(&raw).unwrap();
                let properties = Properties::default();
                self.say(Packet::Unsubscribe(Unsubscribe { id: id(*number), properties, filters }), cut);
            }
            Event::Ping => self.say(Packet::Pingreq, cut),
            Event::Answer { which, fails } => self.answer(*which, *fails),
            Event::Deliver { qos } => self.deliver(*qos),
            Event::Acknowledge { which, fails } => self.acknowledge(*which, *fails, cut),
        }
    }
}

proptest! {
    #[test]
    fn answers_come_in_order_and_each_message_once_whatever_comes_when(
        version in proptest::sample::select(vec![Version::V311, Version::V5]),
        events in proptest::collection::vec((event(), 1..40_usize), 1..80),
    ) {
        let mut world = World::new(version);
        for (event, cut) in &events {
            world.act(event, *cut);
            if world.is_over {
                break;
            }
        }
    }
}
