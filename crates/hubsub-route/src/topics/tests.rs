use super::*;
use hubsub_types::Class;
use hubsub_types::names::Matcher;

fn table(routes_max: usize) -> Topics {
    let classes = ClassTable::new(Vec::new(), true);
    let hubs = Hubs::new(2, &classes, Vec::new());
    Topics::new(Arc::new(classes), Arc::new(hubs), routes_max)
}

#[test]
fn routes_are_bounded_and_subscribed_topics_stay() {
    let mut topics = table(10);
    let kept = topics.intern(Namespace::Global, b"kept");
    topics.subscribe(kept, 7);
    for i in 0..1000 {
        topics.intern(Namespace::Global, format!("t{i}").as_bytes());
    }
    assert!(topics.len() <= 11);
    assert_eq!(topics.find(Namespace::Global, b"kept"), Some(kept));
    assert!(topics.unsubscribe(kept, 7));
    (0..20).for_each(|i| _ = topics.intern(Namespace::Global, format!("u{i}").as_bytes()));
    assert_eq!(topics.find(Namespace::Global, b"kept"), None);
}

#[test]
fn few_topics_that_are_left_of_many_give_memory_back_and_what_is_put_there_counts_as_another() {
    let mut topics = table(10);
    let name = |n: usize| format!("t{n}").into_bytes();
    let ids: Vec<TopicId> = (0..20_000)
        .map(|n| {
            let id = topics.intern(Namespace::Global, &name(n));
            topics.subscribe(id, 7);
            id
        })
        .collect();
    let full = topics.table_bytes();
    let names = |ids: std::ops::Range<usize>| ids.map(|n| name(n).len() as u64).sum::<u64>();
    assert_eq!(topics.subscribed_bytes(), names(0..20_000));
    ids[2_000..].iter().for_each(|&id| assert!(topics.unsubscribe(id, 7)));
    assert_eq!(topics.subscribed_bytes(), names(0..2_000));
    let reused = topics.reused();
    topics.shrink();
    assert_eq!((topics.len(), topics.slots.len()), (2_000, 2_000), "routes go, too");
    assert!(topics.table_bytes() < full / 4, "{} of {full}", topics.table_bytes());
    assert_eq!(topics.find(Namespace::Global, &name(1_999)), Some(ids[1_999]));
    assert_eq!(topics.find(Namespace::Global, &name(2_000)), None);
    assert_eq!(topics.intern(Namespace::Global, b"other"), 2_000);
    assert_eq!(topics.reused(), reused + 1);
}

#[test]
fn routes_are_forgotten_only_where_half_of_the_table_goes_with_them() {
    const PLACES: u32 = 10_000;
    let name = |n: u32| format!("t{n}").into_bytes();
    for (last, goes) in [(PLACES / 2 - 1, true), (PLACES / 2, false), (PLACES - 1, false)] {
        let mut topics = table(10);
        for n in 0..PLACES {
            let id = topics.intern(Namespace::Global, &name(n));
            topics.subscribe(id, 7);
        }
        (0..PLACES).filter(|&n| n != last).for_each(|id| _ = topics.unsubscribe(id, 7));
        assert!(topics.intern(Namespace::Global, b"route") < PLACES, "it has a place that was free");
        let routes = topics.len() - 1;
        assert!(routes > 1);
        for _ in 0..3 {
            topics.shrink();
            let places = if goes { last + 1 } else { PLACES } as usize;
            let left = if goes { 1 } else { 1 + routes };
            assert_eq!((topics.slots.len(), topics.len()), (places, left), "the last stands at {last}");
        }
        assert_eq!(topics.find(Namespace::Global, &name(last)), Some(last));
        topics.unsubscribe(last, 7);
        topics.shrink();
        assert_eq!((topics.slots.len(), topics.len()), (0, 0), "nobody subscribes any more");
    }
}

#[test]
fn long_names_take_the_place_of_several_routes() {
    let mut topics = table(10);
    for i in 0..100 {
        topics.intern(Namespace::Global, format!("{i}{}", "x".repeat(1000)).as_bytes());
    }
    assert!(topics.len() <= 4, "{}", topics.len());
}

#[test]
fn routes_of_rows_are_few_and_take_no_others_place() {
    let rows = Class {
        matches: vec![Matcher::parse("$system/#").unwrap()],
        keeps_latest: true,
        ..Class::named("$system")
    };
    let classes = ClassTable::new(vec![rows, Class::named("all")], true);
    let hubs = Hubs::new(2, &classes, Vec::new());
    let mut topics = Topics::new(Arc::new(classes), Arc::new(hubs), 10_000);
    let kept = topics.intern(Namespace::Global, b"kept");
    for i in 0..1000 {
        topics.intern(Namespace::Global, format!("$system/session/{i}").as_bytes());
    }
    assert!((ROWS_MAX..=ROWS_MAX + 1).contains(&topics.len()), "{}", topics.len());
    assert_eq!(topics.find(Namespace::Global, b"kept"), Some(kept));
}

#[test]
fn the_same_name_in_another_namespace_is_another_topic_of_the_same_room() {
    let mut topics = table(10);
    let a = topics.intern(Namespace::Global, b"x");
    let b = topics.intern(Namespace::Shard, b"x");
    assert_ne!(a, b);
    assert_eq!(topics.get(a).shard, topics.get(b).shard);
    assert!(topics.get(a).is_room() && !topics.get(b).is_room());
}

#[test]
fn a_topic_with_one_subscriber_is_small() {
    assert!(std::mem::size_of::<Option<Topic>>() <= 48, "{}", std::mem::size_of::<Option<Topic>>());
}
