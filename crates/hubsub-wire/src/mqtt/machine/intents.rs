//! Messages of QoS 2 of a client that it has not released. Each has a number that no other one of its session ever has,
//! by which it is published: so it is published once, over however many connections it is sent again.

use super::super::packet::PacketId;
use std::collections::BTreeMap;

/// How far a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Its PUBREC waits for what comes of it.
    Asked,
    /// It was published.
    Published,
    /// It is of an older connection and did not come again on this one; whether it is known to be published.
    Carried(bool),
}

#[derive(Clone, Copy, Debug)]
struct Intent {
    number: u64,
    stage: Stage,
}

/// What to do with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Taken {
    /// It is to be published under this number.
    New(u64),
    /// It was; PUBREC is all that lacks.
    Published,
    /// It waits already.
    Waits,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Intents {
    ids: BTreeMap<PacketId, Intent>,
    /// How many are [`Stage::Carried`].
    carried: usize,
    /// Numbers given.
    given: u64,
}

impl Intents {
    /// Those that count for the Receive Maximum of this connection.
    pub fn counted(&self) -> usize {
        self.ids.len() - self.carried
    }

    /// Whether a message of this id is known here: it takes no more of the Receive Maximum.
    pub fn has(&self, id: PacketId) -> bool {
        self.ids.get(&id).is_some_and(|intent| !matches!(intent.stage, Stage::Carried(_)))
    }

    /// A message comes, perhaps again.
    pub fn take(&mut self, id: PacketId) -> Taken {
        let Some(intent) = self.ids.get_mut(&id) else {
            self.given += 1;
            self.ids.insert(id, Intent { number: self.given, stage: Stage::Asked });
            return Taken::New(self.given);
        };
        match intent.stage {
            Stage::Asked => Taken::Waits,
            Stage::Published => Taken::Published,
            Stage::Carried(is_published) => {
                self.carried -= 1;
                intent.stage = if is_published { Stage::Published } else { Stage::Asked };
                if is_published { Taken::Published } else { Taken::New(intent.number) }
            }
        }
    }

    /// It was published.
    pub fn published(&mut self, id: PacketId) {
        if let Some(intent) = self.ids.get_mut(&id) {
            intent.stage = Stage::Published;
        }
    }

    /// It was refused: its id is free.
    pub fn refused(&mut self, id: PacketId) {
        self.ids.remove(&id);
    }

    /// The client releases it; whether it could.
    pub fn release(&mut self, id: PacketId) -> bool {
        match self.ids.get(&id).map(|intent| intent.stage) {
            None | Some(Stage::Asked) => return false,
            Some(Stage::Published) => {}
            // Who releases has seen PUBREC.
            Some(Stage::Carried(_)) => self.carried -= 1,
        }
        self.ids.remove(&id);
        true
    }

    /// The connection has ended.
    pub fn carry(&mut self) {
        self.carried = self.ids.len();
        for intent in self.ids.values_mut() {
            intent.stage = match intent.stage {
                Stage::Asked => Stage::Carried(false),
                Stage::Published => Stage::Carried(true),
                carried => carried,
            };
        }
    }

    /// Between connections: a message has this number, and is known to be published or not.
    pub fn restore(&mut self, id: PacketId, number: u64, is_published: bool) {
        let intent = Intent { number, stage: Stage::Carried(is_published) };
        self.carried += usize::from(self.ids.insert(id, intent).is_none());
        self.given = self.given.max(number);
    }

    /// A message of this number, of an older connection, was published after all; one that came again is asked for anew.
    pub fn settle_carried(&mut self, number: u64) {
        let carried = self.ids.values_mut().find(|intent| intent.number == number);
        if let Some(intent) = carried.filter(|intent| intent.stage == Stage::Carried(false)) {
            intent.stage = Stage::Carried(true);
        }
    }

    /// Between connections: a message of this number was published after all.
    pub fn settle(&mut self, number: u64) {
        if let Some(intent) = self.ids.values_mut().find(|intent| intent.number == number) {
            intent.stage = Stage::Carried(true);
        }
    }

    /// Numbers given.
    pub fn given(&self) -> u64 {
        self.given
    }

    /// At least so many were.
    pub fn set_given(&mut self, given: u64) {
        self.given = self.given.max(given);
    }

    /// All, between connections: id, number, whether it is known to be published.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (PacketId, u64, bool)> {
        let published = |stage| matches!(stage, Stage::Published | Stage::Carried(true));
        self.ids.iter().map(move |(&id, intent)| (id, intent.number, published(intent.stage)))
    }
}
