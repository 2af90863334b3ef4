//! When a table that had many rows gives memory back: making it smaller costs as much as making it larger did.

/// A table of so many places is left as it is.
const PLACES_MIN: usize = 4096;

/// Of a larger one, one place in so many has a row, or it is too large.
const PART: usize = 8;

/// Whether a table has far more places than rows.
#[must_use]
pub fn is_sparse(rows: usize, places: usize) -> bool {
    places > PLACES_MIN && rows <= places / PART
}

/// The capacity to shrink a list to that has grown and empties between two looks, such as a mailbox; none where less than
/// half of it would go, or where it was in use since the last look: a busy list would only grow again.
///
/// # Arguments
/// The list had `most` entries at once since the last look; it keeps place for `kept` in any case.
#[must_use]
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
