//! Start of the shards: their sockets, and the body of their threads.

use super::NotStarted;
use crate::context::Ctx;
use crate::context::events::Event;
use crate::context::io::Io;
use crate::context::mail::Mail;
use crate::context::states::Handles;
use crate::io::inbox::{Inboxes, Mailer};
use crate::io::listener::{self, Listener, ListenerKind};
use crate::io::log_lines::Level;
use crate::io::node_info::NodeInfo;
use crate::shard::{HOOKS, Shard};
use hubsub_route::{Broker, Now, Settings};
use mio::Poll;
use mio::net::TcpListener;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

/// Binds a listening socket per shard if there is an address.
pub(super) fn bind_shards(
    address: Option<SocketAddr>,
    shards: u16,
) -> Result<(Option<SocketAddr>, Vec<Option<TcpListener>>), NotStarted> {
    let Some(address) = address else { return Ok((None, (0..shards).map(|_| None).collect())) };
    let (bound, sockets) =
        listener::bind(address, shards).map_err(|error| NotStarted { error, address: Some(address) })?;
    Ok((Some(bound), sockets.into_iter().map(Some).collect()))
}

/// Binds a listener, if it is enabled, with one socket per shard.
pub(super) fn bind(
    address: Option<SocketAddr>,
    kind: ListenerKind,
    sockets: &mut [Vec<(ListenerKind, TcpListener)>],
) -> Result<Option<SocketAddr>, NotStarted> {
    let (bound, of_shards) = bind_shards(address, sockets.len() as u16)?;
    for (sockets, socket) in sockets.iter_mut().zip(of_shards) {
        sockets.extend(socket.map(|socket| (kind, socket)));
    }
    Ok(bound)
}

pub(super) fn run_shard(
    settings: Settings,
    ends: Handles,
    info: Arc<NodeInfo>,
    inboxes: Arc<Inboxes<Mail>>,
    poll: Poll,
    (listeners, link_socket): (Vec<Listener>, Option<TcpListener>),
) {
    let (shard, control, started) = (ends.shard, Arc::clone(&ends.control), info.started);
    let limits = settings.limits.clone();
    let body = || {
        let mailer = Mailer::new(shard, inboxes, limits.mailbox_bytes_max as usize);
        let mut io = Io::new(info, limits, Now::default(), mailer, ends);
        io.states.links.attach(poll.registry().try_clone()?, link_socket);
        Shard::new(Ctx { broker: Broker::new(settings), io, hooks: HOOKS }, poll, listeners, started).run()
    };
    let reason = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("panic").to_owned()
        }
    };
    let fields = vec![("shard", shard.0.to_string()), ("reason", reason.clone())];
    control.log(Level::Error, "shard failed", fields);
    control.tell(Event::Stopped(shard.0, Some(reason)));
}

/// Makes a random name for a run of a node.
pub(super) fn run_id() -> String {
    let random = || ahash::RandomState::new().hash_one(Instant::now());
    format!("{:016x}{:016x}{:08x}", random(), random(), random() as u32)
}
