use super::*;
use hubsub_types::names::{Filter, filter_pattern};
use proptest::prelude::*;

#[test]
fn long_topics_take_the_place_of_several_in_the_cache() {
    let mut patterns = Patterns::new(10);
    patterns.intern(b"*");
    for i in 0..100 {
        matched(&mut patterns, format!("{i}{}", "x".repeat(10_000)).as_bytes());
    }
    assert!(patterns.cache.len() <= 2, "{}", patterns.cache.len());
}

#[test]
fn many_patterns_of_one_prefix_go_as_fast_as_they_came() {
    let mut patterns = Patterns::new(4);
    let begin = std::time::Instant::now();
    let sources: Vec<String> = (0..100_000).map(|i| format!("*{i}")).collect();
    let ids: Vec<u32> = sources.iter().map(|source| patterns.intern(source.as_bytes())).collect();
    ids.into_iter().rev().for_each(|id| patterns.release(id, ShardId(0), 1));
    assert!(patterns.is_empty());
    // Examining all patterns for each of them takes minutes.
    assert!(begin.elapsed() < std::time::Duration::from_secs(15), "{:?}", begin.elapsed());
}

#[test]
fn patterns_of_other_nodes_alone_are_not_counted_as_here() {
    let (mut patterns, shards) = (Patterns::new(4), 2);
    let (node, counts) = (Holder(shards), |patterns: &Patterns| (patterns.len(), patterns.here()));
    patterns.set_holder(b"a*", node, 3, shards);
    assert_eq!(counts(&patterns), (1, 0));
    let id = patterns.intern(b"a*");
    for shard in [ShardId(0), ShardId(1), ShardId(1)] {
        patterns.hold(id, shard, shards);
        assert_eq!(counts(&patterns), (1, 1));
    }
    patterns.set_holder(b"a*", node, 0, shards);
    patterns.release(id, ShardId(1), shards);
    patterns.release(id, ShardId(0), shards);
    assert_eq!(counts(&patterns), (1, 1));
    patterns.set_holder(b"a*", node, 1, shards);
    patterns.release(id, ShardId(1), shards);
    assert_eq!(counts(&patterns), (1, 0));
    patterns.release(id, ShardId(1), shards);
    assert_eq!(counts(&patterns), (1, 0), "there was none left to take away");
    patterns.set_holder(b"a*", node, 0, shards);
    assert_eq!(counts(&patterns), (0, 0));
}

fn matched(patterns: &mut Patterns, topic: &[u8]) -> Vec<Vec<u8>> {
    let ids = patterns.matching(topic);
    let mut sources: Vec<Vec<u8>> = ids.iter().map(|&id| patterns.get(id).source.to_vec()).collect();
    sources.sort();
    sources
}

#[test]
fn a_name_that_begins_with_a_dollar_is_matched_by_patterns_that_do() {
    let mut patterns = Patterns::new(100);
    for source in ["*", "?stats/a", "[$]stats/a", "$stats/*", "$*"] {
        patterns.intern(source.as_bytes());
    }
    assert_eq!(matched(&mut patterns, b"$stats/a"), [b"$*".to_vec(), b"$stats/*".to_vec()]);
    assert_eq!(matched(&mut patterns, b"a$"), [b"*"]);
    patterns.intern(b"a{*");
    assert_eq!(matched(&mut patterns, b"a{$stats}"), [b""; 0], "its tag reserves it");
    assert_eq!(matched(&mut patterns, b"a{stats}").len(), 2);
}

#[test]
fn filters_stand_beside_globs() {
    let mut patterns = Patterns::new(100);
    for filter in ["a/#", "a/+", "#", "+/b", "$stats/#"] {
        patterns.intern(&filter_pattern(filter.as_bytes()));
    }
    patterns.intern(b"a/*");
    let found = |patterns: &mut Patterns, topic: &[u8]| {
        let sources = matched(patterns, topic);
        let text = |s: &Vec<u8>| String::from_utf8(s.strip_prefix(b"\0mqtt:").unwrap_or(s).to_vec()).unwrap();
        sources.iter().map(text).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(found(&mut patterns, b"a"), "# a/#");
    assert_eq!(found(&mut patterns, b"a/b"), "# +/b a/# a/+ a/*");
    assert_eq!(found(&mut patterns, b"a/b/c"), "# a/# a/*");
    assert_eq!(found(&mut patterns, b"$stats/b"), "$stats/#");
}

#[test]
fn a_new_limit_bounds_the_matches_that_are_remembered_already() {
    let mut patterns = Patterns::new(100);
    patterns.intern(b"t*");
    let ask = |patterns: &mut Patterns| (0..100).for_each(|i| _ = patterns.matching(&[b't', i]));
    ask(&mut patterns);
    assert_eq!(patterns.cache.len(), 100);
    patterns.set_cache_topics_max(10);
    assert_eq!(patterns.cache.len(), 0);
    ask(&mut patterns);
    assert_eq!(patterns.cache.len(), 10);
    assert_eq!(matched(&mut patterns, b"tx"), [b"t*"]);
}

#[test]
fn a_pattern_that_comes_or_goes_leaves_the_answers_for_other_topics() {
    let mut patterns = Patterns::new(100);
    for source in [&b"a*"[..], b"b*", &filter_pattern(b"c/#")] {
        patterns.intern(source);
    }
    for topic in [&b"ax"[..], b"bx", b"c", b"c/x"] {
        matched(&mut patterns, topic);
    }
    let id = patterns.intern(b"a?");
    assert_eq!(patterns.cache.len(), 3);
    assert_eq!(matched(&mut patterns, b"ax").len(), 2);
    patterns.release(id, ShardId(0), 1);
    assert_eq!(patterns.cache.len(), 3);
    patterns.intern(&filter_pattern(b"c/x/#"));
    assert_eq!(patterns.cache.len(), 2);
    assert_eq!(matched(&mut patterns, b"c/x").len(), 2);
    patterns.intern(b"*");
    assert_eq!(patterns.cache.len(), 0, "it matches all");
}

#[test]
fn a_pattern_that_begins_with_a_wildcard_leaves_all_answers() {
    let mut patterns = Patterns::new(1_000);
    let ab = patterns.intern(b"*ab*");
    let topics: Vec<String> = (0..1_000).map(|i| format!("{i}ab")).collect();
    let ask = |patterns: &mut Patterns| {
        topics.iter().map(|topic| patterns.matching(topic.as_bytes()).len()).sum::<usize>()
    };
    assert_eq!(ask(&mut patterns), 1_000);
    for source in [&b"*b*"[..], &filter_pattern(b"#"), b"*x*"] {
        for _ in 0..100 {
            let id = patterns.intern(source);
            patterns.release(id, ShardId(0), 1);
        }
        assert_eq!(patterns.cache.len(), 1_000);
    }
    let nines = patterns.intern(b"*9*b");
    assert_eq!(ask(&mut patterns), 1_000 + 271);
    patterns.release(ab, ShardId(0), 1);
    assert_eq!((ask(&mut patterns), patterns.cache.len()), (271, 1_000));
    patterns.release(nines, ShardId(0), 1);
    assert_eq!((ask(&mut patterns), patterns.cache.len()), (0, 1_000));
}

#[test]
fn the_memory_of_patterns_is_counted_and_given_back() {
    let mut patterns = Patterns::new(4);
    let text = "?*".repeat(512);
    let glob = patterns.intern(text.as_bytes());
    assert!((6_000..12_000).contains(&patterns.bytes()), "{}", patterns.bytes());
    let filter = patterns.intern(&filter_pattern("+/".repeat(512).as_bytes()));
    assert!(patterns.bytes() > 50_000, "{}", patterns.bytes());
    patterns.release(filter, ShardId(0), 1);
    patterns.release(glob, ShardId(0), 1);
    assert_eq!(patterns.bytes(), 0);
}

#[test]
fn counts_by_shard_and_node_are_in_the_memory_of_patterns() {
    let (mut patterns, shards) = (Patterns::new(4), 64);
    let id = patterns.intern(b"a*");
    patterns.hold(id, ShardId(3), shards);
    let one = patterns.bytes();
    patterns.hold(id, ShardId(63), shards);
    assert_eq!(patterns.bytes(), one + 64 * 4);
    patterns.set_holder(b"a*", Holder(64 + 127), 5, shards);
    assert_eq!(patterns.bytes(), one + 192 * 4);
    patterns.set_holder(b"a*", Holder(64 + 127), 0, shards);
    patterns.release(id, ShardId(63), shards);
    assert_eq!(patterns.bytes(), one, "one holder is left");
    patterns.release(id, ShardId(3), shards);
    assert_eq!(patterns.bytes(), 0);
}

#[test]
fn tables_give_back_the_memory_of_patterns_that_are_gone() {
    let mut patterns = Patterns::new(4);
    let first = patterns.intern(b"first*");
    patterns.hold(first, ShardId(0), 1);
    let sources = (0..40_000).map(|i| match i % 2 {
        0 => filter_pattern(format!("a/{i}/+").as_bytes()),
        _ => format!("{i}*").into_bytes(),
    });
    let ids: Vec<u32> = sources.map(|source| patterns.intern(&source)).collect();
    ids.into_iter().for_each(|id| patterns.release(id, ShardId(0), 1));
    assert_eq!((patterns.len(), patterns.slots.len(), patterns.free.len()), (1, 1, 0));
    let capacities = [patterns.slots.capacity(), patterns.by_source.capacity(), patterns.globs.capacity()];
    assert!(capacities.iter().all(|&capacity| capacity <= 4_096), "{capacities:?}");
    assert!(patterns.filters.capacity() <= 2 * 4_096, "{}", patterns.filters.capacity());
    assert_eq!(matched(&mut patterns, b"first1"), [b"first*"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn the_index_finds_what_a_scan_finds(
        ops in proptest::collection::vec(
            (any::<bool>(), any::<bool>(), "[$]?[ab*?/+#]{0,5}"), 1..60
        ),
        topics in proptest::collection::vec("[$]?[ab/]{0,5}(\\{\\$a\\})?", 1..10),
    ) {
        let mut patterns = Patterns::new(4);
        let mut model: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        for (adds, is_filter, text) in ops {
            let source = match Filter::new(text.as_bytes()) {
                Ok(_) if is_filter => filter_pattern(text.as_bytes()),
                _ => text.into_bytes(),
            };
            if adds {
                let id = patterns.intern(&source);
                patterns.hold(id, ShardId(0), 1);
                *model.entry(source).or_default() += 1;
            } else if let Some(n) = model.get_mut(&source) {
                patterns.release(patterns.find(&source).unwrap(), ShardId(0), 1);
                *n -= 1;
                if *n == 0 {
                    model.remove(&source);
                }
            }
            prop_assert_eq!((patterns.len(), patterns.here()), (model.len(), model.len()));
            prop_assert_eq!(patterns.bytes() == 0, model.is_empty());
            let search = model.keys().map(|source| match Matcher::of_pattern(source) {
                Matcher::Glob(glob) => glob.search(),
                Matcher::Filter(_) => 0,
            });
            prop_assert_eq!(patterns.search(), search.sum::<usize>());
            for topic in &topics {
                let topic = topic.as_bytes();
                let matches = |source: &&Vec<u8>| {
                    let matcher = Matcher::of_pattern(source);
                    let is_own = topic.starts_with(b"$");
                    let may = !is_own || matcher.literal_prefix().starts_with(b"$");
                    may && !topic.ends_with(b"{$a}") && matcher.matches(topic)
                };
                let scan: Vec<Vec<u8>> = model.keys().filter(matches).cloned().collect();
                prop_assert_eq!(matched(&mut patterns, topic), scan);
            }
        }
    }

    #[test]
    fn answers_of_any_age_are_what_a_scan_finds(
        ops in proptest::collection::vec(
            (0..4_u8, any::<bool>(), "[$]?[ab*?/+#]{0,4}", 0..200_usize), 1..400
        ),
    ) {
        // Enough topics that a change is listed, and enough patterns that some answers are older than the
        // list.
        let letters = [b'$', b'a', b'b', b'/'];
        let mut topics: Vec<Vec<u8>> = vec![Vec::new()];
        for at in 0..85 {
            topics.extend(letters.map(|letter| [&topics[at][..], &[letter]].concat()));
        }
        let mut patterns = Patterns::new(1_000);
        let mut model: BTreeMap<Vec<u8>, Matcher> = BTreeMap::new();
        topics.iter().for_each(|topic| _ = patterns.matching(topic));
        for (kind, is_filter, text, topic) in ops {
            let source = match Filter::new(text.as_bytes()) {
                Ok(_) if is_filter => filter_pattern(text.as_bytes()),
                _ => text.into_bytes(),
            };
            if kind > 0 && !model.contains_key(&source) {
                let id = patterns.intern(&source);
                patterns.hold(id, ShardId(0), 1);
                model.insert(source.clone(), Matcher::of_pattern(&source));
            } else if let Some((source, _)) = model.range(source..).next() {
                let source = source.clone();
                patterns.release(patterns.find(&source).unwrap(), ShardId(0), 1);
                model.remove(&source);
            }
            let topic = &topics[topic];
            let may = |matcher: &Matcher| {
                topic.first() != Some(&b'$') || matcher.literal_prefix().starts_with(b"$")
            };
            let matching = model.iter().filter(|(_, matcher)| may(matcher) && matcher.matches(topic));
            let scan: Vec<Vec<u8>> = matching.map(|(source, _)| source.clone()).collect();
            prop_assert_eq!(matched(&mut patterns, topic), scan, "{:?}", topic);
        }
    }
}
