//! Readers beside the writer: whatever is sealed under them, what they get is whole.

mod support;

use hubsub_log::{HubId, Kind};
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
