//! MQTT clients on a node: executes what the machines of `hubsub-mqtt` return, with the broker, the sockets,
//! the clock and other nodes.
//!
//! The layers, from below; a module uses modules of its own layer that precede it, and of lower layers. Through
//! [`Work`](state::work::Work) a module reaches higher ones, after the current call.
//!
//! - below the context: [`state`] of a shard with its mail and work, and the thread of a session store
//! - a client: [`client`]: its output and end; [`changes`] to persist, [`wills`], [`sending`] and [`deliver`]
//!   for records, [`retained`] messages
//! - ids and storage: [`claims`] of client ids, [`store`], [`persist`], [`delete_retry`], [`in_log`]
//! - a session: [`offline`], [`shares`] of groups, [`members`] of rooms, [`suback`], [`session_cursors`],
//!   [`subscribing`], [`missing_subscriptions`], [`session`]: how it goes offline and ends
//! - a connect: [`connack`], [`takeover`] of a session of another process, [`takeover_read`], [`handover`] to
//!   the shard of the session, [`connect`]
//! - dispatch: [`packets`], [`written`] for outcomes of writes, [`session_list`], [`dispatch`]

mod changes;
mod claims;
mod client;
mod connack;
mod connect;
mod delete_retry;
mod deliver;
mod dispatch;
mod handover;
mod in_log;
mod members;
mod missing_subscriptions;
mod offline;
mod packets;
mod persist;
mod retained;
mod sending;
mod session;
mod session_cursors;
mod session_list;
mod shares;
pub mod state;
mod store;
mod suback;
mod subscribing;
mod takeover;
mod takeover_read;
mod wills;
mod written;

pub use changes::snapshot_timer;
pub use claims::{answered, heard, home_of, keep as handed_over, late, missed};
pub use client::{end, look_for_silence, notify_of_stop};
pub use delete_retry::retry_deletes;
pub use deliver::{deliver, keep_for_session, note_gap, squeeze, wants_replay};
pub use dispatch::{answer, answer_offline, receive, work};
pub use handover::{arrive, depart};
pub use in_log::rebuild as sessions_in_log;
pub use members::send_members;
pub use missing_subscriptions::retry_missing;
pub use offline::{deliver_offline, share_with_offline};
pub use packets::execute;
pub use retained::{go_on as read_retained, read_on, read_unread};
pub use sending::pump;
pub use session::{gone, timer as session_timer};
pub use session_cursors::learn_ends;
pub use session_list::{end_session, list_sessions};
pub use shares::share_queued;
pub use store::{StoreConfig, found_in, look as look_at_store};
pub use takeover_read::start_takeovers;
pub use written::written;
