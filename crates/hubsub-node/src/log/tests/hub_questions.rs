//! Queries of a whole hub: its records in order of offsets, in pieces, with gaps.

use super::*;
use hub_reading::HubSearch;
use hubsub_route::{HubFilter, HubLogRead, HubRange, HubRead, HubThen};
use hubsub_types::{ConnKey, ShardId};
use reading::Answer;
use std::os::unix::fs::FileExt;

/// Runs one query of a chain.
fn ask(
    chain: &Chain<Disk>,
    log: &TestLog,
    pattern: &str,
    read: (u64, u64),
    limits: (u32, usize),
) -> HubRange {
    let ((next, since_us), (records_max, bytes_max)) = (read, limits);
    let filter = Arc::new(HubFilter::new([pattern.as_bytes().into()]));
    let conn = ConnKey { index: 0, generation: 0 };
    let then = HubThen::Cursor { shard: ShardId(0), conn, pattern: None, number: 1 };
    let read = HubRead { hub: log.hub, filter, next, since_us, records_max, bytes_max, then };
    let mut search = HubSearch::new(Box::new(HubLogRead { read, through: log.next - 1 }));
    loop {
        match search.turn(chain, &log.log).unwrap() {
            Answer::Found(range) => return range,
            Answer::GoesOn | Answer::Waits => std::thread::yield_now(),
        }
    }
}

/// Reads from an offset to the end, a few records at a time; returns the offsets and the gaps.
fn follow(
    chain: &Chain<Disk>,
    log: &TestLog,
    pattern: &str,
    from: (u64, u64),
) -> (Vec<u64>, Vec<(u64, u64)>) {
    let (mut next, mut seen, mut lost) = (from.0, Vec::new(), Vec::new());
    while next < log.next {
        let range = ask(chain, log, pattern, (next, from.1), (64, 20_000));
        assert!(range.records.len() <= 64 && range.next > next, "{range:?}");
        for record in &range.records {
            assert_eq!(record.place, hubsub_route::LogPlace { hub: log.hub, offset: record.position.seq.0 });
            assert!((next..range.next).contains(&record.place.offset));
        }
        seen.extend(range.records.iter().map(|record| record.place.offset));
        lost.extend(range.lost);
        next = range.next;
    }
    (seen, lost)
}

fn say(log: &mut TestLog, records: u32) {
    (0..records / 10).for_each(|_| _ = log.say(10, 300));
    log.wait_for(log.next - 1);
}

#[test]
fn who_follows_a_hub_reads_what_it_wants_in_order_and_waits_for_what_is_under_way() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, chain) = start_on_disk(directory.path(), Retention::default());
    say(&mut log, 1000);
    let all = |from| (from..=1000).collect::<Vec<u64>>();
    assert_eq!(follow(&chain, &log, "*", (1, 0)), (all(1), vec![]));
    assert_eq!(
        follow(&chain, &log, "r", (777, 0)),
        (all(777).into_iter().filter(|n| n % 100 != 7).collect(), vec![])
    );
    let rare: Vec<u64> = (7..1000).step_by(100).collect();
    assert_eq!(follow(&chain, &log, "rare", (1, 0)), (rare.clone(), vec![]));
    assert_eq!(follow(&chain, &log, "none", (1, 0)), (vec![], vec![]));
    // The record of offset n has the time n.
    for since in [1, 2, 499, 1000] {
        assert_eq!(follow(&chain, &log, "*", (1, since)), (all(since), vec![]), "since {since}");
        assert_eq!(follow(&chain, &log, "*", (600, since)), (all(since.max(600)), vec![]));
    }
    assert_eq!(follow(&chain, &log, "*", (1, 5_000)), (vec![], vec![]));
    assert_eq!(ask(&chain, &log, "*", (5, 0), (10, usize::MAX)).next, 15);
    assert_eq!(ask(&chain, &log, "*", (5, 0), (10, 1)).next, 6, "one comes in any case");
    log.log.stop();
}

#[test]
fn who_follows_a_hub_is_told_what_retention_took() {
    let directory = tempfile::tempdir().unwrap();
    let kept = Retention { bytes: 300_000, age_us: 0, ..Retention::default() };
    let (mut log, chain) = start_on_disk(directory.path(), kept);
    while chain.info().earliest == 1 {
        say(&mut log, 500);
        log.log.hurry();
        while chain.next() < log.next {
            std::thread::yield_now();
        }
    }
    let earliest = chain.info().earliest;
    let (seen, lost) = follow(&chain, &log, "*", (3, 0));
    assert_eq!(lost, [(3, earliest - 1)]);
    assert!(seen.into_iter().eq(earliest..log.next));
    // A read of younger records only requests nothing that is lost.
    let since = earliest + 5;
    let (seen, lost) = follow(&chain, &log, "*", (1, since));
    assert!(seen.into_iter().eq(since..log.next) && lost.is_empty(), "{lost:?}");
    log.log.stop();
}

#[test]
fn who_follows_a_hub_is_told_what_is_damaged_and_gets_all_else() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, chain) = start_on_disk(directory.path(), Retention::default());
    say(&mut log, 1000);
    assert_eq!(follow(&chain, &log, "*", (1, 0)).0.len(), 1000);
    let hub = directory.path().join(format!("hubs/{}", log.hub.0));
    let mut segments: Vec<_> = std::fs::read_dir(hub).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.retain(|path| path.extension().is_some_and(|ending| ending == "segment"));
    segments.sort();
    let bytes = std::fs::read(&segments[1]).unwrap();
    let payload = vec![300_u64 as u8; 300];
    let at = (0..bytes.len() - 300).rfind(|&at| bytes[at..at + 300] == payload).unwrap() as u64 + 9;
    std::fs::File::options().write(true).open(&segments[1]).unwrap().write_all_at(&[0], at).unwrap();
    let (seen, lost) = follow(&chain, &log, "*", (1, 0));
    let missing: Vec<u64> = (1..=1000).filter(|offset| !seen.contains(offset)).collect();
    assert!(missing.contains(&300) && missing.len() < 64 * 1024 / 350, "{missing:?}");
    let told: Vec<u64> = lost.iter().flat_map(|&(first, last)| first..=last).collect();
    assert_eq!(told, missing);
    assert!(seen.is_sorted_by(|a, b| a < b));
    log.log.stop();
}
