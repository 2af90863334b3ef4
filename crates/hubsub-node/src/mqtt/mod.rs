//! MQTT clients: their packets become events of the broker, what the broker answers becomes packets. What a
//! connection has asked for and what it has not acknowledged is kept by its machine (`hubsub-wire`); here is
//! what that lacks: the broker, the socket, the clock.
//!
//! - [`client`]: a connection beside its machine
//! - [`packets`]: what it sends
//! - [`subscribing`]: what it subscribes to
//! - [`claims`]: one connection a client id
//! - [`session`]: what outlives a connection
//! - [`absent`]: that while there is none
//! - [`cursors`]: where a session stands in rooms with a log
//! - [`standing`]: how it does with the broker
//! - [`sessions_shown`]: what operators see of that, and its end by their hand
//! - [`durable`]: what outlives the process
//! - [`kept`]: what of one session does
//! - [`endings`]: what of it is to be forgotten, and cannot be yet
//! - [`adoption`]: how the next one takes it in
//! - [`lacking`]: those that could not subscribe to all then
//! - [`entries`]: that in bytes
//! - [`handover`]: how it goes from one shard to another
//! - [`arrival`]: what a client waits for before it is connected
//! - [`deliver`]: records that come for clients
//! - [`sending`]: records as PUBLISH packets
//! - [`gaps`]: what of them will not come
//! - [`large`]: long messages, whose payload is collected as it comes
//! - [`pending`]: records that wait for the window or the socket
//! - [`recalled`]: a session as it was recorded
//! - [`reading`]: how one is found that another node had
//! - [`retained`]: what topics kept, for who subscribes
//! - [`members`]: who is in a room
//! - [`message`]: a record as its packets are made from it
//! - [`plain`]: clients whose records need no look at them
//! - [`store`]: what keeps sessions beyond their process
//! - [`shares`]: what came for it as a member of groups
//! - [`actions`]: what it is to do as a device, until it has acknowledged that it has it

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
mod store;
mod subscribing;

pub use absent::Sessions;
pub use adoption::{Found, id_of_entries, id_of_row, is_of_use};
pub use arrival::followed;
pub use claims::{ClaimAsked, MqttMail, answered, heard, home_of, late, missed, receive};
pub use client::{Client, end, gone, look_for_silence};
pub use durable::{Written, look as look_whether_moved, record as record_session, written};
pub use endings::{Ending, end_again, found as found_ended};
pub use handover::{Traveller, depart, settled};
pub use lacking::look_who_lacks;
pub use large::LongMessages;
pub use packets::execute;
pub use plain::Plain;
pub use reading::{Readings, adopt_orphans, came as read_of_session};
pub use retained::{
    Event as Retained, Pace, go_on as read_retained, is_over as row_is_over, read_on, read_unread,
};
pub use sending::Cache;
pub use session::timer as session_timer;
pub use sessions_shown::{end_session, list_sessions};
pub use shares::share_queued;
pub use standing::{Ends, learn_ends};
pub use store::{
    StoreConfig, StoreEnd, StoreState, StoreStatus, StoreThread, found_in, look as look_at_store,
};
