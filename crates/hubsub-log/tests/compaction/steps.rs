//! Compares a log under random steps, including compaction, with the model.

use crate::oracle::{HUB, OTHER, ROOMS, TOMBSTONE_US, Test, publish, room, tombstone};
use crate::support::crash;
use crate::support::sim::Faults;
use hubsub_log::{Kind, LogError};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// A frame of messages (room, bytes) and tombstones (room, other topic).
    Say(Vec<Result<(u8, u16), (u8, bool)>>),
    Delete(u8),
    Apply,
    Checkpoint,
    Wait(u64),
    /// With a budget in bytes.
    Compact(u64),
    /// To the end, with this limit of keys in memory.
    CompactAll(usize),
    /// With this many free bytes on the disk.
    CompactFull(u64),
    /// The disk fails after this many calls, then power fails.
    CompactFails(u64, u64),
    Read(usize),
    /// Reloads the rooms' state from the log.
    Recall,
    Check,
    CleanRestart,
    Crash(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let message = (0..ROOMS, prop_oneof![8 => 0..100u16, 1 => 0..1500u16]).prop_map(Ok);
    let record = prop_oneof![3 => message, 2 => (0..ROOMS, any::<bool>()).prop_map(Err)];
    let step = prop_oneof![
        10 => prop::collection::vec(record, 1..9).prop_map(Step::Say),
        1 => (0..ROOMS).prop_map(Step::Delete),
        2 => Just(Step::Apply),
        5 => Just(Step::Checkpoint),
        3 => (0..400u64).prop_map(Step::Wait),
        5 => (1..6000u64).prop_map(Step::Compact),
        3 => (1..12usize).prop_map(Step::CompactAll),
        1 => (0..6000u64).prop_map(Step::CompactFull),
        1 => (0..25u64, any::<u64>()).prop_map(|(calls, seed)| Step::CompactFails(calls, seed)),
        8 => (0..3usize).prop_map(Step::Read),
        1 => Just(Step::Recall),
        1 => Just(Step::Check),
        1 => Just(Step::CleanRestart),
        2 => any::<u64>().prop_map(Step::Crash),
    ];
    prop::collection::vec(step, 1..100)
}

fn run(steps: Vec<Step>) {
    let mut test = Test::new();
    for step in steps {
        match step {
            Step::Say(what) => {
                let record = |what: Result<(u8, u16), (u8, bool)>| match what {
                    Ok((room, len)) => publish(room, len),
                    Err((room, is_odd)) => tombstone(room, is_odd),
                };
                test.say(what.into_iter().map(record).collect());
            }
            Step::Delete(n) => {
                let knows = |hub| test.log.hubs[&hub].rooms.contains_key(&room(n));
                if knows(HUB) && knows(OTHER) {
                    test.say(vec![(room(n), Vec::new(), Kind::RoomDeleted)]);
                }
            }
            Step::Apply => test.log.apply().unwrap(),
            Step::Checkpoint => test.save(),
            Step::Wait(us) => test.log.clock_us += us,
            Step::Compact(budget_bytes) => _ = test.compact(budget_bytes, 100).unwrap(),
            Step::CompactAll(keys_max) => _ = test.compact(u64::MAX, keys_max).unwrap(),
            Step::CompactFull(free) => {
                test.log.disk.set_faults(Faults { free_bytes: Some(free), ..Faults::default() });
                match test.compact(u64::MAX, 100) {
                    Ok(_) | Err(LogError::Full) => {}
                    Err(e) => panic!("{e}"),
                }
                test.log.disk.set_faults(Faults::default());
            }
            Step::CompactFails(calls, mut seed) => {
                let faults = Faults {
                    fails_after: Some(calls),
                    write_bytes_max: Some(700),
                    read_bytes_max: Some(700),
                    ..Faults::default()
                };
                test.log.disk.set_faults(faults);
                let failed = test.compact(u64::MAX, 100).is_err();
                test.log.disk.set_faults(Faults::default());
                if failed {
                    crash(&test.log.disk, &mut seed);
                    test.reopen();
                }
            }
            Step::Read(reader) => test.read(reader),
            Step::Recall => {
                test.log.apply().unwrap();
                test.recall();
            }
            Step::Check => test.check(),
            Step::CleanRestart => {
                test.log.apply().unwrap();
                test.log.close();
                test.verify();
                test.reopen();
            }
            Step::Crash(mut seed) => {
                crash(&test.log.disk, &mut seed);
                test.reopen();
                test.verify();
            }
        }
    }
    test.save();
    test.check();
    test.verify();
    test.let_go();
    // Passes of which each may remove tombstones of earlier ones.
    for n in 0..4 {
        test.say(
            (0..12).map(|i| publish(i % 2, 60 + i as u16)).chain([tombstone(2 + n % 3, true)]).collect(),
        );
        test.save();
        test.compact(u64::MAX, 1000).unwrap();
        test.log.clock_us += 2 * TOMBSTONE_US;
        test.check();
    }
    test.reopen();
    test.verify();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 200 } else { 2000 }))]

    #[test]
    fn the_latest_of_each_key_is_there_and_readers_come_to_it(steps in steps()) {
        run(steps);
    }
}
