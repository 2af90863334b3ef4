//! Restores a session from its snapshot and the entries after it.
//!
//! Invariants: entries change nothing if the snapshot includes them, if they belong to another session, or if
//! an older holder wrote them after a later one's. Records that cursors count are delivered again from the
//! log unless known to be in flight or done.

use super::cursors::Cursors;
use super::entries::{EntryHead, Head, Part, head_of, take_part};
use super::message::{CountedBy, Message};
use crate::machine::{Damaged, Event, Grant, SessionState};
use std::collections::{BTreeMap, HashSet, VecDeque};

pub struct Restored {
    /// The snapshot's head, with numbers updated from the entries.
    pub head: Head,
    pub state: SessionState,
    pub cursors: Option<Box<Cursors>>,
    pub sent: Vec<(u64, CountedBy, Message, Grant)>,
    pub queue: Vec<(u64, Message, Grant)>,
    /// Entries with messages: number and highest key.
    pub entries: VecDeque<(u64, u64)>,
}

/// Restores a session from its snapshot and entries.
///
/// # Errors
/// If the snapshot or an entry is damaged.
pub fn restore(snapshot: &[u8], entries: &[Vec<u8>]) -> Result<Restored, Damaged> {
    let (mut head, cursors, state) = Head::read(snapshot)?;
    let mut state = SessionState::decode(state)?;
    let cursors = if cursors.is_empty() { None } else { Some(Box::new(Cursors::decode(cursors)?)) };
    let (mut messages, mut known, mut was_sent) = (BTreeMap::new(), VecDeque::new(), HashSet::new());
    let (last_key, was_in_flight) = (head.last_key, in_flight(&state));
    let mut last_epoch = 0;
    for entry in entries {
        let (EntryHead { born, epoch, number }, mut parts) = head_of(entry)?;
        let is_late = epoch < head.epoch && number > head.before;
        if born != head.born || epoch < last_epoch || is_late {
            continue;
        }
        last_epoch = epoch;
        if number <= head.through {
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
                Part::Message { is_queued, key, counted, message, grant } => {
                    last = last.max(key);
                    messages.insert(key, Recorded { is_queued, counted, message, grant });
                }
            }
        }
        head.last_key = head.last_key.max(last);
        if last > 0 {
            known.push_back((number, last));
        }
    }
    let in_flight = in_flight(&state);
    let mut cursors = cursors;
    if let Some(cursors) = &mut cursors {
        for (key, Recorded { counted, message, .. }) in &messages {
            let was_sent_since = *key > last_key && was_sent.contains(key);
            if was_sent_since {
                cursors.sent_since(*counted, &message.content());
            }
            if (was_sent_since || was_in_flight.contains(key)) && !in_flight.contains(key) {
                cursors.done(*counted, &message.content());
            }
        }
        let known = messages.iter().filter(|(key, _)| in_flight.contains(key));
        cursors.process_lost(known.map(|(_, recorded)| (recorded.counted, recorded.message.content())));
    }
    let (mut sent, mut queue) = (Vec::new(), Vec::new());
    for (key, Recorded { is_queued, counted, message, grant }) in messages {
        if in_flight.contains(&key) {
            sent.push((key, counted, message, grant));
        } else if is_queued
            && key >= head.queued_from
            && !was_sent.contains(&key)
            && !was_in_flight.contains(&key)
        {
            // The snapshot had no queued message, so those in later entries are queued.
            queue.push((key, message, grant));
        }
    }
    Ok(Restored { head, state, cursors, sent, queue, entries: known })
}

struct Recorded {
    is_queued: bool,
    counted: CountedBy,
    message: Message,
    grant: Grant,
}

fn in_flight(state: &SessionState) -> HashSet<u64> {
    state.unacknowledged().map(|(_, _, key, _)| key).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::entries::{EntryHead, begin, put_event, put_message};
    use crate::machine::{Machine, Opened, Terms};
    use crate::message::Content;
    use hubsub_route::LogPlace;
    use hubsub_types::{Epoch, HubId, Position, Qos, Seq};
    use hubsub_wire::mqtt::{Connect, PacketId, Properties, Version};

    /// A machine after CONNECT.
    pub fn opened(version: Version) -> Opened {
        let connect = Connect {
            version,
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
        let Ok(opened) = Machine::open(&connect, &terms, 0, String::new) else { panic!("it may") };
        opened
    }

    /// The snapshot of a session without events.
    fn snapshot(head: Head, cursors: Option<&Cursors>) -> Vec<u8> {
        let opened = opened(Version::V311);
        let mut snapshot = Vec::new();
        head.write(cursors, &mut snapshot);
        opened.machine.state().encode(&mut snapshot);
        snapshot
    }

    fn message(is_queued: bool, key: u64, out: &mut Vec<u8>) {
        let (qos, position) = (Qos::ExactlyOnce, Position::default());
        let payload = &key.to_le_bytes();
        let place = LogPlace::default();
        let content = Content {
            topic: "t",
            payload,
            headers: &[],
            timestamp_us: 0,
            position,
            place,
            qos,
            retain: false,
        };
        put_message(
            is_queued,
            key,
            CountedBy::None,
            &content,
            &Grant { qos, ids: Vec::new(), retain: false },
            out,
        );
    }

    fn entry(born: u64, number: u64, parts: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        entry_by(1, born, number, parts)
    }

    /// An entry of a given holder.
    fn entry_by(epoch: u64, born: u64, number: u64, parts: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut entry = begin(EntryHead { born, epoch, number });
        parts(&mut entry);
        entry
    }

    fn keys(messages: &[(u64, Message, Grant)]) -> Vec<u64> {
        messages.iter().map(|(key, ..)| *key).collect()
    }

    fn sent(messages: &[(u64, CountedBy, Message, Grant)]) -> Vec<u64> {
        messages.iter().map(|(key, ..)| *key).collect()
    }

    const HEAD: Head =
        Head { born: 9, epoch: 1, last_key: 2, last_entry: 3, through: 1, before: 0, queued_from: 2 };

    #[test]
    fn what_waits_and_what_is_under_way_are_told_apart() {
        let id = PacketId::new(7).unwrap();
        let event = Event::Sent { id, qos: Qos::ExactlyOnce, key: 3 };
        let entries = [
            entry(9, 1, |parts| message(true, 8, parts)),
            entry(8, 2, |parts| message(true, 9, parts)),
            entry(9, 2, |parts| (1..=2).for_each(|key| message(true, key, parts))),
            entry(9, 4, |parts| (3..=5).for_each(|key| message(true, key, parts))),
            entry(9, 5, |parts| put_event(1, &event, parts)),
            entry(9, 6, |parts| message(false, 6, parts)),
        ];
        let found = restore(&snapshot(HEAD, None), &entries).unwrap();
        assert_eq!(keys(&found.queue), [2, 4, 5], "neither an older session's nor what was done");
        assert_eq!(sent(&found.sent), [3], "under its id, and not twice");
        assert_eq!(found.state.unacknowledged().map(|(id, ..)| id).collect::<Vec<_>>(), [id]);
        assert_eq!((found.head.last_key, found.head.last_entry), (6, 6), "numbers go on");
        assert_eq!(found.entries, [(2, 2), (4, 5), (6, 6)]);
    }

    #[test]
    fn what_an_older_holder_wrote_behind_the_fence_of_a_later_one_is_passed_over() {
        let entries = [
            entry_by(1, 9, 4, |parts| message(true, 3, parts)),
            entry_by(2, 9, 0, |_| {}),
            entry_by(1, 9, 5, |parts| message(true, 4, parts)),
            entry_by(7, 8, 1, |_| {}),
            entry_by(2, 9, 5, |parts| message(true, 4, parts)),
            entry_by(1, 9, 6, |parts| message(true, 5, parts)),
        ];
        let found = restore(&snapshot(HEAD, None), &entries).unwrap();
        assert_eq!((keys(&found.queue), found.head.last_entry), (vec![3, 4], 5));
        assert_eq!(found.entries, [(4, 3), (5, 4)]);
    }

    #[test]
    fn what_an_older_holder_wrote_late_is_passed_over_where_the_fence_has_given_way() {
        // The snapshot of the second holder, which had read up to entry 4.
        let head = Head { epoch: 2, last_entry: 4, before: 4, ..HEAD };
        let entries = [
            entry_by(1, 9, 4, |parts| message(true, 3, parts)),
            entry_by(1, 9, 5, |parts| message(true, 4, parts)),
            entry_by(2, 9, 5, |parts| message(true, 5, parts)),
        ];
        let found = restore(&snapshot(head, None), &entries).unwrap();
        assert_eq!((keys(&found.queue), found.head.last_entry), (vec![3, 5], 5));
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
        let found = restore(&snapshot(HEAD, None), &entries).unwrap();
        assert_eq!((keys(&found.queue), sent(&found.sent)), (vec![], vec![]));
    }

    #[test]
    fn of_what_cursors_count_what_is_neither_under_way_nor_done_comes_again() {
        for of in [CountedBy::Topic, CountedBy::Hub] {
            let id = |n| PacketId::new(n).unwrap();
            let sent = |place, key, parts: &mut Vec<u8>| {
                put_message(
                    false,
                    key,
                    of,
                    &content(place),
                    &Grant { qos: QOS, ids: Vec::new(), retain: false },
                    parts,
                );
                put_event(key - 2, &Event::Sent { id: id(key as u16), qos: QOS, key }, parts);
            };
            let mut cursors = standing();
            // The snapshot has 1 done, and 2 and 4 in flight, but no entry has their messages.
            for place in 1..=4 {
                assert!(cursors.take(of, &content(place), place % 2 == 0));
            }
            let entries = [
                entry(9, 4, |parts| sent(6, 3, parts)),
                entry(9, 5, |parts| sent(7, 4, parts)),
                entry(9, 6, |parts| put_event(3, &Event::Received(id(4)), parts)),
                // Packet ids wrapped around: the earlier messages with these ids are done.
                entry(9, 7, |parts| put_event(4, &Event::Ended(id(3)), parts)),
                // Was to be sent again to the next connection, but has no snapshot.
                entry(9, 8, |parts| put_message(false, 9, of, &content(9), &QOS_1, parts)),
            ];
            let found = restore(&snapshot(HEAD, Some(&cursors)), &entries).unwrap();
            assert_eq!(
                found.sent.iter().map(|&(key, counted, ..)| (key, counted)).collect::<Vec<_>>(),
                [(4, of)]
            );
            let mut cursors = found.cursors.unwrap();
            let comes: Vec<u64> = (1..=9).filter(|&place| cursors.take(of, &content(place), true)).collect();
            assert_eq!(comes, [2, 4, 5, 8, 9], "{of:?}");
        }
    }

    const QOS: Qos = Qos::ExactlyOnce;
    const QOS_1: Grant = Grant { qos: Qos::AtLeastOnce, ids: Vec::new(), retain: false };
    const HUB: HubId = HubId(5);

    /// The record at the same place in its room and its hub.
    fn content(place: u64) -> Content<'static> {
        let position = Position { epoch: Epoch(7), seq: Seq(place) };
        let place = LogPlace { hub: HUB, offset: place };
        Content {
            topic: "t",
            payload: b"",
            headers: &[],
            timestamp_us: 0,
            position,
            place,
            qos: QOS,
            retain: false,
        }
    }

    fn standing() -> Cursors {
        let mut cursors = Cursors::default();
        cursors.start_hubs(&[(HUB, 0)]);
        cursors.start("t", Position { epoch: Epoch(7), seq: Seq(0) });
        cursors
    }

    #[test]
    fn an_entry_that_is_cut_is_an_error() {
        let whole = entry(9, 4, |parts| message(true, 3, parts));
        assert!(restore(&snapshot(HEAD, None), &[whole[..whole.len() - 1].to_vec()]).is_err());
        assert!(restore(&snapshot(HEAD, None)[1..], &[]).is_err());
    }
}
