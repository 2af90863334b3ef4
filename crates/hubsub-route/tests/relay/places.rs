//! Rooms that are placed one by one: a shard gives them up, and changes arrive late, twice or for other classes;
//! rooms of a class whose hubs are not known have none.

use super::*;
use hubsub_route::Left;
use hubsub_route::places::UNPLACED;
use hubsub_types::names::Matcher;

/// Of the class that comes later; its home is neither shard 0 nor the broker's.
const THIRD: HubId = HubId(9);

/// The home of the hub, which leads it, in a class whose rooms are all asked for.
fn leader() -> (Broker, World, Arc<Places>) {
    let places = Arc::new(Places::new([true].into_iter()));
    let (mut broker, mut world) = relay_of(SHARDS, false, &places);
    lead(&mut broker, &mut world, 3, at(0));
    (broker, world, places)
}

/// Rooms that begin with `n` are of a class of their own from now on.
fn change_classes(broker: &mut Broker, world: &mut World, places: &Places) -> Arc<Places> {
    let places = Arc::new(places.with([true].into_iter()));
    let new = Class { matches: vec![Matcher::parse("n*").unwrap()], ..Class::named("new") };
    let classes = Arc::new(broker.classes().changed(vec![new, Class::named("all")]));
    let cluster = Cluster { producer: ProducerId(1 << 8), limits: RelayLimits::default() };
    let ids = [vec![HUB, NEXT], vec![THIRD]];
    let hubs = Arc::new(Hubs::with_places(SHARDS, &ids, Arc::clone(&places), cluster));
    broker.set_classes(classes, hubs, at(0), world);
    places
}

fn rooms(names: &[&str]) -> Vec<Box<[u8]>> {
    names.iter().map(|name| name.as_bytes().into()).collect()
}

fn given_up(broker: &Broker, world: &World, names: &[&str]) -> (ClassIndex, Vec<String>) {
    let (class, given_up) = broker.give_up_rooms((HUB, Term(3)), rooms(names), world);
    (class, given_up.iter().map(|(room, _)| String::from_utf8_lossy(room).into_owned()).collect())
}

/// Where the room was left, in order.
fn left(world: &World) -> Vec<ShardId> {
    let to = |(to, msg): &(ShardId, Msg)| matches!(msg, Msg::Leave(..)).then_some(*to);
    world.sent.iter().filter_map(to).collect()
}

#[test]
fn requests_for_a_room_are_refused_while_the_hubs_of_its_class_are_unknown() {
    let places = Arc::new(Places::new([false].into_iter()));
    // Shard 0, the supposed home of such rooms.
    let (mut broker, mut world) = relay_of(SHARDS, false, &places);
    let topics = (0u8..=u8::MAX).map(|byte| [byte]);
    let topic = topics.into_iter().find(|topic| broker.topics.shard_of_room(topic) != ShardId(0)).unwrap();
    let wish = Wish { topic: &topic, namespace: Namespace::Global, start: Start::Live };
    assert!(matches!(broker.subscribe(ticket(), KEY, wish, at(0), &mut world), Outcome::Later));
    let Some((_, Msg::Attach(attach))) = world.sent.pop() else { panic!("{:?}", world.sent) };
    let cluster = Cluster { producer: ProducerId(1 << 8), limits: RelayLimits::default() };
    broker.join(Arc::new(Hubs::with_places(SHARDS, &[vec![]], Arc::clone(&places), cluster)));
    broker.receive(Msg::Attached(Box::new((*attach, Err(ErrorCode::HubDiffers)))), at(1), &mut world);
    assert!(
        matches!(world.answers[..], [Answer::Attached(Err(ErrorCode::HubClosed))]),
        "{:?}",
        world.answers
    );
    for _ in 0..2 {
        let refused = publish(&mut broker, &mut world);
        assert!(matches!(refused, Outcome::Now(Err(ErrorCode::HubClosed))), "{refused:?}");
    }
    let record = Arc::new(Record::new(Namespace::Global, b"a", b"x", Box::default(), None));
    let of_other = Ticket { shard: ShardId(1), ..ticket() };
    broker.receive(Msg::Publish(of_other, record, 0), at(1), &mut world);
    let answer = world.sent.last();
    assert!(matches!(answer, Some((ShardId(1), Msg::Published(_, Err(ErrorCode::HubClosed))))), "{answer:?}");
}

#[test]
fn a_shard_that_has_yet_to_hear_of_a_change_gives_no_room_up() {
    let (mut broker, mut world, places) = leader();
    broker.rooms_placed(0, &put(&places, b"a", 0), at(0), &mut world);
    let unheard = put(&places, b"b", 1);
    assert_eq!(given_up(&broker, &world, &["a"]).1, [""; 0]);
    assert_eq!(places.find(0, b"a").map(|place| place.hub), Some(0), "it is where it was");
    assert_eq!(broker.unused_rooms((HUB, Term(3)), rooms(&["a"]), &world), rooms(&["a"]), "nobody uses it");
    broker.rooms_placed(0, &unheard, at(0), &mut world);
    assert_eq!(given_up(&broker, &world, &["a", "b"]), (0, vec!["a".to_owned()]), "b is another hub's");
    assert_eq!(places.find(0, b"a").map(|place| place.hub), Some(UNPLACED));
    assert_eq!(given_up(&broker, &world, &["a"]).1, [""; 0], "it has not heard of its own change either");
}

#[test]
fn rooms_are_given_up_of_their_hubs_class_though_they_are_of_another_one_by_now() {
    let (mut broker, mut world, places) = leader();
    for room in [&b"n"[..], b"m"] {
        broker.rooms_placed(0, &put(&places, room, 0), at(0), &mut world);
    }
    let places = change_classes(&mut broker, &mut world, &places);
    let news = places.set(1, b"n", Some(0), 0).unwrap();
    broker.rooms_placed(1, &[((*b"n").into(), news)], at(0), &mut world);
    assert_eq!(given_up(&broker, &world, &["n", "m"]), (0, vec!["n".to_owned(), "m".to_owned()]));
    let hubs =
        [(0, &b"n"[..]), (0, b"m"), (1, b"n")].map(|(class, room)| places.find(class, room).unwrap().hub);
    assert_eq!(hubs, [UNPLACED, UNPLACED, 0], "what it is now stays");
}

#[test]
fn a_room_is_not_left_where_it_is_for_a_change_of_the_class_that_it_was_of() {
    let (mut broker, mut world, places) = leader();
    broker.rooms_placed(0, &put(&places, b"n", 1), at(0), &mut world);
    let places = change_classes(&mut broker, &mut world, &places);
    let news = places.set(1, b"n", Some(0), 0).unwrap();
    broker.rooms_placed(1, &[((*b"n").into(), news)], at(0), &mut world);
    let subscribe = |broker: &mut Broker, world: &mut World, slot| {
        let wish = Wish { topic: b"n", namespace: Namespace::Global, start: Start::Live };
        let ticket = Ticket { shard: ShardId(0), asker: Asker::Client { conn: KEY, slot } };
        assert!(matches!(broker.subscribe(ticket, KEY, wish, at(0), world), Outcome::Later));
    };
    subscribe(&mut broker, &mut world, 1);
    let there = home(THIRD, SHARDS);
    assert!(matches!(world.sent.last(), Some((to, Msg::Attach(_))) if *to == there), "{:?}", world.sent);
    let removed = places.set(0, b"n", None, 0).unwrap();
    assert_eq!((removed.before, removed.after), (1, UNPLACED));
    broker.rooms_placed(0, &[((*b"n").into(), removed)], at(0), &mut world);
    assert_eq!(left(&world), []);
    // A change of the class that it is of now is one.
    let removed = places.set(1, b"n", None, 0).unwrap();
    broker.rooms_placed(1, &[((*b"n").into(), removed)], at(0), &mut world);
    assert_eq!(left(&world), [there]);
}

#[test]
fn a_room_that_is_moved_twice_at_once_is_left_where_it_was_before_and_nowhere_else() {
    let (mut broker, mut world, places) = leader();
    broker.rooms_placed(0, &put(&places, b"a", 1), at(0), &mut world);
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    let (there, news) = (home(NEXT, SHARDS), [put(&places, b"a", 0), put(&places, b"a", 1)].concat());
    assert!(matches!(world.sent.last(), Some((to, Msg::Publish(..))) if *to == there), "{:?}", world.sent);
    broker.rooms_placed(0, &news, at(0), &mut world);
    broker.retry_stalled(at(0), &mut world);
    assert_eq!(left(&world), [there]);
    world.sent.clear();
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    broker.retry_stalled(at(0), &mut world);
    assert!(world.sent.is_empty(), "the first publish has no answer yet: {:?}", world.sent);
    let over = Left { room: (*b"a").into(), back: Vec::new() };
    broker.receive(Msg::Left(Box::new(over)), at(0), &mut world);
    assert!(matches!(world.sent[..], [(to, Msg::Publish(_, _, 3))] if to == there), "{:?}", world.sent);
}

#[test]
fn an_answer_for_a_room_without_a_place_that_has_one_since_answers_nothing() {
    let (mut broker, mut world, places) = leader();
    broker.rooms_placed(0, &put(&places, b"a", 1), at(0), &mut world);
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    broker.rooms_placed(0, &put(&places, b"a", 0), at(0), &mut world);
    assert_eq!(left(&world), [home(NEXT, SHARDS)]);
    // Both wait until it is left.
    assert!(matches!(
        broker.subscribers(ticket(), Namespace::Global, b"a", at(0), &mut world),
        Outcome::Later
    ));
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    broker.room_absent(b"a", &mut world);
    broker.room_refused(b"a", ErrorCode::TooManyRooms, at(0), &mut world);
    assert!(world.answers.is_empty(), "{:?}", world.answers);
    let over = Left { room: (*b"a").into(), back: Vec::new() };
    broker.receive(Msg::Left(Box::new(over)), at(0), &mut world);
    assert!(
        matches!(world.answers[..], [Answer::Counted(Ok(0)), Answer::Published(Ok(_))]),
        "{:?}",
        world.answers
    );
}

#[test]
fn a_publish_of_a_node_for_which_there_is_no_place_to_wait_comes_before_none_that_waits() {
    let (mut broker, mut world, places) = leader();
    let publish = |broker: &mut Broker, world: &mut World, number: u64| {
        let record = Record::new(Namespace::Global, b"a", &[number as u8], "".into(), None);
        let (ask, record) = (AskId::new(number, ShardId(0)), Arc::new(record));
        let message = NodeMessage::Publish { ask, hub: HUB, term: Term(3), record };
        broker.node_message(OTHER, message, at(0), world);
    };
    // As many as may wait.
    (1..3).for_each(|number| publish(&mut broker, &mut world, number));
    assert_eq!(world.missed, [Box::from(&b"a"[..])]);
    world.frames.clear();
    let news = put(&places, b"a", 0);
    publish(&mut broker, &mut world, 3);
    assert!(
        matches!(world.frames[..], [NodeMessage::NotMine { ask, .. }] if ask == AskId::new(3, ShardId(0))),
        "{:?}",
        world.frames
    );
    world.frames.clear();
    broker.rooms_placed(0, &news, at(0), &mut world);
    let told = |frame: &NodeMessage| match frame {
        NodeMessage::Published { ask, .. } => Some(*ask),
        _ => None,
    };
    let told: Vec<_> = world.frames.iter().filter_map(told).collect();
    assert_eq!(told, [1, 2].map(|number| AskId::new(number, ShardId(0))), "in order");
}
