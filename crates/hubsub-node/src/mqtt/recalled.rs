//! A session as its row and the entries behind it say: what a node takes in that finds them.
//!
//! Invariant: of entries whatever the row holds already changes nothing, nor does one of another session.

use super::entries::{Head, Part, head_of, take_part};
use super::message::Message;
use hubsub_wire::mqtt::{Damaged, Event, Grant, SessionState};
use std::collections::{BTreeMap, HashSet, VecDeque};

/// What a row and the entries behind it say.
pub struct Recalled {
    /// Of the row, with the numbers given since.
    pub head: Head,
    /// What the machine knows.
    pub state: SessionState<u64>,
    /// Messages that are under way, by key.
    pub sent: Vec<(u64, Message, Grant)>,
    /// Those that wait.
    pub queue: Vec<(u64, Message, Grant)>,
    /// Entries with messages, and the highest key in each.
    pub entries: VecDeque<(u64, u64)>,
}

/// Reads them.
///
/// # Errors
/// The row or an entry is damaged.
pub fn recall(row: &[u8], entries: &[Vec<u8>]) -> Result<Recalled, Damaged> {
    let (mut head, state) = Head::read(row)?;
    let mut state = SessionState::decode(state)?;
    let (mut messages, mut known, mut was_sent) = (BTreeMap::new(), VecDeque::new(), HashSet::new());
    for entry in entries {
        let (born, number, mut parts) = head_of(entry)?;
        if born != head.born || number <= head.through {
            continue;
        }
        head.last_entry = head.last_entry.max(number);
        let mut last = 0;
        while !parts.is_empty() {
            match take_part(&mut parts)? {
                Part::Event(number, event) => {
                    if let Event::Sent { key, .. } = event {
                        was_sent.insert(key);
                    }
                    state.apply(number, event);
                }
                Part::Message { is_queued, key, message, grant } => {
                    last = last.max(key);
                    messages.insert(key, (is_queued, message, grant));
                }
            }
        }
        head.last_key = head.last_key.max(last);
        if last > 0 {
            known.push_back((number, last));
        }
    }
    let mut sent = Vec::new();
    for (_, _, key, _) in state.unacknowledged() {
        was_sent.insert(*key);
        sent.extend(messages.remove(key).map(|(_, message, grant)| (*key, message, grant)));
    }
    let waits = |key: &u64, is_queued: bool| is_queued && *key >= head.queued_from && !was_sent.contains(key);
    // None waited when the row was written: what was queued since then does.
    let queue = messages.into_iter().filter(|(key, (is_queued, ..))| waits(key, *is_queued));
    let queue = queue.map(|(key, (_, message, grant))| (key, message, grant)).collect();
    Ok(Recalled { head, state, sent, queue, entries: known })
}

#[cfg(test)]
mod tests {
    use super::super::entries::{begin, put_event, put_message};
    use super::super::message::Said;
    use super::*;
    use hubsub_types::{Position, Qos};
    use hubsub_wire::mqtt::{Connect, Machine, PacketId, Properties, Terms, Version};

    /// Of a session to which nothing has happened.
    fn row(head: Head) -> Vec<u8> {
        let connect = Connect {
            version: Version::V311,
            clean_start: false,
            keep_alive_s: 0,
            client_id: "c",
            will: None,
            user_name: None,
            password: None,
            properties: Properties::default(),
        };
        let terms = Terms {
            packet_bytes_max: 1_000,
            receive_max: 10,
            is_strict: true,
            inflight_max: 10,
            aliases_max: 0,
            keep_alive_s_max: 0,
            retains: true,
            long_ids: true,
            session_expiry_s_max: 100,
            session_expiry_s_default: 100,
            has_shares: true,
        };
        let Ok(opened) = Machine::<u64>::open(&connect, &terms, 0, String::new) else { panic!("it may") };
        let mut row = Vec::new();
        head.write(&mut row);
        opened.machine.state().encode(&mut row);
        row
    }

    fn message(is_queued: bool, key: u64, out: &mut Vec<u8>) {
        let (qos, position) = (Qos::ExactlyOnce, Position::default());
        let payload = &key.to_le_bytes();
        let said = Said { topic: "t", payload, headers: &[], timestamp_us: 0, position, qos, retain: false };
        put_message(is_queued, key, &said, &Grant { qos, ids: Vec::new(), retain: false }, out);
    }

    fn entry(born: u64, number: u64, parts: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut entry = begin(born, number);
        parts(&mut entry);
        entry
    }

    fn keys(messages: &[(u64, Message, Grant)]) -> Vec<u64> {
        messages.iter().map(|(key, ..)| *key).collect()
    }

    const HEAD: Head = Head { born: 9, last_key: 2, last_entry: 3, through: 1, queued_from: 2 };

    #[test]
    fn what_waits_and_what_is_under_way_are_told_apart() {
        let id = PacketId::new(7).unwrap();
        let sent = Event::Sent { id, qos: Qos::ExactlyOnce, key: 3 };
        let entries = [
            entry(9, 1, |parts| message(true, 8, parts)),
            entry(8, 2, |parts| message(true, 9, parts)),
            entry(9, 2, |parts| (1..=2).for_each(|key| message(true, key, parts))),
            entry(9, 4, |parts| (3..=5).for_each(|key| message(true, key, parts))),
            entry(9, 5, |parts| put_event(1, &sent, parts)),
            entry(9, 6, |parts| message(false, 6, parts)),
        ];
        let found = recall(&row(HEAD), &entries).unwrap();
        assert_eq!(keys(&found.queue), [2, 4, 5], "neither an older session's nor what was done");
        assert_eq!(keys(&found.sent), [3], "under its id, and not twice");
        assert_eq!(found.state.unacknowledged().map(|(id, ..)| id).collect::<Vec<_>>(), [id]);
        assert_eq!((found.head.last_key, found.head.last_entry), (6, 6), "numbers go on");
        assert_eq!(found.entries, [(2, 2), (4, 5), (6, 6)]);
    }

    #[test]
    fn what_was_sent_and_has_ended_does_not_wait_again() {
        let id = PacketId::new(7).unwrap();
        let entries = [
            entry(9, 4, |parts| message(true, 3, parts)),
            entry(9, 5, |parts| {
                put_event(1, &Event::Sent { id, qos: Qos::ExactlyOnce, key: 3 }, parts);
                put_event(2, &Event::Received(id), parts);
                put_event(3, &Event::Ended(id), parts);
            }),
        ];
        let found = recall(&row(HEAD), &entries).unwrap();
        assert_eq!((keys(&found.queue), keys(&found.sent)), (vec![], vec![]));
    }

    #[test]
    fn an_entry_that_is_cut_is_an_error() {
        let whole = entry(9, 4, |parts| message(true, 3, parts));
        assert!(recall(&row(HEAD), &[whole[..whole.len() - 1].to_vec()]).is_err());
        assert!(recall(&row(HEAD)[1..], &[]).is_err());
    }
}
