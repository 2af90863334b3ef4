//! Hash tags, by Redis's rule: one `{tag}` in a topic names its room.

/// Most bytes that an internal name adds to a client's, as in `$stats/room/ROOM/occupancy`.
pub const OWN_BYTES_MAX: usize = 64;

/// Whether a topic is within its length limit: an internal topic may exceed it by what it adds to the
/// client's name.
pub fn topic_fits(topic: &[u8], topic_bytes_max: u64) -> bool {
    let len = topic.len() as u64;
    len <= topic_bytes_max || (len <= topic_bytes_max + OWN_BYTES_MAX as u64 && is_reserved(topic))
}

/// The text between the first `{` and the next `}`; `None` if it is empty.
pub fn hash_tag(topic: &[u8]) -> Option<&[u8]> {
    let open = memchr::memchr(b'{', topic)?;
    let rest = &topic[open + 1..];
    let tag = &rest[..memchr::memchr(b'}', rest)?];
    (!tag.is_empty()).then_some(tag)
}

/// Whether a topic, or the room that its tag names, is internal: its name begins with `$`, or with NUL, as
/// marked patterns do.
#[inline]
pub fn is_reserved(topic: &[u8]) -> bool {
    // A tag may be anywhere; few topics have one.
    begins_reserved(topic) || has_reserved_tag(topic)
}

/// Whether the room that a topic's tag names is internal.
pub fn has_reserved_tag(topic: &[u8]) -> bool {
    hash_tag(topic).is_some_and(begins_reserved)
}

/// Least length of the literal prefix of a pattern that may match a topic; `None` if no pattern may. A
/// subscription to everything does not include internal names, and no pattern matches a topic that is
/// internal only by its tag.
pub fn pattern_prefix_min(topic: &[u8]) -> Option<usize> {
    (!has_reserved_tag(topic)).then(|| usize::from(begins_reserved(topic)))
}

#[inline]
fn begins_reserved(name: &[u8]) -> bool {
    matches!(name.first(), Some(b'$' | 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_the_nodes_own_may_be_longer_than_the_one_in_it() {
        for (begin, most) in
            [(&b""[..], 100), (b"a$", 100), (b"$", 100 + OWN_BYTES_MAX), (b"\0", 100 + OWN_BYTES_MAX)]
        {
            let fits = |len: usize| topic_fits(&[begin, &vec![b'x'; len - begin.len()]].concat(), 100);
            assert!(fits(most - 1) && fits(most) && !fits(most + 1), "{begin:?}");
        }
    }

    #[test]
    fn the_tag_is_what_the_first_pair_of_braces_holds() {
        for (topic, tag) in [
            ("{lobby}.typing", Some("lobby")),
            ("a{b}{c}", Some("b")),
            ("a{{b}}c", Some("{b")),
            ("a}{b}", Some("b")),
            ("a{}{b}", None),
            ("a{b", None),
            ("ab}", None),
            ("", None),
        ] {
            assert_eq!(hash_tag(topic.as_bytes()), tag.map(str::as_bytes), "{topic}");
        }
    }

    #[test]
    fn a_name_is_reserved_that_begins_with_a_dollar_or_whose_tag_does() {
        for (topic, reserved) in [
            ("$stage/q/a", true),
            ("$", true),
            ("x{$queries/q}", true),
            ("\0mqtt:a/#", true),
            ("\0", true),
            ("x{\0share:g/a}", true),
            ("a\0b", false),
            ("a$b", false),
            ("{a$}b", false),
            ("", false),
        ] {
            assert_eq!(is_reserved(topic.as_bytes()), reserved, "{topic}");
        }
    }
}
