//! MQTT clients on a node: executes what the machines of `hubsub-mqtt` return, with the broker, the sockets,
//! the clock and other nodes.
//!
//! - [`client`]: output and end of a connection
//! - [`packets`]: incoming packets
//! - [`large`]: messages too long to buffer as a packet
//! - [`subscribing`]: SUBSCRIBE and UNSUBSCRIBE
//! - [`connect`]: the steps of a connect until CONNACK
//! - [`claims`]: one connection per client id
//! - [`handover`]: moves a connection to the shard of its session
//! - [`deliver`]: delivers records to clients
//! - [`sending`]: sends them as PUBLISH packets
//! - [`plain`]: the fast path of clients whose records need no checks
//! - [`shares`]: messages of groups that go to another member
//! - [`retained`]: sends retained messages to new subscribers
//! - [`members`]: room membership
//! - [`session`]: sessions that outlive their connections
//! - [`offline`]: deliveries to offline sessions
//! - [`session_cursors`]: keeps the cursors of sessions in step with the broker
//! - [`session_list`]: lists and ends sessions for operators
//! - [`persist`]: persists sessions
//! - [`store`]: session stores outside the process
//! - [`state`]: the state of all clients of a shard
//! - [`work`]: work to be done after the broker's call returns
//! - [`takeover`]: takes over sessions of other processes
//! - [`in_log`]: reads the sessions of the previous process from the log
//! - [`takeover_read`]: reads sessions of other processes from their rooms
//! - [`missing_subscriptions`]: retries subscriptions that were refused meanwhile
//! - [`delete_retry`]: retries deletes of sessions that failed

mod claims;
mod client;
mod connect;
mod delete_retry;
mod deliver;
mod handover;
mod in_log;
mod large;
mod members;
mod missing_subscriptions;
mod offline;
mod packets;
mod persist;
mod plain;
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
pub use client::{end, gone, look_for_silence};
pub use delete_retry::retry_deletes;
pub use handover::{Traveller, depart, handed_over};
pub use in_log::rebuild as sessions_in_log;
pub use missing_subscriptions::retry_missing;
pub use packets::execute;
pub use persist::{Written, snapshot_timer, written};
pub use retained::{Event as Retained, go_on as read_retained, read_on, read_unread};
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
