//! What passes between a node's machine, its peers, its shards and its control plane.

use hubsub_types::{HubId, NodeId, Term};

/// Whom a question names as suspected, at most.
pub const SUSPECTS_MAX: usize = 64;

/// A hub and one of its terms.
pub type HubTerm = (HubId, Term);

/// A node and which life of it: one that starts again has nothing of the one before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Process {
    /// Its place among those that this process knows.
    pub node: NodeId,
    /// As it was issued when it registered.
    pub incarnation: u64,
}

/// How long things take, in µs; the same in the whole cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// From the time before it was asked for to a lead's deadline.
    pub lead_us: u64,
    /// A controller that was not heard for so long is not heeded any more.
    pub silence_us: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Timing { lead_us: 1_000_000, silence_us: 500_000 }
    }
}

impl Timing {
    /// How its times do not fit each other, if they do not.
    #[must_use]
    pub fn flaw(&self) -> Option<&'static str> {
        (self.silence_us + self.ask_us() >= self.lead_us).then_some("leads end before silence is noticed")
    }

    /// Itself, if its times fit each other.
    ///
    /// # Panics
    /// They do not: a lead would end before a node knows that it has no controller.
    #[must_use]
    pub fn checked(self) -> Timing {
        match self.flaw() {
            None => self,
            Some(flaw) => panic!("{flaw}: {self:?}"),
        }
    }

    /// Between two questions: of three, two may get lost.
    #[must_use]
    pub fn ask_us(&self) -> u64 {
        self.lead_us / 3
    }

    /// Before a claim that was not granted whole is made again, the first time: two watches are rarely further apart.
    pub(crate) fn again_us(&self) -> u64 {
        self.lead_us / 64
    }
}

/// What a node says of controllers with each ping and pong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Beat {
    /// The mandate that it acts by itself; 0: it is no controller.
    pub mandate: u64,
    /// The mandate that it heeds; 0: it hears no controller.
    pub heeds: u64,
    /// Another number each time that it begins to heed one.
    pub heed: u64,
}

impl Beat {
    /// Whether it neither is a controller nor hears one.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.mandate == 0 && self.heeds == 0
    }
}

/// A hub whose record names this process as its leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Which hub.
    pub hub: HubId,
    /// The record's term.
    pub term: Term,
    /// The record proposes another leader: this one is to give it up.
    pub gives_up: bool,
}

/// A node to the controller's: may I lead these?
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Question {
    /// The asker's monotonic time before it asked, in µs.
    pub stamp_us: u64,
    /// What it means to lead.
    pub claim: Vec<HubTerm>,
    /// What it will never lead again, of what records still say that it leads.
    pub gave_up: Vec<HubTerm>,
    /// Whom it suspects, at most [`SUSPECTS_MAX`].
    pub suspects: Vec<NodeId>,
}

/// The answer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Grant {
    /// As in the question.
    pub stamp_us: u64,
    /// The lead ends so long after `stamp_us`, on the asker's clock.
    pub lead_us: u64,
    /// Of the controller that grants it.
    pub mandate: u64,
    /// Revision of the census that the controller knows.
    pub census: u64,
    /// What of the claim is granted.
    pub granted: Vec<HubTerm>,
}

/// What is to be done: see the table at the head of the crate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send a question to a controller's node.
    Ask(Process, Question),
    /// Send an answer to who asked.
    Answer(Process, Grant),
    /// Say this with every ping and pong from here on.
    Say(Beat),
    /// This process leads a hub in a term, while the gate is open.
    Began(HubId, Term),
    /// It leads it no more, and the shard says so when that is true.
    GiveUp(HubId, Term),
    /// The gate is open: the lead runs (again).
    Opened,
    /// The lead has ended; what it covered waits or serves, as its class says.
    Closed,
}
