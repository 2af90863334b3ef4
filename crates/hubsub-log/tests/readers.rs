//! Readers concurrent with the writer get whole records while segments are sealed.

use crate::support::{TestLog, read_back, read_on};
use hubsub_log::{HubId, Kind, record};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn readers_get_whole_rooms_while_segments_are_sealed() {
    let mut log = TestLog::new(1);
    let hub = HubId(1);
    let chain = log.segments.chain(hub).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..3u64 {
            let (chain, is_done) = (&chain, &is_done);
            scope.spawn(move || {
                let mut most = 0;
                while !is_done.load(Ordering::Relaxed) {
                    let back = read_back(chain, b"room").whole();
                    let last = back.last().map_or(0, |sent| sent.seq);
                    assert!(last >= most && back.iter().map(|sent| sent.seq).eq(1..=last));
                    most = last;
                    let (epoch, from) = (2, last / (reader + 1));
                    let on = read_on(chain, b"room", epoch, from.max(1), 10).whole();
                    assert!(on.iter().map(|sent| sent.seq).eq(from.max(1)..from.max(1) + on.len() as u64));
                    assert!(on.len() as u64 + from.max(1) > last);
                }
            });
        }
        for i in 0..600usize {
            log.say(&[(hub, vec![(b"room".to_vec(), vec![7; i % 400], Kind::Message)])]);
            log.apply().unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert!(chain.info().segments > 20);
    log.check(hub);
}

#[test]
fn the_end_of_a_chain_is_found_by_its_bytes() {
    let mut log = TestLog::new(1);
    let hub = HubId(1);
    for i in 0..400usize {
        let room = format!("room {}", i % 3).into_bytes();
        log.say(&[(hub, vec![(room, vec![7; i * 37 % 600], Kind::Message)])]);
        log.apply().unwrap();
    }
    for _ in 0..2 {
        let chain = log.segments.chain(hub).unwrap();
        let mut bytes = Vec::new();
        let mut at = 1;
        while at < chain.next() {
            at = chain.read_offsets(at, 10_000, &mut bytes).unwrap();
        }
        // Start of each record.
        let mut starts = vec![0];
        while let Ok((_, len)) = record::decode(&bytes[starts[starts.len() - 1]..]) {
            starts.push(starts[starts.len() - 1] + len);
        }
        assert_eq!(starts.len() as u64, chain.next());
        for wanted in (0..bytes.len() + 5_000).step_by(97) {
            let from = chain.offset_of_last(wanted as u64).unwrap() as usize;
            let given = bytes.len() - starts[from - 1];
            assert!(given >= wanted.min(bytes.len()), "{given} of {wanted} bytes");
            assert!(given <= wanted + 1_024 + 2 * 800, "{given} for {wanted} bytes");
        }
        assert_eq!(chain.offset_of_last(u64::MAX).unwrap(), 1);
        drop(chain);
        log.reopen().unwrap();
    }
}

#[test]
fn any_place_of_a_room_is_found_however_much_is_behind_it() {
    let mut log = TestLog::new(1);
    let hub = HubId(1);
    // One room is everywhere, one in some places, one only at the beginning.
    for i in 0..600usize {
        let some = (0..12).map(|n| match n {
            3 if i % 40 < 15 => b"some".to_vec(),
            4 if i == 20 => b"once".to_vec(),
            _ => b"room".to_vec(),
        });
        let frame = some.map(|room| (room, vec![7; i % 40], Kind::Message)).collect();
        log.say(&[(hub, frame)]);
        log.apply().unwrap();
    }
    for _ in 0..2 {
        let chain = log.segments.chain(hub).unwrap();
        assert!(chain.info().segments > 150);
        for room in [&b"room"[..], b"some", b"once"] {
            let sent = log.hubs[&hub].sent.iter().filter(|sent| sent.room == room);
            let offsets: Vec<u64> = sent.map(|sent| sent.offset).collect();
            let step = 1 + offsets.len() / 300;
            for from in (1..=offsets.len()).step_by(step) {
                for wanted in [1, 5, 200] {
                    let mut on = Vec::new();
                    let epoch = log.hubs[&hub].rooms[room].0;
                    let take = |record: &record::Record<'_>| {
                        assert_eq!(record.seq as usize, from + on.len());
                        on.push(record.offset);
                        if on.len() < wanted { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                    };
                    chain.read_on(room, epoch, from as u64, wanted as u64, take).unwrap();
                    assert_eq!(on, offsets[from - 1..(from - 1 + wanted).min(offsets.len())]);
                }
            }
        }
        drop(chain);
        log.reopen().unwrap();
    }
}
