//! The arguments of a command, and how they are read.

/// A command's arguments, starting with its name.
pub type Args<'a> = &'a [&'a [u8]];

/// The most topics or clients in one command, each of which gets a reply.
pub const ASKED_MAX: usize = 65_536;

/// Parses an argument as an integer, like Redis.
pub fn integer(arg: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(arg).ok()?;
    let is_plain = text == "0" || !text.trim_start_matches('-').starts_with('0') && !text.starts_with('+');
    text.parse().ok().filter(|_| is_plain)
}

/// Compares an argument with a word, ignoring case.
pub fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// The part of an argument that Redis's errors show: up to a zero byte.
pub fn shown(arg: &[u8]) -> &[u8] {
    arg.split(|&b| b == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_that_redis_reads() {
        let good =
            [("0", 0), ("-1", -1), ("9223372036854775807", i64::MAX), ("-9223372036854775808", i64::MIN)];
        for (text, number) in good {
            assert_eq!(integer(text.as_bytes()), Some(number), "{text}");
        }
        for text in
            ["", "-", "+1", "01", "-0", "1 ", " 1", "1.0", "0x1", "9223372036854775808", "--1", "\u{661}"]
        {
            assert_eq!(integer(text.as_bytes()), None, "{text}");
        }
    }
}
