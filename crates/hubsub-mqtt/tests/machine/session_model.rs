//! Connections that come and go with one session: ended at any time, lost with their process, resumed by
//! either version, with windows of any size; packets of both sides lost, replies in any order. A client that
//! keeps its own state as specified must get each QoS 2 message once and each QoS 1 message at least once,
//! and so must the server.

use hubsub_mqtt::*;
use hubsub_wire::mqtt::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Debug)]
enum Act {
    /// The server sends a message.
    Deliver(Qos),
    /// The client sends a message.
    Publish(Qos),
    /// The server gets the oldest packet of the client, the client the server's.
    ToServer,
    ToClient,
    /// The client answers one of the packets that it got.
    Reply(usize),
    /// The next event is recorded.
    Record,
    /// One of the client's messages is published.
    Commit(usize),
    Snapshot,
    /// The connection is lost with all data in flight; perhaps the process, too.
    Cut {
        kills: bool,
    },
    /// The client reconnects, with a version and a Receive Maximum.
    Connect {
        is_v5: bool,
        receive_max: u16,
    },
}

fn act() -> impl Strategy<Value = Act> {
    let qos = || prop_oneof![Just(Qos::AtLeastOnce), Just(Qos::ExactlyOnce)];
    prop_oneof![
        6 => qos().prop_map(Act::Deliver),
        4 => qos().prop_map(Act::Publish),
        8 => Just(Act::ToServer),
        8 => Just(Act::ToClient),
        8 => (0..4_usize).prop_map(Act::Reply),
        8 => Just(Act::Record),
        4 => (0..4_usize).prop_map(Act::Commit),
        1 => Just(Act::Snapshot),
        1 => any::<bool>().prop_map(|kills| Act::Cut { kills }),
        2 => (any::<bool>(), 1..5_u16).prop_map(|(is_v5, receive_max)| Act::Connect { is_v5, receive_max }),
    ]
}

const LIMITS: DecodeLimits =
    DecodeLimits { packet_bytes_max: 1 << 20, connect_bytes_max: 1 << 20, whole_bytes_max: 1 << 20 };
const INFLIGHT_MAX: u16 = 4;

fn terms() -> Terms {
    Terms {
        packet_bytes_max: 1 << 20,
        receive_max: 100,
        is_strict: true,
        inflight_max: INFLIGHT_MAX,
        aliases_max: 0,
        keep_alive_s_max: 0,
        retains: true,
        long_ids: false,
        session_expiry_s_max: 1000,
        session_expiry_s_default: 100,
        has_shares: true,
    }
}

/// Action after an event is recorded.
#[derive(Debug)]
enum Then {
    Nothing,
    /// PUBREL or PUBCOMP of this number.
    Answer(u32),
    /// This message, which was not sent before.
    Send(PacketId, Qos, u64),
    Publish(Publishing),
}

/// A message of the client that the server is about to publish.
#[derive(Clone, Debug)]
struct Publishing {
    number: u32,
    intent: Option<u64>,
    text: u64,
}

/// A connection: its packets in flight, and the limit of unacknowledged messages to the client.
struct Wire {
    version: Version,
    machine: Machine,
    decoder: Decoder,
    answers: Decoder,
    to_server: VecDeque<Vec<u8>>,
    to_client: VecDeque<Vec<u8>>,
    window: usize,
    /// Ids that were sent on it and have not ended.
    sent: BTreeSet<PacketId>,
    /// The key that was sent last on it.
    last_key: u64,
    /// Replies that the client has yet to send.
    replies: Vec<(u8, PacketId)>,
}

/// The client's own state, which outlives connections.
#[derive(Default)]
struct Device {
    /// Messages that it got, in order.
    got: Vec<u64>,
    unreleased: BTreeSet<PacketId>,
    /// Its own messages by id: QoS, text, whether PUBREC arrived.
    own: BTreeMap<PacketId, (Qos, u64, bool)>,
    own_order: Vec<PacketId>,
    texts: u64,
    last_id: u16,
}

struct World {
    /// Whether the session is recorded, so that it outlives a process.
    is_recorded: bool,
    wire: Option<Wire>,
    kept: Option<SessionState>,
    device: Device,
    /// Keys that were not sent yet.
    queue: VecDeque<(u64, Qos)>,
    keys: Vec<Qos>,
    snapshot: Vec<u8>,
    recorded: Vec<u8>,
    /// Unrecorded events, and the action that waits for them on the connection of this number.
    events: VecDeque<(usize, u64, Event, Then)>,
    connection: usize,
    publishing: Vec<(usize, Publishing)>,
    published: BTreeMap<u64, u64>,
    published_once: Vec<u64>,
    wall_ms: u64,
}

fn ack(id: PacketId) -> Ack<'static> {
    Ack { id, reason: Reason::Success, properties: Properties::default() }
}

impl Wire {
    fn write(&mut self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.to_client.push_back(bytes);
        }
    }

    fn send(&mut self, id: PacketId, qos: Qos, key: u64, dup: bool) {
        assert!(key > self.last_key, "messages of a connection are in the order of their first delivery");
        self.last_key = key;
        let payload = key.to_be_bytes();
        let properties = Properties::default();
        let publish =
            Publish { dup, qos, retain: false, topic: "t", id: Some(id), properties, payload: &payload };
        let mut bytes = Vec::new();
        write_publish(&mut bytes, self.version, &publish, usize::MAX).unwrap();
        assert!(self.sent.insert(id), "{id} is in use");
        assert!(self.sent.len() <= self.window, "the window holds");
        self.to_client.push_back(bytes);
    }

    fn say(&mut self, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.write(&mut bytes, self.version, usize::MAX).unwrap();
        self.to_server.push_back(bytes);
    }

    fn say_own(&mut self, id: PacketId, (qos, text, is_received): (Qos, u64, bool), dup: bool) {
        if is_received {
            return self.say(&Packet::Pubrel(ack(id)));
        }
        let payload = text.to_be_bytes();
        let properties = Properties::default();
        let packet =
            Publish { dup, qos, retain: false, topic: "own", id: Some(id), properties, payload: &payload };
        self.say(&Packet::Publish(packet));
    }
}

impl World {
    fn new(is_recorded: bool) -> World {
        World {
            is_recorded,
            wire: None,
            kept: None,
            device: Device::default(),
            queue: VecDeque::new(),
            keys: Vec::new(),
            snapshot: Vec::new(),
            recorded: Vec::new(),
            events: VecDeque::new(),
            connection: 0,
            publishing: Vec::new(),
            published: BTreeMap::new(),
            published_once: Vec::new(),
            wall_ms: 1,
        }
    }

    fn connect(&mut self, version: Version, receive_max: u16) {
        if self.wire.is_some() {
            return;
        }
        // Else PUBREL would be sent again before the PUBREC is recorded.
        while !self.events.is_empty() {
            self.record();
        }
        let mut properties = PropertyList::default();
        properties.push(Property::SessionExpiry(100)).unwrap();
        properties.push(Property::ReceiveMaximum(receive_max)).unwrap();
        let is_v5 = version == Version::V5;
        let properties = if is_v5 { properties.as_properties() } else { Properties::default() };
        let connect = Connect {
            version,
            clean_start: false,
            keep_alive_s: 0,
            client_id: "c",
            will: None,
            user_name: None,
            password: None,
            properties,
        };
        let mut bytes = Vec::new();
        Packet::Connect(connect).write(&mut bytes, version, usize::MAX).unwrap();
        let mut decoder = Decoder::of_client();
        decoder.decode(&bytes, &LIMITS).unwrap();
        let Ok(opened) = Machine::open(&connect, &terms(), 0, || unreachable!("it has one")) else {
            panic!("nothing is wrong with it")
        };
        let Opened { mut machine, is_clean, accepted } = opened;
        assert!(!is_clean && machine.session_expiry_s() == 100);
        if self.is_recorded {
            machine.record();
        }
        let is_present = self.kept.is_some();
        if let Some(kept) = self.kept.take() {
            machine.resume(kept);
        }
        let (mut answers, mut told) = (Decoder::of_server(version), Vec::new());
        accepted.write(is_present, &mut told);
        let Ok(Decoded::Packet { packet: Packet::Connack(connack), .. }) = answers.decode(&told, &LIMITS)
        else {
            panic!("it is a CONNACK")
        };
        assert_eq!(connack.session_present, is_present);
        let window = if is_v5 { receive_max.min(INFLIGHT_MAX) } else { INFLIGHT_MAX };
        let (to_server, to_client) = (VecDeque::new(), VecDeque::new());
        let mut wire = Wire {
            version,
            machine,
            decoder,
            answers,
            to_server,
            to_client,
            window: window.into(),
            sent: BTreeSet::new(),
            last_key: 0,
            replies: Vec::new(),
        };
        for id in &self.device.own_order {
            wire.say_own(*id, self.device.own[id], true);
        }
        self.wire = Some(wire);
        self.connection += 1;
        if !is_present && self.is_recorded {
            self.take_snapshot();
        }
        self.pump();
    }

    fn take_snapshot(&mut self) {
        let Some(wire) = &self.wire else { return };
        self.snapshot.clear();
        self.recorded.clear();
        wire.machine.state().encode(&mut self.snapshot);
    }

    /// The state that a new process restores from the snapshot and the events.
    fn recovered(&self, with: &[(u64, Event)]) -> SessionState {
        let mut state = SessionState::decode(&self.snapshot).expect("it is whole");
        let mut left = &self.recorded[..];
        while !left.is_empty() {
            let (number, event) = Event::decode(&mut left).expect("it is whole");
            state.apply(number, event);
        }
        for (number, event) in with {
            state.apply(*number, event.clone());
        }
        state.leave(self.wall_ms);
        state
    }

    fn cut(&mut self, kills: bool) {
        let Some(wire) = self.wire.take() else { return };
        self.wall_ms += 1;
        let state = wire.machine.suspend(self.wall_ms);
        if !self.is_recorded {
            self.kept = Some(state);
            return;
        }
        let all: Vec<_> = self.events.iter().map(|(_, number, event, _)| (*number, event.clone())).collect();
        let mut replayed = self.recovered(&all);
        // A publish is no event: the message is published again under its number, or released.
        state.unreleased().filter(|row| row.2).for_each(|(_, number, _)| replayed.published(number));
        let (mut expected, mut bytes) = (Vec::new(), Vec::new());
        state.encode(&mut expected);
        replayed.encode(&mut bytes);
        assert_eq!(bytes, expected, "a snapshot and all events since make the state");
        if kills {
            // Anything that is in no record or snapshot did not happen, so it was not sent.
            let recovered = self.recovered(&[]);
            for (_, _, _, then) in self.events.drain(..).rev() {
                if let Then::Send(_, qos, key) = then
                    && !recovered.unacknowledged().any(|(_, _, other, _)| other == key)
                {
                    self.queue.push_front((key, qos));
                }
            }
            self.kept = Some(recovered);
            self.publishing.clear();
        } else {
            self.kept = Some(state);
        }
    }

    /// The server sends all that the window allows.
    fn pump(&mut self) {
        let Some(wire) = &mut self.wire else { return };
        let mut out = Vec::new();
        while let Some((id, qos, key)) = wire.machine.send_again(&mut out) {
            wire.write(std::mem::take(&mut out));
            wire.send(id, qos, key, true);
        }
        wire.write(out);
        while let Some(&(key, qos)) = self.queue.front() {
            let Some(id) = wire.machine.window.send(qos, key) else { break };
            self.queue.pop_front();
            if self.is_recorded {
                let event = Event::Sent { id, qos, key };
                let number = wire.machine.next_event();
                self.events.push_back((self.connection, number, event, Then::Send(id, qos, key)));
            } else {
                wire.send(id, qos, key, false);
            }
        }
    }

    fn server_takes(&mut self) {
        let Some(wire) = &mut self.wire else { return };
        let Some(bytes) = wire.to_server.pop_front() else { return };
        let Ok(Decoded::Packet { packet, .. }) = wire.decoder.decode(&bytes, &LIMITS) else {
            panic!("the client says whole packets")
        };
        let mut out = Vec::new();
        let connection = self.connection;
        let step = wire.machine.take(packet, 0, &mut out).expect("the client does nothing wrong");
        let happened = match step {
            Step::Done => None,
            Step::Acknowledged { id, .. } => {
                wire.sent.remove(&id);
                Some((Event::Ended(id), Then::Nothing))
            }
            Step::Received { id, number } => Some((Event::Received(id), Then::Answer(number))),
            Step::Released { id, number } => Some((Event::Released(id), Then::Answer(number))),
            Step::Publish(incoming) => {
                let text = u64::from_be_bytes(incoming.payload.try_into().expect("eight bytes"));
                let publishing = Publishing { number: incoming.number, intent: incoming.intent, text };
                match (incoming.intent, incoming.id) {
                    (Some(number), Some(id)) if self.is_recorded => {
                        Some((Event::Intended { id, number }, Then::Publish(publishing)))
                    }
                    _ => {
                        self.publishing.push((connection, publishing));
                        None
                    }
                }
            }
            other => panic!("no packet asks for {other:?}"),
        };
        wire.write(out);
        if let Some((event, then)) = happened.filter(|_| self.is_recorded) {
            self.events.push_back((connection, wire.machine.next_event(), event, then));
        }
        self.pump();
    }

    fn record(&mut self) {
        let Some((connection, number, event, then)) = self.events.pop_front() else { return };
        event.encode(number, &mut self.recorded);
        let wire = self.wire.as_mut().filter(|_| connection == self.connection);
        match (then, wire) {
            (Then::Publish(publishing), _) => self.publishing.push((connection, publishing)),
            (Then::Answer(number), Some(wire)) => {
                let mut out = Vec::new();
                wire.machine.recorded(number, &mut out);
                wire.write(out);
            }
            (Then::Send(id, qos, key), Some(wire)) => wire.send(id, qos, key, false),
            (Then::Nothing | Then::Answer(_) | Then::Send(..), _) => {}
        }
        self.pump();
    }

    /// The room accepts a message, once for each number.
    fn commit(&mut self, which: usize) {
        if self.publishing.is_empty() {
            return;
        }
        let (connection, publishing) = self.publishing.remove(which % self.publishing.len());
        match publishing.intent {
            Some(intent) => {
                let before = self.published.insert(intent, publishing.text);
                assert!(before.is_none_or(|text| text == publishing.text), "a number is one message's");
            }
            None => self.published_once.push(publishing.text),
        }
        let is_now = connection == self.connection;
        match (&mut self.wire, &mut self.kept, publishing.intent) {
            (Some(wire), ..) if is_now => {
                let mut out = Vec::new();
                wire.machine.published(publishing.number, Reason::Success, &mut out).expect("it succeeded");
                wire.write(out);
            }
            (None, Some(kept), Some(intent)) => kept.published(intent),
            _ => {}
        }
    }

    fn client_takes(&mut self) {
        let Some(wire) = &mut self.wire else { return };
        let Some(bytes) = wire.to_client.pop_front() else { return };
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let Ok(Decoded::Packet { packet, len }) = wire.answers.decode(rest, &LIMITS) else {
                panic!("the server says whole packets")
            };
            rest = &rest[len..];
            let device = &mut self.device;
            match packet {
                Packet::Publish(publish) => {
                    let key = u64::from_be_bytes(publish.payload.try_into().expect("eight bytes"));
                    let id = publish.id.expect("of QoS 1 or 2");
                    let is_twice = publish.qos == Qos::ExactlyOnce;
                    if !is_twice || device.unreleased.insert(id) {
                        assert!(publish.dup || !device.got.contains(&key), "one that comes again has DUP");
                        device.got.push(key);
                    }
                    wire.replies.push((if is_twice { 5 } else { 4 }, id));
                }
                Packet::Pubrel(ack) => {
                    device.unreleased.remove(&ack.id);
                    wire.replies.push((7, ack.id));
                }
                Packet::Puback(ack) | Packet::Pubcomp(ack) => {
                    device.own.remove(&ack.id);
                    device.own_order.retain(|id| *id != ack.id);
                }
                Packet::Pubrec(received) => {
                    if let Some(own) = device.own.get_mut(&received.id) {
                        own.2 = true;
                    }
                    wire.say(&Packet::Pubrel(ack(received.id)));
                }
                other => panic!("{other:?} is no answer"),
            }
        }
    }

    fn reply(&mut self, which: usize) {
        let Some(wire) = self.wire.as_mut().filter(|wire| !wire.replies.is_empty()) else { return };
        let (kind, id) = wire.replies.remove(which % wire.replies.len());
        wire.say(&match kind {
            4 => Packet::Puback(ack(id)),
            5 => Packet::Pubrec(ack(id)),
            _ => Packet::Pubcomp(ack(id)),
        });
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Deliver(qos) => {
                self.keys.push(qos);
                self.queue.push_back((self.keys.len() as u64, qos));
                self.pump();
            }
            Act::Publish(qos) => {
                let device = &mut self.device;
                device.texts += 1;
                // Few ids, so that they are reused.
                let free = (1..=9)
                    .map(|step| (device.last_id + step) % 9 + 1)
                    .find(|id| PacketId::new(*id).is_some_and(|id| !device.own.contains_key(&id)));
                let Some(id) = free.and_then(PacketId::new) else {
                    device.texts -= 1;
                    return;
                };
                device.last_id = id.get();
                let own = (qos, device.texts, false);
                device.own.insert(id, own);
                device.own_order.push(id);
                if let Some(wire) = &mut self.wire {
                    wire.say_own(id, own, false);
                }
            }
            Act::ToServer => self.server_takes(),
            Act::ToClient => self.client_takes(),
            Act::Reply(which) => self.reply(which),
            Act::Record => self.record(),
            Act::Commit(which) => self.commit(which),
            Act::Snapshot if self.is_recorded => self.take_snapshot(),
            Act::Snapshot => {}
            Act::Cut { kills } => self.cut(kills && self.is_recorded),
            Act::Connect { is_v5, receive_max } => {
                self.connect(if is_v5 { Version::V5 } else { Version::V311 }, receive_max);
            }
        }
    }

    /// Runs without losses until nothing is left to do.
    fn settle(&mut self) {
        self.connect(Version::V5, 2);
        let is_busy = |world: &World| {
            let wire = world.wire.as_ref().expect("it is connected");
            let on_the_way = wire.to_server.len() + wire.to_client.len() + wire.replies.len();
            on_the_way + world.events.len() + world.publishing.len() > 0
        };
        for _ in 0..100_000 {
            if !is_busy(self) {
                break;
            }
            self.server_takes();
            self.client_takes();
            self.reply(0);
            self.record();
            self.commit(0);
        }
        assert!(!is_busy(self) && self.queue.is_empty(), "it comes to an end");
        let state = self.wire.take().expect("it is connected").machine.suspend(9);
        assert_eq!((state.unacknowledged().count(), state.unreleased().count()), (0, 0));
        for (key, qos) in (1..).zip(&self.keys) {
            let times = self.device.got.iter().filter(|got| **got == key).count();
            assert!(if *qos == Qos::ExactlyOnce { times == 1 } else { times > 0 }, "{key} {qos:?}: {times}");
        }
        assert!(self.device.own.is_empty());
        let twice: BTreeSet<u64> = self.published.values().copied().collect();
        assert_eq!(twice.len(), self.published.len(), "a message of QoS 2 is published once");
        let all = twice.into_iter().chain(self.published_once.iter().copied());
        assert_eq!(all.collect::<BTreeSet<u64>>().len() as u64, self.device.texts, "none is lost");
    }
}

proptest! {
    #[test]
    fn a_session_loses_nothing_and_doubles_nothing_however_its_connections_end(
        is_recorded in any::<bool>(),
        acts in proptest::collection::vec(act(), 1..300),
    ) {
        let mut world = World::new(is_recorded);
        world.connect(Version::V5, 3);
        for act in &acts {
            world.act(act);
        }
        world.settle();
    }
}
