use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::limits::{CHANGES_MAX, COMMIT_BYTES_MAX, COMMIT_KEYS_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX};

fn put(key: &str, value: &str) -> Write {
    Write::Put { key: key.into(), value: value.as_bytes().into(), lease: None }
}

fn put_leased(key: &str, lease: LeaseId) -> Write {
    Write::Put { key: key.into(), value: b"leased"[..].into(), lease: Some(lease) }
}

fn delete(key: &str) -> Write {
    Write::Delete { key: key.into() }
}

fn expect(key: &str, revision: u64) -> Expect {
    Expect { key: key.into(), revision }
}

fn commit(store: &mut Store, expect: Vec<Expect>, writes: Vec<Write>) -> Answer {
    store.apply(&Command::Commit { expect, writes })
}

fn grant(store: &mut Store) -> LeaseId {
    match store.apply(&Command::Grant { ttl_ms: 1000 }) {
        Answer::Granted(lease) => lease,
        other => panic!("no lease but {other:?}"),
    }
}

fn names(items: &[Item]) -> Vec<&str> {
    items.iter().map(|item| item.name.as_str()).collect()
}

#[test]
fn a_commit_is_atomic_and_names_the_failed_expectation() {
    let mut store = Store::default();
    assert_eq!(
        commit(&mut store, vec![expect("a/b", 0)], vec![put("a/b", "1"), put("c", "2")]),
        Answer::Committed(vec![1, 1])
    );
    let answer = commit(&mut store, vec![expect("c", 1), expect("a/b", 7)], vec![put("d", "3"), delete("c")]);
    assert_eq!(answer, Answer::Mismatch { index: 1, revision: 1 });
    assert_eq!((store.get("d"), store.get("c").is_some(), store.version()), (None, true, 1));
    assert_eq!(
        commit(&mut store, vec![expect("c", 1)], vec![delete("c"), delete("never")]),
        Answer::Committed(vec![0, 0])
    );
    assert_eq!(store.get("c"), None);
}

#[test]
fn a_key_made_again_has_a_revision_that_it_never_had() {
    let mut store = Store::default();
    commit(&mut store, vec![], vec![put("k", "1")]);
    commit(&mut store, vec![], vec![delete("k")]);
    assert_eq!(commit(&mut store, vec![expect("k", 0)], vec![put("k", "1")]), Answer::Committed(vec![3]));
}

#[test]
fn a_lease_takes_its_keys_with_it_once() {
    let mut store = Store::default();
    let (first, second) = (grant(&mut store), grant(&mut store));
    commit(
        &mut store,
        vec![],
        vec![put_leased("nodes/a", first), put_leased("nodes/b", second), put("nodes/c", "")],
    );
    commit(&mut store, vec![], vec![put_leased("nodes/b", first)]);
    assert_eq!(store.apply(&Command::Expire(vec![first, LeaseId(99)])), Answer::Ended(1));
    assert_eq!(names(&store.page("nodes", None, 10).0), ["c"]);
    let version = store.version();
    assert_eq!(store.apply(&Command::Expire(vec![first])), Answer::Ended(0));
    assert_eq!(store.apply(&Command::Release(second)), Answer::Ended(1));
    assert_eq!(store.version(), version, "nothing was bound to it");
    assert_eq!(commit(&mut store, vec![], vec![put_leased("nodes/a", first)]), Answer::NoLease(first));
    assert!(grant(&mut store) > second);
}

#[test]
fn a_key_written_without_its_lease_stays() {
    let mut store = Store::default();
    let lease = grant(&mut store);
    commit(&mut store, vec![], vec![put_leased("k", lease)]);
    commit(&mut store, vec![], vec![put("k", "for good")]);
    store.apply(&Command::Expire(vec![lease]));
    assert!(store.get("k").is_some());
}

#[test]
fn a_page_lists_one_directory_in_order_and_continues_after_a_name() {
    let mut store = Store::default();
    let writes = ["d/b", "d/a", "d/c", "d/sub/x", "d2/a", "d"].map(|key| put(key, key));
    commit(&mut store, vec![], writes.into());
    let (items, more) = store.page("d", None, 2);
    assert_eq!((names(&items), more), (vec!["a", "b"], true));
    let (items, more) = store.page("d", Some("b"), 2);
    assert_eq!((names(&items), more), (vec!["c"], false));
    assert_eq!(names(&store.page("", None, 9).0), ["d"]);
    assert!(store.page("nowhere", None, 9).0.is_empty());
}

#[test]
fn a_watcher_gets_everything_then_changes_and_everything_again_after_a_long_absence() {
    let mut store = Store::default();
    commit(&mut store, vec![], vec![put("d/a", "1"), put("e/a", "1")]);
    let whole = store.watch("d", None).expect("the whole");
    assert!(whole.whole_begins && whole.whole_ends);
    assert_eq!(names(&whole.items), ["a"]);
    assert_eq!(store.watch("d", Some(&whole.cursor)), None);

    commit(&mut store, vec![], vec![put("d/b", "1")]);
    commit(&mut store, vec![], vec![put("d/b", "2"), delete("d/a")]);
    let changed = store.watch("d", Some(&whole.cursor)).expect("changes");
    assert!(!changed.whole_begins && !changed.whole_ends);
    assert_eq!(names(&changed.items), ["a", "b"]);
    assert_eq!(changed.items[0].entry, None);
    assert_eq!(changed.items[1].entry, Some((b"2"[..].into(), 3)));

    for _ in 0..=CHANGES_MAX {
        commit(&mut store, vec![], vec![put("e/a", "2")]);
    }
    assert!(store.watch("d", Some(&changed.cursor)).expect("the whole").whole_begins);
}

#[test]
fn a_whole_of_many_pages_begins_and_ends_once_and_misses_nothing_written_meanwhile() {
    let mut store = Store::default();
    for n in 0..2500 {
        commit(&mut store, vec![], vec![put(&format!("d/{n:04}"), "1")]);
    }
    let first = store.watch("d", None).expect("a page");
    assert!(first.whole_begins && !first.whole_ends);
    commit(&mut store, vec![], vec![put("d/0000", "2"), delete("d/0001")]);
    let second = store.watch("d", Some(&first.cursor)).expect("a page");
    assert!(!second.whole_begins && !second.whole_ends);
    let third = store.watch("d", Some(&second.cursor)).expect("a page");
    assert!(!third.whole_begins && third.whole_ends);
    assert_eq!(first.items.len() + second.items.len() + third.items.len(), 2500);
    let changed = store.watch("d", Some(&third.cursor)).expect("changes");
    assert_eq!(names(&changed.items), ["0000", "0001"]);
}

#[test]
fn commands_that_no_backend_accepts_are_refused_by_name() {
    let code = |expect: Vec<Expect>, writes: Vec<Write>| {
        Command::Commit { expect, writes }.check().expect_err("a refusal").code()
    };
    let long = "k".repeat(KEY_BYTES_MAX + 1);
    assert_eq!(code(vec![expect(&long, 0)], vec![]), "key_too_long");
    for bad in ["", "/a", "a/", "a//b", "a\0"] {
        assert_eq!(code(vec![], vec![delete(bad)]), "bad_key", "{bad:?}");
    }
    assert_eq!(code(vec![], vec![delete("a"), put("b", ""), put("a", "")]), "key_twice");
    let value = "v".repeat(VALUE_BYTES_MAX);
    assert_eq!(code(vec![], vec![put("a", &format!("{value}v"))]), "value_too_long");
    let many: Vec<_> = (0..=COMMIT_KEYS_MAX).map(|n| delete(&n.to_string())).collect();
    assert_eq!(code(vec![], many), "too_many_keys");
    let large: Vec<_> =
        (0..=COMMIT_BYTES_MAX / VALUE_BYTES_MAX).map(|n| put(&n.to_string(), &value)).collect();
    assert_eq!(code(vec![], large), "commit_too_large");
    assert_eq!(Command::Grant { ttl_ms: 1 }.check().expect_err("a refusal").code(), "bad_time_to_live");
    let good =
        Command::Commit { expect: vec![expect("a", 0)], writes: vec![put("a", &value), put("b/ü", "")] };
    assert_eq!(good.check(), Ok(()));
}

#[test]
fn an_image_cut_or_of_another_format_is_refused() {
    let mut store = Store::default();
    let lease = grant(&mut store);
    commit(&mut store, vec![], vec![put("a/b", "1"), put_leased("c", lease)]);
    let bytes = store.image().encode();
    for cut in 0..bytes.len() {
        assert!(Store::decode(&bytes[..cut]).is_err(), "cut at {cut}");
    }
    let mut newer = bytes;
    newer[0] = 2;
    assert!(matches!(Store::decode(&newer), Err(ImageError::Format(2))));
}

/// A simple reference implementation of the store as one map.
#[derive(Clone, Default)]
struct Model {
    version: u64,
    keys: BTreeMap<String, (u64, Vec<u8>, Option<u64>)>,
    leases: Vec<u64>,
    granted: u64,
}

impl Model {
    fn apply(&mut self, command: &Command) -> Answer {
        match command {
            Command::Commit { expect, writes } => {
                for (index, Expect { key, revision }) in expect.iter().enumerate() {
                    let found = self.keys.get(key).map_or(0, |entry| entry.0);
                    if found != *revision {
                        return Answer::Mismatch { index: index as u32, revision: found };
                    }
                }
                for write in writes {
                    if let Write::Put { lease: Some(lease), .. } = write
                        && !self.leases.contains(&lease.0)
                    {
                        return Answer::NoLease(*lease);
                    }
                }
                let changes = writes
                    .iter()
                    .any(|write| matches!(write, Write::Put { .. }) || self.keys.contains_key(write.key()));
                self.version += u64::from(changes);
                let revisions = writes.iter().map(|write| match write {
                    Write::Put { key, value, lease } => {
                        self.keys.insert(
                            key.clone(),
                            (self.version, value.0.to_vec(), lease.map(|lease| lease.0)),
                        );
                        self.version
                    }
                    Write::Delete { key } => {
                        self.keys.remove(key);
                        0
                    }
                });
                Answer::Committed(revisions.collect())
            }
            Command::Grant { .. } => {
                self.granted += 1;
                self.leases.push(self.granted);
                Answer::Granted(LeaseId(self.granted))
            }
            Command::Release(lease) => self.end(&[*lease]),
            Command::Expire(leases) => self.end(leases),
        }
    }

    fn end(&mut self, leases: &[LeaseId]) -> Answer {
        let (before, keys) = (self.leases.len(), self.keys.len());
        self.leases.retain(|lease| !leases.contains(&LeaseId(*lease)));
        self.keys.retain(|_, (_, _, lease)| !lease.is_some_and(|lease| leases.contains(&LeaseId(lease))));
        self.version += u64::from(self.keys.len() < keys);
        Answer::Ended((before - self.leases.len()) as u32)
    }
}

fn a_key() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "d/a", "d/b", "d/c", "d/e/f", "e/a"]).prop_map(str::to_owned)
}

fn a_lease() -> impl Strategy<Value = LeaseId> {
    (1..5u64).prop_map(LeaseId)
}

fn a_command() -> impl Strategy<Value = Command> {
    let expectation = (a_key(), 0..12u64).prop_map(|(key, revision)| Expect { key, revision });
    let value = prop::collection::vec(any::<u8>(), 0..4).prop_map(|bytes| Value(bytes.into()));
    let write = prop_oneof![
        4 => (a_key(), value, prop::option::of(a_lease())).prop_map(|(key, value, lease)| Write::Put { key, value, lease }),
        1 => a_key().prop_map(|key| Write::Delete { key }),
    ];
    let writes = prop::collection::vec(write, 0..4).prop_map(|mut writes| {
        let mut seen = std::collections::BTreeSet::new();
        writes.retain(|write| seen.insert(write.key().to_owned()));
        writes
    });
    prop_oneof![
        6 => (prop::collection::vec(expectation, 0..2), writes).prop_map(|(expect, writes)| Command::Commit { expect, writes }),
        2 => Just(Command::Grant { ttl_ms: 1000 }),
        1 => a_lease().prop_map(Command::Release),
        1 => prop::collection::vec(a_lease(), 0..3).prop_map(Command::Expire),
    ]
}

/// A watcher's view of one directory.
#[derive(Default)]
struct Picture {
    cursor: Option<Cursor>,
    seen: BTreeMap<String, (Value, u64)>,
}

impl Picture {
    fn drain(&mut self, store: &Store) {
        while let Some(batch) = store.watch("d", self.cursor.as_ref()) {
            if batch.whole_begins {
                self.seen.clear();
            }
            for Item { name, entry } in batch.items {
                match entry {
                    Some((value, revision)) => {
                        let before = self.seen.insert(name, (value, revision));
                        assert!(before.is_none_or(|before| before.1 <= revision), "older than before");
                    }
                    None => drop(self.seen.remove(&name)),
                }
            }
            self.cursor = Some(batch.cursor);
        }
    }
}

proptest! {
    #[test]
    fn the_store_answers_as_its_model_and_its_image_and_its_watchers_show_the_same(
        commands in prop::collection::vec(a_command(), 1..60),
        reload in 0..60usize,
        look in 1..8usize,
    ) {
        let (mut store, mut model, mut picture) = (Store::default(), Model::default(), Picture::default());
        for (step, command) in commands.iter().enumerate() {
            if step == reload {
                let image = store.image();
                store = Store::decode(&image.encode()).expect("an image");
                prop_assert_eq!(store.image(), image);
            }
            prop_assert_eq!(store.apply(command), model.apply(command), "{}", command);
            prop_assert_eq!(store.version(), model.version);
            if step % look == 0 {
                picture.drain(&store);
            }
        }
        for (key, (revision, value, _)) in &model.keys {
            prop_assert_eq!(store.get(key), Some((Value(value.as_slice().into()), *revision)));
        }
        let bytes: usize = model.keys.iter().map(|(key, (_, value, _))| key.len() - key.matches('/').count().min(1) + value.len()).sum();
        prop_assert_eq!(store.bytes(), bytes);
        prop_assert_eq!(store.leases().map(|(lease, _)| lease.0).collect::<Vec<_>>(), model.leases);
        picture.drain(&store);
        let here: BTreeMap<_, _> = store.page("d", None, 100).0.into_iter().map(|item| (item.name, item.entry.expect("an entry"))).collect();
        prop_assert_eq!(picture.seen, here);
    }
}
