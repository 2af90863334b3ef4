//! Sessions in a file of the node: [`Disk`], on redb.
//!
//! | table | key | value |
//! |---|---|---|
//! | `format` | – | version of this layout |
//! | `heads` | id | number of the last entry; count and bytes of the stored entries |
//! | `snapshots` | id | snapshot |
//! | `entries` | id, number | entry |
//!
//! Invariants: a batch is one transaction and one sync; if that fails, nothing of it is stored. A file gets
//! its name after its layout is complete. After a failure the file is reopened for the next batch: a full
//! disk may have space by then.

use crate::{Answer, Limits, PAGE_BYTES, Request, SessionStore, StoreError, check};
use redb::{
    Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError, Table, TableDefinition,
};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::mem::ManuallyDrop;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

const FORMAT: TableDefinition<(), u32> = TableDefinition::new("format");
const HEADS: TableDefinition<&str, Head> = TableDefinition::new("heads");
const SNAPSHOTS: TableDefinition<&str, &[u8]> = TableDefinition::new("snapshots");
const ENTRIES: TableDefinition<(&str, u64), &[u8]> = TableDefinition::new("entries");

const VERSION: u32 = 1;

/// Number of the last entry; count and bytes of the stored entries.
type Head = (u64, u64, u64);

/// Page cache of the file: reads mostly hit the latest writes.
const CACHE_BYTES: usize = 32 << 20;

/// A session store in one file.
pub struct Disk {
    path: PathBuf,
    limits: Limits,
    database: State,
    was_repaired: bool,
}

enum State {
    Open(Database),
    /// After a failure; the next batch reopens the file.
    Closed,
    /// Found damaged, for good.
    Damaged(StoreError),
}

impl Disk {
    /// Opens or creates the file and reads all of it, so that damage is found now.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::NewerFormat`]; [`StoreError::Failed`] if the disk fails or
    /// another process has it open.
    pub fn open(path: &Path, limits: Limits) -> Result<Disk, StoreError> {
        let is_new = matches!(fs::metadata(path), Err(e) if e.kind() == ErrorKind::NotFound);
        if is_new {
            make(path)?;
        }
        // A damaged file cannot be closed, either, so it is leaked.
        let mut database = ManuallyDrop::new(open(path)?);
        let is_whole = guarded(path, || database.check_integrity())?;
        let database = State::Open(ManuallyDrop::into_inner(database));
        Ok(Disk { path: path.to_owned(), limits, database, was_repaired: !is_whole })
    }

    /// Whether the file was damaged and repaired, at the cost of the latest writes.
    pub fn was_repaired(&self) -> bool {
        self.was_repaired
    }

    fn batch(&mut self, requests: &[Request]) -> Result<Vec<Result<Answer, StoreError>>, StoreError> {
        // Restored only after success.
        let database = match std::mem::replace(&mut self.database, State::Closed) {
            State::Open(database) => database,
            State::Closed => open(&self.path)?,
            State::Damaged(error) => {
                self.database = State::Damaged(error.clone());
                return Err(error);
            }
        };
        let database = ManuallyDrop::new(database);
        let is_read = |request: &Request| matches!(request, Request::Load { .. } | Request::List { .. });
        let run = || match requests.iter().all(is_read) {
            true => read(&database, requests),
            false => write(&database, &self.limits, requests),
        };
        let Ok(answers) = catch_unwind(AssertUnwindSafe(run)) else {
            let error = damaged(&self.path, NOT_WRITTEN);
            self.database = State::Damaged(error.clone());
            return Err(error);
        };
        let database = ManuallyDrop::into_inner(database);
        let answers = answers.map_err(|e| store_error(&self.path, &e))?;
        self.database = State::Open(database);
        Ok(answers)
    }
}

impl SessionStore for Disk {
    fn carry_out(&mut self, requests: &[Request]) -> Vec<Result<Answer, StoreError>> {
        let answers = self.batch(requests);
        answers.unwrap_or_else(|error| requests.iter().map(|_| Err(error.clone())).collect())
    }
}

/// Reason for a file on which redb panics.
const NOT_WRITTEN: &str = "its pages are not what was written";

/// Creates a file with its layout; it gets its name once it is complete.
fn make(path: &Path) -> Result<(), StoreError> {
    let unnamed = path.with_extension("new");
    let failed = |e: io::Error| StoreError::Failed(format!("cannot make {}: {e}", path.display()));
    match fs::remove_file(&unnamed) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    let lay_out = || -> Result<(), redb::Error> {
        let database = Database::create(&unnamed)?;
        let transaction = database.begin_write()?;
        transaction.open_table(FORMAT)?.insert((), VERSION)?;
        transaction.open_table(HEADS)?;
        transaction.open_table(SNAPSHOTS)?;
        transaction.open_table(ENTRIES)?;
        Ok(transaction.commit()?)
    };
    lay_out().map_err(|e| store_error(&unnamed, &e))?;
    fs::rename(&unnamed, path).map_err(failed)?;
    // A relative name without a directory is in the working directory.
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new("."))).and_then(|directory| directory.sync_all()).map_err(failed)
}

fn open(path: &Path) -> Result<Database, StoreError> {
    let database = guarded(path, || Builder::new().set_cache_size(CACHE_BYTES).open(path))?;
    let found = || -> Result<Option<u32>, redb::Error> {
        Ok(database.begin_read()?.open_table(FORMAT)?.get(())?.map(|version| version.value()))
    };
    match found().map_err(|e| store_error(path, &e))? {
        Some(VERSION) => Ok(database),
        Some(found) if found > VERSION => {
            Err(StoreError::NewerFormat { path: path.display().to_string(), found, known: VERSION })
        }
        _ => Err(damaged(path, "its format is not stated")),
    }
}

/// Turns redb's errors and its panics on a damaged file into [`StoreError`].
fn guarded<T>(path: &Path, run: impl FnOnce() -> Result<T, DatabaseError>) -> Result<T, StoreError> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(opened)) => Ok(opened),
        // redb returns these for a file in another format or a truncated one.
        Ok(Err(DatabaseError::Storage(StorageError::Io(e))))
            if matches!(e.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof) =>
        {
            Err(damaged(path, "it is not a file of sessions"))
        }
        Ok(Err(e)) => Err(store_error(path, &e.into())),
        Err(_) => Err(damaged(path, NOT_WRITTEN)),
    }
}

fn damaged(path: &Path, why: &str) -> StoreError {
    StoreError::Damaged { path: path.display().to_string(), why: why.to_owned() }
}

fn store_error(path: &Path, error: &redb::Error) -> StoreError {
    match error {
        redb::Error::Corrupted(why) => damaged(path, why),
        redb::Error::TableDoesNotExist(table) => damaged(path, &format!("it has no table {table}")),
        redb::Error::DatabaseAlreadyOpen => {
            StoreError::Failed(format!("another process uses {}", path.display()))
        }
        e => StoreError::Failed(format!("{}: {e}", path.display())),
    }
}

fn read(database: &Database, requests: &[Request]) -> Result<Vec<Result<Answer, StoreError>>, redb::Error> {
    let transaction = database.begin_read()?;
    let heads = transaction.open_table(HEADS)?;
    let snapshots = transaction.open_table(SNAPSHOTS)?;
    let entries = transaction.open_table(ENTRIES)?;
    let mut answers = Vec::with_capacity(requests.len());
    for request in requests {
        answers.push(match (check(request), request) {
            (Err(refused), _) => Err(refused),
            (Ok(()), Request::Load { id }) => Ok(load(&heads, &snapshots, &entries, id)?),
            (Ok(()), Request::List { after, max }) => Ok(list(&snapshots, after.as_deref(), *max)?),
            (Ok(()), _) => unreachable!("a batch with changes is written"),
        });
    }
    Ok(answers)
}

fn write(
    database: &Database,
    limits: &Limits,
    requests: &[Request],
) -> Result<Vec<Result<Answer, StoreError>>, redb::Error> {
    let transaction = database.begin_write()?;
    let mut tables = Tables {
        heads: transaction.open_table(HEADS)?,
        snapshots: transaction.open_table(SNAPSHOTS)?,
        entries: transaction.open_table(ENTRIES)?,
    };
    let mut answers = Vec::with_capacity(requests.len());
    for request in requests {
        answers.push(match check(request) {
            Ok(()) => tables.carry_out(request, limits)?,
            Err(refused) => Err(refused),
        });
    }
    drop(tables);
    transaction.commit()?;
    Ok(answers)
}

struct Tables<'a> {
    heads: Table<'a, &'static str, Head>,
    snapshots: Table<'a, &'static str, &'static [u8]>,
    entries: Table<'a, (&'static str, u64), &'static [u8]>,
}

impl Tables<'_> {
    fn carry_out(
        &mut self,
        request: &Request,
        limits: &Limits,
    ) -> Result<Result<Answer, StoreError>, redb::Error> {
        Ok(match request {
            Request::Save { id, snapshot, through, entries } => {
                Ok(self.save(id, snapshot, *through, entries)?)
            }
            Request::Update { id, snapshot, last, through } => self.update(id, snapshot, *last, *through)?,
            Request::Append { id, entry } => self.append(id, entry, limits)?,
            Request::Load { id } => Ok(load(&self.heads, &self.snapshots, &self.entries, id)?),
            Request::List { after, max } => Ok(list(&self.snapshots, after.as_deref(), *max)?),
            Request::End { id, begins_with } => Ok(self.end(id, begins_with)?),
        })
    }

    fn head(&self, id: &str) -> Result<Option<Head>, redb::Error> {
        Ok(self.heads.get(id)?.map(|head| head.value()))
    }

    fn save(
        &mut self,
        id: &str,
        snapshot: &[u8],
        through: u64,
        entries: &[Vec<u8>],
    ) -> Result<Answer, redb::Error> {
        let (last, count, _) = self.head(id)?.unwrap_or_default();
        self.remove(id, last - count + 1, last)?;
        let mut bytes = 0;
        for (number, entry) in (through + 1..).zip(entries) {
            self.entries.insert((id, number), &entry[..])?;
            bytes += entry.len() as u64;
        }
        let count = entries.len() as u64;
        self.heads.insert(id, (through + count, count, bytes))?;
        self.snapshots.insert(id, snapshot)?;
        Ok(Answer::Saved)
    }

    fn update(
        &mut self,
        id: &str,
        snapshot: &[u8],
        expected: u64,
        through: u64,
    ) -> Result<Result<Answer, StoreError>, redb::Error> {
        let Some((last, count, bytes)) = self.head(id)? else { return Ok(Err(StoreError::NoSession)) };
        if last != expected {
            return Ok(Err(StoreError::Gap { last }));
        }
        let removed = self.remove(id, last - count + 1, through.min(last))?;
        let count = last.saturating_sub(through).min(count);
        self.heads.insert(id, (last, count, bytes - removed))?;
        self.snapshots.insert(id, snapshot)?;
        Ok(Ok(Answer::Saved))
    }

    fn append(
        &mut self,
        id: &str,
        entry: &[u8],
        limits: &Limits,
    ) -> Result<Result<Answer, StoreError>, redb::Error> {
        let Some((last, count, bytes)) = self.head(id)? else { return Ok(Err(StoreError::NoSession)) };
        if let Err(refused) = limits.admit(count, bytes, entry) {
            return Ok(Err(refused));
        }
        self.entries.insert((id, last + 1), entry)?;
        self.heads.insert(id, (last + 1, count + 1, bytes + entry.len() as u64))?;
        Ok(Ok(Answer::Appended(last + 1)))
    }

    fn end(&mut self, id: &str, begins_with: &[u8]) -> Result<Answer, redb::Error> {
        let is_it = self.snapshots.get(id)?.is_some_and(|snapshot| snapshot.value().starts_with(begins_with));
        if let Some((last, count, _)) = self.head(id)?.filter(|_| is_it) {
            self.remove(id, last - count + 1, last)?;
            self.heads.remove(id)?;
            self.snapshots.remove(id)?;
        }
        Ok(Answer::Ended)
    }

    /// Removes existing entries of these numbers; returns their bytes.
    fn remove(&mut self, id: &str, first: u64, last: u64) -> Result<u64, redb::Error> {
        let mut bytes = 0;
        for number in first..=last {
            bytes += self.entries.remove((id, number))?.map_or(0, |entry| entry.value().len() as u64);
        }
        Ok(bytes)
    }
}

fn load(
    heads: &impl ReadableTable<&'static str, Head>,
    snapshots: &impl ReadableTable<&'static str, &'static [u8]>,
    entries: &impl ReadableTable<(&'static str, u64), &'static [u8]>,
    id: &str,
) -> Result<Answer, redb::Error> {
    let Some((last, count, _)) = heads.get(id)?.map(|head| head.value()) else {
        return Ok(Answer::Loaded { snapshot: None, entries: Vec::new() });
    };
    let snapshot = snapshots.get(id)?.map(|snapshot| snapshot.value().to_vec());
    let mut stored = Vec::with_capacity(count as usize);
    for item in entries.range((id, last - count + 1)..=(id, last))? {
        let (key, entry) = item?;
        stored.push((key.value().1, entry.value().to_vec()));
    }
    Ok(Answer::Loaded { snapshot, entries: stored })
}

fn list(
    snapshots: &impl ReadableTable<&'static str, &'static [u8]>,
    after: Option<&str>,
    max: usize,
) -> Result<Answer, redb::Error> {
    let start = after.map_or(Bound::Unbounded, Bound::Excluded);
    let (mut page, mut bytes) = (Vec::new(), 0);
    for item in snapshots.range::<&str>((start, Bound::Unbounded))?.take(max.max(1)) {
        let (id, snapshot) = item?;
        bytes += id.value().len() + snapshot.value().len();
        page.push((id.value().into(), snapshot.value().to_vec()));
        if bytes >= PAGE_BYTES {
            break;
        }
    }
    Ok(Answer::Listed(page))
}
