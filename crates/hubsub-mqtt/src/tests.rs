//! A seeded simulation of a session over a store: a client, the log that it reads, outstanding store
//! requests, and a process that may end between any two steps. The client is the oracle: it gets each record
//! exactly once.

use crate::entries::put_event;
use crate::machine::{Event, Grant, SessionState};
use crate::message::{Content, CountedBy};
use crate::persistence::Persistence;
use crate::restored::{restore, tests::opened};
use crate::session::{Sent, Session};
use hubsub_route::LogPlace;
use hubsub_route::claims::Token;
use hubsub_sessions::{Answer, Limits, Memory, Request, SessionStore};
use hubsub_types::{HubId, Position, Qos};
use hubsub_wire::mqtt::{PacketId, Version};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::rc::Rc;

const HUB: HubId = HubId(5);
const WINDOW: usize = 4;
const RECORDS: u64 = 400;
/// So low that a session which does not remove obsolete entries is soon refused.
const LIMITS: Limits = Limits { entries_max: 60, bytes_max: 1 << 20 };

/// A random number generator (SplitMix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

enum Asked {
    Entry(u64, Vec<PacketId>),
    Row { is_connect: bool },
    All(u64, Vec<PacketId>, bool),
}

/// Packets to the client.
enum Packet {
    Publish(PacketId, u64),
    Pubrel(PacketId),
}

struct Process {
    session: Session,
    state: SessionState,
    events: u64,
    last_id: u16,
    is_connected: bool,
    snapshot_is_due: Option<bool>,
    has_moved: bool,
    waiting: Vec<PacketId>,
    prepared: VecDeque<(u64, PacketId, u64)>,
    asked: VecDeque<(Request, Asked)>,
}

#[derive(Default)]
struct Client {
    got: BTreeMap<u64, u32>,
    received: HashSet<PacketId>,
    mail: VecDeque<Packet>,
}

fn content(offset: u64) -> Content<'static> {
    let (qos, place) = (Qos::ExactlyOnce, LogPlace { hub: HUB, offset });
    Content {
        topic: "t",
        payload: b"",
        headers: &[],
        timestamp_us: 0,
        position: Position::default(),
        place,
        qos,
        retain: false,
    }
}

fn grant() -> Grant {
    Grant { qos: Qos::ExactlyOnce, ids: Vec::new(), retain: false }
}

impl Process {
    fn event(&mut self, event: Event) {
        self.events += 1;
        put_event(self.events, &event, &mut self.persistence().work().parts);
        self.state.apply(self.events, event);
    }

    fn persistence(&mut self) -> &mut Persistence {
        self.session.persistence.as_mut().expect("it is recorded")
    }

    /// Assigns the next record a packet id; it waits for its entry.
    fn prepare(&mut self, log_end: u64) {
        let cursors = self.session.cursors.as_mut().expect("it stands in the hub");
        let (_, offset) = cursors.offsets().next().expect("it stands in the hub");
        if !self.is_connected || offset > log_end || self.state.unacknowledged().count() >= WINDOW {
            return;
        }
        if !cursors.take(CountedBy::Hub, &content(offset), true) {
            return;
        }
        let key = self.session.next_key();
        let message = Rc::new(content(offset).keep());
        self.persistence().put(false, key, CountedBy::Hub, &message, &grant());
        self.last_id += 1;
        let id = PacketId::new(self.last_id).expect("few are given");
        self.event(Event::Sent { id, qos: Qos::ExactlyOnce, key });
        self.session.send(key, Sent { message, grant: grant(), counted: CountedBy::Hub, is_recorded: true });
        let after = self.persistence().last_entry();
        self.prepared.push_back((after, id, offset));
    }

    /// Like [`SessionPlace::record`](crate::place::SessionPlace::record) at the end of a turn.
    fn record(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        let Some(is_connect) = self.snapshot_is_due.take() else {
            if let Some((number, entry, _)) = self.persistence().take_entry() {
                self.asked
                    .push_back((Request::Append { id: "c".into(), entry }, Asked::Entry(number, waiting)));
            }
            let is_due = self.persistence().snapshot_is_due;
            self.snapshot_is_due = is_due.then_some(false);
            return;
        };
        if self.persistence().needs_all(true) {
            let entries: Vec<Vec<u8>> = self
                .session
                .take_all_entries(std::iter::empty())
                .into_iter()
                .map(|(_, entry, _)| entry)
                .collect();
            let last = self.persistence().head.last_entry;
            let (snapshot, through) = (self.snapshot(), last - entries.len() as u64);
            let request = Request::Save { id: "c".into(), snapshot, through, entries };
            return self.asked.push_back((request, Asked::All(last, waiting, is_connect)));
        }
        if let Some((number, entry, _)) = self.persistence().take_entry() {
            self.asked.push_back((Request::Append { id: "c".into(), entry }, Asked::Entry(number, waiting)));
        }
        let snapshot = self.snapshot();
        let head = self.persistence().head;
        let request =
            Request::Update { id: "c".into(), snapshot, last: head.last_entry, through: head.through };
        self.asked.push_back((request, Asked::Row { is_connect }));
    }

    fn snapshot(&mut self) -> Vec<u8> {
        let (last, from) = (self.session.last_key(), self.session.first_sent().unwrap_or(u64::MAX));
        (self.persistence().snapshot_is_due, self.has_moved) = (false, false);
        let head = self.persistence().head(last, from, last + 1);
        let mut snapshot = Vec::new();
        head.write(self.session.cursors.as_deref(), &mut snapshot);
        self.state.encode(&mut snapshot);
        snapshot
    }

    fn leave(&mut self) {
        self.is_connected = false;
        self.prepared.clear();
        self.waiting.clear();
        self.persistence().disconnected();
        self.snapshot_is_due = Some(false);
    }

    /// Handles a reply of the store.
    fn answered(&mut self, asked: Asked, is_ok: bool, client: &mut Client) {
        let (number, waits, is_connect) = match asked {
            Asked::Entry(number, waits) => (Some(number), waits, false),
            Asked::Row { is_connect } => (None, Vec::new(), is_connect),
            Asked::All(number, waits, is_connect) => (Some(number), waits, is_connect),
        };
        if !is_ok {
            self.persistence().has_gap = true;
            self.has_moved = true;
            // A refused snapshot affects only the operations that wait for it.
            if number.is_some() || is_connect {
                self.leave();
            }
            return;
        }
        if is_connect && !self.is_connected {
            self.is_connected = true;
            client.mail.clear();
            for (id, _, key, is_received) in self.state.unacknowledged() {
                match (is_received, self.session.sent(key)) {
                    (true, _) => client.mail.push_back(Packet::Pubrel(id)),
                    (false, Some(sent)) => {
                        client.mail.push_back(Packet::Publish(id, sent.message.content().place.offset));
                    }
                    (false, None) => panic!("the window names a message that is not there"),
                }
            }
        } else {
            waits
                .into_iter()
                .filter(|_| self.is_connected)
                .for_each(|id| client.mail.push_back(Packet::Pubrel(id)));
        }
        if let Some(number) = number {
            self.persistence().safe = number;
        }
        let safe = self.persistence().safe;
        while let Some((_, id, offset)) = self.prepared.pop_front_if(|(after, ..)| *after <= safe) {
            client.mail.push_back(Packet::Publish(id, offset));
        }
    }

    /// The client reads a packet and replies.
    fn read(&mut self, client: &mut Client) {
        match client.mail.pop_front() {
            Some(Packet::Publish(id, offset)) => {
                if client.received.insert(id) {
                    *client.got.entry(offset).or_default() += 1;
                }
                self.event(Event::Received(id));
                self.waiting.push(id);
            }
            Some(Packet::Pubrel(id)) => {
                client.received.remove(&id);
                let ended =
                    self.state.unacknowledged().find(|(own, ..)| *own == id).map(|(_, _, key, _)| key);
                if let Some(key) = ended {
                    self.event(Event::Ended(id));
                    self.session.ended(key);
                    self.has_moved = true;
                }
            }
            None => {}
        }
    }
}

/// Starts the next process from the store.
fn begin(store: &mut Memory, events: u64, last_id: u16) -> Process {
    let loaded = store.carry_out(&[Request::Load { id: "c".into() }]).remove(0);
    let (session, state) = match loaded {
        Ok(Answer::Loaded { snapshot: Some(snapshot), entries }) => {
            let entries: Vec<Vec<u8>> = entries.into_iter().map(|(_, entry)| entry).collect();
            let mut restored = restore(&snapshot, &entries).expect("nothing is damaged");
            let persistence = Persistence::restored(&mut restored, true);
            let mut session = Session::new(Some(Box::new(persistence)), restored.head.last_key);
            for (key, counted, message, grant) in restored.sent {
                session.send(key, Sent { message: Rc::new(message), grant, counted, is_recorded: true });
            }
            session.cursors = restored.cursors;
            (session, restored.state)
        }
        _ => {
            let persistence = Persistence::new(Token { at_us: 1, run: 1, number: 1 });
            let mut session = Session::new(Some(Box::new(persistence)), 0);
            session.cursors.get_or_insert_default().start_hubs(&[(HUB, 0)]);
            (session, opened(Version::V5).machine.state())
        }
    };
    Process {
        session,
        state,
        events,
        last_id,
        is_connected: false,
        snapshot_is_due: None,
        has_moved: false,
        waiting: Vec::new(),
        prepared: VecDeque::new(),
        asked: VecDeque::new(),
    }
}

/// Random steps in random order, then steps without failures until the client has all records. Returns the
/// number of refused entries.
fn run(seed: u64, refuses: bool) -> u64 {
    let (mut dice, mut client, mut refused) = (Dice(seed), Client::default(), 0);
    let mut store = Memory::new(LIMITS);
    let mut process = begin(&mut store, 0, 0);
    let mut log_end = 0;
    for step in 0..200_000 {
        let ends = step > 20_000;
        // After the first half connections stay open, and only snapshots without waits are refused.
        let stays = step > 10_000;
        match dice.below(100) {
            0 if !stays && dice.below(4) == 0 => {
                // kill -9: outstanding requests are lost.
                client.mail.clear();
                process = begin(&mut store, process.events, process.last_id);
            }
            1 if !stays && process.is_connected => process.leave(),
            2..10 if !process.is_connected && process.snapshot_is_due.is_none() => {
                let has_asked = |(_, asked): &(_, Asked)| {
                    matches!(asked, Asked::Row { is_connect: true } | Asked::All(.., true))
                };
                if !process.asked.iter().any(has_asked) {
                    process.snapshot_is_due = Some(true);
                }
            }
            10..12 if process.has_moved => _ = process.snapshot_is_due.get_or_insert(false),
            12..14 => log_end = RECORDS.min(log_end + 1),
            14..50 => process.prepare(log_end),
            50..65 => process.record(),
            65..85 => {
                let Some((request, asked)) = process.asked.pop_front() else { continue };
                let may_be = !stays || matches!(asked, Asked::Row { is_connect: false });
                let is_refused = refuses && !ends && may_be && dice.below(if stays { 2 } else { 40 }) == 0;
                let answer = (!is_refused).then(|| store.carry_out(&[request]).remove(0));
                let is_ok = match (&answer, &asked) {
                    (Some(Ok(Answer::Appended(number))), Asked::Entry(wanted, _)) => number == wanted,
                    (answer, _) => matches!(answer, Some(Ok(_))),
                };
                refused += u64::from(!is_ok);
                process.answered(asked, is_ok, &mut client);
            }
            _ if process.is_connected => process.read(&mut client),
            _ => {}
        }
        if ends && log_end == RECORDS && client.got.len() as u64 == RECORDS && client.received.is_empty() {
            break;
        }
    }
    let wrong: Vec<_> = client.got.iter().filter(|(_, times)| **times != 1).collect();
    assert!(wrong.is_empty(), "seed {seed}: more than once: {wrong:?}");
    assert_eq!(client.got.len() as u64, RECORDS, "seed {seed}: all");
    refused
}

#[test]
fn each_record_comes_once_wherever_the_process_ends() {
    for seed in 0..60 {
        assert_eq!(run(seed, false), 0, "seed {seed}: nobody is refused for what is of no use");
    }
}

#[test]
fn each_record_comes_once_wherever_the_store_refuses() {
    let refused: u64 = (0..60).map(|seed| run(seed, true)).sum();
    assert!(refused > 100, "{refused}");
}
