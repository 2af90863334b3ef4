//! MQTT clients: their packets become broker events, and broker answers become packets. The protocol state
//! machine of a connection is in `hubsub-wire`; this module connects it to the broker, the socket and the
//! clock.
//!
//! - [`client`]: the node's state of an MQTT connection
//! - [`packets`]: incoming packets
//! - [`subscribing`]: SUBSCRIBE and UNSUBSCRIBE
//! - [`claims`]: one connection per client id
//! - [`session`]: sessions that outlive their connections
//! - [`offline`]: offline sessions
//! - [`cursors`]: a session's position in rooms with a log
//! - [`session_cursors`]: keeps those cursors in step with the broker
//! - [`session_list`]: lists and ends sessions for operators
//! - [`persist`]: persists sessions
//! - [`persistence`]: the persistence state of one session
//! - [`delete_retry`]: retries deletes of sessions that failed
//! - [`takeover`]: takes over the sessions of the previous process
//! - [`in_log`]: reads those sessions from the log
//! - [`missing_subscriptions`]: sessions with missing subscriptions
//! - [`entries`]: the format of snapshots and entries
//! - [`handover`]: moves a connection to the shard of its session
//! - [`connect`]: the steps of a connect until CONNACK
//! - [`deliver`]: delivers records to clients
//! - [`sending`]: writes records as PUBLISH packets
//! - [`gaps`]: reports records that were dropped
//! - [`large`]: collects the payload of long messages
//! - [`pending`]: records that wait for the window or the socket
//! - [`restored`]: a session restored from its records
//! - [`takeover_read`]: reads a session that another node held
//! - [`retained`]: sends retained messages to new subscribers
//! - [`members`]: room membership
//! - [`message`]: a record as input for its packets
//! - [`plain`]: the fast path of clients whose records need no checks
//! - [`store`]: session stores outside the process
//! - [`shares`]: unacknowledged messages of shared subscriptions
//! - [`state`]: the state of all clients of a shard
//! - [`work`]: work to be done after the broker's call returns
//! - [`actions`]: unacknowledged device actions

mod actions;
mod claims;
mod client;
mod connect;
mod cursors;
mod delete_retry;
mod deliver;
mod entries;
mod gaps;
mod handover;
mod in_log;
mod large;
mod members;
mod message;
mod missing_subscriptions;
mod offline;
mod packets;
mod pending;
mod persist;
mod persistence;
mod plain;
mod restored;
mod retained;
mod sending;
mod session;
mod session_cursors;
mod session_list;
mod shares;
mod state;
mod store;
mod subscribing;
mod takeover;
mod takeover_read;
mod work;

pub use claims::{ClaimAsked, MqttMail, answered, heard, home_of, late, missed, receive};
pub use client::{Client, end, gone, look_for_silence};
pub use delete_retry::retry_deletes;
pub use handover::{Traveller, depart, handed_over};
pub use in_log::rebuild as sessions_in_log;
pub use missing_subscriptions::retry_missing;
pub use packets::execute;
pub use persist::{Written, snapshot_timer, written};
pub use plain::Plain;
pub use retained::{
    Event as Retained, go_on as read_retained, is_expired as retained_is_expired, read_on, read_unread,
};
pub use session::timer as session_timer;
pub use session_cursors::learn_ends;
pub use session_list::{end_session, list_sessions};
pub use shares::share_queued;
pub use state::State;
pub use store::{
    StoreConfig, StoreEnd, StoreState, StoreStatus, StoreThread, found_in, look as look_at_store,
};
pub use takeover_read::start_takeovers;
pub use work::{Work, work};
