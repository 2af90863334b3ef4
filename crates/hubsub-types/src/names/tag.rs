//! Hash tags, by Redis's rule: one `{tag}` in a topic names its room.

/// What stands between the first `{` and the next `}`, unless it is nothing.
#[must_use]
pub fn hash_tag(topic: &[u8]) -> Option<&[u8]> {
    let open = memchr::memchr(b'{', topic)?;
    let rest = &topic[open + 1..];
    let tag = &rest[..memchr::memchr(b'}', rest)?];
    (!tag.is_empty()).then_some(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
