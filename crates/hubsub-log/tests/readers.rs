//! Readers beside the writer: whatever is sealed under them, what they get is whole.

mod support;

use hubsub_log::{HubId, Kind, record};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use support::TestLog;

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
                    let mut back = Vec::new();
                    chain
                        .read_back(b"room", |record| {
                            back.push(record.seq);
                            ControlFlow::Continue(())
                        })
                        .unwrap();
                    let last = back.first().copied().unwrap_or(0);
                    assert!(last >= most && back.iter().rev().copied().eq(1..=last));
                    most = last;
                    let (epoch, from) = (2, last / (reader + 1));
                    let mut on = Vec::new();
                    chain
                        .read_on(b"room", epoch, from.max(1), None, |record| {
                            on.push(record.seq);
                            ControlFlow::Continue(())
                        })
                        .unwrap();
                    assert!(
                        on.is_empty() || on.iter().copied().eq(from.max(1)..from.max(1) + on.len() as u64)
                    );
                    assert!(on.len() as u64 + from.max(1) > last);
                }
            });
        }
        for i in 0..600usize {
            log.append(&[(hub, vec![(b"room".to_vec(), vec![7; i % 400], Kind::Message)])]).unwrap();
            log.sync().unwrap();
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
        log.append(&[(hub, vec![(room, vec![7; i * 37 % 600], Kind::Message)])]).unwrap();
        log.sync().unwrap();
        log.apply().unwrap();
    }
    for _ in 0..2 {
        let chain = log.segments.chain(hub).unwrap();
        let mut bytes = Vec::new();
        let mut at = 1;
        while at < chain.next() {
            at = chain.read_offsets(at, 10_000, &mut bytes).unwrap();
        }
        // Where each record begins.
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
