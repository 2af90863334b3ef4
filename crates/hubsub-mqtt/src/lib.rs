//! The machine of an MQTT client's connection, without sockets, threads and clocks. See
//! docs/protocol/mqtt-sessions.md.

mod machine;

pub use machine::{
    Accepted, Damaged, Event, Fault, Grant, Incoming, Key, LastWill, Machine, Match, Opened, OwnAliases,
    Progress, Refusal, SessionState, Step, Terms, Topic, Window, expiry_s, read_headers, write_headers,
};
