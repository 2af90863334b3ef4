//! Decoding of percent-encoded parts of a path and of a query (`application/x-www-form-urlencoded`).

/// The pairs of a query, still encoded; parts without `=` are ignored.
pub fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query.split('&').filter_map(|pair| pair.split_once('='))
}

/// Decodes a value of a query, where `+` is a space; `None` if it is not UTF-8.
#[must_use]
pub fn value(text: &str) -> Option<String> {
    String::from_utf8(decode(text, true)?).ok()
}

/// Decodes a part of a path, which may be any bytes; `None` if a `%` is not followed by two digits.
#[must_use]
pub fn part(text: &str) -> Option<Vec<u8>> {
    decode(text, false)
}

fn decode(text: &str, plus_is_space: bool) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'+' if plus_is_space => bytes.push(b' '),
            b'%' => {
                let digit = |at: usize| after.get(at).and_then(|&digit| char::from(digit).to_digit(16));
                bytes.push((digit(0)? << 4 | digit(1)?) as u8);
                rest = &after[2..];
            }
            _ => bytes.push(byte),
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_encoding_is_undone_or_refused() {
        assert_eq!(value("a+b%2Bc%C3%BC"), Some("a b+cü".to_owned()));
        assert_eq!(part("a+b%2f%ff"), Some(b"a+b/\xff".to_vec()));
        for bad in ["%", "%1", "%zz", "a%2"] {
            assert_eq!((value(bad), part(bad)), (None, None));
        }
        assert_eq!(value("%ff"), None);
    }
}
