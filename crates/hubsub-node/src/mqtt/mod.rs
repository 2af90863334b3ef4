//! MQTT clients: their packets become broker events, and broker answers become packets. The protocol state
//! machine of a connection is in `hubsub-wire`; this module connects it to the broker, the socket and the
//! clock.
//!
//! - [`client`]: the node's state of an MQTT connection
//! - [`packets`]: incoming packets
//! - [`subscribing`]: SUBSCRIBE and UNSUBSCRIBE
//! - [`claims`]: one connection per client id
//! - [`session`]: sessions that outlive their connections
//! - [`absent`]: offline sessions
//! - [`cursors`]: a session's position in rooms with a log
//! - [`standing`]: keeps those cursors in step with the broker
//! - [`sessions_shown`]: lists and ends sessions for operators
//! - [`durable`]: persists sessions
//! - [`kept`]: the persistence state of one session
//! - [`endings`]: retries deletes of sessions that failed
//! - [`adoption`]: takes over the sessions of the previous process
//! - [`in_log`]: reads those sessions from the log
//! - [`lacking`]: sessions with missing subscriptions
//! - [`entries`]: the format of snapshots and entries
//! - [`handover`]: moves a connection to the shard of its session
//! - [`arrival`]: the steps of a connect until CONNACK
//! - [`deliver`]: delivers records to clients
//! - [`sending`]: writes records as PUBLISH packets
//! - [`gaps`]: reports records that were dropped
//! - [`large`]: collects the payload of long messages
//! - [`pending`]: records that wait for the window or the socket
//! - [`recalled`]: a session restored from its records
//! - [`reading`]: reads a session that another node held
//! - [`retained`]: sends retained messages to new subscribers
//! - [`members`]: room membership
//! - [`message`]: a record as input for its packets
//! - [`plain`]: the fast path of clients whose records need no checks
//! - [`store`]: session stores outside the process
//! - [`shares`]: unacknowledged messages of shared subscriptions
//! - [`state`]: the state of all clients of a shard
//! - [`work`]: work to be done after the broker's call returns
//! - [`actions`]: unacknowledged device actions

mod absent;
mod actions;
mod adoption;
mod arrival;
mod claims;
mod client;
mod cursors;
mod deliver;
mod durable;
mod endings;
mod entries;
mod gaps;
mod handover;
mod in_log;
mod kept;
mod lacking;
mod large;
mod members;
mod message;
mod packets;
mod pending;
mod plain;
mod reading;
mod recalled;
mod retained;
mod sending;
mod session;
mod sessions_shown;
mod shares;
mod standing;
mod state;
mod store;
mod subscribing;
mod work;

pub use claims::{ClaimAsked, MqttMail, answered, heard, home_of, late, missed, receive};
pub use client::{Client, end, gone, look_for_silence};
pub use durable::{Written, look as look_whether_moved, written};
pub use endings::end_again;
pub use handover::{Traveller, depart, settled};
pub use in_log::rebuild as sessions_in_log;
pub use lacking::look_who_lacks;
pub use packets::execute;
pub use plain::Plain;
pub use reading::adopt_orphans;
pub use retained::{Event as Retained, go_on as read_retained, is_over as row_is_over, read_on, read_unread};
pub use session::timer as session_timer;
pub use sessions_shown::{end_session, list_sessions};
pub use shares::share_queued;
pub use standing::learn_ends;
pub use state::State;
pub use store::{
    StoreConfig, StoreEnd, StoreState, StoreStatus, StoreThread, found_in, look as look_at_store,
};
pub use work::{Work, work};
