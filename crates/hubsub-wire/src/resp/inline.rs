//! Inline commands: words between blanks, as people type them. `"…"` has the escapes `\n \r \t \b \a \xHH`
//! and takes any other escaped byte literally; `'…'` has only `\'`. A closing quote ends its word, so a blank
//! must follow it.

use super::error::ProtocolError;

/// Splits a line; appends the words to `text`, one after the other, and their positions in it to `words`.
/// `text` never gets longer than the line.
pub(super) fn split(
    line: &[u8],
    text: &mut Vec<u8>,
    words: &mut Vec<(u32, u32)>,
) -> Result<(), ProtocolError> {
    let mut rest = line;
    loop {
        while let [byte, more @ ..] = rest
            && is_blank(*byte)
        {
            rest = more;
        }
        if rest.is_empty() {
            return Ok(());
        }
        let start = text.len() as u32;
        rest = word(rest, text)?;
        words.push((start, text.len() as u32));
    }
}

/// Reads one word; the returned rest begins with a blank, or is empty.
fn word<'l>(mut rest: &'l [u8], text: &mut Vec<u8>) -> Result<&'l [u8], ProtocolError> {
    loop {
        rest = match rest {
            [] | [b' ' | b'\n' | b'\r' | b'\t', ..] => return Ok(rest),
            [b'"', more @ ..] => return closed(double_quoted(more, text)?),
            [b'\'', more @ ..] => return closed(single_quoted(more, text)?),
            [byte, more @ ..] => {
                text.push(*byte);
                more
            }
        }
    }
}

fn double_quoted<'l>(mut rest: &'l [u8], text: &mut Vec<u8>) -> Result<&'l [u8], ProtocolError> {
    loop {
        let (byte, more) = match rest {
            [] => return Err(ProtocolError::UnbalancedQuotes),
            [b'"', more @ ..] => return Ok(more),
            [b'\\', b'x', high, low, more @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                (hex(*high) << 4 | hex(*low), more)
            }
            [b'\\', escaped, more @ ..] => {
                let byte = match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                };
                (byte, more)
            }
            [byte, more @ ..] => (*byte, more),
        };
        text.push(byte);
        rest = more;
    }
}

fn single_quoted<'l>(mut rest: &'l [u8], text: &mut Vec<u8>) -> Result<&'l [u8], ProtocolError> {
    loop {
        let (byte, more) = match rest {
            [] => return Err(ProtocolError::UnbalancedQuotes),
            [b'\'', more @ ..] => return Ok(more),
            [b'\\', b'\'', more @ ..] => (b'\'', more),
            [byte, more @ ..] => (*byte, more),
        };
        text.push(byte);
        rest = more;
    }
}

fn closed(rest: &[u8]) -> Result<&[u8], ProtocolError> {
    match rest.first() {
        Some(byte) if !is_blank(*byte) => Err(ProtocolError::UnbalancedQuotes),
        _ => Ok(rest),
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Vec<String>, ProtocolError> {
        let (mut text, mut places) = (Vec::new(), Vec::new());
        split(line.as_bytes(), &mut text, &mut places)?;
        let word = |(a, b)| String::from_utf8(text[a as usize..b as usize].to_vec()).unwrap();
        Ok(places.into_iter().map(word).collect())
    }

    #[test]
    fn words_stand_between_blanks() {
        assert_eq!(words("  PUBLISH\ta  b ").unwrap(), ["PUBLISH", "a", "b"]);
        assert_eq!(words("\x0bECHO a\x0bb").unwrap(), ["ECHO", "a\x0bb"]);
        assert_eq!(words(" \t ").unwrap(), [""; 0]);
        assert_eq!(words("a\rb").unwrap(), ["a", "b"]);
    }

    #[test]
    fn double_quotes_know_escapes() {
        assert_eq!(words(r#""\x41\n\r\t\b\a\q\"""#).unwrap(), ["A\n\r\t\x08\x07q\""]);
        assert_eq!(words(r#""\xZZ" "" a"b c""#).unwrap(), ["xZZ", "", "ab c"]);
        assert_eq!(words(r"a\x41").unwrap(), [r"a\x41"]);
    }

    #[test]
    fn single_quotes_know_only_themselves() {
        assert_eq!(words(r"'a\'b\n' ''").unwrap(), [r"a'b\n", ""]);
    }

    #[test]
    fn a_quote_must_be_closed_and_followed_by_a_blank() {
        for line in ["\"a", "'a", "\"a\"b", "'a'b", "\"a\\", "\"a\\\"", "a\"", "\"a\"\"b\""] {
            assert_eq!(words(line), Err(ProtocolError::UnbalancedQuotes), "{line}");
        }
        assert_eq!(words("\"a\"\x0b").unwrap(), ["a"]);
    }
}
