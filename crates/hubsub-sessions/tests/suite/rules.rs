//! Rules of all stores, persistent or not: each is a function of a [`Keeper`].

use crate::support::{
    Keeper, LIMITS, append, end, end_of, list, load, loaded, nobody, one, save, save_with, update,
};
use hubsub_sessions::{Answer, ID_BYTES_MAX, Limits, NUMBER_MAX, PAGE_BYTES, Request, StoreError};

pub fn entries_come_back_in_order_behind_their_snapshot(keeper: &dyn Keeper) {
    let mut store = keeper.open(LIMITS);
    let batch = [save("a", "s", 0), append("a", "x"), append("a", "y"), load("a")];
    let answers = [
        Ok(Answer::Saved),
        Ok(Answer::Appended(1)),
        Ok(Answer::Appended(2)),
        Ok(loaded("s", &[(1, "x"), (2, "y")])),
    ];
    assert_eq!(store.carry_out(&batch), answers);
}

pub fn a_snapshot_takes_the_place_of_the_entries_that_are_in_it(keeper: &dyn Keeper) {
    let mut store = keeper.open(LIMITS);
    store.carry_out(&[save("a", "s", 0), append("a", "x"), append("a", "y"), append("a", "z")]);
    assert_eq!(one(&mut *store, update("a", "t", 3, 2)), Ok(Answer::Saved));
    assert_eq!(one(&mut *store, load("a")), Ok(loaded("t", &[(3, "z")])));
    assert_eq!(one(&mut *store, update("a", "u", 3, 1)), Ok(Answer::Saved), "an older one trims nothing");
    assert_eq!(one(&mut *store, load("a")), Ok(loaded("u", &[(3, "z")])));
    assert_eq!(one(&mut *store, update("a", "v", 3, 3)), Ok(Answer::Saved));
    assert_eq!(one(&mut *store, append("a", "w")), Ok(Answer::Appended(4)), "no number twice");
    assert_eq!(one(&mut *store, load("a")), Ok(loaded("v", &[(4, "w")])));
}

pub fn a_snapshot_is_refused_where_an_entry_is_lacking_and_all_of_it_is_not(keeper: &dyn Keeper) {
    let mut store = keeper.open(Limits { entries_max: 2, ..LIMITS });
    assert_eq!(one(&mut *store, update("a", "s", 0, 0)), Err(StoreError::NoSession));
    store.carry_out(&[save("a", "s", 0), append("a", "x"), append("a", "y")]);
    assert!(matches!(one(&mut *store, append("a", "refused")), Err(StoreError::Full { .. })));
    for last in [1, 3] {
        assert_eq!(one(&mut *store, update("a", "t", last, 1)), Err(StoreError::Gap { last: 2 }));
    }
    assert_eq!(one(&mut *store, load("a")), Ok(loaded("s", &[(1, "x"), (2, "y")])), "nothing has changed");
    assert_eq!(one(&mut *store, save_with("a", "t", 3, &["y", "z"])), Ok(Answer::Saved));
    assert_eq!(one(&mut *store, load("a")), Ok(loaded("t", &[(4, "y"), (5, "z")])));
    assert_eq!(one(&mut *store, update("a", "u", 5, 4)), Ok(Answer::Saved));
    assert_eq!(one(&mut *store, append("a", "w")), Ok(Answer::Appended(6)));
    assert_eq!(one(&mut *store, load("a")), Ok(loaded("u", &[(5, "z"), (6, "w")])));
}

pub fn numbers_go_on_behind_what_a_snapshot_holds_also_where_the_store_never_gave_it(keeper: &dyn Keeper) {
    let mut store = keeper.open(LIMITS);
    store.carry_out(&[save("a", "s", 10), append("a", "x")]);
    assert_eq!(one(&mut *store, load("a")), Ok(loaded("s", &[(11, "x")])));
    store.carry_out(&[save("a", "t", 20)]);
    assert_eq!(one(&mut *store, append("a", "y")), Ok(Answer::Appended(21)));
    assert_eq!(one(&mut *store, load("a")), Ok(loaded("t", &[(21, "y")])));
}

pub fn nothing_is_kept_of_nobody(keeper: &dyn Keeper) {
    let mut store = keeper.open(LIMITS);
    assert_eq!(one(&mut *store, load("a")), Ok(nobody()));
    assert_eq!(one(&mut *store, append("a", "x")), Err(StoreError::NoSession));
    assert_eq!(one(&mut *store, end("a")), Ok(Answer::Ended));
    assert_eq!(one(&mut *store, load("a")), Ok(nobody()));
    assert_eq!(one(&mut *store, list(None, 10)), Ok(Answer::Listed(vec![])));
}

pub fn an_end_leaves_nothing_and_a_new_session_begins_at_one(keeper: &dyn Keeper) {
    let mut store = keeper.open(LIMITS);
    store.carry_out(&[save("a", "s", 0), append("a", "x"), append("a", "y"), save("b", "s", 0)]);
    assert_eq!(one(&mut *store, end("a")), Ok(Answer::Ended));
    assert_eq!(one(&mut *store, append("a", "late")), Err(StoreError::NoSession));
    assert_eq!(one(&mut *store, load("a")), Ok(nobody()));
    assert_eq!(one(&mut *store, list(None, 10)), Ok(Answer::Listed(vec![("b".into(), "s".into())])));
    store.carry_out(&[save("a", "t", 0), append("a", "z")]);
    assert_eq!(one(&mut *store, load("a")), Ok(loaded("t", &[(1, "z")])));
}

pub fn an_end_is_of_the_session_that_it_names(keeper: &dyn Keeper) {
    let mut store = keeper.open(LIMITS);
    store.carry_out(&[save("a", "2nd", 0), append("a", "x")]);
    for beginning in ["1", "2nd of all"] {
        assert_eq!(one(&mut *store, end_of("a", beginning)), Ok(Answer::Ended));
        assert_eq!(one(&mut *store, load("a")), Ok(loaded("2nd", &[(1, "x")])), "another one stays");
    }
    assert_eq!(one(&mut *store, end_of("a", "2n")), Ok(Answer::Ended));
    assert_eq!(one(&mut *store, load("a")), Ok(nobody()));
}

pub fn pages_come_in_the_order_of_ids(keeper: &dyn Keeper) {
    let mut store = keeper.open(LIMITS);
    let mut ids: Vec<String> = (0..97).map(|n| format!("client-{}", n * 37 % 97)).collect();
    let requests: Vec<Request> = ids.iter().map(|id| save(id, id, 0)).collect();
    store.carry_out(&requests);
    ids.sort();
    let (mut after, mut listed) = (None::<Box<str>>, Vec::new());
    loop {
        let Ok(Answer::Listed(page)) = one(&mut *store, list(after.as_deref(), 10)) else { panic!() };
        assert!(page.len() <= 10);
        let Some((last, _)) = page.last() else { break };
        after = Some(last.clone());
        listed.extend(page);
    }
    let wanted: Vec<(Box<str>, Vec<u8>)> =
        ids.iter().map(|id| (id.as_str().into(), id.as_bytes().to_vec())).collect();
    assert_eq!(listed, wanted);
    let Ok(Answer::Listed(page)) = one(&mut *store, list(Some("client-5x"), 1)) else { panic!() };
    assert_eq!(&*page[0].0, "client-6", "the id that it continues after need not exist");
}

pub fn a_page_ends_with_the_snapshot_that_fills_it(keeper: &dyn Keeper) {
    let mut store = keeper.open(LIMITS);
    let snapshot = vec![7; PAGE_BYTES / 2];
    for id in ["a", "b", "c"] {
        let request =
            Request::Save { id: id.into(), snapshot: snapshot.clone(), through: 0, entries: Vec::new() };
        assert_eq!(one(&mut *store, request), Ok(Answer::Saved));
    }
    let Ok(Answer::Listed(page)) = one(&mut *store, list(None, 10)) else { panic!() };
    assert_eq!(page.len(), 2);
    let Ok(Answer::Listed(page)) = one(&mut *store, list(Some("b"), 10)) else { panic!() };
    assert_eq!(page, [("c".into(), snapshot)]);
}

pub fn ids_may_have_any_characters(keeper: &dyn Keeper) {
    let mut store = keeper.open(LIMITS);
    let long = "é".repeat(ID_BYTES_MAX / 2);
    let ids =
        ["\0", "\0\0", " ", "%", "*", "/", ":", "\n\r", "a", "a\0", "a:b", "{a}", "ä", "\u{10ffff}", &*long];
    for id in ids {
        assert_eq!(store.carry_out(&[save(id, id, 0), append(id, id)])[1], Ok(Answer::Appended(1)), "{id:?}");
    }
    for id in ids {
        assert_eq!(one(&mut *store, load(id)), Ok(loaded(id, &[(1, id)])), "{id:?}");
    }
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    let Ok(Answer::Listed(page)) = one(&mut *store, list(None, 100)) else { panic!() };
    assert_eq!(page.iter().map(|(id, _)| &**id).collect::<Vec<_>>(), sorted);
    store.carry_out(&[end("a")]);
    assert_eq!(one(&mut *store, load("a\0")), Ok(loaded("a\0", &[(1, "a\0")])), "an end is of one id");
}

pub fn what_is_too_long_is_refused_and_changes_nothing(keeper: &dyn Keeper) {
    let mut store = keeper.open(Limits { entries_max: 3, bytes_max: 10 });
    let long = "x".repeat(ID_BYTES_MAX + 1);
    let refused = StoreError::TooLong { what: "id", bytes: ID_BYTES_MAX + 1, max: ID_BYTES_MAX };
    for request in [save(&long, "s", 0), append(&long, "x"), load(&long), end(&long)] {
        assert_eq!(one(&mut *store, request), Err(refused.clone()));
    }
    assert_eq!(one(&mut *store, save("", "s", 0)), Err(StoreError::NoId));
    let number = NUMBER_MAX + 1;
    assert_eq!(one(&mut *store, save("a", "s", number)), Err(StoreError::NoNumber(number)));
    assert_eq!(one(&mut *store, load("a")), Ok(nobody()));
    store.carry_out(&[save("a", "s", 0), append("a", "12345"), append("a", "6789")]);
    let full = Err(StoreError::Full { entries: 2, bytes: 9 });
    assert_eq!(one(&mut *store, append("a", "ab")), full, "bytes");
    assert_eq!(one(&mut *store, append("a", "a")), Ok(Answer::Appended(3)));
    let full = Err(StoreError::Full { entries: 3, bytes: 10 });
    assert_eq!(one(&mut *store, append("a", "")), full, "entries");
    store.carry_out(&[update("a", "t", 3, 2)]);
    assert_eq!(one(&mut *store, append("a", "123456789")), Ok(Answer::Appended(4)), "there is room again");
    assert_eq!(one(&mut *store, load("a")), Ok(loaded("t", &[(3, "a"), (4, "123456789")])));
}

pub fn large_and_empty_entries_come_back_whole(keeper: &dyn Keeper) {
    let mut store = keeper.open(LIMITS);
    let large: Vec<u8> = (0..9 << 20).map(|n: u32| (n % 251) as u8).collect();
    let requests = [
        Request::Save { id: "a".into(), snapshot: large.clone(), through: 0, entries: Vec::new() },
        Request::Append { id: "a".into(), entry: large.clone() },
        Request::Append { id: "a".into(), entry: Vec::new() },
        Request::Save { id: "b".into(), snapshot: Vec::new(), through: 0, entries: Vec::new() },
    ];
    assert!(store.carry_out(&requests).iter().all(Result::is_ok));
    let wanted = Answer::Loaded { snapshot: Some(large.clone()), entries: vec![(1, large), (2, Vec::new())] };
    assert!(one(&mut *store, load("a")) == Ok(wanted));
    assert_eq!(one(&mut *store, load("b")), Ok(loaded("", &[])));
}

pub fn ten_thousand_sessions_are_told_apart(keeper: &dyn Keeper) {
    let mut store = keeper.open(LIMITS);
    for from in (0..10_000).step_by(500) {
        let batch: Vec<Request> = (from..from + 500)
            .flat_map(|n| {
                [save(&format!("c{n}"), &format!("s{n}"), 0), append(&format!("c{n}"), &n.to_string())]
            })
            .collect();
        assert!(store.carry_out(&batch).iter().all(Result::is_ok));
    }
    let (mut after, mut count) = (None::<Box<str>>, 0);
    while let Ok(Answer::Listed(page)) = one(&mut *store, list(after.as_deref(), 1_000))
        && let Some((last, _)) = page.last()
    {
        after = Some(last.clone());
        count += page.len();
    }
    assert_eq!(count, 10_000);
    for n in [0, 1, 4_999, 9_999] {
        let wanted = loaded(&format!("s{n}"), &[(1, &*n.to_string())]);
        assert_eq!(one(&mut *store, load(&format!("c{n}"))), Ok(wanted));
    }
}
