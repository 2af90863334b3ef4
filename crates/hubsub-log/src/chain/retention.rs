//! Decides which of a hub's segments to remove: whole segments, the oldest first. Has no side effects.
//!
//! Invariants: the removed segments are a prefix, below `hold`, and each exceeds the limits. If retention
//! waits for an archive, a segment with unarchived records is removed only while the hub exceeds its size
//! limit for waiting, and the verdict reports the loss.

/// Limits for a hub's records. 0 means no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Retention {
    /// Bytes of all segments; the oldest is removed first.
    pub bytes: u64,
    /// Age in µs, by the hub's own timestamps.
    pub age_us: u64,
    /// If set, segments over these limits wait for the archive.
    pub archive: Option<ArchiveWait>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArchiveWait {
    /// Total bytes of segments up to which retention waits.
    pub bytes_max: u64,
    /// First offset that is not archived; 0 if the archive has reported none.
    pub archived: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    pub first: u64,
    /// The offset after the last.
    pub end: u64,
    /// Upper bound of the timestamps of its records; 0 if unknown.
    pub last_us: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    pub gone: usize,
    /// Records to remove that are not archived: the first offset, and the one after the last.
    pub lost: Option<(u64, u64)>,
    /// Bytes that stay only because they are not archived.
    pub waiting_bytes: u64,
}

impl Retention {
    /// `bytes` is the size of all segments including the open one; `hold` is an offset from which records are
    /// still needed.
    pub fn verdict(
        &self,
        sealed: impl IntoIterator<Item = Span>,
        bytes: u64,
        now_us: u64,
        hold: u64,
    ) -> Verdict {
        let mut verdict = Verdict::default();
        // Bytes that remain, and bytes that would remain without waiting for an archive.
        let (mut kept, mut wanted, mut waits) = (bytes, bytes, false);
        for span in sealed {
            let is_long = self.bytes > 0 && wanted > self.bytes;
            let is_old = self.age_us > 0 && span.last_us > 0 && span.last_us + self.age_us < now_us;
            if !(is_long || is_old) || hold < span.end {
                break;
            }
            wanted -= span.bytes;
            let missing = self.archive.filter(|archive| archive.archived < span.end);
            waits = waits || missing.is_some_and(|archive| kept <= archive.bytes_max);
            if waits {
                verdict.waiting_bytes += span.bytes;
                continue;
            }
            kept -= span.bytes;
            verdict.gone += 1;
            if let Some(archive) = missing {
                let first = verdict.lost.map_or(span.first.max(archive.archived), |(first, _)| first);
                verdict.lost = Some((first, span.end));
            }
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Ten segments of ten offsets and a hundred bytes, one a second; the open one is empty.
    fn ten() -> impl Iterator<Item = Span> {
        (0..10).map(|n| Span {
            first: n * 10 + 1,
            end: n * 10 + 11,
            last_us: (n + 1) * 1_000_000,
            bytes: 100,
        })
    }

    fn verdict(archived: u64, bytes_max: u64) -> Verdict {
        let archive = Some(ArchiveWait { bytes_max, archived });
        Retention { bytes: 300, age_us: 0, archive }.verdict(ten(), 1000, 0, u64::MAX)
    }

    #[test]
    fn what_is_not_archived_stays_until_it_is() {
        assert_eq!(verdict(0, 2000), Verdict { gone: 0, lost: None, waiting_bytes: 700 });
        assert_eq!(verdict(10, 2000), Verdict { gone: 0, lost: None, waiting_bytes: 700 });
        assert_eq!(verdict(11, 2000), Verdict { gone: 1, lost: None, waiting_bytes: 600 });
        assert_eq!(verdict(1000, 2000), Verdict { gone: 7, lost: None, waiting_bytes: 0 });
    }

    #[test]
    fn over_its_limit_the_oldest_go_and_are_told() {
        assert_eq!(verdict(0, 800), Verdict { gone: 2, lost: Some((1, 21)), waiting_bytes: 500 });
        assert_eq!(verdict(6, 800), Verdict { gone: 2, lost: Some((6, 21)), waiting_bytes: 500 });
        assert_eq!(verdict(11, 800), Verdict { gone: 2, lost: Some((11, 21)), waiting_bytes: 500 });
        assert_eq!(verdict(21, 800), Verdict { gone: 2, lost: None, waiting_bytes: 500 });
    }

    #[test]
    fn what_is_old_waits_too() {
        let archive = Some(ArchiveWait { bytes_max: 900, archived: 0 });
        let limits = Retention { bytes: 0, age_us: 1_000_000, archive };
        let verdict = limits.verdict(ten(), 1000, 5_500_000, u64::MAX);
        assert_eq!(verdict, Verdict { gone: 1, lost: Some((1, 11)), waiting_bytes: 300 });
    }

    proptest! {
        #[test]
        fn an_archive_keeps_what_it_lacks_up_to_its_limit_and_nothing_else(
            sizes in prop::collection::vec((1..20u64, 1..50u64), 0..12),
            (bytes, age_us, now_us) in (prop_oneof![Just(0), 1..400u64], prop_oneof![Just(0), 1..50u64], 0..300u64),
            (archived, bytes_max, open_bytes) in (0..150u64, 0..500u64, 0..60u64),
            hold in prop_oneof![Just(u64::MAX), 0..150u64],
        ) {
            let (mut first, mut spans) = (1, Vec::new());
            for &(records, bytes) in &sizes {
                spans.push(Span { first, end: first + records, last_us: first + records, bytes });
                first += records;
            }
            let total = spans.iter().map(|span| span.bytes).sum::<u64>() + open_bytes;
            let alone = Retention { bytes, age_us, archive: None };
            let waiting = Retention { archive: Some(ArchiveWait { bytes_max, archived }), ..alone };
            let free = alone.verdict(spans.iter().copied(), total, now_us, hold);
            let found = waiting.verdict(spans.iter().copied(), total, now_us, hold);
            prop_assert!(found.gone <= free.gone && free.lost.is_none() && free.waiting_bytes == 0);
            let bytes_of = |spans: &[Span]| spans.iter().map(|span| span.bytes).sum::<u64>();
            prop_assert_eq!(found.waiting_bytes, bytes_of(&spans[found.gone..free.gone]));
            // Each removed segment was archived, or the hub exceeded its size limit for waiting.
            for (n, span) in spans[..found.gone].iter().enumerate() {
                prop_assert!(span.end <= archived || total - bytes_of(&spans[..n]) > bytes_max);
            }
            // The first segment that waits is not archived, and the size is within the limit.
            if found.gone < free.gone {
                prop_assert!(spans[found.gone].end > archived);
                prop_assert!(total - bytes_of(&spans[..found.gone]) <= bytes_max);
            }
            let offsets = spans[..found.gone].iter().flat_map(|span| span.first..span.end);
            let lost: Vec<u64> = offsets.filter(|&offset| offset >= archived).collect();
            let told: Vec<u64> = found.lost.map_or(Vec::new(), |(first, end)| (first..end).collect());
            prop_assert_eq!(told, lost);
        }
    }
}
