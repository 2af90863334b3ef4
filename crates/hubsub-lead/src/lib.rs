//! Who may lead which ephemeral hub, and until when: what goes on between nodes without Python and without the
//! coordinator. Bytes, sockets, clocks and threads are the node's; see docs/adr/0013-a-cluster.md, "Leads of
//! ephemeral leaders", and docs/cluster.md.
//!
//! - [`Leads`]: what a node's rim drives: both sides below in one
//! - [`Holder`]: each node: claims, deadline, giving up, prolonging without a controller
//! - [`Grantor`]: the controller's node: tables, grants, what is known of each process
//! - [`LeadGate`]: the one atomic that shards look at
//!
//! # How a node places it
//!
//! One thread owns [`Leads`]: shard 0, whose links (link 0 of each peer) carry heartbeats with leads and the frames
//! LeadAsk and LeadGranted. `now` is that shard's monotonic clock in µs; one that goes on while the machine sleeps
//! (`CLOCK_BOOTTIME`) is better, since a lead is as long as its clock says.
//!
//! | event | call |
//! |---|---|
//! | Ping on link 0 | `ping(peer, beat, now)` |
//! | Pong on link 0 | `pong(peer, stamp_us, beat, now)` |
//! | LeadAsk, LeadGranted | `ask(peer, question, now)`, `answer(peer, grant, now)` |
//! | link 0 of a peer ended, for whatever reason | `gone(peer, now)` |
//! | a peer is suspected, or heard again | `suspects(node, yes)` |
//! | Python: hubs led by this process, by the watch | `routes(all of them, now)` |
//! | Python: `meta/census`; its own mandate and lease's deadline; tables | `census`, `mandate`, `resign`, `tables`, `names_census` |
//! | the roster: another process has the name of one that was heard | `forget(process)` |
//! | the roster: a process is registered no more | `forget_left(process)`, until it is forgotten |
//! | Python wants to decide | `snapshot(now)` |
//! | a shard stopped leading a hub | `gave_up((hub, term), now)` |
//! | end of a turn with any of these; `wake_at()` has come | `poll(now)` |
//!
//! After each call, before more input is read, it takes `next_action()` until there is none:
//!
//! | action | what the rim does |
//! |---|---|
//! | `Ask(process, question)` | LeadAsk on link 0 of that process; without a link nothing |
//! | `Answer(process, grant)` | LeadGranted, likewise |
//! | `Say(beat)` | sets it as status of all links of shard 0, before it reads any of them again |
//! | `Began(hub, term)` | tells the hub's shard. If the shard gave up the term just before, nobody led in between |
//! | `GiveUp(hub, term)` | tells the hub's shard, behind its `Began`; when the shard leads it no more: `gave_up` |
//! | `Opened`, `Closed` | for logs and for the control plane (`on_partition`); shards see it themselves, in the gate |
//!
//! A shard keeps the hubs it was told of (`Began` without `GiveUp`) and leads them in a turn whose time has
//! `gate.may_lead(now)`: one relaxed load a turn, nothing a message. That is enough, because the deadline is not raised
//! while a give-up is on its way: what was not granted any more is covered by the lead that runs, and when that has
//! ended the gate does not open before each shard has confirmed.
//!
//! # Invariants
//!
//! 1. Nothing is led but what a watch gave, was claimed, stood in the controller's table and was granted.
//! 2. Every deadline is counted from before its question, on the asker's own clock.
//! 3. A node says "no controller" only between two numbers of heeding; a number is one unbroken time.
//! 4. The controller replaces nobody by time alone unless a majority is *known to have heeded it until* the end of the
//!    leads in question (`Peer::heeds_until_us`, by round trip). That it was heard of late does not do: it may have
//!    stopped to heed since, and have helped a leader to prolong.
//!
//! What this does not defend against: two processes of one name at once, of which the earlier has lost the
//! coordinator but not its peers; the links' roster refuses it where it can see both.

mod census;
mod gate;
mod grantor;
mod heed;
mod holder;
mod leads;
mod types;

pub use census::Census;
pub use gate::LeadGate;
pub use grantor::{Grantor, Peer, Snapshot, Tables};
pub use holder::Holder;
pub use leads::Leads;
pub use types::{Action, Beat, Grant, HubTerm, Process, Question, Route, SUSPECTS_MAX, Timing};
