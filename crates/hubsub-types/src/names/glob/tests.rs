//! Compares globs with a direct implementation of their rules; also Redis's edge cases and pattern bombs.

use super::*;
use proptest::prelude::*;

fn matches(pattern: &str, topic: &str) -> bool {
    Glob::new(pattern.as_bytes()).matches(topic.as_bytes())
}

/// Reference implementation: every star tries every length.
fn naive(pattern: &[u8], topic: &[u8]) -> bool {
    let one = |fits: bool, rest: &[u8]| fits && naive_rest(rest, &topic[1..]);
    match (pattern, topic) {
        (_, []) => pattern.is_empty(),
        ([], _) => false,
        ([b'*', rest @ ..], _) => (0..=topic.len()).any(|n| naive_rest(rest, &topic[n..])),
        ([b'?', rest @ ..], _) => one(true, rest),
        ([b'[', b'^', rest @ ..], [byte, ..]) => {
            let (hit, rest) = naive_class(rest, *byte, false);
            one(!hit, rest)
        }
        ([b'[', rest @ ..], [byte, ..]) => {
            let (hit, rest) = naive_class(rest, *byte, false);
            one(hit, rest)
        }
        ([b'\\', wanted, rest @ ..] | [wanted, rest @ ..], [byte, ..]) => one(wanted == byte, rest),
    }
}

/// As `naive`, after the first byte of the topic: stars match nothing, too.
fn naive_rest(pattern: &[u8], topic: &[u8]) -> bool {
    if topic.is_empty() { pattern.iter().all(|&b| b == b'*') } else { naive(pattern, topic) }
}

fn naive_class(class: &[u8], byte: u8, hit: bool) -> (bool, &[u8]) {
    match class {
        [] => (hit, class),
        [b'\\', one, rest @ ..] => naive_class(rest, byte, hit || *one == byte),
        [b']', rest @ ..] => (hit, rest),
        [a, b'-', b, rest @ ..] => {
            let (a, b, c) = (*a as i8, *b as i8, byte as i8);
            naive_class(rest, byte, hit || a.min(b) <= c && c <= a.max(b))
        }
        [one, rest @ ..] => naive_class(rest, byte, hit || *one == byte),
    }
}

proptest! {
    #[test]
    fn a_compiled_glob_means_what_the_naive_one_means(
        pattern in "[ab*?\\[\\]^\\\\-]{0,10}", topic in "[ab*\\]\\\\^-]{0,8}"
    ) {
        prop_assert_eq!(matches(&pattern, &topic), naive(pattern.as_bytes(), topic.as_bytes()));
    }

    #[test]
    fn the_prefix_is_the_same_compiled_or_not(pattern in "[ab*?\\[\\]\\\\]{0,6}") {
        let glob = Glob::new(pattern.as_bytes());
        let (prefix, is_all) = Glob::prefix_of(pattern.as_bytes());
        prop_assert_eq!((&prefix[..], is_all), (glob.literal_prefix(), glob.is_literal()));
    }

    #[test]
    fn no_match_takes_more_steps_than_its_pattern_says(
        pattern in "([ab?]|\\[ab\\]|\\*){1,40}(a|\\?){0,200}\\*?", topic in "[ab]{1,600}"
    ) {
        within_bound(pattern.as_bytes(), topic.as_bytes())?;
    }

    #[test]
    fn a_long_search_finds_what_a_short_one_finds(
        segment in "[ab?]{1,3}(\\[[ab]\\]|a|\\?){0,150}", topic in "[ab]{0,400}"
    ) {
        let program = Segments::compile(segment.as_bytes());
        let only = &program.segments[0];
        prop_assume!(!only.literal);
        let place = topic.as_bytes().windows(only.len()).position(|part| program.fits(only, part));
        prop_assert_eq!(program.find_bitwise(only, topic.as_bytes()), place);
    }

    #[test]
    fn any_bytes_are_a_pattern(pattern: Vec<u8>, topic: Vec<u8>) {
        let glob = Glob::new(&pattern);
        prop_assert_eq!(glob.source(), &*pattern);
        if glob.matches(&topic) {
            prop_assert!(topic.starts_with(glob.literal_prefix()));
        }
    }

    #[test]
    fn an_escaped_topic_matches_itself_only(topic: Vec<u8>, other: Vec<u8>) {
        let pattern: Vec<u8> = topic.iter().flat_map(|&b| [b'\\', b]).collect();
        let glob = Glob::new(&pattern);
        prop_assert!(glob.matches(&topic) && glob.is_literal());
        prop_assert_eq!(glob.matches(&other), topic == other);
    }
}

#[test]
fn wildcards_classes_and_escapes_match_as_in_redis() {
    for (pattern, yes, no) in [
        ("irc:*", &["irc:", "irc:x"][..], &["irc", "xirc:"][..]),
        ("*.typing", &["a.typing", ".typing"], &["a.typin", "a.typingx"]),
        ("h?llo", &["hello", "h*llo"], &["hllo", "heello"]),
        ("h[ae]llo", &["hello", "hallo"], &["hillo"]),
        ("h[^e]llo", &["hallo"], &["hello"]),
        ("h[a-b]llo", &["hallo", "hbllo"], &["hcllo"]),
        ("a\\*b", &["a*b"], &["axb"]),
        ("*a*b*", &["ab", "xaxbx"], &["ba", "a"]),
        ("a**b", &["ab", "axxb"], &["a"]),
        ("*ab", &["aab", "abab"], &["aba"]),
        ("ab*ab", &["abab"], &["ab", "abb"]),
    ] {
        yes.iter().for_each(|topic| assert!(matches(pattern, topic), "{pattern} {topic}"));
        no.iter().for_each(|topic| assert!(!matches(pattern, topic), "{pattern} {topic}"));
    }
}

#[test]
fn the_odd_cases_are_those_of_redis() {
    // The empty topic.
    assert!(matches("", "") && !matches("*", "") && !matches("", "a"));
    // A class without end, an empty one, one with `]` escaped.
    assert!(matches("[ab", "b") && !matches("[", "[") && matches("[^", "x"));
    assert!(!matches("[]", "]") && matches("[^]", "x") && matches("[\\]]", "]"));
    // Reversed ranges, `-` at the end, `]` as the end of a range.
    assert!(matches("[c-a]", "b") && matches("[a-", "-") && matches("[a-]", "^"));
    // A backslash is literal inside a range and at the end of the pattern.
    assert!(matches("[Z-\\]", "[") && matches("a\\", "a\\") && matches("[a\\", "\\"));
    // Bytes above 127 sort before those below.
    let range = Glob::new(b"[\xff-a]");
    assert!(range.matches(b"\x00") && range.matches(b"\xff") && !range.matches(b"\x80"));
}

#[test]
fn the_literal_prefix_ends_at_the_first_wildcard() {
    for (pattern, prefix) in
        [("chat:*", "chat:"), ("a\\*b?c", "a*b"), ("abc", "abc"), ("*a", ""), ("[a]b", ""), ("a*b", "a")]
    {
        assert_eq!(Glob::new(pattern.as_bytes()).literal_prefix(), prefix.as_bytes(), "{pattern}");
    }
}

#[test]
fn pattern_bombs_are_answered() {
    let topic = [b'a'; 20_000];
    for unit in ["a*", "*?*a", "*a?", "[a-z]*", "*[^b]a"] {
        let bomb = unit.repeat(1_024 / unit.len());
        assert!(matches(&bomb, std::str::from_utf8(&topic).unwrap()), "{unit}");
        for end in ["b", "b*", "?b?*"] {
            assert!(!Glob::new(format!("{bomb}{end}").as_bytes()).matches(&topic), "{unit}{end}");
        }
    }
    let one_long_segment = format!("*{}b*", "a?".repeat(500));
    assert!(!Glob::new(one_long_segment.as_bytes()).matches(&topic));
}

#[test]
fn a_compiled_glob_is_at_most_some_times_as_long_as_its_text() {
    let sets: String = (b'a'..=b'p')
        .flat_map(|a| (b'A'..=b'P').map(move |b| format!("[{}{}]", a as char, b as char)))
        .collect();
    for (text, times) in [
        ("x".repeat(1024), 1),
        (format!("{}*", "x".repeat(1023)), 1),
        (format!("*{}*", "x".repeat(1022)), 3),
        ("?".repeat(1024), 7),
        ("?*".repeat(512), 10),
        ("[a]".repeat(341), 3),
        (sets, 11),
    ] {
        let memory = Glob::new(text.as_bytes()).memory();
        assert!(memory <= times * 1024 + 200, "{memory}: {}", &text[..8]);
    }
}

fn within_bound(pattern: &[u8], topic: &[u8]) -> Result<(), TestCaseError> {
    let glob = Glob::new(pattern);
    STEPS.set(0);
    let _ = glob.matches(topic);
    let own = if glob.search() > PLAIN_MAX { TABLE_STEPS } else { 1 };
    let bound = glob.search() * topic.len() + own * pattern.len();
    prop_assert!(STEPS.get() <= bound, "{} > {bound}", STEPS.get());
    Ok(())
}

#[test]
fn the_worst_patterns_take_no_more_steps_than_they_say() {
    let topic = [b'a'; 65_535];
    let long = format!("*{}b*", "?".repeat(1000));
    for pattern in ["*b*", "*ab*", "*a?b*", "a*a*a*a*b", "*?*?*?*?b", long.as_str(), &"*a?".repeat(300)] {
        within_bound(pattern.as_bytes(), &topic).unwrap();
    }
    for (pattern, search) in
        [("a*", 0), ("a", 0), ("a*b", 0), ("??*b?", 0), ("*a*", 1), ("*abc*d*", 1), ("*a?c*d*", 3)]
    {
        assert_eq!(Glob::new(pattern.as_bytes()).search(), search, "{pattern}");
    }
}
