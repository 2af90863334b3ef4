//! Short forms of requests and replies, and the stores under test.

use hubsub_sessions::{Answer, Disk, Limits, Memory, Redis, Request, SessionStore, StoreError};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

pub const LIMITS: Limits = Limits { entries_max: 1_000, bytes_max: 32 << 20 };

/// A store that can be reopened.
pub trait Keeper {
    /// Opens it; the previous handle is closed by then.
    fn open(&self, limits: Limits) -> Box<dyn SessionStore>;
}

/// A store that is empty whenever it is opened.
pub struct InMemory;

impl Keeper for InMemory {
    fn open(&self, limits: Limits) -> Box<dyn SessionStore> {
        Box::new(Memory::new(limits))
    }
}

/// A file in a temporary directory.
pub struct OnDisk(TempDir);

impl OnDisk {
    pub fn new() -> OnDisk {
        OnDisk(TempDir::new().expect("the disk has room"))
    }

    pub fn path(&self) -> std::path::PathBuf {
        self.0.path().join("sessions.redb")
    }
}

impl Keeper for OnDisk {
    fn open(&self, limits: Limits) -> Box<dyn SessionStore> {
        Box::new(Disk::open(&self.path(), limits).expect("the file can be opened"))
    }
}

/// A redis-server for the test, at a socket in a temporary directory.
pub struct Server {
    directory: TempDir,
    process: Option<Child>,
}

impl Server {
    /// `None`, with a message, if there is no redis-server; with `CI=true` that is a failure.
    pub fn start(options: &[&str]) -> Option<Server> {
        let mut server = Server { directory: TempDir::new().expect("the disk has room"), process: None };
        if !server.start_again(options) {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "needs redis-server");
            eprintln!("skipped: needs redis-server");
            return None;
        }
        Some(server)
    }

    /// Whether there is a redis-server.
    pub fn start_again(&mut self, options: &[&str]) -> bool {
        let started = Command::new("redis-server")
            .args(["--port", "0", "--unixsocket", "redis.sock", "--save", "", "--logfile", ""])
            .args(options)
            .current_dir(self.directory.path())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut process) = started else { return false };
        let lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let mut lines = lines.map(|line| line.expect("it is text"));
        assert!(lines.any(|line| line.contains("eady to accept connections")), "redis-server has ended");
        // Its output must be read, so that it does not block.
        std::thread::spawn(move || lines.for_each(drop));
        self.process = Some(process);
        true
    }

    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("it is ours");
            process.wait().expect("it is ours");
        }
    }

    /// Process id, while it runs.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("it runs").id()
    }

    /// The URL, followed by these parameters.
    pub fn url(&self, parameters: &str) -> String {
        format!("unix://{}{parameters}", self.directory.path().join("redis.sock").display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The sessions of one name in a server.
pub struct InRedis {
    pub server: Arc<Server>,
    pub name: String,
}

/// Longer than any running server takes.
pub const TIMEOUT: Duration = Duration::from_secs(60);

impl Keeper for InRedis {
    fn open(&self, limits: Limits) -> Box<dyn SessionStore> {
        Box::new(Redis::new(&self.server.url(""), &self.name, limits, TIMEOUT).expect("it is a URL"))
    }
}

/// A [`Request::Save`] without entries.
pub fn save(id: &str, snapshot: &str, through: u64) -> Request {
    save_with(id, snapshot, through, &[])
}

pub fn save_with(id: &str, snapshot: &str, through: u64, entries: &[&str]) -> Request {
    let entries = entries.iter().map(|entry| entry.as_bytes().to_vec()).collect();
    Request::Save { id: id.into(), snapshot: snapshot.into(), through, entries }
}

pub fn update(id: &str, snapshot: &str, last: u64, through: u64) -> Request {
    Request::Update { id: id.into(), snapshot: snapshot.into(), last, through }
}

pub fn append(id: &str, entry: &str) -> Request {
    Request::Append { id: id.into(), entry: entry.into() }
}

pub fn load(id: &str) -> Request {
    Request::Load { id: id.into() }
}

/// A [`Request::End`] for any snapshot.
pub fn end(id: &str) -> Request {
    end_of(id, "")
}

pub fn end_of(id: &str, begins_with: &str) -> Request {
    Request::End { id: id.into(), begins_with: begins_with.into() }
}

pub fn list(after: Option<&str>, max: usize) -> Request {
    Request::List { after: after.map(Into::into), max }
}

pub fn loaded(snapshot: &str, entries: &[(u64, &str)]) -> Answer {
    let entries = entries.iter().map(|&(number, entry)| (number, entry.into())).collect();
    Answer::Loaded { snapshot: Some(snapshot.into()), entries }
}

pub fn nobody() -> Answer {
    Answer::Loaded { snapshot: None, entries: Vec::new() }
}

pub fn one(store: &mut dyn SessionStore, request: Request) -> Result<Answer, StoreError> {
    let mut answers = store.carry_out(std::slice::from_ref(&request));
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}
