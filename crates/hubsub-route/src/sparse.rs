//! Decides when a table that had many entries releases memory: making it smaller costs as much as making it
//! larger did.

/// Tables up to this number of slots are not reduced.
const PLACES_MIN: usize = 4096;

/// A larger table is reduced if at most one in this many slots has an entry.
const PART: usize = 8;

/// Whether a table has far more slots than entries.
pub fn is_sparse(rows: usize, places: usize) -> bool {
    places > PLACES_MIN && rows <= places / PART
}

/// The capacity to which a list should be reduced that grows and empties between two checks, such as a
/// mailbox; none if less than half of it would be released, or if it was in use since the last check: a busy
/// list would only grow again.
///
/// # Arguments
/// `most` is the maximum length of the list since the last check; space for `kept` entries always remains.
pub fn spare(most: usize, capacity: usize, kept: usize) -> Option<usize> {
    let needed = most.max(kept);
    (needed <= capacity / 2).then_some(needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_shrinks_where_half_of_it_was_not_in_use_since_the_last_look() {
        assert_eq!(spare(500, 1_000, 10), Some(500));
        assert_eq!(spare(501, 1_000, 10), None, "less than half would go");
        assert_eq!(spare(1_000, 1_000, 10), None, "it is busy");
        assert_eq!(spare(0, 1_000, 500), Some(500));
        assert_eq!(spare(0, 1_000, 501), None);
        assert_eq!(spare(0, 0, 1), None);
    }
}
