//! Encodes names as text by the rule of `python/hubsub/names.py`: valid UTF-8 is unchanged, any other byte
//! becomes `%XX`, and so does a `%` that two hex digits follow. So every name decodes to its original bytes.

pub fn append_name(out: &mut Vec<u8>, name: &[u8]) {
    if is_plain(name) {
        out.extend_from_slice(name);
    } else {
        append_escaped(out, name);
    }
}

/// Appends bytes that should be UTF-8; invalid ones become U+FFFD, as in REST.
pub fn append_lossy(out: &mut Vec<u8>, text: &[u8]) {
    if is_plain(text) {
        out.extend_from_slice(text);
    } else {
        out.extend_from_slice(String::from_utf8_lossy(text).as_bytes());
    }
}

/// Whether a name is ASCII without a `%`, as nearly all are; checks eight bytes at a time.
fn is_plain(name: &[u8]) -> bool {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    const LOW: u64 = 0x0101_0101_0101_0101;
    const PERCENT: u64 = 0x2525_2525_2525_2525;
    let (words, rest) = name.as_chunks::<8>();
    let mut seen = 0;
    for word in words {
        let word = u64::from_le_bytes(*word);
        let other = word ^ PERCENT;
        seen |= word | (other.wrapping_sub(LOW) & !other);
    }
    seen & HIGH == 0 && rest.iter().all(|&byte| byte < 0x80 && byte != b'%')
}

fn append_escaped(out: &mut Vec<u8>, name: &[u8]) {
    let escape = |out: &mut Vec<u8>, byte: u8| {
        const HEX: &[u8; 16] = b"0123456789ABCDEF";
        out.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
    };
    let mut at = 0;
    for chunk in name.utf8_chunks() {
        for (i, &byte) in chunk.valid().as_bytes().iter().enumerate() {
            let digits = name.get(at + i + 1..at + i + 3);
            match byte {
                b'%' if digits.is_some_and(|d| d.iter().all(u8::is_ascii_hexdigit)) => escape(out, byte),
                _ => out.push(byte),
            }
        }
        chunk.invalid().iter().for_each(|&byte| escape(out, byte));
        at += chunk.valid().len() + chunk.invalid().len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(name: &[u8]) -> String {
        let mut out = Vec::new();
        append_name(&mut out, name);
        String::from_utf8(out).expect("it is text")
    }

    /// Decodes the text, as `hubsub.names.bytes_of` does.
    fn bytes(text: &str) -> Vec<u8> {
        let (mut out, mut rest) = (Vec::new(), text.as_bytes());
        while let Some((&first, behind)) = rest.split_first() {
            match (first, behind.get(..2).and_then(|d| std::str::from_utf8(d).ok())) {
                (b'%', Some(digits)) if digits.bytes().all(|d| d.is_ascii_hexdigit()) => {
                    out.push(u8::from_str_radix(digits, 16).unwrap());
                    rest = &behind[2..];
                }
                _ => {
                    out.push(first);
                    rest = behind;
                }
            }
        }
        out
    }

    #[test]
    fn names_stand_as_rest_tells_them() {
        let names: [(&[u8], &str); 8] = [
            ("café".as_bytes(), "café"),
            (b"a\xff", "a%FF"),
            (b"100%", "100%"),
            (b"%41", "%2541"),
            (b"%%41", "%%2541"),
            (b"%4\xff", "%4%FF"),
            (b"\xe2\x82", "%E2%82"),
            (b"\xed\xa0\x80", "%ED%A0%80"),
        ];
        for (name, expected) in names {
            assert_eq!(text(name), expected, "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn every_name_reads_back(
            name in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'%'), Just(b'4'), Just(b'a')], 0..40),
        ) {
            prop_assert_eq!(bytes(&text(&name)), name);
        }

        #[test]
        fn what_is_plain_has_no_byte_that_is_not(
            mut name in prop::collection::vec(1..0x25u8, 0..40),
            (at, other) in (any::<prop::sample::Index>(), prop_oneof![Just(b'%'), 0x80..=0xffu8]),
        ) {
            prop_assert!(is_plain(&name));
            name.push(b'x');
            let at = at.index(name.len());
            name[at] = other;
            prop_assert!(!is_plain(&name));
        }
    }
}
