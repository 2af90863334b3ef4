//! The requests that folders make through the internal client, and the work that they do after a call.

use crate::consumers::state::{ConsumerAsked, Wanted};
use crate::mqtt::state::work::{self as mqtt, ClaimAsked, Written};
use crate::presence::state::PresenceAsked;

/// The origin of a request, which gets the reply.
pub enum Asked {
    /// The shard of a client id, for a request to the id's room.
    Claims(ClaimAsked),
    /// A pending write or read of an MQTT session.
    Session(Written),
    Presence(PresenceAsked),
    Consumers(ConsumerAsked),
    /// The reply is ignored.
    Nobody,
}

/// Work that is done after the broker's call returns.
pub enum Work {
    Mqtt(mqtt::Work),
    Consumers(Wanted),
}

impl From<ClaimAsked> for Asked {
    fn from(asked: ClaimAsked) -> Asked {
        Asked::Claims(asked)
    }
}

impl From<Written> for Asked {
    fn from(asked: Written) -> Asked {
        Asked::Session(asked)
    }
}

impl From<PresenceAsked> for Asked {
    fn from(asked: PresenceAsked) -> Asked {
        Asked::Presence(asked)
    }
}

impl From<ConsumerAsked> for Asked {
    fn from(asked: ConsumerAsked) -> Asked {
        Asked::Consumers(asked)
    }
}

impl<A: Into<Asked>> From<Option<A>> for Asked {
    fn from(asked: Option<A>) -> Asked {
        asked.map_or(Asked::Nobody, Into::into)
    }
}

impl TryFrom<Asked> for Written {
    type Error = ();

    fn try_from(asked: Asked) -> Result<Written, ()> {
        if let Asked::Session(written) = asked { Ok(written) } else { Err(()) }
    }
}

impl From<mqtt::Work> for Work {
    fn from(work: mqtt::Work) -> Work {
        Work::Mqtt(work)
    }
}

impl From<Wanted> for Work {
    fn from(work: Wanted) -> Work {
        Work::Consumers(work)
    }
}
