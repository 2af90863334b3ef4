use super::*;
use hubsub_route::LogPlace;
use hubsub_types::Qos;
use proptest::prelude::*;
use std::collections::VecDeque;

const HUB: HubId = HubId(3);
const LIFE: Epoch = Epoch(7);

fn content(place: u64) -> Content<'static> {
    Content {
        topic: "a",
        payload: b"",
        headers: &[],
        timestamp_us: place,
        position: Position { epoch: LIFE, seq: Seq(place) },
        place: LogPlace { hub: HUB, offset: place },
        qos: Qos::AtLeastOnce,
        retain: false,
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// A record; true if it needs an acknowledgement.
    Publish(bool),
    Acknowledge(usize),
    Close,
    Leave,
    Return,
    Record,
    /// The process ends; another one continues from the persisted cursors.
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..4_u8).prop_map(|n| Op::Publish(n > 0)),
        6 => any::<usize>().prop_map(Op::Acknowledge),
        1 => Just(Op::Close),
        2 => Just(Op::Leave),
        3 => Just(Op::Return),
        2 => Just(Op::Record),
        1 => Just(Op::Restart),
    ]
}

/// Queue length at which records are refused.
const PENDING_MAX: usize = 4;

/// The most messages in flight.
const WINDOW_MAX: usize = 3;

#[derive(PartialEq)]
enum State {
    Connected,
    Closing,
    OfflineSession,
}

/// A session with one cursor, its log, and its client.
struct World {
    counted: CountedBy,
    cursors: Cursors,
    /// Per record, from place 1 on, whether it needs an acknowledgement.
    log: Vec<bool>,
    state: State,
    /// The first place not yet delivered; a delivered one is read again only if refused.
    next: u64,
    window: Vec<u64>,
    pending: VecDeque<u64>,
    /// The places that the client received, in order.
    got: Vec<u64>,
    /// The persisted cursors, and the messages sent since, each with whether it was acknowledged.
    recorded: Vec<u8>,
    since: Vec<(u64, bool)>,
}

impl World {
    fn new(counted: CountedBy) -> World {
        let mut cursors = Cursors::default();
        match counted {
            CountedBy::Hub => cursors.start_hubs(&[(HUB, 0)]),
            _ => cursors.start("a", Position { epoch: LIFE, seq: Seq(0) }),
        }
        let (log, window, pending) = (Vec::new(), Vec::new(), VecDeque::new());
        let (state, got, recorded, since) = (State::Connected, Vec::new(), Vec::new(), Vec::new());
        let mut world =
            World { counted, cursors, log, state, next: 1, window, pending, got, recorded, since };
        world.record();
        world
    }

    fn record(&mut self) {
        let mut cursors = self.cursors.clone();
        for &place in &self.pending {
            assert!(cursors.take_back(self.counted, &content(place)));
        }
        if self.counted == CountedBy::Hub {
            cursors.arrived(HUB, self.next - 1);
        }
        self.recorded.clear();
        self.since.clear();
        cursors.encode(&mut self.recorded);
    }

    fn restart(&mut self) {
        self.cursors = Cursors::decode(&self.recorded).expect("it was recorded");
        for &(place, is_acknowledged) in &self.since {
            if !is_acknowledged || place > self.reached() {
                self.cursors.sent_since(self.counted, &content(place));
            }
            if is_acknowledged {
                self.cursors.done(self.counted, &content(place));
            }
        }
        self.pending.clear();
        self.go_on();
    }

    fn reached(&self) -> u64 {
        let of_hub = self.cursors.hubs.first().map(|at| at.progress.reached());
        of_hub.or(self.cursors.topics.get(b"a").map(|at| at.progress.reached())).expect("it stands there")
    }

    /// The broker delivers what it has.
    fn hand_out(&mut self) {
        while let Some(&is_open) = self.log.get(self.next as usize - 1) {
            let place = self.next;
            match self.state {
                State::Connected if self.pending.len() == PENDING_MAX => {
                    self.cursors.refuse(self.counted, HUB, place);
                    return;
                }
                State::Connected => {
                    if self.cursors.take(self.counted, &content(place), is_open) && is_open {
                        self.pending.push_back(place);
                    }
                }
                State::Closing => self.cursors.refuse(self.counted, HUB, place),
                // A topic is not read while offline; a wildcard's records are refused.
                State::OfflineSession if self.counted == CountedBy::Topic => return,
                State::OfflineSession => self.cursors.refuse(self.counted, HUB, place),
            }
            self.next += 1;
            self.pump();
        }
    }

    fn pump(&mut self) {
        while self.state == State::Connected && self.window.len() < WINDOW_MAX {
            let Some(place) = self.pending.pop_front() else { return };
            self.window.push(place);
            self.got.push(place);
            self.since.push((place, false));
        }
    }

    fn acknowledge(&mut self, which: usize) {
        if self.state != State::OfflineSession && !self.window.is_empty() {
            let place = self.window.remove(which % self.window.len());
            self.cursors.done(self.counted, &content(place));
            match self.since.iter_mut().find(|(sent, _)| *sent == place) {
                Some(sent) => sent.1 = true,
                None => self.since.push((place, true)),
            }
            self.pump();
            self.hand_out();
        }
    }

    fn leave(&mut self) {
        if self.state == State::OfflineSession {
            return;
        }
        for place in self.pending.drain(..) {
            assert!(self.cursors.take_back(self.counted, &content(place)));
        }
        self.state = State::OfflineSession;
        self.cursors.detach();
        if self.counted == CountedBy::Hub {
            self.cursors.arrived(HUB, self.next - 1);
        }
    }

    /// The log's end at the time of the disconnect becomes known.
    fn learn_end(&mut self) {
        if self.state == State::OfflineSession
            && self.counted == CountedBy::Hub
            && self.next as usize > self.log.len()
        {
            self.cursors.arrived(HUB, self.log.len() as u64);
        }
    }

    fn come_back(&mut self) {
        self.leave();
        self.learn_end();
        self.go_on();
    }

    fn go_on(&mut self) {
        self.cursors.resume(0);
        self.state = State::Connected;
        let offset = self.cursors.offsets().next().map(|(_, next)| next);
        let seq = self.cursors.positions().next().map(|(_, after)| after.seq.0 + 1);
        self.next = offset.or(seq).expect("it stands there");
        self.hand_out();
    }
}

proptest! {
    #[test]
    fn each_record_comes_once_in_order_however_often_a_client_goes(
        ops in proptest::collection::vec(op(), 1..120),
        is_hub in any::<bool>(),
    ) {
        let mut world = World::new(if is_hub { CountedBy::Hub } else { CountedBy::Topic });
        for op in ops {
            match op {
                Op::Publish(is_open) => {
                    world.log.push(is_open);
                    world.hand_out();
                }
                Op::Acknowledge(which) => world.acknowledge(which),
                Op::Close if world.state == State::Connected => world.state = State::Closing,
                Op::Close => {}
                Op::Leave => world.leave(),
                Op::Return => world.come_back(),
                Op::Record => world.record(),
                Op::Restart => world.restart(),
            }
        }
        world.come_back();
        while !world.window.is_empty() {
            world.acknowledge(0);
        }
        let all: Vec<u64> = (1..).zip(&world.log).filter(|(_, is_open)| **is_open).map(|(n, _)| n).collect();
        prop_assert_eq!(&world.got, &all);
        prop_assert!(world.reached() >= all.last().copied().unwrap_or(0), "all of it is done");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_cursors_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..60), known in any::<bool>()) {
        let mut bytes = bytes;
        if known && bytes.len() > 1 {
            (bytes[0], bytes[1]) = (1, bytes[1] & 3);
        }
        if let Ok(cursors) = Cursors::decode(&bytes) {
            let mut again = Vec::new();
            cursors.encode(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }
}

#[test]
fn cursors_go_into_bytes_and_back_and_no_part_of_them_does() {
    let mut cursors = Cursors::default();
    cursors.start_hubs(&[(HUB, 300), (HubId(9), 0)]);
    cursors.is_queued = true;
    for (at, topic) in ["a", "b/c", ""].iter().enumerate() {
        cursors.start(topic, Position { epoch: LIFE, seq: Seq(at as u64) });
    }
    assert!(
        cursors.take(CountedBy::Topic, &content(5), true)
            && cursors.take(CountedBy::Topic, &content(7), true)
    );
    cursors.sent_since(CountedBy::Hub, &content(400));
    let (mut bytes, mut again) = (Vec::new(), Vec::new());
    cursors.encode(&mut bytes);
    let decoded = Cursors::decode(&bytes).unwrap();
    decoded.encode(&mut again);
    assert_eq!((&again, decoded.has_hub_cursors, decoded.is_queued), (&bytes, true, true));
    assert!(decoded.positions().eq(cursors.positions()) && decoded.offsets().eq(cursors.offsets()));
    for end in 0..bytes.len() {
        assert!(Cursors::decode(&bytes[..end]).is_err());
    }
    bytes.push(0);
    assert!(Cursors::decode(&bytes).is_err(), "something behind it");
}

#[test]
fn what_of_qos_0_came_while_nobody_was_there_is_passed_by() {
    for counted in [CountedBy::Topic, CountedBy::Hub] {
        let mut cursors = World::new(counted).cursors;
        assert!(cursors.take(counted, &content(1), false) && !cursors.take(counted, &content(1), false));
        cursors.resume(4);
        assert!(!cursors.take(counted, &content(3), false), "of before");
        assert!(cursors.take(counted, &content(4), false) && cursors.take(counted, &content(5), true));
        assert!(!cursors.take(counted, &content(5), true), "once");
    }
}

#[test]
fn a_room_that_lives_anew_is_read_from_its_first_record_on() {
    let mut cursors = World::new(CountedBy::Topic).cursors;
    assert!(cursors.take(CountedBy::Topic, &content(9), true));
    let mut next = content(1);
    next.position.epoch = Epoch(8);
    assert!(cursors.take(CountedBy::Topic, &next, true));
    cursors.done(CountedBy::Topic, &content(9));
    cursors.done(CountedBy::Topic, &next);
    assert_eq!(cursors.positions().next(), Some(("a", next.position)));
}

#[test]
fn topics_are_found_few_or_many_and_leave() {
    let mut cursors = Cursors::default();
    let names: Vec<String> = (0..3 * crate::few::FEW).map(|n| n.to_string()).collect();
    for (at, name) in names.iter().enumerate() {
        cursors.start(name, Position { epoch: LIFE, seq: Seq(at as u64) });
        assert_eq!(cursors.positions().count(), at + 1);
    }
    cursors.start("0", Position { epoch: LIFE, seq: Seq(99) });
    assert_eq!(cursors.topics.get(b"0").map(|at| at.progress.taken()), Some(99));
    for name in &names {
        assert_eq!(cursors.counted_by(true, name.as_bytes(), 1), CountedBy::Topic);
        cursors.remove_topic(name);
        assert_eq!(
            (cursors.counted_by(true, name.as_bytes(), 1), cursors.has(name)),
            (CountedBy::None, false)
        );
    }
    assert!(!cursors.has_topics());
}
