//! The store as openraft's state machine: applies committed entries, and makes and installs snapshots. The
//! store is in memory; on disk are its last snapshot and the log after it.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::{Stream, TryStreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, RaftSnapshotBuilder};

use crate::log::Snapshots;
use crate::store::{Answer, Image, Store};
use crate::types::{LogId, NodeId, Peer, Snapshot, SnapshotMeta, State, StoredMembership, Types};

/// The store and its last applied entry, shared by all tasks of one thread.
#[derive(Clone)]
pub(crate) struct Machine {
    inner: Rc<RefCell<Inner>>,
    snapshots: Snapshots,
    /// Incremented with every applied batch; tasks that wait for a change of the store watch it.
    applied: tokio::sync::watch::Sender<u64>,
}

#[derive(Default)]
struct Inner {
    store: Store,
    last: Option<LogId>,
    membership: StoredMembership,
}

impl Machine {
    /// An empty store; openraft restores the snapshot and the log.
    pub fn new(snapshots: Snapshots) -> Self {
        Self { inner: Rc::default(), snapshots, applied: tokio::sync::watch::Sender::new(0) }
    }

    /// Calls `look` with the current store.
    pub fn with<T>(&self, look: impl FnOnce(&Store) -> T) -> T {
        look(&self.inner.borrow().store)
    }

    /// Address of a member, according to the applied membership.
    pub fn peer(&self, node: NodeId) -> Option<Peer> {
        self.inner.borrow().membership.get_node(&node).cloned()
    }

    /// Receives a value for each change of the store.
    pub fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.applied.subscribe()
    }

    fn notify(&self) {
        self.applied.send_modify(|batches| *batches += 1);
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotData = State;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let inner = self.inner.borrow();
        Ok((inner.last, inner.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let mut inner = self.inner.borrow_mut();
            inner.last = Some(entry.log_id);
            let answer = match &entry.payload {
                EntryPayload::Blank => Answer::Nothing,
                EntryPayload::Normal(command) => inner.store.apply(command),
                EntryPayload::Membership(membership) => {
                    inner.membership = StoredMembership::new(Some(entry.log_id), membership.clone());
                    Answer::Nothing
                }
            };
            if let Some(responder) = responder {
                responder.send(answer);
            }
        }
        self.notify();
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let inner = self.inner.borrow();
        let meta = SnapshotMeta { last_log_id: inner.last, last_membership: inner.membership.clone() };
        Builder { snapshots: self.snapshots.clone(), meta, image: Some(inner.store.image()) }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, state: State) -> Result<(), io::Error> {
        let store = Store::decode(&state).map_err(io::Error::other)?;
        self.snapshots.save("installed", meta, state).await?;
        *self.inner.borrow_mut() =
            Inner { store, last: meta.last_log_id, membership: meta.last_membership.clone() };
        self.notify();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        Ok(self.snapshots.load()?)
    }
}

/// Builds a snapshot of the state at the time of the request, off the thread that handles elections.
pub(crate) struct Builder {
    snapshots: Snapshots,
    meta: SnapshotMeta,
    image: Option<Image>,
}

impl RaftSnapshotBuilder<Types> for Builder {
    type SnapshotData = State;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let image = self.image.take().ok_or_else(|| io::Error::other("a builder makes one snapshot"))?;
        let state = Arc::new(tokio::task::spawn_blocking(move || image.encode()).await?);
        self.snapshots.save("built", &self.meta, state.clone()).await?;
        Ok(Snapshot { meta: self.meta.clone(), snapshot: state })
    }
}
