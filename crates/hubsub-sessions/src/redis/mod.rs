//! Sessions in a Redis server: [`Redis`]. They are as durable as that server.
//!
//! | key | type | value |
//! |---|---|---|
//! | `{hubsub:NAME}:ids` | sorted set | ids of all sessions, in order |
//! | `{hubsub:NAME}:session:ID` | hash | `snapshot`; `last`: number of the last entry; `bytes` of entries |
//! | `{hubsub:NAME}:entries:ID` | list | entries |
//!
//! `NAME` is the name of the cluster, or of the node if it is alone. Each request is one script, so it is
//! atomic; a batch is one pipeline. A batch without a reply from the server is not sent again: whether it was
//! executed is unknown.

use crate::{Answer, Limits, PAGE_BYTES, Request, SessionStore, StoreError, check};
use redis::{Client, Cmd, Connection, ConnectionAddr, ConnectionLike, IntoConnectionInfo, Pipeline, Value};
use std::fmt::Display;
use std::time::{Duration, Instant};

const SAVE: &str = include_str!("save.lua");
const UPDATE: &str = include_str!("update.lua");
const APPEND: &str = include_str!("append.lua");
const LOAD: &str = include_str!("load.lua");
const LIST: &str = include_str!("list.lua");
const END: &str = include_str!("end.lua");

/// Interval between two attempts to connect. While the server is known to be unreachable, requests in between
/// fail at once.
const PAUSE: Duration = Duration::from_millis(200);

/// Idle time after which a connection is checked before it is used.
const SILENCE: Duration = Duration::from_millis(500);

pub struct Redis {
    client: Client,
    /// The server's address, for messages to operators.
    address: String,
    prefix: String,
    limits: Limits,
    /// Timeout to connect, to wait for a server that has just gone, and for each part of a reply.
    timeout: Duration,
    connection: Option<Connection>,
    /// When the connection was last used.
    used: Instant,
    /// Time and reason of the last failed attempt to connect; `None` while connected.
    failed: Option<(Instant, String)>,
}

impl Redis {
    /// A store in the server at this URL (`redis://[USER][:PASSWORD@]HOST[:PORT][/DB]`, `unix:///PATH`),
    /// which need not run yet. `timeout` limits the time to connect, to wait for its return, and for each
    /// part of a reply.
    ///
    /// # Errors
    /// [`StoreError::NoUrl`] if the URL is invalid or requires TLS.
    pub fn new(url: &str, name: &str, limits: Limits, timeout: Duration) -> Result<Redis, StoreError> {
        let no_url = |e: redis::RedisError| StoreError::NoUrl(e.to_string());
        let info = url.into_connection_info().map_err(no_url)?;
        if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            return Err(StoreError::NoUrl("it requests TLS, which is not supported".to_owned()));
        }
        let address = info.addr().to_string();
        let client = Client::open(info).map_err(no_url)?;
        let prefix = format!("{{hubsub:{name}}}");
        let used = Instant::now();
        Ok(Redis { client, address, prefix, limits, timeout, connection: None, used, failed: None })
    }

    fn connect(&mut self) -> Result<&mut Connection, StoreError> {
        if let Some(connection) = &mut self.connection
            && self.used.elapsed() > SILENCE
            && !connection.check_connection()
        {
            self.connection = None;
        }
        if self.connection.is_none() {
            self.connection = Some(self.connect_anew().map_err(StoreError::Unreachable)?);
        }
        Ok(self.connection.as_mut().expect("it was connected above"))
    }

    /// Waits for a server that has just gone; one that is known to be unreachable is tried once per
    /// [`PAUSE`].
    fn connect_anew(&mut self) -> Result<Connection, String> {
        let began = Instant::now();
        let ends = match &self.failed {
            Some((at, why)) if at.elapsed() < PAUSE => return Err(why.clone()),
            Some(_) => began,
            None => began + self.timeout,
        };
        loop {
            let connected = self.client.get_connection_with_timeout(self.timeout).and_then(|connection| {
                connection.set_read_timeout(Some(self.timeout))?;
                connection.set_write_timeout(Some(self.timeout))?;
                Ok(connection)
            });
            match connected {
                Ok(connection) => {
                    self.failed = None;
                    return Ok(connection);
                }
                Err(_) if Instant::now() + PAUSE < ends => std::thread::sleep(PAUSE),
                Err(e) => {
                    let why = self.message(&e);
                    self.failed = Some((Instant::now(), why.clone()));
                    return Err(why);
                }
            }
        }
    }

    fn message(&self, why: &dyn Display) -> String {
        format!("Redis at {}: {why}", self.address)
    }

    /// Sends a pipeline; returns the reply to each command, or an error if any is missing.
    fn query(&mut self, pipeline: &Pipeline) -> Result<Vec<Value>, StoreError> {
        let count = pipeline.len();
        let packed = pipeline.get_packed_pipeline();
        match self.connect()?.req_packed_commands(&packed, 0, count) {
            Ok(values) if values.len() == count => {
                self.used = Instant::now();
                Ok(values)
            }
            other => {
                self.connection = None;
                let why = other.err().map_or("it answers something else".to_owned(), |e| e.to_string());
                Err(StoreError::Unreachable(self.message(&why)))
            }
        }
    }

    fn command(&self, request: &Request) -> Cmd {
        let prefix = &self.prefix;
        let ids = format!("{prefix}:ids");
        let of = |id: &str| (format!("{prefix}:session:{id}"), format!("{prefix}:entries:{id}"));
        let mut command = redis::cmd("EVAL");
        let mut eval = |script: &str, id: &str| {
            let (session, entries) = of(id);
            command.arg(script).arg(3).arg(&ids).arg(session).arg(entries);
        };
        match request {
            Request::Save { id, snapshot, through, entries } => {
                eval(SAVE, id);
                command.arg(&**id).arg(&snapshot[..]).arg(*through);
                entries.iter().for_each(|entry| _ = command.arg(&entry[..]));
            }
            Request::Update { id, snapshot, last, through } => {
                eval(UPDATE, id);
                command.arg(&snapshot[..]).arg(*last).arg(*through);
            }
            Request::Append { id, entry } => {
                eval(APPEND, id);
                command.arg(&entry[..]).arg(self.limits.entries_max).arg(self.limits.bytes_max);
            }
            Request::Load { id } => eval(LOAD, id),
            Request::End { id, begins_with } => {
                eval(END, id);
                command.arg(&**id).arg(&begins_with[..]);
            }
            Request::List { after, max } => {
                let from = after.as_ref().map_or("-".to_owned(), |after| format!("({after}"));
                command.arg(LIST).arg(1).arg(&ids).arg(from).arg((*max).max(1)).arg(PAGE_BYTES);
                command.arg(format!("{prefix}:session:"));
            }
        }
        command
    }

    fn answer(&self, request: &Request, value: Value) -> Result<Answer, StoreError> {
        let answer = match (request, value) {
            (_, Value::ServerError(e)) => return Err(StoreError::Failed(self.message(&e))),
            (Request::Save { .. }, _) => Some(Answer::Saved),
            (Request::Update { .. }, Value::Array(numbers)) => match numbers[..] {
                [] => return Err(StoreError::NoSession),
                [Value::Int(last)] => return Err(StoreError::Gap { last: last as u64 }),
                _ => None,
            },
            (Request::Update { .. }, _) => Some(Answer::Saved),
            (Request::End { .. }, _) => Some(Answer::Ended),
            (Request::Append { .. }, Value::Array(numbers)) => match numbers[..] {
                [] => return Err(StoreError::NoSession),
                [Value::Int(number)] => Some(Answer::Appended(number as u64)),
                [Value::Int(entries), Value::Int(bytes)] => {
                    return Err(StoreError::Full { entries: entries as u64, bytes: bytes as u64 });
                }
                _ => None,
            },
            (Request::Load { .. }, Value::Array(parts)) => loaded(parts),
            (Request::List { .. }, Value::Array(parts)) => listed(parts),
            _ => None,
        };
        answer.ok_or_else(|| {
            StoreError::Failed(self.message(&"its keys of HubSub's sessions are not HubSub's"))
        })
    }
}

impl SessionStore for Redis {
    fn carry_out(&mut self, requests: &[Request]) -> Vec<Result<Answer, StoreError>> {
        let mut pipeline = Pipeline::with_capacity(requests.len());
        let checked: Vec<_> = requests.iter().map(|request| check(request).map(|()| request)).collect();
        for request in checked.iter().flatten() {
            pipeline.add_command(self.command(request));
        }
        let values = match pipeline.is_empty() {
            true => Ok(Vec::new()),
            false => self.query(&pipeline),
        };
        let (mut values, error) = match values {
            Ok(values) => (values.into_iter(), None),
            Err(error) => (Vec::new().into_iter(), Some(error)),
        };
        let mut answer = |request| match values.next() {
            Some(value) => self.answer(request, value),
            None => Err(error.clone().expect("each command has a value, or none has")),
        };
        checked.into_iter().map(|request| request.and_then(&mut answer)).collect()
    }
}

fn loaded(parts: Vec<Value>) -> Option<Answer> {
    let mut parts = parts.into_iter();
    let Some(snapshot) = parts.next() else {
        return Some(Answer::Loaded { snapshot: None, entries: Vec::new() });
    };
    let (Value::Int(last), Value::Array(entries)) = (parts.next()?, parts.next()?) else { return None };
    let first = (last as u64 + 1).checked_sub(entries.len() as u64)?;
    let entries = entries.into_iter().map(bytes).collect::<Option<Vec<_>>>()?;
    Some(Answer::Loaded { snapshot: Some(bytes(snapshot)?), entries: (first..).zip(entries).collect() })
}

fn listed(parts: Vec<Value>) -> Option<Answer> {
    let mut parts = parts.into_iter();
    let mut page = Vec::with_capacity(parts.len() / 2);
    while let Some(id) = parts.next() {
        let id = String::from_utf8(bytes(id)?).ok()?;
        page.push((id.into(), bytes(parts.next()?)?));
    }
    Some(Answer::Listed(page))
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}
