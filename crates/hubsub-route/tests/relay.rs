//! A home shard that relays, message by message: what it sends to whom, and what it stores.

mod handover;
#[path = "relay/places.rs"]
mod placed;
mod traced;

use hubsub_message::{LeadershipEnd, home};
use hubsub_route::places::{Change, Places};
use hubsub_route::rooms::HistoryPart;
use hubsub_route::{
    Answer, Ask, AskId, Asker, Attached, Broker, CloseReason, Cluster, Delivery, Draft, HubLogRead, Hubs,
    Leader, LogRead, Msg, Names, Namespace, NodeMessage, Now, Outcome, Publisher, Recalled, Record,
    RecordView, RelayLimits, Settings, Sink, Start, Ticket, Via, Wish,
};
use hubsub_types::class::ClassIndex;
use hubsub_types::{
    Class, ClassTable, ConnKey, Epoch, ErrorCode, History, HubId, Limits, NodeId, OnGap, OnSlow, Position,
    ProducerId, Protocol, Qos, Seq, ShardId, Term,
};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

const HUB: HubId = HubId(7);
const NEXT: HubId = HubId(8);
/// With this number, shard 0, which sends the node's messages, is the home of the hub and not of the next
/// one.
const SHARDS: u16 = 7;
const OTHER: NodeId = NodeId(3);
const KEY: ConnKey = ConnKey { index: 0, generation: 0 };

/// The effects of the broker.
#[derive(Default)]
struct World {
    frames: Vec<NodeMessage>,
    got: Vec<Seq>,
    gaps: Vec<(Position, Position)>,
    answers: Vec<Answer>,
    missed: Vec<Box<[u8]>>,
    /// Messages to other shards, with their destination.
    sent: Vec<(ShardId, Msg)>,
    is_shut: bool,
    has_no_lead: bool,
    /// The other node is not heard, while its link is up.
    is_silent: bool,
}

impl Sink for World {
    fn record_begins(&mut self) {}
    fn deliver(&mut self, _: u32, _: Via<'_>, record: &RecordView<'_>) -> Delivery {
        self.got.push(record.position.seq);
        Delivery::Taken
    }
    fn squeeze(&mut self, _: u32, _: Via<'_>, _: &RecordView<'_>, _: OnSlow, _: OnGap) {}
    fn gap(&mut self, _: u32, _: &[u8], from: Position, to: Position, _: OnGap) {
        self.gaps.push((from, to));
    }
    fn close(&mut self, _: u32, _: CloseReason) {}
    fn wants_replay(&self, _: u32) -> bool {
        true
    }
    fn protocol(&self, _: u32) -> Option<Protocol> {
        Some(Protocol::Redis)
    }

    fn publisher(&self, _: u32) -> Box<str> {
        "".into()
    }
    fn recall(&self, _: HubId, _: &[u8]) -> Option<Recalled> {
        None
    }
    fn recalls_through(&self, _: HubId) -> u64 {
        0
    }
    fn append(&mut self, _: HubId, _: u64, _: &[u8], _: &Record) {}
    fn append_deletion(&mut self, _: HubId, _: u64, _: &[u8], _: Position, _: u64) {}
    fn log_refuses(&self, _: HubId) -> Option<ErrorCode> {
        None
    }
    fn log_is_behind(&self) -> bool {
        false
    }
    fn read_log(&mut self, _: Box<LogRead>) {}
    fn history(&mut self, _: Ask, _: Result<HistoryPart, ErrorCode>) {}
    fn deleted(&mut self, _: Ask, _: Result<(), ErrorCode>) {}
    fn send(&mut self, to: ShardId, msg: Msg) {
        self.sent.push((to, msg));
    }
    fn read_hub_log(&mut self, _: Box<HubLogRead>) {
        unreachable!("nobody follows a hub")
    }
    fn congested(&self, _: ShardId) -> bool {
        false
    }
    fn send_node(&mut self, _: NodeId, _: HubId, message: NodeMessage) -> Result<(), NodeMessage> {
        if self.is_shut {
            return Err(message);
        }
        self.frames.push(message);
        Ok(())
    }
    fn node_flows(&self, _: NodeId, _: HubId) -> bool {
        !self.is_shut
    }
    fn node_is_silent(&self, _: NodeId, _: HubId) -> bool {
        self.is_silent
    }
    fn leads(&self, _: HubId, _: Term) -> bool {
        !self.has_no_lead
    }
    fn room_miss(&mut self, _: ClassIndex, room: &[u8], _: bool) {
        self.missed.push(room.into());
    }
    fn answer(&mut self, _: Asker, answer: Answer) {
        self.answers.push(answer);
    }
}

fn at(ms: u64) -> Now {
    Now { mono_ms: ms, wall_us: ms * 1000 }
}

/// The only shard of a node; another node leads its hub in term 2.
fn relay(history: bool) -> (Broker, World) {
    relay_at(history, &Arc::new(Places::new([false, false].into_iter())))
}

/// As `relay`, but rooms may be in another hub than the ring's.
fn relay_at(history: bool, places: &Arc<Places>) -> (Broker, World) {
    relay_of(1, history, places)
}

/// Puts a room into a hub of its class, by index. Returns the change to send to the shards.
fn put(places: &Places, room: &[u8], hub: u16) -> [(Box<[u8]>, Change); 1] {
    [(room.into(), places.set(0, room, Some(hub), 0).unwrap())]
}

/// As `relay_at`, for the hub's home shard among `shards`.
fn relay_of(shards: u16, history: bool, places: &Arc<Places>) -> (Broker, World) {
    let history = history.then_some(History { messages: 100, bytes: 0, age_ms: 0 });
    let classes = Arc::new(ClassTable::new(vec![Class { history, ..Class::named("all") }], true));
    let limits = RelayLimits { parked_max: 2, ..RelayLimits::default() };
    let cluster = Cluster { producer: ProducerId(1 << 8), limits };
    let hubs = Arc::new(Hubs::with_places(shards, &[vec![HUB, NEXT]], Arc::clone(places), cluster));
    let epochs = Arc::new(AtomicU64::new(1 << 32));
    let (shard, limits) = (home(HUB, shards), Limits::default());
    let mut broker = Broker::new(Settings { shard, hubs, classes, limits, epochs, retained: Arc::default() });
    let mut world = World::default();
    broker.connected(KEY);
    broker.node_up(OTHER, 0, 1, at(0), &mut world);
    broker.route(HUB, Term(2), Leader::Node(OTHER), at(0), &mut world);
    world.frames.clear();
    (broker, world)
}

/// The other node's leadership has ended in this term. It reports more records for this node than arrived.
fn ends(broker: &mut Broker, world: &mut World, term: u64) {
    say_over(broker, world, term, LeadershipEnd { epoch: Epoch(70), expected: 9, committed: 9 });
}

fn say_over(broker: &mut Broker, world: &mut World, term: u64, end: LeadershipEnd) {
    broker.node_message(
        OTHER,
        NodeMessage::LeadershipEnded { hub: HUB, term: Term(term), end },
        at(1),
        world,
    );
}

/// This node leads the hub from now on, and the other one has sent all the messages that this waits for.
fn lead(broker: &mut Broker, world: &mut World, term: u64, now: Now) {
    ends(broker, world, 2);
    broker.route(HUB, Term(term), Leader::Me, now, world);
    let (version, patterns) = (0, 0);
    broker.node_message(OTHER, NodeMessage::PatternsBegin { version, patterns }, now, world);
    broker.node_message(OTHER, NodeMessage::PatternsEnd { version }, now, world);
    register(broker, world, term, now);
}

/// The other node's interest is synced.
fn register(broker: &mut Broker, world: &mut World, term: u64, now: Now) {
    broker.node_message(OTHER, NodeMessage::InterestSynced { hub: HUB, term: Term(term) }, now, world);
}

/// The last interest request to the leader: its number, its term and the known position.
fn asked(world: &World) -> (AskId, Term, Position) {
    let last = world.frames.iter().rev().find_map(|frame| match frame {
        &NodeMessage::Interest { ask, term, known, .. } => Some((ask, term, known)),
        _ => None,
    });
    last.expect("it tells its interest")
}

fn ticket() -> Ticket {
    Ticket { shard: ShardId(0), asker: Asker::Client { conn: KEY, slot: 1 } }
}

fn position(seq: u64) -> Position {
    Position { epoch: Epoch(9), seq: Seq(seq) }
}

fn deliver(term: u64, previous: u64, seq: u64) -> NodeMessage {
    let mut record = Record::new(Namespace::Global, b"a", b"x", "".into(), None);
    record.position = position(seq);
    NodeMessage::Deliver {
        hub: HUB,
        term: Term(term),
        previous: Seq(previous),
        before: 0,
        record: Arc::new(record),
    }
}

fn subscribe(broker: &mut Broker, world: &mut World) {
    let wish = Wish { topic: b"a", namespace: Namespace::Global, start: Start::Live };
    let outcome = broker.subscribe(ticket(), KEY, wish, at(0), world);
    assert!(matches!(outcome, Outcome::Later), "{outcome:?}");
    let Some(&NodeMessage::Interest { ask, count: 1, .. }) = world.frames.last() else {
        panic!("it is told")
    };
    let attached = Attached { position: position(5), replay_from: None, recovered: true };
    broker.node_message(OTHER, NodeMessage::Attached { ask, attached }, at(0), world);
    assert!(matches!(world.answers[..], [Answer::Attached(Ok(_))]));
    world.frames.clear();
}

fn publish(broker: &mut Broker, world: &mut World) -> Outcome<Result<hubsub_route::Published, ErrorCode>> {
    let (namespace, publisher) = (Namespace::Global, Publisher::Conn(0));
    let draft = Draft {
        namespace,
        topic: b"a",
        payload: b"x",
        headers: None,
        publisher,
        producer: None,
        qos: Qos::ExactlyOnce,
        retain: false,
    };
    broker.publish(ticket(), draft, at(0), world)
}

#[test]
fn a_hole_is_told_where_there_is_no_history() {
    let (mut broker, mut world) = relay(false);
    subscribe(&mut broker, &mut world);
    broker.node_message(OTHER, deliver(2, 5, 6), at(1), &mut world);
    broker.node_message(OTHER, deliver(2, 8, 9), at(1), &mut world);
    broker.node_message(OTHER, deliver(2, 8, 9), at(1), &mut world);
    assert_eq!(world.got, [Seq(6), Seq(9)], "each once");
    assert_eq!(world.gaps, [(position(7), position(8))]);
}

#[test]
fn a_hole_is_read_where_there_is_history_and_what_comes_waits_for_it() {
    let (mut broker, mut world) = relay(true);
    subscribe(&mut broker, &mut world);
    broker.node_message(OTHER, deliver(2, 7, 8), at(1), &mut world);
    broker.node_message(OTHER, deliver(2, 8, 9), at(1), &mut world);
    assert_eq!(world.got, []);
    let Some(&NodeMessage::Read { ask, start, .. }) = world.frames.last() else {
        panic!("it reads the hole")
    };
    assert_eq!(start, Start::After(position(5)));
    for seq in [6, 7] {
        let NodeMessage::Deliver { record, .. } = deliver(2, 0, seq) else { unreachable!("made above") };
        broker.node_message(OTHER, NodeMessage::Range { ask, record }, at(1), &mut world);
    }
    let (oldest, next, at_end) = (position(0), Seq(10), true);
    let end = NodeMessage::RangeEnd { ask, oldest, next, gap: None, at_end, is_gone: false };
    broker.node_message(OTHER, end, at(1), &mut world);
    assert_eq!(world.got, [6, 7, 8, 9].map(Seq));
    assert_eq!(world.gaps, []);
}

#[test]
fn a_record_of_a_term_that_is_over_is_dropped_and_one_of_a_later_term_waits() {
    let (mut broker, mut world) = relay(false);
    subscribe(&mut broker, &mut world);
    broker.node_message(OTHER, deliver(1, 5, 6), at(1), &mut world);
    broker.node_message(OTHER, deliver(3, 5, 7), at(1), &mut world);
    assert_eq!(world.got, []);
    ends(&mut broker, &mut world, 2);
    broker.route(HUB, Term(3), Leader::Node(OTHER), at(1), &mut world);
    let (ask, term, known) = asked(&world);
    assert_eq!((term, known), (Term(3), position(5)), "it registers anew");
    let last = world.frames.last();
    assert!(
        matches!(last, Some(NodeMessage::InterestSynced { term: Term(3), .. })),
        "that was all: {last:?}"
    );
    let attached = Attached { position: position(5), replay_from: None, recovered: true };
    broker.node_message(OTHER, NodeMessage::Attached { ask, attached }, at(1), &mut world);
    assert_eq!(world.got, [Seq(7)]);
}

#[test]
fn what_was_not_sent_of_a_rooms_next_life_is_read_or_told_from_its_first_record() {
    let next = |seq| Position { epoch: Epoch(10), seq: Seq(seq) };
    for history in [true, false] {
        let (mut broker, mut world) = relay(history);
        subscribe(&mut broker, &mut world);
        ends(&mut broker, &mut world, 2);
        broker.route(HUB, Term(3), Leader::Node(OTHER), at(1), &mut world);
        let (ask, ..) = asked(&world);
        let attached = Attached { position: next(3), replay_from: None, recovered: true };
        broker.node_message(OTHER, NodeMessage::Attached { ask, attached }, at(1), &mut world);
        let reads = matches!(world.frames.last(), Some(NodeMessage::Read { start, .. }) if *start == Start::After(next(0)));
        let told = [(position(6), position(0)), (next(1), next(3))];
        assert_eq!((reads, &world.gaps[..]), (history, &told[..if history { 1 } else { 2 }]));
    }
}

#[test]
fn a_room_is_not_passed_over_where_its_leader_refuses_one_subscription_and_takes_the_next() {
    let (mut broker, mut world) = relay(true);
    subscribe(&mut broker, &mut world);
    ends(&mut broker, &mut world, 2);
    broker.route(HUB, Term(3), Leader::Node(OTHER), at(1), &mut world);
    let (refused, ..) = asked(&world);
    let other = ConnKey { index: KEY.index + 1, ..KEY };
    broker.connected(other);
    let wish = Wish { topic: b"a", namespace: Namespace::Global, start: Start::Last(1) };
    assert!(matches!(broker.subscribe(ticket(), other, wish, at(1), &mut world), Outcome::Later));
    let (taken, ..) = asked(&world);
    let attached = Attached { position: position(8), replay_from: Some(Seq(8)), recovered: true };
    // The leader's log was opened between the two requests.
    let code = ErrorCode::HubClosed;
    broker.node_message(OTHER, NodeMessage::Denied { ask: refused, code }, at(1), &mut world);
    broker.node_message(OTHER, NodeMessage::Attached { ask: taken, attached }, at(1), &mut world);
    world.frames.clear();
    broker.commit_due(at(2_000), &mut world);
    let mut asks: Vec<_> = std::mem::take(&mut world.frames);
    assert!(matches!(asks.pop(), Some(NodeMessage::InterestSynced { .. })));
    assert_eq!(asks.len(), 2, "both are asked for again: {asks:?}");
    for message in asks {
        let NodeMessage::Interest { ask, known, .. } = message else { panic!("{message:?}") };
        assert_eq!(known, position(5));
        broker.node_message(OTHER, NodeMessage::Attached { ask, attached }, at(2_000), &mut world);
    }
    let is_hole = |message: &NodeMessage| matches!(message, NodeMessage::Read { start, .. } if *start == Start::After(position(5)));
    assert!(world.frames.iter().any(is_hole), "what is missing is read: {:?}", world.frames);
}

#[test]
fn a_new_start_is_answered_if_its_subscription_ends_before_the_leader_answers() {
    let (mut broker, mut world) = relay(true);
    subscribe(&mut broker, &mut world);
    world.answers.clear();
    let wish = Wish { topic: b"a", namespace: Namespace::Global, start: Start::Last(1) };
    assert!(matches!(broker.subscribe(ticket(), KEY, wish, at(1), &mut world), Outcome::Later));
    let (ask, ..) = asked(&world);
    assert!(broker.unsubscribe(KEY, Namespace::Global, b"a", at(1), &mut world));
    let nothing = Attached { position: position(5), replay_from: None, recovered: false };
    assert!(
        matches!(world.answers[..], [Answer::Attached(Ok(attached))] if attached == nothing),
        "{:?}",
        world.answers
    );
    let attached = Attached { position: position(5), replay_from: Some(Seq(5)), recovered: true };
    broker.node_message(OTHER, NodeMessage::Attached { ask, attached }, at(2), &mut world);
    assert_eq!(world.answers.len(), 1, "once");
    assert_eq!(broker.counts(KEY), (0, 0, 0));
}

#[test]
fn without_a_leader_publishes_wait_bounded_in_number_and_time() {
    let (mut broker, mut world) = relay(false);
    broker.route(HUB, Term(3), Leader::None, at(0), &mut world);
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    let third = publish(&mut broker, &mut world);
    assert!(matches!(third, Outcome::Now(Err(ErrorCode::LinkFull))), "{third:?}");
    broker.commit_due(at(4_999), &mut world);
    assert!(world.answers.is_empty());
    broker.commit_due(at(5_000), &mut world);
    let refused = |answer: &Answer| matches!(answer, Answer::Published(Err(ErrorCode::HubClosed)));
    assert!(world.answers.len() == 2 && world.answers.iter().all(refused), "{:?}", world.answers);
}

#[test]
fn who_stops_waits_for_what_has_no_answer_and_not_for_what_has_one() {
    let (mut broker, mut world) = relay(false);
    let wish = Wish { topic: b"b", namespace: Namespace::Global, start: Start::Live };
    assert!(matches!(broker.subscribe(ticket(), KEY, wish, at(0), &mut world), Outcome::Later));
    assert!(broker.is_waiting(), "the leader has not confirmed it");
    let Some(&NodeMessage::Interest { ask, .. }) = world.frames.last() else { panic!("it is told") };
    let attached = Attached { position: position(5), replay_from: None, recovered: true };
    broker.node_message(OTHER, NodeMessage::Attached { ask, attached }, at(0), &mut world);
    assert!(!broker.is_waiting() && broker.next_due_ms().is_some());
    broker.route(HUB, Term(3), Leader::None, at(0), &mut world);
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    assert!(broker.is_waiting());
    broker.commit_due(at(5_000), &mut world);
    assert!(!broker.is_waiting());
}

#[test]
fn a_publish_that_was_written_to_a_link_is_not_sent_again() {
    let (mut broker, mut world) = relay(false);
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    assert!(matches!(world.frames[..], [NodeMessage::Publish { .. }]));
    broker.node_down(OTHER, 0, at(1), &mut world);
    assert!(matches!(world.answers[..], [Answer::Published(Err(ErrorCode::LinkLost))]));
    broker.node_up(OTHER, 0, 1, at(2), &mut world);
    let publishes = world.frames.iter().filter(|frame| matches!(frame, NodeMessage::Publish { .. })).count();
    assert_eq!(publishes, 1);
}

#[test]
fn a_publish_waits_for_a_link_that_takes_no_more() {
    let (mut broker, mut world) = relay(false);
    world.is_shut = true;
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    assert!(world.frames.is_empty() && broker.waits_for_nodes());
    world.is_shut = false;
    broker.retry_stalled(at(1), &mut world);
    assert!(matches!(world.frames[..], [NodeMessage::Publish { .. }]) && !broker.waits_for_nodes());
}

#[test]
fn who_asks_a_node_that_does_not_lead_is_told_its_term() {
    let (mut broker, mut world) = relay(true);
    let ask = AskId::new(1, ShardId(0));
    let names = Names { namespace: Namespace::Global, room: (*b"a").into(), topic: (*b"a").into() };
    let (start, known) = (Start::Live, Position::default());
    let interest =
        NodeMessage::Interest { ask, hub: HUB, term: Term(1), names: names.clone(), count: 1, known, start };
    broker.node_message(OTHER, interest, at(1), &mut world);
    assert!(matches!(world.frames[..], [NodeMessage::NotMine { term: Term(2), .. }]), "{:?}", world.frames);
    for start in [Start::Live, Start::Since(1), Start::Last(1), Start::After(position(1))] {
        world.frames.clear();
        let (names, records_max, bytes_max) = (names.clone(), 9, 9);
        let read = NodeMessage::Read { ask, hub: HUB, names, start, records_max, bytes_max };
        broker.node_message(OTHER, read, at(1), &mut world);
        assert!(matches!(world.frames[..], [NodeMessage::NotMine { .. }]), "{start:?}: {:?}", world.frames);
    }
}

#[test]
fn a_leader_answers_reads_from_any_start() {
    let (mut broker, mut world) = relay(true);
    lead(&mut broker, &mut world, 3, at(1_000));
    for ms in [1_000, 2_000, 3_000] {
        let draft = Draft {
            namespace: Namespace::Global,
            topic: b"a",
            payload: b"x",
            headers: None,
            publisher: Publisher::Conn(0),
            producer: None,
            qos: Qos::ExactlyOnce,
            retain: false,
        };
        let outcome = broker.publish(ticket(), draft, at(ms), &mut world);
        assert!(matches!(outcome, Outcome::Now(Ok(_))), "{outcome:?}");
    }
    let names = Names { namespace: Namespace::Global, room: (*b"a").into(), topic: (*b"a").into() };
    for (start, wanted) in
        [(Start::Live, 0), (Start::Since(2_000_000), 2), (Start::Last(1), 1), (Start::Last(9), 3)]
    {
        world.frames.clear();
        let ask = AskId::new(1, ShardId(0));
        let (names, records_max, bytes_max) = (names.clone(), 9, 9_000);
        let read = NodeMessage::Read { ask, hub: HUB, names, start, records_max, bytes_max };
        broker.node_message(OTHER, read, at(4_000), &mut world);
        let came = world.frames.iter().filter(|frame| matches!(frame, NodeMessage::Range { .. })).count();
        assert_eq!(came, wanted, "{start:?}");
        assert!(matches!(world.frames.last(), Some(NodeMessage::RangeEnd { at_end: true, .. })), "{start:?}");
    }
}

#[test]
fn a_room_that_another_node_leads_is_not_deleted_here() {
    let (mut broker, mut world) = relay(true);
    subscribe(&mut broker, &mut world);
    let ask = Ask { shard: ShardId(0), number: 1 };
    assert_eq!(broker.delete_room(b"a", ask, at(1), &mut world), Err(ErrorCode::HubClosed));
}

#[test]
fn no_more_nodes_are_known_than_there_are_places() {
    let (mut broker, mut world) = relay(false);
    (10..400).for_each(|node| broker.node_up(NodeId(node), 0, 1, at(0), &mut world));
    assert_eq!(broker.nodes(), usize::from(hubsub_route::counts::NODES_MAX));
    (10..400).for_each(|node| broker.node_down(NodeId(node), 0, at(0), &mut world));
    assert_eq!(broker.nodes(), 1);
}

#[test]
fn a_publish_is_not_ordered_while_the_process_has_no_lead() {
    let (mut broker, mut world) = relay(false);
    lead(&mut broker, &mut world, 3, at(0));
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Now(Ok(_))));
    world.has_no_lead = true;
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    broker.retry_stalled(at(1), &mut world);
    assert!(world.answers.is_empty() && broker.waits_for_nodes());
    world.has_no_lead = false;
    // A later publish is queued after the first and also has no answer yet.
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    assert!(world.answers.is_empty());
    broker.retry_stalled(at(2), &mut world);
    assert!(matches!(world.answers[..], [Answer::Published(Ok(_)), Answer::Published(Ok(_))]));
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Now(Ok(_))));
    world.has_no_lead = true;
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    broker.commit_due(at(5_000), &mut world);
    assert!(matches!(world.answers[2..], [Answer::Published(Err(ErrorCode::HubClosed))]));
}

#[test]
fn what_waits_for_a_slow_node_when_the_lead_ends_is_refused_in_time() {
    let (mut broker, mut world) = followed_by_pattern();
    world.is_shut = true;
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later), "the node is behind");
    assert_eq!(broker.stalled(), 1);
    world.has_no_lead = true;
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    broker.retry_stalled(at(1_000), &mut world);
    assert_eq!(broker.stalled(), 0, "it holds up no other hub");
    broker.commit_due(at(5_999), &mut world);
    assert!(world.answers.is_empty());
    broker.commit_due(at(6_000), &mut world);
    let refused = Answer::Published(Err(ErrorCode::HubClosed));
    assert_eq!(format!("{:?}", world.answers), format!("{:?}", [&refused, &refused]));
    world.is_shut = false;
    world.has_no_lead = false;
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Now(Ok(_))));
}

#[test]
fn what_waits_for_a_slow_node_goes_where_its_room_is_moved_meanwhile() {
    let places = Arc::new(Places::new([true, false].into_iter()));
    let news = put(&places, b"a", 0);
    let (mut broker, mut world) = relay_of(SHARDS, false, &places);
    broker.rooms_placed(0, &news, at(0), &mut world);
    lead_for_pattern(&mut broker, &mut world);
    world.is_shut = true;
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later), "the node is behind");
    assert_eq!(broker.stalled(), 1);
    broker.rooms_placed(0, &put(&places, b"a", 1), at(1), &mut world);
    world.is_shut = false;
    broker.retry_stalled(at(1), &mut world);
    assert!(world.answers.is_empty(), "who leads it now says how many get it: {:?}", world.answers);
    let there = home(NEXT, SHARDS);
    assert!(matches!(world.sent.last(), Some((to, Msg::Publish(..))) if *to == there), "{:?}", world.sent);
}

#[test]
fn what_concerns_a_room_without_a_place_waits_bounded_in_number_and_time() {
    let places = Arc::new(Places::new([true, false].into_iter()));
    let (mut broker, mut world) = relay_at(false, &places);
    lead(&mut broker, &mut world, 3, at(0));
    let wish = Wish { topic: b"a", namespace: Namespace::Global, start: Start::Live };
    assert!(matches!(broker.subscribe(ticket(), KEY, wish, at(0), &mut world), Outcome::Later));
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Now(Err(ErrorCode::LinkFull))));
    assert_eq!(world.missed, [Box::from(&b"a"[..])], "asked once");
    broker.commit_due(at(4_999), &mut world);
    assert!(world.answers.is_empty());
    broker.commit_due(at(5_000), &mut world);
    let refused = [Answer::Attached(Err(ErrorCode::HubClosed)), Answer::Published(Err(ErrorCode::HubClosed))];
    assert_eq!(format!("{:?}", world.answers), format!("{refused:?}"));
    assert_eq!(broker.counts(KEY), (0, 0, 0), "it does not subscribe");
    // The room is looked up again, and found.
    world.answers.clear();
    assert!(matches!(broker.subscribe(ticket(), KEY, wish, at(6_000), &mut world), Outcome::Later));
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    assert_eq!(world.missed.len(), 2);
    broker.rooms_placed(0, &put(&places, b"a", 0), at(6_001), &mut world);
    assert!(matches!(world.answers[..], [Answer::Attached(Ok(_)), Answer::Published(Ok(_))]), "in order");
    assert_eq!(world.got, [Seq(1)]);
}

#[test]
fn who_subscribes_where_publishes_wait_follows_a_room_that_moves() {
    for is_early in [false, true] {
        let places = Arc::new(Places::new([true, false].into_iter()));
        let news = put(&places, b"a", 0);
        let (mut broker, mut world) = relay_at(false, &places);
        broker.rooms_placed(0, &news, at(0), &mut world);
        broker.route(NEXT, Term(1), Leader::Me, at(0), &mut world);
        subscribe(&mut broker, &mut world);
        assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
        let Some(&NodeMessage::Publish { ask, .. }) = world.frames.last() else { panic!("it is sent") };
        let not_mine = NodeMessage::NotMine { ask, hub: HUB, term: Term(2) };
        broker.node_message(OTHER, not_mine, at(0), &mut world);
        world.answers.clear();
        let news = put(&places, b"a", 1);
        if is_early {
            // The table has the room already, but this shard is not notified yet.
            broker.commit_due(at(1_000), &mut world);
        }
        broker.rooms_placed(0, &news, at(1_000), &mut world);
        broker.retry_stalled(at(1_000), &mut world);
        assert!(matches!(publish(&mut broker, &mut world), Outcome::Now(Ok(_))));
        assert!(matches!(world.answers[..], [Answer::Published(Ok(_))]), "{:?}", world.answers);
        assert!(!world.got.is_empty(), "early: {is_early}");
    }
}

#[test]
fn a_pattern_gets_the_records_of_a_room_whose_place_is_not_known_here_yet() {
    let places = Arc::new(Places::new([true, false].into_iter()));
    let (mut broker, mut world) = relay_at(false, &places);
    assert!(matches!(broker.subscribe_pattern(ticket(), KEY, b"a*", &mut world), Outcome::Later));
    broker.node_message(OTHER, NodeMessage::PatternsHeld { version: 1 }, at(0), &mut world);
    broker.node_message(OTHER, deliver(2, 0, 1), at(1), &mut world);
    // Now the place is known: later records continue from there.
    broker.rooms_placed(0, &put(&places, b"a", 0), at(2), &mut world);
    broker.node_message(OTHER, deliver(2, 1, 2), at(2), &mut world);
    broker.retry_stalled(at(3), &mut world);
    assert_eq!((&world.got[..], &world.gaps[..]), (&[Seq(1), Seq(2)][..], &[][..]));
    // A record from a hub that the room is not in is skipped, and a gap is reported.
    broker.rooms_placed(0, &put(&places, b"a", 1), at(4), &mut world);
    broker.node_message(OTHER, deliver(2, 2, 3), at(4), &mut world);
    broker.retry_stalled(at(5), &mut world);
    assert_eq!((world.got.len(), world.gaps.is_empty()), (2, false));
}

#[test]
fn a_confirmation_that_is_held_behind_a_hole_counts_no_more_when_its_room_is_closed() {
    let (mut broker, mut world) = relay(true);
    assert!(matches!(broker.subscribe_pattern(ticket(), KEY, b"a*", &mut world), Outcome::Later));
    broker.node_message(OTHER, deliver(2, 0, 1), at(0), &mut world);
    let wish = Wish { topic: b"a", namespace: Namespace::Global, start: Start::Last(1) };
    assert!(matches!(broker.subscribe(ticket(), KEY, wish, at(0), &mut world), Outcome::Later));
    let (ask, ..) = asked(&world);
    let Some(NodeMessage::Interest { names, .. }) = world.frames.pop() else { panic!("it is told") };
    broker.node_message(OTHER, deliver(2, 7, 8), at(0), &mut world);
    let Some(&NodeMessage::Read { ask: read, .. }) = world.frames.last() else { panic!("it reads the hole") };
    let attached = Attached { position: position(8), replay_from: Some(Seq(8)), recovered: true };
    broker.node_message(OTHER, NodeMessage::Attached { ask, attached }, at(0), &mut world);
    // The leader closes the room and thereby withdraws its confirmation.
    let ended = NodeMessage::Counts { hub: HUB, term: Term(2), names, count: 0 };
    broker.node_message(OTHER, ended, at(0), &mut world);
    let (oldest, next, gap, at_end) = (position(0), Seq(0), None, true);
    let end = NodeMessage::RangeEnd { ask: read, oldest, next, gap, at_end, is_gone: true };
    broker.node_message(OTHER, end, at(0), &mut world);
    assert!(world.answers.is_empty(), "nobody is sent what comes: {:?}", world.answers);
    world.frames.clear();
    broker.commit_due(at(1_000), &mut world);
    let there = Position { epoch: Epoch(10), seq: Seq(3) };
    for message in std::mem::take(&mut world.frames) {
        if let NodeMessage::Interest { ask, start, .. } = message {
            let replay_from = (start != Start::Live).then_some(Seq(3));
            let attached = Attached { position: there, replay_from, recovered: true };
            broker.node_message(OTHER, NodeMessage::Attached { ask, attached }, at(1_000), &mut world);
        }
    }
    let [Answer::Attached(Ok(attached))] = &world.answers[..] else { panic!("{:?}", world.answers) };
    assert_eq!((attached.position, attached.replay_from), (there, Some(Seq(3))), "where the room is");
}

#[test]
fn a_term_that_another_may_have_led_in_begins_a_new_life_of_rooms() {
    let (mut broker, mut world) = relay(false);
    subscribe(&mut broker, &mut world);
    let mut epochs = Vec::new();
    for (term, gaps) in [(3, 1), (4, 1), (6, 2)] {
        lead(&mut broker, &mut world, term, at(0));
        match publish(&mut broker, &mut world) {
            Outcome::Now(Ok(published)) => epochs.push(published.position.epoch),
            _ => {
                broker.retry_stalled(at(0), &mut world);
                let Some(Answer::Published(Ok(published))) = world.answers.last() else {
                    panic!("it is led: {:?}", world.answers)
                };
                epochs.push(published.position.epoch);
            }
        }
        assert_eq!(world.gaps.len(), gaps, "term {term}");
    }
    assert!(epochs[0] == epochs[1] && epochs[1] != epochs[2], "{epochs:?}");
}

#[test]
fn who_serves_without_a_lead_does_so_in_a_life_of_its_own_and_all_are_told() {
    let (mut broker, mut world) = followed_by_pattern();
    let epoch = |broker: &mut Broker, world: &mut World| match publish(broker, world) {
        Outcome::Now(Ok(published)) => (published.position.epoch, published.receivers),
        other => panic!("it may not: {other:?}"),
    };
    let (led, receivers) = epoch(&mut broker, &mut world);
    world.has_no_lead = true;
    world.frames.clear();
    broker.serve_alone(HUB, true, at(1), &mut world);
    let (served, the_same) = epoch(&mut broker, &mut world);
    assert!(served != led && the_same == receivers, "who was interested is so");
    assert_eq!((world.gaps.len(), world.gaps[0].0), (1, Position { epoch: led, seq: Seq(2) }));
    let [NodeMessage::PatternsLive { .. }, NodeMessage::Deliver { previous, record, .. }] = &world.frames[..]
    else {
        panic!("the other node is told of the life, and sent the record: {:?}", world.frames)
    };
    assert_eq!((*previous, record.position), (Seq(0), Position { epoch: served, seq: Seq(1) }));
    broker.serve_alone(HUB, true, at(2), &mut world);
    assert_eq!(epoch(&mut broker, &mut world).0, served, "said twice it changes nothing");
    world.has_no_lead = false;
    broker.serve_alone(HUB, false, at(3), &mut world);
    assert!(![led, served].contains(&epoch(&mut broker, &mut world).0));
    assert_eq!(world.gaps.len(), 2);
}

#[test]
fn who_acts_for_a_leader_that_is_not_heard_leads_in_its_term_and_gives_it_back() {
    let (mut broker, mut world) = relay(false);
    world.has_no_lead = true;
    broker.node_down(OTHER, 0, at(0), &mut world);
    broker.serve_alone(HUB, true, at(0), &mut world);
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later), "its route names another");
    broker.route(HUB, Term(2), Leader::Me, at(1), &mut world);
    broker.retry_stalled(at(1), &mut world);
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Now(Ok(_))));
    broker.route(HUB, Term(2), Leader::Node(OTHER), at(2), &mut world);
    broker.serve_alone(HUB, false, at(2), &mut world);
    broker.node_up(OTHER, 0, 1, at(2), &mut world);
    world.frames.clear();
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    assert!(matches!(world.frames.last(), Some(NodeMessage::Publish { .. })), "{:?}", world.frames);
}

/// A node that leads the hub, and a node that follows its rooms only by `a*`, with two links: patterns use
/// the first, the hub the second.
fn followed_by_pattern() -> (Broker, World) {
    let (mut broker, mut world) = relay(false);
    lead_for_pattern(&mut broker, &mut world);
    let wish = Wish { topic: b"a", namespace: Namespace::Global, start: Start::Live };
    let outcome = broker.subscribe(ticket(), KEY, wish, at(0), &mut world);
    assert!(matches!(outcome, Outcome::Now(Ok(_))), "{outcome:?}");
    world.frames.clear();
    (broker, world)
}

fn lead_for_pattern(broker: &mut Broker, world: &mut World) {
    broker.node_down(OTHER, 0, at(0), world);
    broker.route(HUB, Term(3), Leader::Me, at(0), world);
    (0..2).for_each(|link| broker.node_up(OTHER, link, 2, at(0), world));
    hold_pattern(broker, world, 1);
}

/// The other node's whole pattern set in this version: `a*`.
fn hold_pattern(broker: &mut Broker, world: &mut World, version: u64) {
    let entry = NodeMessage::PatternsEntry { count: 1, pattern: (*b"a*").into() };
    let begin = NodeMessage::PatternsBegin { version, patterns: 1 };
    for message in [begin, entry, NodeMessage::PatternsEnd { version }] {
        broker.node_message(OTHER, message, at(0), world);
    }
}

/// For each record sent to the other node: the number of records due to it before, and the record's seq.
fn delivered(world: &World) -> Vec<(u64, u64)> {
    let frames = world.frames.iter().filter_map(|frame| match frame {
        NodeMessage::Deliver { previous, record, .. } => Some((previous.0, record.position.seq.0)),
        _ => None,
    });
    frames.collect()
}

#[test]
fn what_a_node_was_not_sent_while_a_hubs_link_was_broken_was_due_to_it() {
    let (mut broker, mut world) = followed_by_pattern();
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Now(Ok(_))));
    broker.node_down(OTHER, 1, at(1), &mut world);
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Now(Ok(_))));
    broker.node_up(OTHER, 1, 2, at(2), &mut world);
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Now(Ok(_))));
    assert_eq!(delivered(&world), [(0, 1), (2, 3)]);
}

/// Each count that a leader sent of the records due to the other node before its patterns were held.
fn said_due(world: &World) -> Vec<u64> {
    let due = world.frames.iter().filter_map(|frame| match frame {
        NodeMessage::PatternsLive { expected, .. } => Some(*expected),
        _ => None,
    });
    due.collect()
}

#[test]
fn a_leader_says_how_many_records_were_due_while_a_nodes_patterns_were_not_held() {
    let (mut broker, mut world) = followed_by_pattern();
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Now(Ok(_))));
    broker.node_down(OTHER, 0, at(1), &mut world);
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Now(Ok(_))));
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Now(Ok(_))));
    broker.node_up(OTHER, 0, 2, at(2), &mut world);
    hold_pattern(&mut broker, &mut world, 1);
    assert_eq!(said_due(&world), [3], "one was sent, two were not");
    broker.node_down(OTHER, 1, at(3), &mut world);
    broker.node_up(OTHER, 1, 2, at(3), &mut world);
    assert_eq!(said_due(&world), [3, 3], "nothing was published meanwhile");
    broker.node_down(OTHER, 1, at(3), &mut world);
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Now(Ok(_))));
    broker.node_up(OTHER, 1, 2, at(3), &mut world);
    assert_eq!(said_due(&world), [3, 3, 4], "one was, while the hub's link was down");
    broker.node_down(OTHER, 0, at(4), &mut world);
    broker.node_up(OTHER, 0, 2, at(4), &mut world);
    hold_pattern(&mut broker, &mut world, 2);
    assert_eq!(said_due(&world), [3, 3, 4, 5], "the set is another one since nobody knows when");
}

#[test]
fn who_follows_by_pattern_is_told_once_when_fewer_records_came_than_were_due() {
    let (mut broker, mut world) = relay(false);
    broker.route(HUB, Term(2), Leader::Node(OTHER), at(0), &mut world);
    let outcome = broker.subscribe_pattern(ticket(), KEY, b"a*", &mut world);
    assert!(matches!(outcome, Outcome::Later), "{outcome:?}");
    broker.node_message(OTHER, NodeMessage::PatternsHeld { version: 1 }, at(0), &mut world);
    assert!(matches!(world.answers[..], [Answer::PatternHeld]));
    let live = |term: u64, life: u64, due: u64| NodeMessage::PatternsLive {
        hub: HUB,
        term: Term(term),
        epoch: Epoch(life),
        expected: due,
    };
    let none = (Position::default(), Position::default());
    broker.node_message(OTHER, live(2, 70, 4), at(1), &mut world);
    assert_eq!(world.gaps, [none], "others led before it");
    broker.node_message(OTHER, deliver(2, 0, 1), at(1), &mut world);
    broker.node_message(OTHER, live(2, 70, 5), at(2), &mut world);
    assert_eq!(world.gaps.len(), 1, "all came");
    broker.node_message(OTHER, live(2, 70, 6), at(3), &mut world);
    broker.node_message(OTHER, live(2, 70, 6), at(3), &mut world);
    assert_eq!(world.gaps, [none, none], "one is missing, told once");
    broker.node_message(OTHER, live(3, 71, 0), at(4), &mut world);
    assert_eq!(world.gaps.len(), 2, "a later term waits for its route");
    ends(&mut broker, &mut world, 2);
    broker.route(HUB, Term(3), Leader::Node(OTHER), at(4), &mut world);
    assert_eq!(world.gaps, [none, none, none], "what the former leader sent last is not known");
}
