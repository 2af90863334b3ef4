//! Topic names and topic filters (section 4.7 of 5.0), and filters of shared subscriptions (section 4.8.2);
//! the same in all versions here.

use super::error::Flaw;
use super::field::text;
use memchr::{memchr2_iter, memchr3};

/// Checks a topic name: a text that is not empty, without wildcards.
///
/// # Errors
/// It is invalid.
#[inline]
pub fn topic_name(name: &[u8]) -> Result<&str, Flaw> {
    if name.is_empty() {
        return Err(Flaw::TopicEmpty);
    }
    if name.len() <= PLAIN_BYTES && name.iter().fold(true, |plain, &byte| plain & is_plain(byte)) {
        return std::str::from_utf8(name).map_err(|_| Flaw::NotUtf8);
    }
    match memchr3(b'+', b'#', 0, name) {
        None => std::str::from_utf8(name).map_err(|_| Flaw::NotUtf8),
        Some(at) if name[at] == 0 => Err(Flaw::NulInText),
        Some(_) => Err(Flaw::TopicWildcard),
    }
}

#[inline]
#[must_use]
pub fn is_topic_name(name: &[u8]) -> bool {
    let is_short = !name.is_empty() && name.len() <= PLAIN_BYTES;
    let is_ascii = is_short && name.iter().fold(true, |all, &byte| all & is_plain(byte) & (byte < 0x80));
    is_ascii || topic_name(name).is_ok()
}

/// Names up to this length are checked byte by byte: cheaper than the search for longer ones.
const PLAIN_BYTES: usize = 64;

#[inline]
fn is_plain(byte: u8) -> bool {
    (byte != 0) & (byte != b'+') & (byte != b'#')
}

/// Checks a filter, shared or not: a text whose wildcards are whole levels, `#` the last.
///
/// # Errors
/// It is invalid.
pub fn topic_filter(filter: &[u8]) -> Result<&str, Flaw> {
    let filter = text(filter)?;
    let Some(shared) = filter.strip_prefix("$share/") else {
        return check_levels(filter).map(|()| filter);
    };
    match shared.split_once('/') {
        Some((name, levels)) if !name.is_empty() && !name.contains(['+', '#']) && !levels.is_empty() => {
            check_levels(levels).map(|()| filter)
        }
        _ => Err(Flaw::ShareName),
    }
}

/// Where in history a subscription starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rewind {
    Last(u64),
    Seconds(u64),
    Earliest,
}

/// Splits a filter with a start in history, `$rewind/N/…`, `$rewind/10s/…` (or `m`, `h`, `d`) or
/// `$rewind/earliest/…`: the start, and the filter itself.
#[must_use]
pub fn rewind(filter: &str) -> Option<(Rewind, &str)> {
    let (from, filter) = filter.strip_prefix("$rewind/")?.split_once('/')?;
    if filter.is_empty() || filter.starts_with('$') {
        return None;
    }
    let from = match from.strip_suffix(['s', 'm', 'h', 'd']) {
        _ if from == "earliest" => Rewind::Earliest,
        Some(count) => {
            let unit = match from.as_bytes().last() {
                Some(b's') => 1,
                Some(b'm') => 60,
                Some(b'h') => 3_600,
                _ => 86_400,
            };
            Rewind::Seconds(number(count)?.saturating_mul(unit))
        }
        None => Rewind::Last(number(from)?),
    };
    Some((from, filter))
}

fn number(text: &str) -> Option<u64> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok()).flatten()
}

/// The group name and the filter of a valid shared filter.
#[must_use]
pub fn shared(filter: &str) -> Option<(&str, &str)> {
    filter.strip_prefix("$share/")?.split_once('/')
}

fn check_levels(filter: &str) -> Result<(), Flaw> {
    let filter = filter.as_bytes();
    if filter.is_empty() {
        return Err(Flaw::FilterEmpty);
    }
    let whole_level = |at: usize| {
        let begins = at == 0 || filter[at - 1] == b'/';
        begins && (at + 1 == filter.len() || filter[at] == b'+' && filter[at + 1] == b'/')
    };
    if memchr2_iter(b'+', b'#', filter).all(whole_level) { Ok(()) } else { Err(Flaw::FilterWildcard) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_says_from_where_on_it_is_wanted() {
        assert_eq!(rewind("$rewind/5/a/b"), Some((Rewind::Last(5), "a/b")));
        assert_eq!(rewind("$rewind/10s/a/+"), Some((Rewind::Seconds(10), "a/+")));
        assert_eq!(rewind("$rewind/2h/a"), Some((Rewind::Seconds(7_200), "a")));
        assert_eq!(rewind("$rewind/3d//"), Some((Rewind::Seconds(259_200), "/")));
        assert_eq!(rewind("$rewind/earliest/#"), Some((Rewind::Earliest, "#")));
        for strange in [
            "$rewind/5",
            "$rewind/5/",
            "$rewind//a",
            "$rewind/s/a",
            "$rewind/-1/a",
            "$rewind/5/$share/g/a",
            "a/5/b",
        ] {
            assert_eq!(rewind(strange), None, "{strange}");
        }
    }
}
