//! Who holds a client id. Each id belongs to one shard of a node, by its hash: that shard's [`Claims`] know the
//! connection of the node that has it, and those that wait for it. In a cluster they also speak for the node in the
//! id's room, whose order decides between nodes: see docs/protocol/mqtt-state.md.
//!
//! Events in as calls, actions out: it knows neither connections nor rooms nor a clock.
//!
//! Invariants: an id is granted to a connection only once whoever had it on this node has let go; and in a cluster,
//! once every other node that was in the room at the claim has said that it has, or has said nothing for too long. A
//! node lets go as soon as it hears a claim that stands behind its own.

use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::{ConnKey, ShardId};
use std::fmt;
use std::str::FromStr;

/// A connection of the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Its shard.
    pub shard: ShardId,
    /// Which one there.
    pub conn: ConnKey,
}

/// A connection, or the place of a session without one, that wants an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claimant {
    /// Which.
    pub who: Holder,
    /// What for.
    pub aim: Aim,
}

/// What an id is wanted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aim {
    /// A connection goes on with the session that is kept, if one is.
    Resume,
    /// A connection begins a session of its own: one that is kept ends.
    Clean,
    /// A session whose holder's process is gone is to have an owner again: nobody lets go for that.
    Adopt,
}

/// For whom a holder lets go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heir {
    /// A connection of this node.
    Here(Claimant),
    /// Another node, which may begin a session of its own.
    Away {
        /// Whether it does: then the session that is kept ends.
        is_clean: bool,
    },
}

/// Names a claim in the whole cluster, and orders claims: a later one is higher, as far as the nodes' clocks agree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Token {
    /// When it was made, in µs since 1970.
    pub at_us: u64,
    /// The node's run.
    pub run: u64,
    /// Its shard, and the number of the claim there.
    pub number: u64,
}

/// What nodes say in the room of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// This node wants it, for that: others let go, but for one that adopts.
    Claim(Token, Aim),
    /// This node has let go for the claim of that token.
    Released(Token),
    /// This node holds it by that token, and may have missed a claim.
    Again(Token),
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// The connection has the id.
    Grant(Holder),
    /// The connection does not get the id: the room cannot be reached, or it would adopt what somebody has.
    Refuse(Holder),
    /// It had to let go before it was granted the id, since a later one wants that.
    Displace(Holder),
    /// It has to let go: [`Claims::release`] says that it has, [`Claims::keep`] that who was to have it is gone before.
    Yield(Holder, Heir),
    /// Subscribe to the room of the id: [`Claims::watched`] says what came of it.
    Watch(Box<str>),
    /// End that subscription.
    Unwatch(Box<str>),
    /// Publish to the room of the id: of a claim, [`Claims::said`] says what came of it.
    Say(Box<str>, Word),
    /// Call [`Claims::late`] when others have had their time to let go.
    Wait(Box<str>, Token),
}

/// The ids that belong to a shard.
#[derive(Debug, Default)]
pub struct Claims(HashMap<Box<str>, Entry, RandomState>);

#[derive(Debug)]
enum Entry {
    /// On a lone node, while nobody else wants it.
    Held(Holder),
    Busy(Box<Busy>),
}

#[derive(Debug, Default)]
struct Busy {
    /// Who has it, on this node.
    holder: Option<Holder>,
    /// Whether that was told to let go.
    yields: bool,
    /// Who is to have it next: no other one once its holder was told to let go for it.
    claimant: Option<Claimant>,
    /// And then.
    next: Option<Claimant>,
    /// The node's place in the room of the id.
    room: Room,
    /// The claim that the node has made there and not lost.
    claim: Option<Claim>,
    /// Another node's claim, for which it has to let go, and whether that begins a session of its own.
    lost_to: Option<(Token, bool)>,
}

/// Whether a node is in the room of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Room {
    /// A lone node asks nobody.
    #[default]
    None,
    Outside,
    Asked,
    Inside,
}

#[derive(Clone, Copy, Debug)]
struct Claim {
    token: Token,
    /// Whether nobody lets go for it.
    adopts: bool,
    /// Whether it has come back: what comes behind it is later.
    is_back: bool,
    /// Other nodes that were in the room when it was made, once that is known.
    others: Option<u64>,
    /// Those that have let go.
    released: u64,
    /// Whether they have had their time.
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
    /// How many ids are held or wanted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A connection wants an id. Here and below `token` is for a claim that the node may have to make; none on a lone
    /// node. One that adopts is refused where anybody has the id or wants it.
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
            // What nobody lets go for is of no use to a client.
            busy.claim = None;
        }
        let place = if busy.yields && busy.claimant.is_some() { &mut busy.next } else { &mut busy.claimant };
        displace(place.replace(claimant), actions);
        self.go_on(&id, token, actions);
    }

    /// On a lone node, as it begins: a session of before holds an id.
    pub fn hold(&mut self, id: Box<str>, who: Holder) {
        self.0.insert(id, Entry::Held(who));
    }

    /// A connection that held an id, or waited for it, does so no more: it has ended, or let go as it was told.
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

    /// Who was to have the id of this holder, and perhaps its session, is gone: the holder keeps it for the time being.
    pub fn keep(&mut self, id: &str, who: Holder, token: Option<Token>, actions: &mut Vec<Action>) {
        if let Some(busy) = self.busy(id).filter(|busy| busy.holder == Some(who)) {
            busy.yields = false;
            self.go_on(id, token, actions);
        }
    }

    /// What came of a subscription to the room of an id.
    pub fn watched(&mut self, id: &str, is_held: bool, token: Option<Token>, actions: &mut Vec<Action>) {
        let Some(busy) = self.busy(id).filter(|busy| busy.room == Room::Asked) else { return };
        busy.room = if is_held { Room::Inside } else { Room::Outside };
        if !is_held {
            busy.refuse_all(actions);
        }
        self.go_on(id, token, actions);
    }

    /// What came of a claim: how many are in the room, this node among them; none: nothing.
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

    /// Others have had their time to let go for that claim.
    pub fn late(&mut self, id: &str, of: Token, actions: &mut Vec<Action>) {
        let Some(busy) = self.busy(id) else { return };
        let Some(claim) = busy.claim.as_mut().filter(|claim| claim.token == of) else { return };
        claim.is_late = true;
        self.go_on(id, None, actions);
    }

    /// What a node, perhaps this one, has said in the room of an id; in the order of that room.
    pub fn heard(&mut self, id: &str, word: Word, token: Option<Token>, actions: &mut Vec<Action>) {
        let Some(busy) = self.busy(id) else { return };
        let adopts = busy.adopts();
        match (word, &mut busy.claim) {
            (Word::Claim(of, _), Some(own)) if of == own.token => own.is_back = true,
            // Its node counts this one, and gives it up.
            (Word::Claim(_, Aim::Adopt), _) => {}
            // It came before the node's own, so its node lets go.
            (Word::Claim(..), Some(own)) if !own.is_back && !adopts => {}
            (Word::Claim(of, aim), Some(_)) => busy.lose_to(of, aim == Aim::Clean, actions),
            (Word::Claim(of, _), None) => actions.push(Action::Say(id.into(), Word::Released(of))),
            (Word::Released(of), Some(own)) if of == own.token => own.released += 1,
            // Somebody has it.
            (Word::Again(_), Some(_)) if adopts => busy.give_up(actions),
            (Word::Again(of), Some(own)) if of > own.token => busy.lose_to(of, false, actions),
            (Word::Again(of), Some(own)) if of < own.token => {
                actions.push(Action::Say(id.into(), Word::Again(own.token)));
            }
            _ => {}
        }
        self.go_on(id, token, actions);
    }

    /// Not all that was said in the room of an id may have been heard.
    pub fn missed(&mut self, id: &str, actions: &mut Vec<Action>) {
        let Some(busy) = self.busy(id) else { return };
        let adopts = busy.adopts();
        let Some(claim) = busy.claim.as_mut() else { return };
        if adopts {
            // Others would let go for what it said.
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

    /// Does what is next, if nothing has to be waited for.
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
            // What was asked is answered first: that answer must not be taken for one to a later question.
            (None, None) if busy.room == Room::Asked => {}
            (None, None) => {
                if busy.room == Room::Inside {
                    actions.push(Action::Unwatch(id.into()));
                }
                self.0.remove(id);
            }
        }
    }

    /// A lone node keeps little of an id that nobody else wants.
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
    /// Whether the node's claim is one for which nobody lets go, and is not won yet.
    fn adopts(&self) -> bool {
        self.holder.is_none() && self.claim.as_ref().is_some_and(|claim| claim.adopts)
    }

    fn let_go(&mut self, actions: &mut Vec<Action>) {
        if !std::mem::replace(&mut self.yields, true) {
            let heir = match (self.lost_to, self.claimant) {
                // Who has come here since is later than that, and claims the id anew.
                (None, Some(claimant)) => Heir::Here(claimant),
                (lost_to, _) => Heir::Away { is_clean: lost_to.is_some_and(|(_, is_clean)| is_clean) },
            };
            actions.extend(self.holder.map(|holder| Action::Yield(holder, heir)));
        }
    }

    /// Another node's claim is later than the node's own, and than those that wait here.
    fn lose_to(&mut self, winner: Token, is_clean: bool, actions: &mut Vec<Action>) {
        self.lost_to = Some((winner, is_clean));
        displace(self.claimant.take(), actions);
        displace(self.next.take(), actions);
    }

    /// The node's claim comes to nothing, and who waits is refused.
    fn give_up(&mut self, actions: &mut Vec<Action>) {
        self.claim = None;
        self.refuse_all(actions);
    }

    fn refuse_all(&mut self, actions: &mut Vec<Action>) {
        refuse(self.claimant.take(), actions);
        refuse(self.next.take(), actions);
    }

    /// Whether the node may give the id to a connection of its own; else it does what that takes.
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

/// A text that no node of this version says.
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
