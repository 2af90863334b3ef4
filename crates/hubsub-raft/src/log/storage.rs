//! Adapts the log to openraft. An append syncs before it returns: openraft merges entries that arrive
//! meanwhile into the next append, so many writers share one sync.

use std::cell::RefCell;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use std::path::Path;
use std::rc::Rc;

use openraft::RaftLogReader;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};

use super::{Log, LogError};
use crate::limits::APPEND_BYTES_MAX;
use crate::types::{Entry, LogId, Types, Vote};

/// The log, shared by openraft's tasks on one thread.
#[derive(Clone)]
pub(crate) struct LogStorage(Rc<RefCell<Log>>);

impl LogStorage {
    pub fn open(directory: &Path) -> Result<Self, LogError> {
        Ok(Self(Rc::new(RefCell::new(Log::open(directory)?))))
    }

    pub fn bytes(&self) -> u64 {
        self.0.borrow().bytes()
    }
}

impl RaftLogReader<Types> for LogStorage {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> Result<Vec<Entry>, io::Error>
    where
        RB: RangeBounds<u64> + Clone + Debug,
    {
        Ok(self.0.borrow().read(plain(&range), usize::MAX)?)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        Ok(self.0.borrow().read(start..end, APPEND_BYTES_MAX)?)
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.0.borrow().vote())
    }
}

impl RaftLogStorage<Types> for LogStorage {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, io::Error> {
        let log = self.0.borrow();
        Ok(LogState { last_purged_log_id: log.purged(), last_log_id: log.last() })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        Ok(self.0.borrow_mut().save_vote(*vote)?)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry>,
    {
        self.0.borrow_mut().append(entries)?;
        callback.io_completed(Ok(()));
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        Ok(self.0.borrow_mut().truncate_after(last.map(|id| id.index()))?)
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), io::Error> {
        Ok(self.0.borrow_mut().purge(upto)?)
    }
}

fn plain(range: &impl RangeBounds<u64>) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start + 1,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(end) => end + 1,
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    start..end
}
