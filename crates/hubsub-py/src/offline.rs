//! Verifies, reads and repairs a data directory that no node uses.

use hubsub_log::manifest::{HubEntry, Lost, Manifest};
use hubsub_log::record::{Record, decode_headers};
use hubsub_log::repair::{HubRepair, Repair};
use hubsub_log::show::Selection;
use hubsub_log::verify::{Progress, Verified};
use hubsub_log::{Disk, HubId, Kind, LogError, LogOptions};
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most records and bytes per list.
const BATCH_RECORDS: usize = 256;
const BATCH_BYTES: usize = 1 << 20;

/// Verifies a log: returns all problems and the contents of its hubs.
#[pyfunction]
pub fn log_verify<'py>(
    py: Python<'py>,
    directory: PathBuf,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let mut watcher = Watcher { progress, failed: None };
    let found = py.detach(|| {
        let disk = Disk::inspect(&directory).map_err(|e| cannot_open(&directory, &e))?;
        hubsub_log::verify::verify_watched(&disk, &mut |at| watcher.look(at)).map_err(raised)
    });
    verified(py, &watcher.outcome(found)?)
}

/// Returns a log's manifest without reading records.
#[pyfunction]
pub fn log_manifest(py: Python<'_>, directory: PathBuf) -> PyResult<Bound<'_, PyDict>> {
    let manifest = py.detach(|| {
        let disk = Disk::inspect(&directory).map_err(|e| cannot_open(&directory, &e))?;
        let missing = || LogError::Refused("there is no manifest.json".to_owned());
        Manifest::load(&disk).and_then(|manifest| manifest.ok_or_else(missing)).map_err(raised)
    })?;
    let hubs = manifest.hubs.iter().map(|entry| entry_of(py, entry)).collect::<PyResult<Vec<_>>>()?;
    Ok(dict!(
        py,
        format = manifest.format,
        identity = format!("{:016x}", manifest.identity),
        cluster = manifest.cluster,
        clean = manifest.clean.is_some(),
        checkpoint = manifest.checkpoint,
        journals = manifest.journals,
        hubs = hubs,
    ))
}

/// Passes the records of a log to `take`, in lists of up to 256 records or about 1 MiB of payloads.
///
/// Args:
///     directory: The data directory.
///     hub: Only this hub; None for all.
///     room: Only this room; None for all.
///     first: The first offset.
///     count: The most records; None for all.
///     take: Called with each list of dicts.
///
/// Returns:
///     Texts about parts that could not be read.
///
/// Raises:
///     OSError: If the directory or the log cannot be opened.
#[pyfunction]
pub fn log_show(
    py: Python<'_>,
    directory: PathBuf,
    hub: Option<u32>,
    room: Option<Vec<u8>>,
    first: u64,
    count: Option<u64>,
    take: Py<PyAny>,
) -> PyResult<Vec<String>> {
    let wanted = Selection { hub: hub.map(HubId), room, from: first, count: count.unwrap_or(u64::MAX) };
    let mut failed = None;
    let unread = py.detach(|| {
        let disk = Disk::inspect(&directory).map_err(|e| cannot_open(&directory, &e))?;
        let mut batch = Batch::default();
        let unread = hubsub_log::show::show(&disk, &wanted, &mut |record| {
            batch.push(record);
            if batch.is_full() { batch.hand_over(&take, &mut failed) } else { ControlFlow::Continue(()) }
        })
        .map_err(raised)?;
        let _ = batch.hand_over(&take, &mut failed);
        Ok(unread)
    });
    match failed {
        Some(e) => Err(e),
        None => unread,
    }
}

/// Repairs a log, or reports the effects of a repair.
///
/// Args:
///     directory: The data directory.
///     hub: Only this hub; None for all.
///     accept_loss: Whether to repair, which loses damaged records; False only reports.
///     progress: Called with bytes done and bytes in total, or None.
///
/// Returns:
///     A dict with the problems and, per hub, records kept and lost.
///
/// Raises:
///     OSError: If the directory is in use or the log cannot be repaired.
#[pyfunction]
pub fn log_repair<'py>(
    py: Python<'py>,
    directory: PathBuf,
    hub: Option<u32>,
    accept_loss: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let mut watcher = Watcher { progress, failed: None };
    let done = py.detach(|| {
        let disk = if accept_loss { Disk::lock(&directory) } else { Disk::inspect(&directory) };
        let disk = Arc::new(disk.map_err(|e| cannot_open(&directory, &e))?);
        let (options, hub) = (LogOptions::default(), hub.map(HubId));
        hubsub_log::repair::repair(&disk, options, hub, accept_loss, &mut |at| watcher.look(at))
            .map_err(raised)
    });
    repaired(py, &watcher.outcome(done)?)
}

/// Reports progress to Python and checks for signals.
struct Watcher {
    progress: Option<Py<PyAny>>,
    failed: Option<PyErr>,
}

impl Watcher {
    fn look(&mut self, Progress(done, all): Progress) -> ControlFlow<()> {
        let outcome = Python::attach(|py| {
            py.check_signals()?;
            self.progress.as_ref().map_or(Ok(()), |progress| progress.call1(py, (done, all)).map(drop))
        });
        match outcome {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => {
                self.failed = Some(e);
                ControlFlow::Break(())
            }
        }
    }

    fn outcome<T>(self, outcome: PyResult<T>) -> PyResult<T> {
        self.failed.map_or(outcome, Err)
    }
}

/// An owned copy of a record; a dict in Python.
#[derive(IntoPyObject)]
struct Row {
    hub: u32,
    offset: u64,
    term: u64,
    epoch: u64,
    seq: u64,
    timestamp_us: u64,
    kind: &'static str,
    producer: Option<u64>,
    sequence: Option<u64>,
    room: Vec<u8>,
    topic: Vec<u8>,
    publisher: String,
    headers: Headers,
    payload: Vec<u8>,
}

/// A dict in Python, in the order of the record.
struct Headers(Vec<(String, String)>);

impl<'py> IntoPyObject<'py> for Headers {
    type Target = PyDict;
    type Output = Bound<'py, PyDict>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.0.into_py_dict(py)
    }
}

#[derive(Default)]
struct Batch {
    rows: Vec<Row>,
    bytes: usize,
}

impl Batch {
    fn push(&mut self, record: &Record<'_>) {
        self.bytes += record.payload.len();
        let Record { hub, offset, term, epoch, seq, timestamp_us, .. } = *record;
        let is_numbered = record.producer != 0;
        let headers = decode_headers(record.headers).map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        self.rows.push(Row {
            hub: hub.0,
            offset,
            term,
            epoch,
            seq,
            timestamp_us,
            kind: match record.kind {
                Kind::Message => "message",
                Kind::RoomDeleted => "room deleted",
                Kind::Tombstone => "tombstone",
            },
            producer: is_numbered.then_some(record.producer),
            sequence: is_numbered.then_some(record.producer_seq),
            room: record.room.to_vec(),
            topic: record.topic.to_vec(),
            publisher: String::from_utf8_lossy(record.publisher).into_owned(),
            headers: Headers(headers),
            payload: record.payload.to_vec(),
        });
    }

    fn is_full(&self) -> bool {
        self.rows.len() >= BATCH_RECORDS || self.bytes >= BATCH_BYTES
    }

    fn hand_over(&mut self, take: &Py<PyAny>, failed: &mut Option<PyErr>) -> ControlFlow<()> {
        let rows = std::mem::take(self).rows;
        if rows.is_empty() || failed.is_some() {
            return ControlFlow::Continue(());
        }
        let outcome = Python::attach(|py| {
            py.check_signals()?;
            take.call1(py, (rows,)).map(drop)
        });
        match outcome {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => {
                *failed = Some(e);
                ControlFlow::Break(())
            }
        }
    }
}

fn entry_of<'py>(py: Python<'py>, entry: &HubEntry) -> PyResult<Bound<'py, PyDict>> {
    Ok(dict!(
        py,
        hub = entry.hub.0,
        class = &entry.class,
        index = entry.index,
        segments = entry.segments.len(),
        bytes = entry.segments.iter().map(|s| s.1).sum::<u64>(),
        earliest = entry.earliest,
        next = entry.next,
        continuous_from = entry.continuous_from,
        lost = ranges(&entry.lost),
        quarantined = &entry.quarantined,
    ))
}

fn ranges(lost: &[Lost]) -> Vec<(u64, u64)> {
    lost.iter().map(|lost| (lost.0, lost.1)).collect()
}

fn verified<'py>(py: Python<'py>, found: &Verified) -> PyResult<Bound<'py, PyDict>> {
    let mut hubs = Vec::new();
    for hub in &found.hubs {
        let dict = entry_of(py, &hub.entry)?;
        dict.set_item("records", hub.records)?;
        dict.set_item("journal_records", hub.journal_records)?;
        dict.set_item("next", hub.next)?;
        dict.set_item("problems", &hub.problems)?;
        hubs.push(dict);
    }
    Ok(dict!(py, hubs = hubs, journal_records = found.journal_records, problems = &found.problems))
}

fn repaired<'py>(py: Python<'py>, done: &Repair) -> PyResult<Bound<'py, PyDict>> {
    let hub = |hub: &HubRepair| -> PyResult<Bound<'py, PyDict>> {
        Ok(dict!(
            py,
            hub = hub.hub.0,
            class = &hub.class,
            problems = &hub.problems,
            kept = hub.kept.0,
            kept_from_journals = hub.kept.1,
            lost = ranges(&hub.lost),
            unknown_from = hub.unknown_from,
            earliest = hub.earliest,
            next = hub.next,
            set_aside = &hub.set_aside,
        ))
    };
    Ok(dict!(
        py,
        hubs = done.hubs.iter().map(hub).collect::<PyResult<Vec<_>>>()?,
        problems = &done.problems,
        manifest = &done.manifest,
        done = done.is_done,
        left = &done.left,
    ))
}

fn cannot_open(directory: &Path, e: &std::io::Error) -> PyErr {
    let directory = directory.display();
    let text = match e.kind() {
        ErrorKind::WouldBlock => format!("a node uses the data directory: {directory}; hint: stop it first"),
        _ => format!("cannot open the data directory {directory}: {e}"),
    };
    PyOSError::new_err((0, text))
}

fn raised(e: LogError) -> PyErr {
    match e {
        // The callback that stopped it has raised the error.
        LogError::Stopped => PyRuntimeError::new_err("stopped"),
        e => PyOSError::new_err((0, e.to_string())),
    }
}
