//! Mail between shards about client ids and sessions, and connections on their way to a session.

use crate::io::inbox::LETTER_BYTES;
use crate::io::listener::ListenerKind;
use crate::io::meter::Meter;
use crate::io::transport::Transport;
use hubsub_mqtt::Found;
use hubsub_route::claims::{Claimant, Heir, Holder};
use hubsub_sessions::{Answer, StoreError};
use hubsub_types::{ConnKey, PrincipalId};

#[derive(Debug)]
pub enum MqttMail {
    /// To the id's shard: this connection wants the id.
    Claim(Box<str>, Claimant),
    Granted(ConnKey),
    Refused(ConnKey),
    /// From the id's shard: a later connection superseded the claim.
    Displaced(ConnKey),
    /// From the id's shard: release the id to this heir.
    Yield(ConnKey, Heir),
    /// To the id's shard: this connection or session has ended or released the id.
    Release(Box<str>, Holder),
    /// To the id's shard: the claimant of this session is gone; its holder keeps the id.
    Keep(Box<str>, Holder),
    /// To a connection: move to its session in that slot.
    Call(ConnKey, Holder),
    /// To the shard of a session: the connection that was to move there is gone.
    Abandon(ConnKey),
    /// To the id's shard: a session of the previous process.
    Restore(Box<Found>),
    /// To the id's shard: the process that held this session is gone.
    TakeOver(Box<str>),
    Stored(Box<Stored>),
}

#[derive(Debug)]
pub struct Stored {
    pub number: u32,
    pub answer: Result<Answer, StoreError>,
}

pub struct Traveller {
    pub io: Transport,
    pub id: u64,
    pub principal: PrincipalId,
    pub kind: ListenerKind,
    pub created_s: u32,
    pub meter: Meter,
    /// Its input: CONNECT and the bytes after it.
    pub input: Vec<u8>,
    /// Its previous place, under which it claims the client id.
    pub from: Holder,
    pub client_id: Box<str>,
    pub to: ConnKey,
}

impl MqttMail {
    /// Its memory in bytes, for mailbox limits.
    pub fn weight(&self) -> usize {
        LETTER_BYTES
            + match self {
                MqttMail::Claim(id, _) | MqttMail::Release(id, _) | MqttMail::Keep(id, _) => id.len(),
                MqttMail::TakeOver(id) => id.len(),
                MqttMail::Restore(found) => found.weight(),
                MqttMail::Stored(stored) => stored.weight(),
                _ => 0,
            }
    }
}

impl Stored {
    pub fn mail(number: u32, answer: Result<Answer, StoreError>) -> MqttMail {
        MqttMail::Stored(Box::new(Stored { number, answer }))
    }

    fn weight(&self) -> usize {
        let bytes = match &self.answer {
            Ok(Answer::Loaded { snapshot, entries }) => {
                let entries: usize =
                    entries.iter().map(|(_, entry)| entry.len() + size_of::<Vec<u8>>()).sum();
                snapshot.as_ref().map_or(0, Vec::len) + entries
            }
            Ok(Answer::Listed(page)) => page.iter().map(|(id, snapshot)| id.len() + snapshot.len()).sum(),
            _ => 0,
        };
        size_of::<Stored>() + bytes
    }
}

impl Traveller {
    pub fn weight(&self) -> usize {
        size_of::<Traveller>() + self.input.len()
    }
}
