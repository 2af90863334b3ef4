//! Names of topics and filters of subscriptions (section 4.7 of 5.0), and
//! filters that clients share (section 4.8.2), which are the same in every
//! version here.

use super::error::Flaw;
use super::field::text;
use memchr::{memchr2_iter, memchr3};

/// A topic's name: a text that is not empty, without wildcards.
///
/// # Errors
/// It is none.
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

/// Whether bytes are a topic's name.
#[inline]
#[must_use]
pub fn is_topic_name(name: &[u8]) -> bool {
    let is_short = !name.is_empty() && name.len() <= PLAIN_BYTES;
    let is_ascii = is_short && name.iter().fold(true, |all, &byte| all & is_plain(byte) & (byte < 0x80));
    is_ascii || topic_name(name).is_ok()
}

/// Names up to here are looked through byte by byte: cheaper than what is best for long ones.
const PLAIN_BYTES: usize = 64;

/// Whether a byte may stand in a name.
#[inline]
fn is_plain(byte: u8) -> bool {
    (byte != 0) & (byte != b'+') & (byte != b'#')
}

/// A filter, shared or not: a text whose wildcards are whole levels, `#` the last.
///
/// # Errors
/// It is none.
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

/// The name of the group and what it filters, of a valid filter that is shared.
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
