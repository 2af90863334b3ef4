//! Reads a whole room page by page, from any shard, from memory and from its log.

use crate::support::*;
use hubsub_route::{Ask, LogPlace, Pages, Record};
use hubsub_types::{Position, Seq, ShardId};
use std::sync::Arc;

/// Reads all records after a position from a shard, `count` per page.
fn read(net: &mut Net, shard: u16, room: &str, after: Option<Position>, count: u64) -> Vec<Arc<Record>> {
    let mut pages = Pages::new(room.as_bytes(), after, count);
    let (mut all, mut number) = (Vec::new(), 0);
    while let Some(query) = pages.next() {
        number += 1;
        assert!(number < 1_000, "it ends");
        let ask = Ask { shard: ShardId(shard), number };
        let part = net.act(shard, |b, w| b.history(&query, ask, NOW, w)).unwrap();
        let part = part.unwrap_or_else(|| {
            net.settle();
            let told = net.worlds.iter_mut().find_map(|world| world.histories.remove(&number));
            told.expect("a question is answered")
        });
        let page = pages.take(part);
        assert!(page.len() as u64 <= count);
        all.extend(page);
    }
    all
}

#[test]
fn a_room_is_read_in_order_from_any_shard_with_all_that_was_said() {
    for tail in [u64::MAX, 600, 1] {
        let mut net = Net::with_tail(3, 1, durable(), tail);
        let ids: Vec<u32> = (0..20).map(|i| net.publish(i % 3, ["a", "{a}.x"][usize::from(i % 2)])).collect();
        net.publish(0, "b");
        net.settle();
        for shard in 0..3 {
            for count in [1, 7, 100] {
                let all = read(&mut net, shard, "a", None, count);
                let seqs = all.iter().map(|record| record.position.seq.0);
                assert!(seqs.eq(1..=20), "shard {shard}, {count} a page, {tail} bytes in memory");
                let of = |record: &Arc<Record>| u32::from_le_bytes(record.payload().try_into().unwrap());
                assert_eq!(
                    all.iter().map(of).collect::<std::collections::BTreeSet<_>>(),
                    ids.iter().copied().collect()
                );
                assert!(all.iter().any(|record| record.topic() == b"{a}.x"));
                assert!(
                    all.iter().all(|record| record.place.offset > 0 || record.place == LogPlace::default())
                );
                let behind = Position { seq: Seq(15), ..all[0].position };
                assert_eq!(read(&mut net, shard, "a", Some(behind), count).len(), 5);
            }
            assert!(read(&mut net, shard, "none", None, 5).is_empty());
        }
    }
}
