//! The memory of the data plane: how much is in use, and when free memory is returned to the system.
//!
//! Every allocation of the core is counted when it is made and when it is freed. Each thread has a count of its
//! own, updated with plain stores. Freeing another thread's memory can make a count negative; only the sum is
//! meaningful.

use mimalloc::MiMalloc;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

/// Number of counts. Each thread has its own, except that the last one is shared by all that remain.
const THREADS: usize = 128;

#[repr(align(64))]
struct Count(AtomicI64);

static COUNTS: [Count; THREADS] = [const { Count(AtomicI64::new(0)) }; THREADS];
static PLACES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// This thread's index in `COUNTS`; `usize::MAX` before its first allocation. It has no destructor, so it
    /// exists until the thread's last free.
    static PLACE: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The allocator of a process with a data plane: mimalloc, counted.
pub struct Allocator;

// SAFETY: every call is mimalloc's, with the same arguments; counting allocates nothing.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(rounded(layout.size()));
        // SAFETY: the caller keeps the same contract.
        unsafe { MiMalloc.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(rounded(layout.size()));
        // SAFETY: the caller keeps the same contract.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-rounded(layout.size()));
        // SAFETY: the caller keeps the same contract.
        unsafe { MiMalloc.dealloc(pointer, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(rounded(size) - rounded(layout.size()));
        // SAFETY: the caller keeps the same contract.
        unsafe { MiMalloc.realloc(pointer, layout, size) }
    }
}

/// The size that the allocator reserves for an allocation of `size` bytes: it has four sizes per doubling.
#[inline]
fn rounded(size: usize) -> i64 {
    let step = match size {
        0..=8 => 8,
        9..=64 => 16,
        _ => 1 << ((size - 1).ilog2() - 2),
    };
    size.next_multiple_of(step) as i64
}

#[inline]
fn count(bytes: i64) {
    let place = PLACE.get();
    if place < THREADS - 1 {
        let count = &COUNTS[place].0;
        count.store(count.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    } else {
        count_first(place, bytes);
    }
}

/// Assigns a count to a thread that has none: the shared one if no other is left.
#[cold]
fn count_first(place: usize, bytes: i64) {
    if place == usize::MAX {
        PLACE.set(PLACES.fetch_add(1, Ordering::Relaxed).min(THREADS - 1));
    }
    COUNTS[PLACE.get()].0.fetch_add(bytes, Ordering::Relaxed);
}

/// Bytes that the core has allocated and not freed; 0 if [`Allocator`] is not the process's allocator.
pub fn used_bytes() -> u64 {
    COUNTS.iter().map(|count| count.0.load(Ordering::Relaxed)).sum::<i64>().max(0) as u64
}

/// Returns the memory that this thread has freed to the system. This takes 0.1 ms if it is little, and up to
/// 50 ms for 100 MiB.
pub fn give_back() {
    // SAFETY: it may be called by any thread at any time.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

/// Decides when a thread returns free memory. The allocator keeps freed memory for later allocations, so an
/// idle thread would keep it forever. While load goes up and down, keeping it is right.
#[derive(Debug, Default)]
pub struct Peak {
    /// The most bytes in use since memory was last returned.
    used: u64,
    /// When memory was last returned, in s of the node's clock.
    second: u32,
    /// Since when enough memory is free, in s of the node's clock.
    free_since: Option<u32>,
}

/// Free memory is returned at least this often, in s.
const AT_LEAST_S: u32 = 60;

/// Free memory is kept for this time, in s: a node whose load goes up and down would otherwise return it and
/// allocate it again all the time.
const IDLE_S: u32 = 3;

/// Less free memory than this, in bytes, is kept until `AT_LEAST_S` have passed.
const KEPT: u64 = 4 << 20;

impl Peak {
    /// Whether to return memory now: at least `KEPT` bytes and an eighth of the peak have been free for `IDLE_S`,
    /// or `AT_LEAST_S` have passed since memory was last returned.
    ///
    /// # Arguments
    /// - `used`: bytes in use
    /// - `second`: the time, in s of the node's clock
    pub fn is_over(&mut self, used: u64, second: u32) -> bool {
        self.used = self.used.max(used);
        let is_free = self.used - used >= KEPT.max(self.used / 8);
        self.free_since = is_free.then(|| self.free_since.unwrap_or(second));
        let is_idle = self.free_since.is_some_and(|since| second.saturating_sub(since) >= IDLE_S);
        let is_over = is_idle || second.saturating_sub(self.second) >= AT_LEAST_S;
        if is_over {
            *self = Peak { used, second, free_since: None };
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn sizes_are_rounded_as_the_allocator_rounds_them() {
        for (size, of) in [
            (1, 8),
            (9, 16),
            (16, 16),
            (17, 32),
            (64, 64),
            (65, 80),
            (1024, 1024),
            (1025, 1280),
            (1281, 1536),
        ] {
            assert_eq!(rounded(size), of, "{size}");
            // SAFETY: takes and returns plain numbers.
            assert_eq!(unsafe { libmimalloc_sys::mi_good_size(size) } as i64, of, "{size}");
        }
    }

    #[test]
    fn memory_is_given_back_after_a_fall_and_once_a_minute() {
        let mut peak = Peak::default();
        assert!(!peak.is_over(0, 0));
        assert!(!peak.is_over(100 * MIB, 1), "it grows");
        for second in 2..10 {
            assert!(!peak.is_over(88 * MIB, second), "less than an eighth");
        }
        for second in 10..13 {
            assert!(!peak.is_over(87 * MIB, second), "it may come into use again");
        }
        assert!(peak.is_over(87 * MIB, 13));
        assert!(!peak.is_over(76 * MIB, 14), "the peak is another one now");
        assert!(peak.is_over(76 * MIB, 17));
        assert!(!peak.is_over(76 * MIB, 76));
        assert!(peak.is_over(76 * MIB, 77));
        for (used, is_over) in [(MIB + 1, false), (MIB, true)] {
            let mut small = Peak { used: 5 * MIB, ..Peak::default() };
            assert!(!small.is_over(used, 1));
            assert_eq!(small.is_over(used, 4), is_over, "so little is kept: {}", 5 * MIB - used);
        }
    }

    #[test]
    fn a_node_whose_load_goes_up_and_down_gives_nothing_back_until_a_minute_has_passed() {
        let mut peak = Peak::default();
        let over: Vec<u32> = (0..=120)
            .filter(|second| peak.is_over(if second % 3 == 0 { 100 * MIB } else { 10 * MIB }, *second))
            .collect();
        assert_eq!(over, [60, 120]);
    }
}
