//! Publisher names in records: at most [`PUBLISHER_BYTES_MAX`] bytes. Names come from clients (MQTT ids have
//! up to 65,535 bytes), from REST and from rows of other systems, and each record carries one.
//!
//! A longer name is replaced by its beginning, a `~` and a hash of the whole name, so that names with a
//! common prefix stay distinct. The result is the same on every node and in every version. A client can
//! construct two names with the same hash; it gains no more than by using the other's name.

use hubsub_types::names::hash;
use std::borrow::Cow;

/// Limit of a publisher's name in a record, in bytes.
pub const PUBLISHER_BYTES_MAX: usize = 256;

/// Bytes of the `~` and the hash.
const HASH_BYTES: usize = 17;

/// A publisher's name as records carry it.
#[inline]
pub fn publisher_name(name: &str) -> Cow<'_, str> {
    if name.len() <= PUBLISHER_BYTES_MAX { Cow::Borrowed(name) } else { Cow::Owned(shortened(name)) }
}

#[cold]
fn shortened(name: &str) -> String {
    let mut end = PUBLISHER_BYTES_MAX - HASH_BYTES;
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}~{:016x}", &name[..end], hash(name.as_bytes()))
}

/// Whether the name in a record belongs to this publisher. A record without a name belongs to none.
#[inline]
pub fn is_publisher(said: &str, name: &str) -> bool {
    if name.len() <= PUBLISHER_BYTES_MAX {
        return !said.is_empty() && said == name;
    }
    // The hash of a long name is computed only if its beginning matches.
    said.rsplit_once('~').is_some_and(|(begin, _)| name.starts_with(begin)) && said == publisher_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_whole_up_to_its_limit_and_keeps_apart_from_others_beyond() {
        for len in [0, 1, PUBLISHER_BYTES_MAX - 1, PUBLISHER_BYTES_MAX] {
            let name = "x".repeat(len);
            assert_eq!(publisher_name(&name), name);
            assert_eq!(is_publisher(&name, &name), len > 0);
        }
        let long = |end: &str| "x".repeat(PUBLISHER_BYTES_MAX) + end;
        let names = [long("a"), long("b"), long("ab"), "x".repeat(65_535)];
        for name in &names {
            let said = publisher_name(name);
            assert_eq!(said.len(), PUBLISHER_BYTES_MAX);
            assert!(said.starts_with(&"x".repeat(PUBLISHER_BYTES_MAX - HASH_BYTES)));
            assert_eq!(publisher_name(&said), said, "a second time changes nothing");
            for other in &names {
                assert_eq!(is_publisher(&said, other), name == other);
            }
        }
        assert_eq!(publisher_name(&long("a")), publisher_name(&long("a")));
    }

    #[test]
    fn it_is_cut_between_characters() {
        for shift in 0..4 {
            let name = "x".repeat(shift) + &"\u{20ac}".repeat(100);
            let said = publisher_name(&name);
            assert!(said.len() <= PUBLISHER_BYTES_MAX, "{}", said.len());
            let whole = (PUBLISHER_BYTES_MAX - HASH_BYTES - shift) / 3;
            assert_eq!(said.len(), shift + 3 * whole + HASH_BYTES);
            assert!(is_publisher(&said, &name) && !is_publisher(&said, &name.replacen('\u{20ac}', "y", 1)));
        }
    }
}
