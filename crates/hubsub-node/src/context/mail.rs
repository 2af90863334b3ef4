//! Mail between shards: messages between brokers, scatter-gather requests and responses, requests of the control
//! plane, and orders.

use super::scatter_gather::GatherMail;
use crate::io::inbox::{LETTER_BYTES, Letter};
use crate::io::questions::Request;
use crate::link::{LeadMail, LinkMail};
use crate::log::LogMail;
use crate::mqtt::state::mail::{MqttMail, Traveller};
use crate::phoenix::state::PollMail;
use crate::presence::state::PresenceMail;
use crate::redis::state::{NewRoster, Roster};
use crate::shard::state::room_changes::RouteMail;
use hubsub_route::Msg;
use hubsub_types::Limits;
use std::sync::Arc;

pub enum Mail {
    /// A message between brokers.
    Broker(Msg),
    Gather(GatherMail),
    /// A request of the control plane, answered under this ticket.
    Request(u64, Request),
    Log(LogMail),
    Link(LinkMail),
    /// About leader leases of ephemeral hubs.
    Lead(LeadMail),
    /// Hubs and their leaders.
    Route(RouteMail),
    /// An MQTT client's connection, on its way to the shard of its session.
    Travel(Box<Traveller>),
    /// About MQTT client ids.
    Mqtt(MqttMail),
    Presence(PresenceMail),
    Poll(PollMail),
    Limits(Arc<Limits>),
    /// The nodes to announce to cluster clients.
    Roster(Arc<NewRoster>),
    /// All shards have this roster; clients may be redirected by it.
    RosterKnown(Arc<Roster>),
    Accept,
    /// Close MQTT clients that have recorded sessions, and refuse new ones: the node is about to leave its
    /// cluster.
    PartFromSessions,
    /// Stop accepting, let output drain for this many ms, close, end.
    Stop(u64),
}

const _: [(); LETTER_BYTES] = [(); size_of::<Mail>()];

impl Letter for Mail {
    fn weight(&self) -> usize {
        match self {
            Mail::Broker(msg) => msg.weight(),
            Mail::Link(mail) => mail.weight(),
            Mail::Lead(mail) => mail.weight(),
            Mail::Mqtt(mail) => mail.weight(),
            Mail::Presence(mail) => mail.weight(),
            Mail::Poll(mail) => mail.weight(),
            Mail::Travel(traveller) => traveller.weight(),
            Mail::Log(mail) => mail.weight(),
            _ => LETTER_BYTES,
        }
    }
}

macro_rules! letters {
    ($($kind:ident($mail:ty);)+) => {
        $(impl From<$mail> for Mail {
            fn from(mail: $mail) -> Mail {
                Mail::$kind(mail)
            }
        })+
    };
}

letters! {
    Broker(Msg);
    Gather(GatherMail);
    Log(LogMail);
    Link(LinkMail);
    Lead(LeadMail);
    Route(RouteMail);
    Mqtt(MqttMail);
    Presence(PresenceMail);
    Poll(PollMail);
    RosterKnown(Arc<Roster>);
}
