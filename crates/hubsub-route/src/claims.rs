//! Ownership of MQTT client ids. Each id belongs to one shard of a node, by its hash: that shard's [`Claims`]
//! has the connection of the node that holds the id, and those that wait for it. In a cluster it also
//! represents the node in the id's room, whose order decides between nodes: see docs/protocol/mqtt-state.md.
//!
//! Events come in as calls, actions go out: it has no access to connections, rooms or a clock.
//!
//! Invariants: an id is granted to a connection only after its previous holder on this node has released it;
//! and in a cluster, after every other node that was in the room at the claim has released it, or has been
//! silent for too long. A node releases the id as soon as it receives a claim that comes after its own.

use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::{ConnKey, ShardId};
use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    pub shard: ShardId,
    pub conn: ConnKey,
}

/// A connection, or a session without one, that claims an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claimant {
    pub who: Holder,
    pub aim: Aim,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aim {
    /// A connection resumes the stored session, if there is one.
    Resume,
    /// A connection starts a new session: the stored one ends.
    Clean,
    /// A takeover of a session whose owner process is gone: no holder releases the id for it.
    Adopt,
}

/// For whom a holder releases the id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heir {
    Here(Claimant),
    /// Another node, which may start a new session.
    Away {
        /// Whether it does: the stored session ends then.
        is_clean: bool,
    },
}

/// Identifies a claim and orders claims: later ones are higher, as far as the nodes' clocks agree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Token {
    /// Time of the claim, in µs since 1970.
    pub at_us: u64,
    /// Incarnation of the node.
    pub run: u64,
    /// The node's shard, and the number of the claim there.
    pub number: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// This node claims the id, for that purpose: others release it, except for a takeover.
    Claim(Token, Aim),
    /// This node has released the id for the claim of that token.
    Released(Token),
    /// This node holds the id by that token, and may have missed a claim.
    Again(Token),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    Grant(Holder),
    /// The connection does not get the id: the room is unreachable, or it would take over an id in use.
    Refuse(Holder),
    /// It lost its claim before the id was granted, to a later one.
    Displace(Holder),
    /// It has to release the id: [`Claims::release`] answers, or [`Claims::keep`] if the claimant is gone.
    Yield(Holder, Heir),
    Watch(Box<str>),
    Unwatch(Box<str>),
    /// Publish to the room of the id: the outcome of a claim goes to [`Claims::said`].
    Say(Box<str>, Word),
    Wait(Box<str>, Token),
}

#[derive(Debug, Default)]
pub struct Claims(HashMap<Box<str>, Entry, RandomState>);

#[derive(Debug)]
enum Entry {
    /// On a single node, while nobody else claims it.
    Held(Holder),
    Busy(Box<Busy>),
}

#[derive(Debug, Default)]
struct Busy {
    holder: Option<Holder>,
    yields: bool,
    /// The next holder: it does not change once the holder was asked to release the id for it.
    claimant: Option<Claimant>,
    next: Option<Claimant>,
    room: Room,
    claim: Option<Claim>,
    /// Another node's claim for which it has to release the id, and whether that starts a new session.
    lost_to: Option<(Token, bool)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Room {
    /// A single node: there is no room.
    #[default]
    None,
    Outside,
    Asked,
    Inside,
}

#[derive(Clone, Copy, Debug)]
struct Claim {
    token: Token,
    /// Whether it is a takeover, for which nobody releases the id.
    adopts: bool,
    /// Whether the node has received its own claim from the room: all that follows is later.
    is_back: bool,
    others: Option<u64>,
    released: u64,
    is_late: bool,
}

impl Claim {
    fn new(token: Token, adopts: bool) -> Claim {
        Claim { token, adopts, is_back: false, others: None, released: 0, is_late: false }
    }

    fn is_won(&self) -> bool {
        let is_late = self.is_late && !self.adopts;
        self.others.is_some_and(|others| is_late || (self.is_back && self.released >= others))
    }
}

impl Claims {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A connection claims an id. Here and below `token` is for a claim that the node may have to make; none
    /// on a single node. A takeover is refused if anybody holds or claims the id.
    pub fn claim(
        &mut self,
        id: Box<str>,
        claimant: Claimant,
        token: Option<Token>,
        actions: &mut Vec<Action>,
    ) {
        let who = claimant.who;
        if token.is_none() && !self.0.contains_key(&id) {
            self.0.insert(id, Entry::Held(who));
            return actions.push(Action::Grant(who));
        }
        let entry = self.0.entry(id.clone()).or_insert_with(|| Entry::Busy(Box::default()));
        if let Entry::Held(holder) = *entry {
            *entry = Entry::Busy(Box::new(Busy { holder: Some(holder), ..Busy::default() }));
        }
        let Entry::Busy(busy) = entry else { unreachable!("made so above") };
        if token.is_some() && busy.room == Room::None {
            busy.room = Room::Outside;
        }
        if claimant.aim == Aim::Adopt && (busy.holder.is_some() || busy.claimant.is_some()) {
            return refuse(Some(claimant), actions);
        }
        if busy.adopts() {
            // A claim for which nobody releases the id is of no use to a client.
            busy.claim = None;
        }
        let place = if busy.yields && busy.claimant.is_some() { &mut busy.next } else { &mut busy.claimant };
        displace(place.replace(claimant), actions);
        self.go_on(&id, token, actions);
    }

    /// On a single node, at its start: a stored session holds an id.
    pub fn hold(&mut self, id: Box<str>, who: Holder) {
        self.0.insert(id, Entry::Held(who));
    }

    /// A connection no longer holds an id or waits for it: it has ended, or released the id as requested.
    pub fn release(&mut self, id: &str, who: Holder, token: Option<Token>, actions: &mut Vec<Action>) {
        let busy = match self.0.get_mut(id) {
            Some(Entry::Busy(busy)) => busy,
            Some(Entry::Held(holder)) if *holder == who => {
                self.0.remove(id);
                return;
            }
            _ => return,
        };
        busy.claimant = busy.claimant.filter(|claimant| claimant.who != who);
        busy.next = busy.next.filter(|next| next.who != who);
        if busy.holder == Some(who) {
            (busy.holder, busy.yields) = (None, false);
        }
        self.go_on(id, token, actions);
    }

    /// The claimant of this holder's id, and possibly of its session, is gone: the holder keeps it for now.
    pub fn keep(&mut self, id: &str, who: Holder, token: Option<Token>, actions: &mut Vec<Action>) {
        if let Some(busy) = self.busy(id).filter(|busy| busy.holder == Some(who)) {
            busy.yields = false;
            self.go_on(id, token, actions);
        }
    }

    pub fn watched(&mut self, id: &str, is_held: bool, token: Option<Token>, actions: &mut Vec<Action>) {
        let Some(busy) = self.busy(id).filter(|busy| busy.room == Room::Asked) else { return };
        busy.room = if is_held { Room::Inside } else { Room::Outside };
        if !is_held {
            busy.refuse_all(actions);
        }
        self.go_on(id, token, actions);
    }

    /// The outcome of a claim: the number of nodes in the room, including this one; none: it failed.
    pub fn said(&mut self, id: &str, of: Token, receivers: Option<u64>, actions: &mut Vec<Action>) {
        let Some(busy) = self.busy(id) else { return };
        let Some(claim) = busy.claim.as_mut().filter(|claim| claim.token == of) else { return };
        match receivers {
            Some(receivers) if claim.adopts && receivers > 1 => busy.give_up(actions),
            Some(receivers) => {
                claim.others = Some(receivers.saturating_sub(1));
                if !claim.is_won() && !claim.adopts {
                    actions.push(Action::Wait(id.into(), of));
                }
            }
            None => busy.give_up(actions),
        }
        self.go_on(id, None, actions);
    }

    pub fn late(&mut self, id: &str, of: Token, actions: &mut Vec<Action>) {
        let Some(busy) = self.busy(id) else { return };
        let Some(claim) = busy.claim.as_mut().filter(|claim| claim.token == of) else { return };
        claim.is_late = true;
        self.go_on(id, None, actions);
    }

    /// A message of a node, possibly this one, in the room of an id; in the order of that room.
    pub fn heard(&mut self, id: &str, word: Word, token: Option<Token>, actions: &mut Vec<Action>) {
        let Some(busy) = self.busy(id) else { return };
        let adopts = busy.adopts();
        match (word, &mut busy.claim) {
            (Word::Claim(of, _), Some(own)) if of == own.token => own.is_back = true,
            // Its node counts this one, and gives up.
            (Word::Claim(_, Aim::Adopt), _) => {}
            // It came before this node's own claim, so its node releases the id.
            (Word::Claim(..), Some(own)) if !own.is_back && !adopts => {}
            (Word::Claim(of, aim), Some(_)) => busy.lose_to(of, aim == Aim::Clean, actions),
            (Word::Claim(of, _), None) => actions.push(Action::Say(id.into(), Word::Released(of))),
            (Word::Released(of), Some(own)) if of == own.token => own.released += 1,
            // Another node holds it.
            (Word::Again(_), Some(_)) if adopts => busy.give_up(actions),
            (Word::Again(of), Some(own)) if of > own.token => busy.lose_to(of, false, actions),
            (Word::Again(of), Some(own)) if of < own.token => {
                actions.push(Action::Say(id.into(), Word::Again(own.token)));
            }
            _ => {}
        }
        self.go_on(id, token, actions);
    }

    /// Messages in the room of an id may have been missed.
    pub fn missed(&mut self, id: &str, actions: &mut Vec<Action>) {
        let Some(busy) = self.busy(id) else { return };
        let adopts = busy.adopts();
        let Some(claim) = busy.claim.as_mut() else { return };
        if adopts {
            // Otherwise others would release the id because of its message.
            busy.give_up(actions);
        } else {
            claim.is_back = true;
            actions.push(Action::Say(id.into(), Word::Again(claim.token)));
        }
        self.go_on(id, None, actions);
    }

    fn busy(&mut self, id: &str) -> Option<&mut Busy> {
        match self.0.get_mut(id)? {
            Entry::Busy(busy) => Some(busy),
            Entry::Held(_) => None,
        }
    }

    fn go_on(&mut self, id: &str, token: Option<Token>, actions: &mut Vec<Action>) {
        let Some(busy) = self.busy(id) else { return };
        if let Some((winner, _)) = busy.lost_to {
            if busy.holder.is_some() {
                return busy.let_go(actions);
            }
            actions.push(Action::Say(id.into(), Word::Released(winner)));
            (busy.lost_to, busy.claim) = (None, None);
        }
        if busy.claimant.is_none() {
            busy.claimant = busy.next.take();
        }
        match (busy.claimant, busy.holder) {
            (Some(claimant), _) if !busy.may_grant(id, claimant.aim, token, actions) => {}
            (Some(_), Some(_)) => busy.let_go(actions),
            (Some(claimant), None) => {
                (busy.holder, busy.claimant) = (Some(claimant.who), busy.next.take());
                actions.push(Action::Grant(claimant.who));
                if busy.claimant.is_some() {
                    return self.go_on(id, token, actions);
                }
                self.rest(id);
            }
            (None, Some(_)) => self.rest(id),
            // A pending subscription is answered first: its result must not be taken for that of a later one.
            (None, None) if busy.room == Room::Asked => {}
            (None, None) => {
                if busy.room == Room::Inside {
                    actions.push(Action::Unwatch(id.into()));
                }
                self.0.remove(id);
            }
        }
    }

    fn rest(&mut self, id: &str) {
        if let Some(entry) = self.0.get_mut(id)
            && let Entry::Busy(busy) = entry
            && let (Some(holder), Room::None, false) = (busy.holder, busy.room, busy.yields)
        {
            *entry = Entry::Held(holder);
        }
    }
}

impl Busy {
    /// Whether the node's claim is a takeover that is not won yet.
    fn adopts(&self) -> bool {
        self.holder.is_none() && self.claim.as_ref().is_some_and(|claim| claim.adopts)
    }

    fn let_go(&mut self, actions: &mut Vec<Action>) {
        if !std::mem::replace(&mut self.yields, true) {
            let heir = match (self.lost_to, self.claimant) {
                // A connection that came here since is later than that claim, and claims the id again.
                (None, Some(claimant)) => Heir::Here(claimant),
                (lost_to, _) => Heir::Away { is_clean: lost_to.is_some_and(|(_, is_clean)| is_clean) },
            };
            actions.extend(self.holder.map(|holder| Action::Yield(holder, heir)));
        }
    }

    fn lose_to(&mut self, winner: Token, is_clean: bool, actions: &mut Vec<Action>) {
        self.lost_to = Some((winner, is_clean));
        displace(self.claimant.take(), actions);
        displace(self.next.take(), actions);
    }

    fn give_up(&mut self, actions: &mut Vec<Action>) {
        self.claim = None;
        self.refuse_all(actions);
    }

    fn refuse_all(&mut self, actions: &mut Vec<Action>) {
        refuse(self.claimant.take(), actions);
        refuse(self.next.take(), actions);
    }

    /// Whether the node may grant the id to one of its connections; otherwise takes the next step to that.
    fn may_grant(&mut self, id: &str, aim: Aim, token: Option<Token>, actions: &mut Vec<Action>) -> bool {
        match self.room {
            Room::None => return true,
            Room::Outside => {
                self.room = Room::Asked;
                actions.push(Action::Watch(id.into()));
            }
            Room::Asked => {}
            Room::Inside => match (&self.claim, token) {
                (Some(claim), _) => return claim.is_won(),
                (None, Some(token)) => {
                    self.claim = Some(Claim::new(token, aim == Aim::Adopt));
                    actions.push(Action::Say(id.into(), Word::Claim(token, aim)));
                }
                (None, None) => {}
            },
        }
        false
    }
}

fn displace(claimant: Option<Claimant>, actions: &mut Vec<Action>) {
    actions.extend(claimant.map(|claimant| Action::Displace(claimant.who)));
}

fn refuse(claimant: Option<Claimant>, actions: &mut Vec<Action>) {
    actions.extend(claimant.map(|claimant| Action::Refuse(claimant.who)));
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}-{:x}", self.at_us, self.run, self.number)
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Word::Claim(token, Aim::Resume) => write!(f, "claim {token}"),
            Word::Claim(token, Aim::Clean) => write!(f, "clean {token}"),
            Word::Claim(token, Aim::Adopt) => write!(f, "adopt {token}"),
            Word::Released(token) => write!(f, "released {token}"),
            Word::Again(token) => write!(f, "again {token}"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadWord;

impl FromStr for Word {
    type Err = BadWord;

    fn from_str(text: &str) -> Result<Word, BadWord> {
        let (kind, token) = text.split_once(' ').ok_or(BadWord)?;
        let mut parts = token.splitn(3, '-').map(|part| u64::from_str_radix(part, 16));
        let mut part = || parts.next().and_then(Result::ok).ok_or(BadWord);
        let token = Token { at_us: part()?, run: part()?, number: part()? };
        match kind {
            "claim" => Ok(Word::Claim(token, Aim::Resume)),
            "clean" => Ok(Word::Claim(token, Aim::Clean)),
            "adopt" => Ok(Word::Claim(token, Aim::Adopt)),
            "released" => Ok(Word::Released(token)),
            "again" => Ok(Word::Again(token)),
            _ => Err(BadWord),
        }
    }
}

#[cfg(test)]
mod tests;
