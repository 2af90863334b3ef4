//! QoS 2 messages of a client that it has not released. Each has a number that is unique in its session and
//! by which it is published. So it is published once, however many connections it is sent on.

use hubsub_wire::mqtt::PacketId;
use std::collections::BTreeMap;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Its PUBREC waits for the outcome of the publish.
    Asked,
    Published,
    /// It came on an older connection only; the flag: whether it is known to be published.
    Carried(bool),
}

#[derive(Clone, Copy, Debug)]
struct Intent {
    number: u64,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Taken {
    New(u64),
    /// It is published already; only PUBREC is missing.
    Published,
    Waits,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Intents {
    ids: BTreeMap<PacketId, Intent>,
    /// Number of messages in [`Stage::Carried`].
    carried: usize,
    given: u64,
}

impl Intents {
    /// Messages that count for the Receive Maximum of this connection.
    pub fn counted(&self) -> usize {
        self.ids.len() - self.carried
    }

    /// Whether this connection has a message with this id, which then counts once for the Receive Maximum.
    pub fn has(&self, id: PacketId) -> bool {
        self.ids.get(&id).is_some_and(|intent| !matches!(intent.stage, Stage::Carried(_)))
    }

    /// Handles a received message, which may be a duplicate.
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

    pub fn published(&mut self, id: PacketId) {
        if let Some(intent) = self.ids.get_mut(&id) {
            intent.stage = Stage::Published;
        }
    }

    pub fn refused(&mut self, id: PacketId) {
        self.ids.remove(&id);
    }

    /// Handles PUBREL; returns whether the message could be released.
    pub fn release(&mut self, id: PacketId) -> bool {
        match self.ids.get(&id).map(|intent| intent.stage) {
            None | Some(Stage::Asked) => return false,
            Some(Stage::Published) => {}
            // A client that sends PUBREL has received PUBREC.
            Some(Stage::Carried(_)) => self.carried -= 1,
        }
        self.ids.remove(&id);
        true
    }

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

    /// Between connections: restores a message.
    pub fn restore(&mut self, id: PacketId, number: u64, is_published: bool) {
        let intent = Intent { number, stage: Stage::Carried(is_published) };
        self.carried += usize::from(self.ids.insert(id, intent).is_none());
        self.given = self.given.max(number);
    }

    /// A message of an older connection was published after all. Ignored if it was sent again.
    pub fn settle_carried(&mut self, number: u64) {
        let carried = self.ids.values_mut().find(|intent| intent.number == number);
        if let Some(intent) = carried.filter(|intent| intent.stage == Stage::Carried(false)) {
            intent.stage = Stage::Carried(true);
        }
    }

    pub fn given(&self) -> u64 {
        self.given
    }

    pub fn set_given(&mut self, given: u64) {
        self.given = self.given.max(given);
    }

    /// All messages, between connections: id, number, whether it is known to be published.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (PacketId, u64, bool)> {
        let published = |stage| matches!(stage, Stage::Published | Stage::Carried(true));
        self.ids.iter().map(move |(&id, intent)| (id, intent.number, published(intent.stage)))
    }
}
