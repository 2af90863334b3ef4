//! Leader leases of ephemeral hubs: which node may lead which hub, and until when. They work between nodes
//! without Python and without the coordinator. Bytes, sockets, clocks and threads belong to the node; see
//! docs/adr/0013-a-cluster.md, "Leader leases of ephemeral hubs", and docs/cluster.md.
//!
//! - [`LeaderLeases`]: both sides below in one, driven by a node's I/O context
//! - [`Holder`]: each node: claims, deadline, giving up, extension without a controller
//! - [`Grantor`]: the controller's node: tables, grants, what is known about each process
//! - [`LeaseGate`]: the one atomic that shards check
//!
//! # Integration into a node
//!
//! One thread owns [`LeaderLeases`]: shard 0, whose links (link 0 of each peer) carry heartbeats with leader
//! leases and the frames LeadAsk and LeadGranted. `now` is that shard's monotonic clock in µs. A clock that
//! runs while the machine sleeps (`CLOCK_BOOTTIME`) is better, since a leader lease is as long as its clock
//! measures.
//!
//! | event | call |
//! |---|---|
//! | Ping on link 0 | `ping(peer, beat, now)` |
//! | Pong on link 0 | `pong(peer, stamp_us, beat, now)` |
//! | LeadAsk, LeadGranted | `request(peer, request, now)`, `granted(peer, grant, now)` |
//! | link 0 of a peer ended, for whatever reason | `gone(peer, now)` |
//! | a peer is suspected, or heard again | `suspects(node, yes)` |
//! | Python: hubs led by this process, by the watch | `routes(all of them, now)` |
//! | Python: `meta/voters` | `voters`, `names_voters` |
//! | Python: its own controller term and lease deadline; tables | `controller_term`, `resign`, `tables` |
//! | the roster: another process has the name of one that was heard | `forget(process)` |
//! | the roster: a process is no longer registered | `forget_left(process)`, until it is forgotten |
//! | Python wants to decide | `snapshot(now)` |
//! | a shard stopped leading a hub | `gave_up((hub, term), now)` |
//! | end of a turn with any of these; `wake_at()` has come | `poll(now)` |
//!
//! After each call, before more input is read, it takes `next_action()` until there is none:
//!
//! | action | what the I/O context does |
//! |---|---|
//! | `Request(process, request)` | sends LeadAsk on link 0 of that process; nothing without a link |
//! | `Grant(process, grant)` | sends LeadGranted the same way |
//! | `Report(beat)` | sets it as status of all links of shard 0, before it reads any of them again |
//! | `Began(hub, term)` | notifies the hub's shard; after `GiveUp` of the same term, no node led in between |
//! | `GiveUp(hub, term)` | notifies the hub's shard, after `Began`; `gave_up` follows when it has stopped |
//! | `Opened`, `Closed` | for logs and the control plane (`on_partition`); shards check the gate |
//!
//! A shard remembers the hubs that it was notified of (`Began` without `GiveUp`) and leads them in a turn
//! whose time has `gate.may_lead(now)`: one relaxed load per turn, nothing per message. That is enough,
//! because the deadline is not raised while a `GiveUp` is in flight. A hub that is no longer granted is
//! covered by the current leader lease; when that has ended, the gate does not open before each shard has
//! confirmed.
//!
//! # Invariants
//!
//! 1. A hub is led only if a watch delivered it, it was claimed, it was in the controller's table and it was
//!    granted.
//! 2. Every deadline is counted from before its request was sent, on the requester's own clock.
//! 3. A node reports "no controller" only between two acknowledgement numbers; a number is one unbroken
//!    period.
//! 4. The controller replaces no leader by time alone unless a majority is *known to have acknowledged it
//!    until* the end of the leader leases in request (`Peer::acknowledges_until_us`, by round trip). A recent
//!    message from a node is not enough: the node may have stopped acknowledging since, and have helped a
//!    leader to extend its lease.
//!
//! Not covered: two processes with one name at once, of which the earlier has lost the coordinator but not
//! its peers. The links' roster refuses this where it can see both.

mod acknowledgement;
mod gate;
mod grantor;
mod holder;
mod leases;
mod types;
mod voters;

pub use gate::LeaseGate;
pub use grantor::{Grantor, Peer, Snapshot, Tables};
pub use holder::Holder;
pub use leases::LeaderLeases;
pub use types::{Action, Beat, Grant, HubTerm, LeaseRequest, Process, Route, SUSPECTS_MAX, Timing};
pub use voters::Voters;
