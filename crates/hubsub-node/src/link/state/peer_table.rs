//! The peer table: what all shards of this node know of its peers. It has an entry per registered process,
//! with a part per link. Shards write it when a link changes and with each ping; the control plane reads it.
//! Changes of a whole peer become events here.
//!
//! A peer is *up* when all its links are up, and *suspected* while any of them is. Invariants: between two
//! `Up` of a process there is a `Down`; `Suspected`, `Heard` and `Dead` come in between, each once until it
//! ends.
//!
//! Lock order: the table's, then the events' (`control`).

use super::events::{Change, Event, LinkEvent};
use super::shown::{Shown, ShownReady};
use crate::io::log_lines::Level;
use crate::io::report::Report;
use hubsub_types::NodeId;
use hubsub_wire::link::clock::Offset;
use hubsub_wire::link::{Counters, End, Link, Status};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// A registered process, which may have links to this one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registered {
    /// This process's id of it; assigned by the peer table.
    pub id: NodeId,
    pub node: Box<str>,
    /// Issued at its registration.
    pub incarnation: u64,
    /// Addresses of its link listener, tried in turn.
    pub addresses: Vec<SocketAddr>,
    pub shards: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum State {
    /// It is to be dialed by the peer, or by this side when its back-off ends.
    #[default]
    Waiting,
    Dialing,
    Up,
    /// It is up, and the peer is silent.
    Suspected,
    /// Either side refused the other; retried later.
    Refused,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Waiting => "waiting",
            State::Dialing => "dialing",
            State::Up => "up",
            State::Suspected => "suspected",
            State::Refused => "refused",
        }
    }

    fn stands(self) -> bool {
        matches!(self, State::Up | State::Suspected)
    }
}

#[derive(Clone, Default, Debug)]
pub struct LinkRow {
    pub state: State,
    /// Why it last ended: a code, and a text for operators.
    pub reason: Option<(&'static str, Box<str>)>,
    /// When bytes last arrived, in µs of the node's clock; 0 before.
    pub heard_us: u64,
    pub offset: Option<Offset>,
    pub status: Status,
    /// Totals of all connections of this link, including the current one.
    pub counters: Counters,
    /// Totals of earlier connections.
    past: Counters,
}

impl LinkRow {
    fn sample(&mut self, link: &Link) {
        self.heard_us = link.heard_us();
        self.offset = link.offset();
        self.status = link.peer_status();
        self.counters = self.past + link.counters();
    }
}

#[derive(Clone, Debug)]
pub struct PeerRow {
    pub peer: Registered,
    /// Indexed by link number.
    pub links: Vec<LinkRow>,
    is_up: bool,
    is_suspected: bool,
    is_dead: bool,
    /// The code of the last refusal that was reported.
    refused: Option<&'static str>,
}

pub struct PeerTable {
    control: Arc<dyn Report<Event>>,
    started: Instant,
    node: String,
    shards: u16,
    /// The data for a controller's decisions about leader leases.
    pub leads: Shown,
    pub ready: ShownReady,
    rows: Mutex<Rows>,
}

#[derive(Default)]
struct Rows {
    peers: BTreeMap<Box<str>, PeerRow>,
    /// The id of every other node that was ever named here.
    ids: HashMap<Box<str>, NodeId>,
}

impl PeerTable {
    pub const OWN: NodeId = NodeId(0);

    /// The table of a node with this name and number of shards; `started` is the zero of its clock.
    pub fn new(node: String, shards: u16, started: Instant, control: Arc<dyn Report<Event>>) -> PeerTable {
        let (leads, ready) = (Shown::default(), ShownReady::default());
        PeerTable { control, started, node, shards, leads, ready, rows: Mutex::default() }
    }

    /// All peers sorted by name, and the node's clock in µs.
    pub fn peers(&self) -> (Vec<PeerRow>, u64) {
        let peers = self.rows().peers.values().cloned().collect();
        (peers, self.now_us())
    }

    /// The incarnations of peers that are registered and not known to be dead.
    pub fn runs(&self) -> HashSet<u64> {
        let rows = self.rows();
        rows.peers.values().filter(|row| !row.is_dead).map(|row| row.peer.incarnation).collect()
    }

    /// The node's clock, in µs since it started.
    pub fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// This process's id of a node, which never changes, registered or not; none if no ids are left.
    pub fn id_of(&self, node: &str) -> Option<NodeId> {
        if *node == *self.node { Some(PeerTable::OWN) } else { self.rows().id_of(node) }
    }

    pub fn names(&self) -> HashMap<NodeId, Box<str>> {
        let rows = self.rows();
        let others = rows.ids.iter().map(|(name, &id)| (id, name.clone()));
        others.chain([(PeerTable::OWN, Box::from(&*self.node))]).collect()
    }

    /// Sets the registered peers and assigns their ids. Returns them for the shards, without this node
    /// itself.
    pub fn set_roster(&self, peers: Vec<Registered>) -> Arc<[Registered]> {
        let mut rows = self.rows();
        let mut old = std::mem::take(&mut rows.peers);
        for mut peer in peers.into_iter().filter(|peer| *peer.node != *self.node) {
            let Some(id) = rows.id_of(&peer.node) else {
                let fields = vec![("node", peer.node.to_string())];
                let what = "no id is left for a node: this one is to be restarted";
                self.control.log(Level::Error, what, fields);
                continue;
            };
            peer.id = id;
            let links = usize::from(peer.shards.min(self.shards));
            let same = |row: &PeerRow| row.peer.incarnation == peer.incarnation && row.links.len() == links;
            let row = match old.remove(&peer.node) {
                Some(row) if same(&row) => PeerRow { peer: peer.clone(), ..row },
                former => {
                    former.into_iter().for_each(|row| self.forget(row));
                    PeerRow::new(peer.clone(), links)
                }
            };
            rows.peers.insert(peer.node, row);
        }
        old.into_values().for_each(|row| self.forget(row));
        rows.peers.values().map(|row| row.peer.clone()).collect()
    }

    fn forget(&self, row: PeerRow) {
        if row.is_up {
            self.tell(&row.peer, Change::Down("unregistered", "the node is not registered any more".into()));
        }
    }

    pub(crate) fn dialing(&self, peer: &Registered, link: u16) {
        self.update(peer, link, |row| row.state = State::Dialing);
    }

    /// A link is up or its suspicion changed, as its machine states.
    pub(crate) fn stands(&self, peer: &Registered, link: u16, machine: &Link) {
        self.update(peer, link, |row| {
            row.state = if machine.is_suspected() { State::Suspected } else { State::Up };
            row.reason = None;
            row.sample(machine);
        });
    }

    /// A link has ended, or dialing it failed.
    pub(crate) fn ended(&self, peer: &Registered, link: u16, machine: &Link, end: &End) {
        self.update(peer, link, |row| {
            row.sample(machine);
            row.past = row.counters;
            row.state = if end.refusal().is_some() { State::Refused } else { State::Waiting };
            row.reason = Some((code(end), end.to_string().into()));
        });
    }

    pub(crate) fn unreachable(&self, peer: &Registered, link: u16, why: &str) {
        self.update(peer, link, |row| {
            row.state = State::Waiting;
            row.reason = Some(("unreachable", why.into()));
        });
    }

    pub(crate) fn dead(&self, peer: &Registered) {
        let mut rows = self.rows();
        let Some(row) = rows.find(peer) else { return };
        if !std::mem::replace(&mut row.is_dead, true) {
            self.tell(peer, Change::Dead);
        }
    }

    fn update(&self, peer: &Registered, link: u16, write: impl FnOnce(&mut LinkRow)) {
        let mut rows = self.rows();
        let Some(row) = rows.find(peer) else { return };
        let Some(link) = row.links.get_mut(usize::from(link)) else { return };
        write(link);
        let ended = link.reason.clone().filter(|_| !link.state.stands());
        let refused = ended.clone().filter(|_| link.state == State::Refused);
        row.settle(ended, refused).into_iter().for_each(|change| self.tell(peer, change));
    }

    fn tell(&self, peer: &Registered, change: Change) {
        let mut fields = vec![("node", peer.node.to_string()), ("incarnation", peer.incarnation.to_string())];
        let (level, message) = match &change {
            Change::Up => (Level::Info, "peer is up"),
            Change::Suspected => (Level::Warning, "peer is not heard"),
            Change::Heard => (Level::Info, "peer is heard again"),
            Change::Down(code, text) | Change::Refused(code, text) => {
                fields.extend([("code", (*code).to_owned()), ("reason", text.to_string())]);
                match change {
                    Change::Refused(..) => (Level::Warning, "no link with peer"),
                    _ if *code == "stopping" => (Level::Info, "peer stops"),
                    _ => (Level::Warning, "peer is down"),
                }
            }
            Change::Dead => (Level::Warning, "peer is dead"),
        };
        self.control.log(level, message, fields);
        let (node, incarnation) = (peer.node.clone(), peer.incarnation);
        self.control.tell(Event::Link(LinkEvent { node, incarnation, change }));
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().expect("nothing panics under this lock")
    }
}

impl Rows {
    fn id_of(&mut self, node: &str) -> Option<NodeId> {
        if let Some(&id) = self.ids.get(node) {
            return Some(id);
        }
        let id = NodeId(u16::try_from(self.ids.len() + 1).ok()?);
        self.ids.insert(node.into(), id);
        Some(id)
    }

    /// The entry of a process; none if it is not registered.
    fn find(&mut self, peer: &Registered) -> Option<&mut PeerRow> {
        self.peers.get_mut(&peer.node).filter(|row| row.peer.incarnation == peer.incarnation)
    }
}

impl PeerRow {
    fn new(peer: Registered, links: usize) -> PeerRow {
        let links = vec![LinkRow::default(); links];
        PeerRow { peer, links, is_up: false, is_suspected: false, is_dead: false, refused: None }
    }

    /// Updates the peer's state after a change of a link; returns the change of the peer, if any.
    fn settle(
        &mut self,
        ended: Option<(&'static str, Box<str>)>,
        refused: Option<(&'static str, Box<str>)>,
    ) -> Option<Change> {
        let is_up = self.links.iter().all(|link| link.state.stands());
        let is_suspected = is_up && self.links.iter().any(|link| link.state == State::Suspected);
        let was_up = std::mem::replace(&mut self.is_up, is_up);
        let was_suspected = std::mem::replace(&mut self.is_suspected, is_suspected);
        if is_up && !was_up {
            (self.is_dead, self.refused) = (false, None);
            return Some(Change::Up);
        }
        if was_up && !is_up {
            self.refused = refused.map(|(code, _)| code);
            return ended.map(|(code, text)| Change::Down(code, text));
        }
        if let Some((code, text)) = refused
            && self.refused.replace(code) != Some(code)
        {
            return Some(Change::Refused(code, text));
        }
        match (was_suspected, is_suspected) {
            (false, true) => Some(Change::Suspected),
            (true, false) => Some(Change::Heard),
            _ => None,
        }
    }
}

/// The stable code of an end.
fn code(end: &End) -> &'static str {
    match end {
        End::Bye { stopping: true, .. } => "stopping",
        End::Bye { stopping: false, .. } => "goodbye",
        End::Left => "left",
        End::Eof => "eof",
        End::Silent => "silent",
        End::Refused(refusal, _) | End::RefusedByPeer(Some(refusal), _) => refusal.code(),
        End::RefusedByPeer(None, _) => "refused",
        End::Bad(_) | End::OutOfPlace(_) | End::WithoutCredit(_) | End::Crowding(_) => "broken_rule",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Control;

    fn peer(incarnation: u64, shards: u16) -> Registered {
        Registered { id: NodeId(0), node: "b".into(), incarnation, addresses: Vec::new(), shards }
    }

    fn peer_table() -> (PeerTable, Arc<Control>) {
        let control = Arc::new(Control::new(64).unwrap());
        (PeerTable::new("a".to_owned(), 2, Instant::now(), control.clone()), control)
    }

    fn changes(control: &Control) -> Vec<Change> {
        let change = |event| {
            if let crate::control::Event::Link(Event::Link(event)) = event {
                Some(event.change)
            } else {
                None
            }
        };
        control.drain(64).into_iter().filter_map(change).collect()
    }

    fn set(peer_table: &PeerTable, peer: &Registered, link: u16, state: State) {
        peer_table.update(peer, link, |row| {
            row.state = state;
            row.reason = (!state.stands()).then(|| ("eof", "it ended".into()));
        });
    }

    #[test]
    fn a_peer_is_up_with_its_last_link_and_down_with_the_first_that_ends() {
        let (peer_table, control) = peer_table();
        let peer = peer(7, 4);
        peer_table.set_roster(vec![peer.clone()]);
        assert_eq!(peer_table.peers().0[0].links.len(), 2, "of two and four shards");
        set(&peer_table, &peer, 1, State::Up);
        assert_eq!(changes(&control), []);
        set(&peer_table, &peer, 0, State::Up);
        set(&peer_table, &peer, 0, State::Up);
        assert_eq!(changes(&control), [Change::Up]);
        set(&peer_table, &peer, 1, State::Waiting);
        set(&peer_table, &peer, 0, State::Waiting);
        assert_eq!(changes(&control), [Change::Down("eof", "it ended".into())]);
    }

    #[test]
    fn a_peer_is_suspected_with_its_first_link_and_heard_with_its_last() {
        let (peer_table, control) = peer_table();
        let peer = peer(7, 2);
        peer_table.set_roster(vec![peer.clone()]);
        (0..2).for_each(|link| set(&peer_table, &peer, link, State::Up));
        (0..2).for_each(|link| set(&peer_table, &peer, link, State::Suspected));
        (0..2).for_each(|link| set(&peer_table, &peer, link, State::Up));
        assert_eq!(changes(&control), [Change::Up, Change::Suspected, Change::Heard]);
    }

    #[test]
    fn a_refusal_is_told_once_and_death_once_until_the_peer_is_up() {
        let (peer_table, control) = peer_table();
        let peer = peer(7, 1);
        peer_table.set_roster(vec![peer.clone()]);
        (0..3).for_each(|_| set(&peer_table, &peer, 0, State::Refused));
        assert_eq!(changes(&control), [Change::Refused("eof", "it ended".into())]);
        (0..3).for_each(|_| peer_table.dead(&peer));
        set(&peer_table, &peer, 0, State::Up);
        set(&peer_table, &peer, 0, State::Waiting);
        peer_table.dead(&peer);
        let down = Change::Down("eof", "it ended".into());
        assert_eq!(changes(&control), [Change::Dead, Change::Up, down, Change::Dead]);
    }

    #[test]
    fn a_process_that_registered_later_has_a_row_of_its_own_and_a_node_its_id_for_ever() {
        let (peer_table, control) = peer_table();
        let ids = |peers: Vec<Registered>| {
            peer_table.set_roster(peers).iter().map(|peer| peer.id.0).collect::<Vec<_>>()
        };
        let other = |node: &str| Registered { node: node.into(), ..peer(1, 1) };
        assert_eq!(ids(vec![peer(7, 1), other("c"), other("a")]), [1, 2], "never itself");
        set(&peer_table, &peer(7, 1), 0, State::Up);
        assert_eq!(ids(vec![peer(7, 1)]), [1]);
        assert_eq!(changes(&control), [Change::Up], "the same again changes nothing");
        assert_eq!(ids(vec![peer(8, 1), other("c")]), [1, 2]);
        assert!(matches!(changes(&control)[..], [Change::Down("unregistered", _)]));
        set(&peer_table, &peer(7, 1), 0, State::Waiting);
        set(&peer_table, &peer(7, 1), 0, State::Up);
        assert_eq!(changes(&control), [], "of the process before");
    }
}
