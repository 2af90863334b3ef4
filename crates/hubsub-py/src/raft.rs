//! The class `Coordinator`: a node of the embedded coordinator, driven by the control plane.
//!
//! Requests carry a ticket and return at once; `drain` returns replies after `wake_fd` became readable.

use std::collections::HashMap;
use std::io::{Read, Write as _};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hubsub_raft::error::Error;
use hubsub_raft::handle::{Handle, Request, Response, Start};
use hubsub_raft::node::{Options, StartError, Status};
use hubsub_raft::store::{Answer, Command, Cursor, Expect, Item, LeaseId, Write};
use hubsub_raft::tcp::Gate;
use hubsub_raft::types::Peer;
use hubsub_wire::link::Secret;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

/// Labels of the two sides of a connection. They differ from those of links, so a proof for one is invalid
/// for the other.
const CALLER: &str = "hubsub coordinator 1 caller\0";
const CALLED: &str = "hubsub coordinator 1 called\0";

/// The cluster's secret, which links use too.
#[derive(Clone)]
struct Proof(Secret);

impl Gate for Proof {
    fn prove(&self, greetings: &[u8], caller: bool) -> Vec<u8> {
        self.0.prove(if caller { CALLER } else { CALLED }, greetings).to_vec()
    }

    fn admits(&self, greetings: &[u8], caller: bool, proof: &[u8]) -> bool {
        self.0.is_proved(if caller { CALLER } else { CALLED }, greetings, proof)
    }
}

/// A node of the embedded coordinator, on its own thread.
#[pyclass(frozen, module = "hubsub._core")]
pub struct Coordinator {
    handle: Handle,
    wake: Arc<UnixStream>,
    woken: UnixStream,
    /// The process that created it: threads do not survive a fork.
    pid: u32,
}

/// The arguments of `Coordinator`, by dictionary key.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Setup {
    directory: PathBuf,
    node: String,
    listen: String,
    advertise: Option<String>,
    join: Vec<String>,
    join_ms: u64,
    secret: Vec<u8>,
    voters_max: usize,
    request_ms: u64,
    away_ms: u64,
    detours: HashMap<String, String>,
}

type Writes = Vec<(String, Option<Vec<u8>>, Option<u64>)>;

#[pymethods]
impl Coordinator {
    #[new]
    fn new(py: Python<'_>, setup: Setup) -> PyResult<Coordinator> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let wake = Arc::new(wake);
        let handle = py.detach(|| start(setup, wake.clone()))?;
        Ok(Coordinator { handle, wake, woken, pid: std::process::id() })
    }

    fn wake_fd(&self) -> i32 {
        self.woken.as_raw_fd()
    }

    fn drain<'py>(&self, py: Python<'py>, answers_max: usize) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let mut bytes = [0; 64];
        while matches!((&self.woken).read(&mut bytes), Ok(n) if n > 0) {}
        let answers = self.handle.drain(answers_max, Duration::ZERO);
        if answers.len() == answers_max {
            wake(&self.wake);
        }
        answers.into_iter().map(|(ticket, answer)| event(py, ticket, answer)).collect()
    }

    fn failed(&self) -> Option<&str> {
        self.handle.failed()
    }

    fn get(&self, ticket: u64, key: String) -> PyResult<()> {
        self.submit(ticket, Request::Get { key })
    }

    fn page(&self, ticket: u64, directory: String, after: Option<String>, limit: usize) -> PyResult<()> {
        self.submit(ticket, Request::Page { directory, after, limit })
    }

    fn commit(&self, ticket: u64, expect: Vec<(String, u64)>, writes: Writes) -> PyResult<()> {
        let expect = expect.into_iter().map(|(key, revision)| Expect { key, revision }).collect();
        let write = |(key, value, lease): (String, Option<Vec<u8>>, Option<u64>)| match value {
            Some(value) => Write::Put { key, value: value.as_slice().into(), lease: lease.map(LeaseId) },
            None => Write::Delete { key },
        };
        let writes = writes.into_iter().map(write).collect();
        self.submit(ticket, Request::Propose(Command::Commit { expect, writes }))
    }

    fn grant(&self, ticket: u64, ttl_ms: u32) -> PyResult<()> {
        self.submit(ticket, Request::Propose(Command::Grant { ttl_ms }))
    }

    fn renew(&self, ticket: u64, lease: u64) -> PyResult<()> {
        self.submit(ticket, Request::Renew(LeaseId(lease)))
    }

    fn release(&self, ticket: u64, lease: u64) -> PyResult<()> {
        self.submit(ticket, Request::Propose(Command::Release(LeaseId(lease))))
    }

    fn watch(
        &self,
        ticket: u64,
        directory: String,
        cursor: Option<(u64, Option<String>)>,
        wait_ms: u64,
    ) -> PyResult<()> {
        let cursor = cursor.map(|(version, after)| Cursor { version, after });
        self.submit(ticket, Request::Watch { directory, cursor, wait: Duration::from_millis(wait_ms) })
    }

    fn leave(&self, ticket: u64, node: u64) -> PyResult<()> {
        self.submit(ticket, Request::Leave(node))
    }

    fn status(&self, ticket: u64) -> PyResult<()> {
        self.submit(ticket, Request::Status)
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process()?;
        py.detach(|| self.handle.stop());
        Ok(())
    }
}

impl Drop for Coordinator {
    /// Stops the node if its owner abandoned it.
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            self.handle.stop();
        }
    }
}

impl Coordinator {
    fn submit(&self, ticket: u64, request: Request) -> PyResult<()> {
        self.check_process()?;
        self.handle.submit(ticket, request).map_err(|refusal| refused(refusal.code(), &refusal))
    }

    fn check_process(&self) -> PyResult<()> {
        if self.pid == std::process::id() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(
            "a coordinator does not survive a fork: its thread runs in the parent process",
        ))
    }
}

fn wake(mut stream: &UnixStream) {
    // If the pipe is full it is readable already, which suffices.
    let _ = stream.write(&[1]);
}

fn start(setup: Setup, waker: Arc<UnixStream>) -> PyResult<Handle> {
    let listener = TcpListener::bind(&setup.listen).map_err(|error| {
        PyOSError::new_err((error.raw_os_error().unwrap_or(0), error.to_string(), setup.listen.clone()))
    })?;
    let bound = listener.local_addr()?;
    let address = match setup.advertise {
        Some(host) if host.contains(':') => format!("[{host}]:{}", bound.port()),
        Some(host) => format!("{host}:{}", bound.port()),
        None => bound.to_string(),
    };
    let mut options = Options::new(setup.directory, Peer { name: setup.node, address });
    options.voters_max = setup.voters_max;
    options.timing.request = Duration::from_millis(setup.request_ms);
    options.timing.away = Duration::from_millis(setup.away_ms);
    let how = match setup.join.is_empty() {
        true => Start::Bootstrap,
        false => Start::Join(setup.join, Duration::from_millis(setup.join_ms)),
    };
    let gate = Proof(Secret::new(&setup.secret));
    let wake = move || wake(&waker);
    let started = Handle::start(options, how, listener, (gate, setup.detours), wake);
    started.map_err(|error: StartError| refused(error.code(), &error))
}

fn refused(code: &'static str, error: &impl std::fmt::Display) -> PyErr {
    PyRuntimeError::new_err((code, error.to_string()))
}

fn event(py: Python<'_>, ticket: u64, answer: Result<Response, Error>) -> PyResult<Bound<'_, PyTuple>> {
    match answer {
        Ok(response) => ("answer", ticket, value(py, response)?).into_pyobject(py),
        Err(error) => ("refused", ticket, error.code(), error.to_string()).into_pyobject(py),
    }
}

fn value(py: Python<'_>, response: Response) -> PyResult<Bound<'_, PyAny>> {
    match response {
        Response::Done | Response::Value(None) => py.None().into_bound_py_any(py),
        Response::Value(Some((value, revision))) => {
            (PyBytes::new(py, &value.0), revision).into_bound_py_any(py)
        }
        Response::Page(items, more) => (rows(py, items), more).into_bound_py_any(py),
        Response::Answer(answer) => outcome(py, answer),
        Response::Batch(batch) => {
            let cursor = (batch.cursor.version, batch.cursor.after);
            (batch.whole_begins, batch.whole_ends, rows(py, batch.items), cursor).into_bound_py_any(py)
        }
        Response::Status(status) => status_of(py, status)?.into_bound_py_any(py),
    }
}

type Row<'py> = (String, Option<Bound<'py, PyBytes>>, u64);

/// Name, value and revision; no value after a delete.
fn rows(py: Python<'_>, items: Vec<Item>) -> Vec<Row<'_>> {
    let row = |Item { name, entry }| match entry {
        Some((value, revision)) => (name, Some(PyBytes::new(py, &value.0)), revision),
        None => (name, None, 0),
    };
    items.into_iter().map(row).collect()
}

fn outcome(py: Python<'_>, answer: Answer) -> PyResult<Bound<'_, PyAny>> {
    match answer {
        Answer::Nothing => py.None().into_bound_py_any(py),
        Answer::Committed(revisions) => ("committed", revisions).into_bound_py_any(py),
        Answer::Mismatch { index, revision } => ("mismatch", index, revision).into_bound_py_any(py),
        Answer::NoLease(lease) => ("no_lease", lease.0).into_bound_py_any(py),
        Answer::Granted(lease) => lease.0.into_bound_py_any(py),
        Answer::Ended(count) => count.into_bound_py_any(py),
    }
}

fn status_of(py: Python<'_>, status: Status) -> PyResult<Bound<'_, PyDict>> {
    let members = PyDict::new(py);
    for (id, (peer, votes)) in status.members {
        members.set_item(id, (peer.name, peer.address, votes))?;
    }
    Ok(dict!(
        py,
        node = status.node,
        cluster = format!("{:032x}", status.cluster),
        term = status.term,
        leader = status.leader,
        members = members,
        applied = status.applied,
        log_bytes = status.log_bytes,
        store_bytes = status.store_bytes,
        store_bytes_max = hubsub_raft::limits::STORE_BYTES_MAX,
        failed = status.failed,
    ))
}
