//! One suite for all session stores.

mod away;
mod kept;
mod model;
mod rules;
mod support;

/// Makes the rules of one file tests of one store.
macro_rules! holds {
    ($keeper:expr, $file:ident: $($rule:ident),* $(,)?) => {
        $(#[test]
        fn $rule() {
            if let Some(keeper) = $keeper {
                crate::$file::$rule(&keeper);
            }
        })*
    };
}

/// The rules of all stores.
macro_rules! rules {
    ($keeper:expr) => {
        holds!(
            $keeper, rules:
            entries_come_back_in_order_behind_their_snapshot,
            a_snapshot_takes_the_place_of_the_entries_that_are_in_it,
            a_snapshot_is_refused_where_an_entry_is_lacking_and_all_of_it_is_not,
            numbers_go_on_behind_what_a_snapshot_holds_also_where_the_store_never_gave_it,
            nothing_is_kept_of_nobody,
            an_end_leaves_nothing_and_a_new_session_begins_at_one,
            an_end_is_of_the_session_that_it_names,
            pages_come_in_the_order_of_ids,
            a_page_ends_with_the_snapshot_that_fills_it,
            ids_may_have_any_characters,
            what_is_too_long_is_refused_and_changes_nothing,
            large_and_empty_entries_come_back_whole,
            ten_thousand_sessions_are_told_apart,
        );
    };
}

/// The rules of stores that outlive their process.
macro_rules! kept {
    ($keeper:expr) => {
        holds!(
            $keeper, kept:
            what_was_answered_is_there_after_a_restart,
            numbers_go_on_over_restarts,
            an_end_holds_over_a_restart,
        );
    };
}

mod memory {
    rules!(Some(crate::support::InMemory));
}

mod disk {
    use crate::support::OnDisk;

    rules!(Some(OnDisk::new()));
    kept!(Some(OnDisk::new()));

    #[test]
    fn each_answer_is_the_models() {
        crate::model::each_answer_is_the_models(32, OnDisk::new);
    }
}

mod redis {
    use crate::support::{InRedis, Server};
    use std::cell::Cell;
    use std::sync::Arc;

    fn of_its_own() -> Option<InRedis> {
        Some(InRedis { server: Arc::new(Server::start(&[])?), name: "c".to_owned() })
    }

    rules!(of_its_own());
    kept!(of_its_own());

    #[test]
    fn each_answer_is_the_models() {
        let Some(server) = Server::start(&[]).map(Arc::new) else { return };
        let last = Cell::new(0);
        let new = || {
            last.set(last.get() + 1);
            InRedis { server: Arc::clone(&server), name: last.get().to_string() }
        };
        crate::model::each_answer_is_the_models(64, new);
    }
}
