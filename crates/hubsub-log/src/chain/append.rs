//! Writes a chain: appends, seals, syncs, and applies retention.

use super::retention::{Retention, Span, Verdict};
use super::{Chain, ChainOptions, Open, Sealed, entry};
use crate::error::Context;
use crate::files::Part;
use crate::index::{self, Item, Run, RunBuilder, Sample};
use crate::manifest::SegmentEntry;
use crate::record::{self, Kind, Record};
use crate::rooms::{Last, RoomHash, RoomTable};
use crate::segment::{self, Name};
use crate::storage::{Storage, StorageFile};
use crate::{LogError, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Longer batches are not copied, and a longer buffer is freed after the write.
const LONG_BYTES: usize = 1 << 20;

pub struct Appender<S: Storage> {
    pub chain: Arc<Chain<S>>,
    options: ChainOptions,
    file: Arc<S::File>,
    /// Whether `file` has unsynced bytes.
    is_dirty: bool,
    unsynced: Vec<Arc<S::File>>,
    pending: Vec<u8>,
    /// Offset of the record after `pending`.
    next: u64,
}

impl<S: Storage> Appender<S> {
    pub(super) fn new(chain: Arc<Chain<S>>, options: ChainOptions, file: Arc<S::File>) -> Appender<S> {
        let next = chain.read_state().open.next;
        Appender { chain, options, file, is_dirty: true, unsynced: Vec::new(), pending: Vec::new(), next }
    }

    /// Appends whole records, up to offset `next` - 1, to `pending`; `flush` writes them.
    pub fn push(&mut self, records: &[u8], next: u64) {
        self.pending.extend_from_slice(records);
        self.next = next;
    }

    /// As `push`, without a copy if the records are long and `pending` is empty.
    pub fn push_owned(&mut self, records: Vec<u8>, next: u64) {
        if records.len() > LONG_BYTES && self.pending.is_empty() {
            (self.pending, self.next) = (records, next);
        } else {
            self.push(&records, next);
        }
    }

    pub fn next(&self) -> u64 {
        self.next
    }

    pub fn pending_bytes(&self) -> usize {
        self.pending.len()
    }

    /// Writes the pushed records, as far as possible.
    ///
    /// # Errors
    /// [`LogError::Full`]: the rest is retained for a retry. Others: the same, but a retry is unlikely to
    /// succeed.
    pub fn flush(&mut self) -> Result<()> {
        let mut done = 0;
        let outcome = self.flush_counting(&mut done);
        self.chain.flush_names();
        self.pending.drain(..done);
        if self.pending.is_empty() && self.pending.capacity() > LONG_BYTES {
            self.pending = Vec::new();
        }
        outcome
    }

    fn flush_counting(&mut self, done: &mut usize) -> Result<()> {
        while *done < self.pending.len() {
            let end = self.chain.read_state().open.end;
            if end >= self.options.segment_bytes {
                self.seal()?;
                continue;
            }
            let n = self.part(*done, end);
            let part = &self.pending[*done..*done + n];
            self.file.write_all_at(part, end).storage("cannot write a segment")?;
            self.is_dirty = true;
            let is_run_full = self.chain.written(part, self.options.run_bytes);
            *done += n;
            if is_run_full {
                let (from, to) = {
                    let open = &self.chain.read_state().open;
                    (open.run_start, open.end)
                };
                // Start the write-back now; a checkpoint with all of it would delay the journal's syncs.
                self.file.begin_sync(from, to);
                self.write_run()?;
            }
        }
        Ok(())
    }

    /// Bytes of the whole records from `from` on that fit into the open segment and its current run: at least
    /// one record.
    fn part(&self, from: usize, end: u64) -> usize {
        let run_start = self.chain.read_state().open.run_start;
        let room = self.options.segment_bytes.saturating_sub(end);
        let room = room.min((run_start + self.options.run_bytes).saturating_sub(end)) as usize;
        let mut n = 0;
        while from + n < self.pending.len() {
            let len = record::len(&self.pending[from + n..]).expect("whole records were pushed");
            n += len;
            if n >= room {
                break;
            }
        }
        n
    }

    /// Writes the run in memory to the runs file of the open segment.
    fn write_run(&mut self) -> Result<()> {
        // No lock is held during disk I/O: until the run is in the file, readers use the one in memory, to
        // which only this thread adds.
        let (name, at, bytes) = {
            let open = &self.chain.read_state().open;
            (open.name, open.runs_bytes, open.run.encode())
        };
        let Some(run) = self.chain.store_run(name, at, bytes)? else { return Ok(()) };
        self.chain.write_state().open.took_run(run);
        Ok(())
    }

    fn seal(&mut self) -> Result<()> {
        self.write_run()?;
        let chain = Arc::clone(&self.chain);
        let (name, next, runs) = {
            let open = &chain.read_state().open;
            (open.name, open.next, open.runs.clone())
        };
        let merged = index::merge(&*chain.file(name, Part::Runs)?, &runs).io("cannot read an index")?;
        let index = chain.store_index(name, &merged)?;
        let file = create(&chain, Name::written(next))?;
        let mut state = chain.write_state();
        let Open { end, first_us, last_us, .. } = state.open;
        state.sealed.push(Sealed { name, bytes: end, first_us, index });
        state.changes += 1;
        state.open = Open { last_us, ..Open::at(Name::written(next)) };
        drop(state);
        chain.unlink(name, Part::Runs);
        let old = std::mem::replace(&mut self.file, file);
        if std::mem::replace(&mut self.is_dirty, true) {
            self.unsynced.push(old);
        }
        Ok(())
    }

    /// Makes all flushed records safe.
    ///
    /// # Errors
    /// It is unknown which bytes reached the disk.
    pub fn sync(&mut self) -> Result<()> {
        let sync = |file: &S::File| file.sync().io("cannot sync a segment");
        if !self.unsynced.is_empty() || self.is_dirty {
            let directory = segment::directory(self.chain.hub);
            let storage = self.chain.files.storage();
            storage.sync_directory(&directory).io("cannot sync a directory")?;
        }
        self.unsynced.iter().try_for_each(|file| sync(file))?;
        self.unsynced.clear();
        if self.is_dirty {
            sync(&self.file)?;
            self.is_dirty = false;
        }
        self.chain.sync_names();
        Ok(())
    }

    /// The segments for the manifest, the next offset and the earliest offset.
    pub fn entries(&self) -> (Vec<SegmentEntry>, u64, u64) {
        let state = self.chain.read_state();
        let open = entry(state.open.name, state.open.end);
        let segments = state.sealed.iter().map(Sealed::entry).chain([open]).collect();
        (segments, state.open.next, state.earliest)
    }

    /// Removes segments that exceed the limits and are below `hold` (an offset that is still needed) from the
    /// chain. Returns these segments, whose files may be removed once the manifest no longer lists them, and
    /// the verdict.
    pub fn retire(&mut self, retention: Retention, now_us: u64, hold: u64) -> (Vec<Name>, Verdict) {
        let mut state = self.chain.write_state();
        let bytes: u64 = state.sealed.iter().map(|s| s.bytes).sum::<u64>() + state.open.end;
        let nexts = state.sealed.iter().skip(1).map(|s| (s.name.first, s.first_us));
        let nexts = nexts.chain([(state.open.name.first, state.open.first_us)]);
        let spans = state.sealed.iter().zip(nexts).map(|(segment, (end, last_us))| Span {
            first: segment.name.first,
            end,
            last_us,
            bytes: segment.bytes,
        });
        let verdict = retention.verdict(spans, bytes, now_us, hold);
        let retired: Vec<Name> = state.sealed.drain(..verdict.gone).map(|s| s.name).collect();
        if !retired.is_empty() {
            state.earliest = state.sealed.first().map_or(state.open.name.first, |s| s.name.first);
            state.changes += 1;
        }
        let earliest = state.earliest;
        drop(state);
        if !retired.is_empty() {
            self.chain.rooms.remove_below(earliest);
        }
        (retired, verdict)
    }

    pub fn unlink(&self, retired: &[Name]) {
        retired.iter().for_each(|&name| self.chain.unlink_segment(name));
    }
}

impl<S: Storage> Chain<S> {
    /// Indexes records that were appended; returns whether the run in memory has its full length.
    fn written(&self, records: &[u8], run_bytes: u64) -> bool {
        let mut state = self.write_state();
        let open = &mut state.open;
        for (record, bytes) in record::all(records) {
            if note(self.identity, &self.rooms, open, &record, open.end) {
                self.names.push(record.room);
            }
            open.end += bytes.len() as u64;
        }
        self.next.store(open.next, Ordering::Release);
        open.end - open.run_start >= run_bytes
    }

    /// Writes a segment's run in memory to its runs file.
    pub(super) fn write_run(&self, open: &mut Open) -> Result<()> {
        if let Some(run) = self.store_run(open.name, open.runs_bytes, open.run.encode())? {
            open.took_run(run);
        }
        Ok(())
    }

    /// Writes an encoded run at a position of the runs file; none if it is empty.
    fn store_run(&self, name: Name, at: u64, bytes: Vec<u8>) -> Result<Option<Run>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let file = self.file(name, Part::Runs)?;
        let written = file.write_all_at(&bytes, at).and_then(|()| Run::open(&*file, at));
        written.map(Some).storage("cannot write an index")
    }
}

/// Indexes one record at a position of an open segment. Returns whether its room is new to the table.
pub(super) fn note(
    identity: u64,
    rooms: &RoomTable,
    open: &mut Open,
    record: &Record<'_>,
    position: u64,
) -> bool {
    let room = RoomHash::new(identity, record.room);
    let position = position as u32;
    let Record { offset, epoch, seq, timestamp_us, .. } = *record;
    let mut is_new = false;
    let item = match record.kind {
        Kind::Message | Kind::Tombstone => {
            let before = rooms.set(room, Last { epoch, seq, offset });
            is_new = before.is_none();
            Some(Item { room, epoch, seq, offset, prev: before.unwrap_or(0), position })
        }
        Kind::RoomDeleted => {
            rooms.remove(room);
            open.run.delete(room);
            None
        }
    };
    open.run.push(Sample { offset, timestamp_us, position }, item);
    if open.next == open.name.first {
        open.first_us = timestamp_us;
    }
    open.last_us = timestamp_us;
    open.next = offset + 1;
    is_new
}

impl Open {
    /// Drops the run in memory after it was written to the file.
    fn took_run(&mut self, run: Run) {
        self.runs.push(run);
        self.run = RunBuilder::default();
        self.runs_bytes += run.bytes();
        self.run_start = self.end;
    }

    pub(super) fn at(name: Name) -> Open {
        Open {
            name,
            next: name.first,
            end: segment::HEAD_BYTES,
            run_start: segment::HEAD_BYTES,
            ..Open::default()
        }
    }
}

/// Creates the files of a new segment. Existing files of that name are left from before a crash, after the
/// last checkpoint.
pub(super) fn create<S: Storage>(chain: &Chain<S>, name: Name) -> Result<Arc<S::File>> {
    let create = |part| {
        chain.unlink(name, part);
        chain.files.storage().create(&segment::path(chain.hub, name, part))
    };
    let cannot = |e| LogError::storage("cannot make a segment", e);
    create(Part::Runs).map_err(cannot)?;
    let file = create(Part::Segment).map_err(cannot)?;
    file.write_all_at(&segment::head(chain.identity, chain.hub, name, 0), 0).map_err(cannot)?;
    Ok(Arc::new(file))
}
