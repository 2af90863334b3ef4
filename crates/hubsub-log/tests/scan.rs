//! Sequential reads return each record once, in order, or an error with the missing range.

use crate::support::sim::SimDisk;
use crate::support::{OPTIONS, Sent, TestLog};
use hubsub_log::record::Record;
use hubsub_log::{Chain, ChainOptions, Cursor, HubId, Keep, Kind, LogError, LogOptions, Retention};
use proptest::prelude::*;
use std::ops::ControlFlow;

const HUB: HubId = HubId(1);

/// Reads from a cursor on, `some` records at a time.
fn read(
    chain: &Chain<SimDisk>,
    cursor: &mut Cursor<SimDisk>,
    until: u64,
    some: usize,
) -> Result<Vec<Sent>, LogError> {
    let mut all = Vec::new();
    while cursor.next() < until.min(chain.next()) {
        let mut left = some;
        chain.read_through(cursor, until, |record: &Record<'_>| {
            all.push(Sent::of(record));
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
    }
    Ok(all)
}

fn publish(log: &mut TestLog, count: usize, bytes: usize) {
    for n in 0..count {
        let kind = if n % 17 == 16 { Kind::RoomDeleted } else { Kind::Message };
        let room = format!("room-{}", n % 5).into_bytes();
        log.append(&[(HUB, vec![(room, vec![b'x'; bytes + n % 7], kind)])]).unwrap();
        log.sync().unwrap();
        log.apply().unwrap();
    }
}

/// Segments are smaller or larger than the pieces read, so that all boundary cases occur.
fn with_segments(bytes: u64) -> TestLog {
    let chain = ChainOptions { segment_bytes: bytes, run_bytes: 1024 };
    let options = LogOptions { chain, journal_bytes: 4 << 20, ..OPTIONS };
    TestLog::with(&[Keep::Log], options)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn ranges_give_each_record_once_while_others_are_written(
        (before, after, bytes) in (1..80usize, 0..40usize, 0..400usize),
        (from, until, some) in (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1..50usize),
        segment_bytes in prop::sample::select(vec![1024u64, 4096, 64 << 10]),
    ) {
        let mut log = with_segments(segment_bytes);
        publish(&mut log, before, bytes);
        let chain = log.segments.chain(HUB).unwrap();
        let sent = log.hubs[&HUB].sent.clone();
        let (from, until) = (from.index(sent.len()), until.index(sent.len() + 1));
        let mut cursor = Cursor::at(from as u64 + 1);
        let got = read(&chain, &mut cursor, until as u64 + 1, some).unwrap();
        prop_assert_eq!(&got, sent.get(from..until).unwrap_or_default());
        publish(&mut log, after, bytes);
        let next = cursor.next() as usize - 1;
        let got = read(&chain, &mut cursor, u64::MAX, some).unwrap();
        prop_assert_eq!(&got, &log.hubs[&HUB].sent[next..]);
    }

    #[test]
    fn a_time_is_found_at_or_before_its_first_record(
        (count, us) in (1..120u64, 0..1300u64),
    ) {
        let mut log = with_segments(1024);
        publish(&mut log, count as usize, 50);
        let chain = log.segments.chain(HUB).unwrap();
        // Offset n has the timestamp 10 n.
        let wanted = us.div_ceil(10).max(1);
        let found = chain.offset_before_time(us);
        prop_assert!(found <= wanted.min(count + 1) && found + 40 > wanted.min(count + 1), "{found} {wanted}");
    }
}

#[test]
fn a_record_longer_than_what_is_read_at_once_is_read_whole() {
    let mut log = with_segments(8 << 20);
    let big = vec![b'b'; 1 << 20];
    for payload in [b"a".to_vec(), big.clone(), b"c".to_vec(), big, b"e".to_vec()] {
        log.append(&[(HUB, vec![(b"r".to_vec(), payload, Kind::Message)])]).unwrap();
        log.sync().unwrap();
        log.apply().unwrap();
    }
    let chain = log.segments.chain(HUB).unwrap();
    let mut cursor = Cursor::at(1);
    let got = read(&chain, &mut cursor, u64::MAX, 1).unwrap();
    assert_eq!(got, log.hubs[&HUB].sent);
    assert!(cursor.bytes() < 2 << 20);
}

#[test]
fn what_retention_removes_under_a_reader_is_an_error_with_its_range() {
    let mut log = with_segments(1024);
    publish(&mut log, 100, 100);
    let chain = log.segments.chain(HUB).unwrap();
    let mut cursor = Cursor::at(1);
    read(&chain, &mut cursor, 3, 1).unwrap();
    log.segments.checkpoint().unwrap();
    log.segments.retire(0, |_| (Retention { bytes: 4096, age_us: 0, ..Retention::default() }, None)).unwrap();
    let earliest = chain.info().earliest;
    assert!(earliest > 50);
    let mut given = cursor.next();
    let outcome = chain.read_through(&mut cursor, u64::MAX, |record| {
        // Records already read may still be returned, and none is skipped.
        assert_eq!(record.offset, given);
        given += 1;
        ControlFlow::Continue(())
    });
    let error = outcome.expect_err("it read what is not there");
    assert!(matches!(error, LogError::Gone { first, end } if (first, end) == (given, earliest)), "{error}");
    let rest = read(&chain, &mut Cursor::at(earliest), u64::MAX, 9).unwrap();
    assert_eq!(rest, log.hubs[&HUB].sent[earliest as usize - 1..]);
}
