//! Log queries: they run in turns, and find the readable records of a damaged log.

use super::*;

#[test]
fn readers_do_what_waits_and_refuse_what_is_too_much() {
    let readers = Readers::start("reader", 2, 3).unwrap();
    let (hold, held) = mpsc::channel::<()>();
    let held = Arc::new(Mutex::new(held));
    let (tell, done) = mpsc::channel();
    let mut refused = 0;
    for i in 0..20 {
        let (held, tell) = (Arc::clone(&held), tell.clone());
        let job = Box::new(move || {
            let _ = held.lock().unwrap().recv();
            let _ = tell.send(i);
            Turn::Done
        });
        refused += usize::from(readers.submit(job).is_err());
    }
    assert!((15..=17).contains(&refused), "{refused}");
    drop(hold);
    (refused..20).for_each(|_| _ = done.recv_timeout(Duration::from_secs(30)).expect("it is done"));
    readers.stop();
}

/// A job queued last finishes before all that wait.
fn has_its_turn(readers: &Readers, tell: mpsc::Sender<&'static str>, done: &mpsc::Receiver<&'static str>) {
    let now = Box::new(move || {
        tell.send("now").unwrap();
        Turn::Done
    });
    assert!(readers.submit(now).is_ok());
    assert_eq!(done.recv_timeout(Duration::from_secs(30)), Ok("now"));
}

#[test]
fn who_waits_for_the_disk_keeps_no_reader_from_the_others() {
    let readers = Readers::start("reader", 2, 1000).unwrap();
    let is_there = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (tell, done) = mpsc::channel();
    for _ in 0..20 {
        let (is_there, tell) = (Arc::clone(&is_there), tell.clone());
        let job = Box::new(move || {
            let is_there = is_there.load(std::sync::atomic::Ordering::Relaxed);
            if !is_there {
                return Turn::Waits;
            }
            tell.send("late").unwrap();
            Turn::Done
        });
        assert!(readers.submit(job).is_ok());
    }
    has_its_turn(&readers, tell, &done);
    is_there.store(true, std::sync::atomic::Ordering::Relaxed);
    (0..20).for_each(|_| assert_eq!(done.recv_timeout(Duration::from_secs(30)), Ok("late")));
    // Jobs that would wait forever do not delay a stop.
    (0..20).for_each(|_| assert!(readers.submit(Box::new(|| Turn::Waits)).is_ok()));
    readers.stop();
}

#[test]
fn who_reads_for_long_lets_the_others_read_in_between() {
    let readers = Readers::start("reader", 1, 1000).unwrap();
    let (tell, done) = mpsc::channel();
    for _ in 0..20 {
        let mut turns = 0;
        let tell = tell.clone();
        let job = Box::new(move || {
            turns += 1;
            if turns < 1_000 {
                return Turn::GoesOn;
            }
            tell.send("long").unwrap();
            Turn::Done
        });
        assert!(readers.submit(job).is_ok());
    }
    has_its_turn(&readers, tell, &done);
    (0..20).for_each(|_| assert_eq!(done.recv_timeout(Duration::from_secs(30)), Ok("long")));
    (0..20).for_each(|_| assert!(readers.submit(Box::new(|| Turn::GoesOn)).is_ok()));
    readers.stop();
}

#[test]
fn where_a_subscription_begins_is_one_record_however_many_there_are() {
    use hubsub_route::{Asker, Attach, LogRead, Namespace, Start, Then, Ticket, Want};
    use hubsub_types::{ConnKey, Epoch, Position, Seq, ShardId};
    let directory = tempfile::tempdir().unwrap();
    let (mut log, chain) = start_on_disk(directory.path(), Retention::default());
    let hub = log.hub;
    (0..100).for_each(|_| _ = log.say(10, 300));
    log.wait_for(1000);
    let asker = Asker::Client { conn: ConnKey { index: 0, generation: 0 }, slot: 0 };
    let find_since = |want, count, seq_min, since_us| {
        let attach = Attach {
            ticket: Ticket { shard: ShardId(0), asker },
            conn: 0,
            namespace: Namespace::Global,
            topic: (*b"r").into(),
            start: Start::Last(count),
            adds: true,
            id: 1,
            home: ShardId(0),
            revision: 0,
            left: None,
        };
        let read = LogRead {
            hub,
            room: (*b"r").into(),
            through: 1000,
            epoch: Epoch(1),
            seq_max: Seq(990),
            seq_min: Seq(seq_min),
            since_us,
            topic: None,
            namespace: None,
            want,
            count,
            bytes_max: usize::MAX,
            then: Then::Attach(Box::new(attach), ShardId(0)),
        };
        let mut search = reading::Search::new(Box::new(read));
        loop {
            if let reading::Answer::Found(found) = search.turn(&chain, &log.log).unwrap() {
                return found.records.iter().map(|record| record.position).collect::<Vec<_>>();
            }
            std::thread::yield_now();
        }
    };
    let find = |want, count, seq_min| find_since(want, count, seq_min, 0);
    let at = |seq| [Position { epoch: Epoch(1), seq: Seq(seq) }];
    for (count, first) in [(1, 990), (2, 989), (989, 2), (990, 1), (5_000, 1), (u64::MAX, 1)] {
        assert_eq!(find(Want::Back, count, 1), at(first), "the last {count}");
    }
    assert_eq!(find(Want::Back, 800, 500), at(500));
    // The record of offset n has the time n.
    for since in [0, 1, 2, 3, 499, 500, 989, 990] {
        assert_eq!(find(Want::Since(since), 1, 1), at(since.max(1)), "since {since}");
        assert_eq!(find(Want::Since(since), 1, 400), at(since.max(400)), "since {since}");
        assert_eq!(find(Want::On(Seq(since)), 1, 1), at(since.max(1)), "from {since} on");
    }
    assert_eq!(find(Want::Since(991), 1, 1), []);
    // Records that are too old are not found.
    assert_eq!(find_since(Want::On(Seq(5)), 1, 1, 700), at(700));
    assert_eq!(find_since(Want::On(Seq(800)), 1, 1, 700), at(800));
    assert_eq!(find_since(Want::On(Seq(5)), 1, 1, 2_000), []);
    assert_eq!(find_since(Want::Since(10), 1, 1, 700), at(700));
    assert_eq!(find_since(Want::Back, 5_000, 1, 700), at(700));
    log.log.stop();
}

#[test]
fn a_question_that_is_looked_for_in_turns_has_the_same_answer() {
    use hubsub_route::rooms::HistoryQuery;
    use hubsub_route::{Ask, Found, LogRead, Then, Want};
    use hubsub_types::{Epoch, Seq, ShardId};
    let directory = tempfile::tempdir().unwrap();
    let (mut log, chain) =
        start_on_disk(directory.path(), Retention { bytes: 300_000, age_us: 0, ..Retention::default() });
    let hub = log.hub;
    let say = |log: &mut TestLog| {
        (0..50).for_each(|_| _ = log.say(10, 300));
        log.wait_for(log.next - 1);
        log.log.hurry();
        while chain.next() < log.next {
            std::thread::yield_now();
        }
    };
    say(&mut log);
    let find = |log: &TestLog, slice: Option<u64>, want, count, topic: Option<&str>, since_us| {
        let topic = topic.map(|topic| topic.as_bytes().to_vec());
        let query = HistoryQuery { room: b"r".to_vec(), count, after: None, topic: topic.clone() };
        let mut search = reading::Search::new(Box::new(LogRead {
            hub,
            room: (*b"r").into(),
            through: log.next - 1,
            epoch: Epoch(1),
            seq_max: Seq(log.next - 1),
            seq_min: Seq(1),
            since_us,
            topic,
            namespace: None,
            want,
            count,
            bytes_max: usize::MAX,
            then: Then::History(Box::new(query), Ask { shard: ShardId(0), number: 1 }),
        }));
        let mut turns = 0;
        loop {
            turns += 1;
            let slice = Duration::from_secs(slice.unwrap_or(30));
            match search.turn_for(slice, &chain, &log.log).unwrap() {
                reading::Answer::Found(Found { records, first }) => {
                    let seqs: Vec<u64> = records.iter().map(|record| record.position.seq.0).collect();
                    return (seqs, first.map(|first| first.0), turns);
                }
                reading::Answer::GoesOn => {}
                reading::Answer::Waits => panic!("the segments have all"),
            }
        }
    };
    let seqs = |seqs: std::ops::RangeInclusive<u64>| seqs.collect::<Vec<_>>();
    let rare = || (7..=500).step_by(100).collect::<Vec<u64>>();
    // In a single turn, or with one record per turn.
    for (slice, turns) in [(None, 1), (Some(0), 400)] {
        let all = |want, topic, since| find(&log, slice, want, u64::MAX, topic, since);
        let (found, _, n) = all(Want::Back, Some("rare"), 0);
        assert!(found == rare() && n >= turns, "{found:?} in {n} turns");
        let (found, first, n) = all(Want::On(Seq(2)), Some("rare"), 0);
        assert!((found, first) == (rare(), Some(2)) && n >= turns);
        assert_eq!(all(Want::Back, None, 0).0, seqs(1..=500));
        assert_eq!(all(Want::On(Seq(9)), None, 0).0, seqs(9..=500));
        assert_eq!(all(Want::On(Seq(9)), Some("rare"), 101).0, rare()[1..]);
        assert_eq!(all(Want::On(Seq(9)), Some("rare"), 101).1, Some(101), "before it all is too old");
        assert_eq!(all(Want::Since(101), None, 0).0, seqs(101..=500));
        assert_eq!(find(&log, slice, Want::Back, 2, Some("rare"), 0).0, [307, 407]);
        assert_eq!(find(&log, slice, Want::Back, 450, None, 0).0, seqs(51..=500));
        assert_eq!(find(&log, slice, Want::On(Seq(8)), 2, Some("rare"), 0).0, [107, 207]);
    }
    // Removed records are reported for any topic.
    while chain.info().earliest == 1 {
        say(&mut log);
    }
    let earliest = chain.info().earliest;
    let (found, first, _) = find(&log, None, Want::On(Seq(8)), 1, Some("rare"), 0);
    let first = first.expect("there are some");
    assert!(first >= earliest && found[0] >= first && found[0] < first + 100, "{found:?} from {first} on");
    log.log.stop();
}

#[test]
fn who_catches_up_misses_what_is_damaged_and_nothing_else() {
    use hubsub_route::cursors::Read;
    use hubsub_route::{LogRead, Namespace, Then, Want};
    use hubsub_types::{ConnKey, Epoch, ErrorCode, Position, Seq, ShardId};
    use std::os::unix::fs::FileExt;
    let directory = tempfile::tempdir().unwrap();
    let (mut log, chain) = start_on_disk(directory.path(), Retention::default());
    for _ in 0..100 {
        let last = log.say(10, 300);
        log.wait_for(last);
    }
    log.log.hurry();
    while chain.next() < log.next {
        std::thread::yield_now();
    }
    let find = |from: u64, seq_max: u64| {
        let next = Position { epoch: Epoch(1), seq: Seq(from) };
        let (topic, namespace) = ((*b"r").into(), Namespace::Global);
        let (from, conn) = (ShardId(0), ConnKey { index: 0, generation: 0 });
        let read = Read { from, conn, pattern: None, namespace, topic, next, bytes_max: 1 << 20, of: None };
        let mut search = reading::Search::new(Box::new(LogRead {
            hub: log.hub,
            room: (*b"r").into(),
            through: log.next - 1,
            epoch: Epoch(1),
            seq_max: Seq(seq_max),
            seq_min: Seq(1),
            since_us: 0,
            topic: None,
            namespace: None,
            want: Want::On(next.seq),
            count: u64::MAX,
            bytes_max: 1 << 20,
            then: Then::Range(Box::new(read)),
        }));
        loop {
            match search.turn(&chain, &log.log) {
                Ok(reading::Answer::Found(found)) => {
                    return Ok(found.records.iter().map(|record| record.position.seq.0).collect());
                }
                Ok(_) => std::thread::yield_now(),
                Err(code) => {
                    assert!(search.damage.is_some());
                    return Err(code);
                }
            }
        }
    };
    let catch_up = || {
        let (mut next, mut seen) = (1, Vec::<u64>::new());
        while next <= 1000 {
            let seqs: Vec<u64> = find(next, 1000).unwrap();
            next = seqs.last().unwrap() + 1;
            seen.extend(seqs);
        }
        seen
    };
    assert!(catch_up().into_iter().eq(1..=1000));

    let hub = directory.path().join(format!("hubs/{}", log.hub.0));
    let mut segments: Vec<_> = std::fs::read_dir(hub).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.retain(|path| path.extension().is_some_and(|ending| ending == "segment"));
    segments.sort();
    assert!(segments.len() > 4);
    // A byte in a sealed segment, one in the open one, and a truncated segment.
    let flip = |path: &Path, seq: u64| {
        let bytes = std::fs::read(path).unwrap();
        let payload = vec![seq as u8; 300];
        let at = (0..bytes.len() - 300).rfind(|&at| bytes[at..at + 300] == payload).unwrap() as u64 + 9;
        std::fs::File::options().write(true).open(path).unwrap().write_all_at(&[!(seq as u8)], at).unwrap();
    };
    flip(&segments[1], 300);
    flip(segments.last().unwrap(), 990);
    let cut = std::fs::File::options().write(true).open(&segments[3]).unwrap();
    cut.set_len(cut.metadata().unwrap().len() / 2).unwrap();
    let seen = catch_up();
    let missing: Vec<u64> = (1..=1000).filter(|seq| !seen.contains(seq)).collect();
    assert!(seen.is_sorted_by(|a, b| a < b));
    let (behind, cut): (Vec<u64>, Vec<u64>) = missing.iter().partition(|&&seq| seq == 300 || seq == 990);
    assert_eq!(behind, [300, 990]);
    let per_segment = 64 * 1024 / 350;
    assert!(cut.windows(2).all(|pair| pair[0] + 1 == pair[1]), "in one piece: {cut:?}");
    assert!((per_segment / 4..per_segment).contains(&cut.len()), "half of a segment: {}", cut.len());
    // Without a readable record after the damage, an error is reported.
    assert_eq!(find(300, 300), Err(ErrorCode::Quarantined));
    log.log.stop();
}
