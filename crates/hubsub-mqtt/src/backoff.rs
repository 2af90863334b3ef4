//! The back-off of retries that a shard makes once a second.

/// The delay before the first retry, in ms; it doubles per refusal.
pub const WAIT_MS: u64 = 1_000;

/// The most doublings of the delay.
const DOUBLED_MAX: u32 = 6;

/// The most retries of a kind per shard and second.
pub const AT_ONCE_MAX: usize = 64;

/// The delay before the next retry, in ms, after this many refusals before the last one.
pub fn delay_ms(refusals: u32) -> u64 {
    WAIT_MS << refusals.min(DOUBLED_MAX)
}
