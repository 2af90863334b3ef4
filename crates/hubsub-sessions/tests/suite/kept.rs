//! Rules of all stores that outlive their process.

use crate::support::{Keeper, LIMITS, append, end, list, load, loaded, nobody, one, save};
use hubsub_sessions::Answer;

pub fn what_was_answered_is_there_after_a_restart(keeper: &dyn Keeper) {
    keeper.open(LIMITS).carry_out(&[
        save("a", "s", 0),
        append("a", "x"),
        append("a", "y"),
        save("b", "t", 7),
    ]);
    let mut store = keeper.open(LIMITS);
    assert_eq!(one(&mut *store, load("a")), Ok(loaded("s", &[(1, "x"), (2, "y")])));
    let wanted = vec![("a".into(), "s".into()), ("b".into(), "t".into())];
    assert_eq!(one(&mut *store, list(None, 10)), Ok(Answer::Listed(wanted)));
}

pub fn numbers_go_on_over_restarts(keeper: &dyn Keeper) {
    keeper.open(LIMITS).carry_out(&[save("a", "s", 0), append("a", "x")]);
    assert_eq!(one(&mut *keeper.open(LIMITS), append("a", "y")), Ok(Answer::Appended(2)));
    keeper.open(LIMITS).carry_out(&[save("a", "t", 2)]);
    assert_eq!(one(&mut *keeper.open(LIMITS), append("a", "z")), Ok(Answer::Appended(3)));
    assert_eq!(one(&mut *keeper.open(LIMITS), load("a")), Ok(loaded("t", &[(3, "z")])));
}

pub fn an_end_holds_over_a_restart(keeper: &dyn Keeper) {
    keeper.open(LIMITS).carry_out(&[save("a", "s", 0), append("a", "x"), end("a")]);
    let mut store = keeper.open(LIMITS);
    assert_eq!(one(&mut *store, load("a")), Ok(nobody()));
    assert_eq!(one(&mut *store, list(None, 10)), Ok(Answer::Listed(vec![])));
    store.carry_out(&[save("a", "t", 0), append("a", "y")]);
    assert_eq!(one(&mut *store, load("a")), Ok(loaded("t", &[(1, "y")])));
}
