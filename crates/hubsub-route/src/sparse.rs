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
