//! For any sequence of requests, each store replies as [`Memory`] does, whenever it is closed and reopened.

use crate::support::{Keeper, append, end_of, list, load, save_with, update};
use hubsub_sessions::{Limits, Memory, Request, SessionStore};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Small, so that they are reached.
const LIMITS: Limits = Limits { entries_max: 6, bytes_max: 12 };

const IDS: [&str; 4] = ["a", "a\0", "b", "\u{10ffff}"];

#[derive(Clone, Debug)]
enum Step {
    Batch(Vec<Request>),
    Reopen,
}

fn request() -> impl Strategy<Value = Request> {
    let id = || prop::sample::select(&IDS[..]);
    prop_oneof![
        2 => (id(), "[a-z]{0,4}", 0..6u64, prop::collection::vec("[a-z]{0,4}", 0..4)).prop_map(
            |(id, snapshot, through, entries)| {
                let entries: Vec<&str> = entries.iter().map(String::as_str).collect();
                save_with(id, &snapshot, through, &entries)
            }
        ),
        3 => (id(), "[a-z]{0,4}", 0..8u64, 0..12u64)
            .prop_map(|(id, snapshot, last, through)| update(id, &snapshot, last, through)),
        6 => (id(), "[a-z]{0,4}").prop_map(|(id, entry)| append(id, &entry)),
        2 => id().prop_map(load),
        1 => (prop::option::of(id()), 0..4usize).prop_map(|(after, max)| list(after, max)),
        1 => (id(), "[a-z]{0,1}").prop_map(|(id, begins_with)| end_of(id, &begins_with)),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => prop::collection::vec(request(), 1..8).prop_map(Step::Batch),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..12)
}

/// `keeper` creates an empty store.
pub fn each_answer_is_the_models<K: Keeper>(cases: u32, keeper: impl Fn() -> K) {
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&steps(), |steps| {
        let (keeper, mut model) = (keeper(), Memory::new(LIMITS));
        let mut store = Some(keeper.open(LIMITS));
        for step in steps {
            match step {
                Step::Batch(requests) => {
                    let answers = store.as_mut().expect("it is open").carry_out(&requests);
                    prop_assert_eq!(answers, model.carry_out(&requests));
                }
                Step::Reopen => {
                    drop(store.take());
                    store = Some(keeper.open(LIMITS));
                }
            }
        }
        let mut store = store.expect("it is open");
        let all: Vec<Request> = IDS.into_iter().map(load).chain([list(None, 10)]).collect();
        prop_assert_eq!(store.carry_out(&all), model.carry_out(&all));
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
