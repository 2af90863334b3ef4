//! Converts events of the data plane to Python objects.

use hubsub_log::arrow::Chunk;
use hubsub_node::Level;
use hubsub_node::log::{HubAnswer, Refusal, StreamAnswer};
use hubsub_node::questions::Shown;
use hubsub_node::questions::{ClientInfo, Listed, Part, TraceSteps};
use hubsub_node::{Event, NodeInfo, ShardEvent, link, log};
use hubsub_route::occupancy::Counts;
use hubsub_types::names::group_of;
use hubsub_types::{ClassTable, Position, Protocol};
use hubsub_wire::phoenix::reference_text;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict, PyList};
use serde::Serialize;
use std::sync::Arc;

type Object<'py> = Bound<'py, PyAny>;

/// The JSON text of a value, which Python decodes to the type of the same fields in `node/status.py`.
pub fn json<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyBytes>> {
    let text = serde_json::to_vec(value).map_err(|e| PyRuntimeError::new_err(e.to_string()))?;
    Ok(PyBytes::new(py, &text))
}

/// A part of a node, with the node's name.
#[derive(Serialize)]
struct Named<'a, T> {
    node: &'a str,
    #[serde(flatten)]
    of: &'a T,
}

/// The result type of a request, which determines how its parts are combined.
pub enum Wanted {
    /// One outcome per item.
    Published,
    /// The number of duplicates, and the refused rows by their number in a chunk.
    Rows(Vec<u32>),
    /// A room or None.
    Room,
    /// Rooms sorted by name, at most this many.
    Rooms(usize),
    /// True if something was removed.
    Removed,
    /// A pair `(recovered, rows)`.
    History,
    /// Clients sorted by this key, at most this many.
    Clients(String, usize),
    /// The busiest rooms, at most this many.
    Busiest(usize),
    /// The count, and `(key, reference, meta)` of each member.
    Members,
    /// `(protocol, subscriptions)` of all protocols, publishers and members.
    Occupancy,
    /// Sessions sorted by client id, at most this many.
    Sessions(usize),
    /// Groups with a persisted position.
    Consumers,
    /// Steps of followed records.
    TraceSteps,
}

/// Converts an event to a tuple; none if its request was abandoned.
pub fn event<'py>(
    py: Python<'py>,
    event: Event,
    (node, classes): (&str, &ClassTable),
    wanted: impl FnOnce(u64) -> Option<Wanted>,
) -> PyResult<Option<Object<'py>>> {
    match event {
        Event::Line(level, message, fields) => {
            let level = match level {
                Level::Debug => "debug",
                Level::Info => "info",
                Level::Warning => "warning",
                Level::Error => "error",
            };
            ("log", level, message, fields.into_py_dict(py)?).into_bound_py_any(py).map(Some)
        }
        Event::Shard(ShardEvent::Parted(shard)) => ("parted", shard).into_bound_py_any(py).map(Some),
        Event::Shard(ShardEvent::Stopped(shard, reason)) => {
            ("stopped", shard, reason).into_bound_py_any(py).map(Some)
        }
        Event::Shard(ShardEvent::Published(ticket, outcomes)) => {
            let Some(wanted) = wanted(ticket) else { return Ok(None) };
            if let Wanted::Rows(numbers) = wanted {
                let again = outcomes.iter().flatten().filter(|published| published.is_duplicate).count();
                let refused = numbers.iter().zip(&outcomes).filter_map(|(number, outcome)| {
                    let error = outcome.as_ref().err()?;
                    Some((*number, error.code(), error.resp()))
                });
                let refused: Vec<_> = refused.collect();
                return ("answer", ticket, (again, refused)).into_bound_py_any(py).map(Some);
            }
            let list = PyList::empty(py);
            for outcome in outcomes {
                list.append(match outcome {
                    Ok(p) => {
                        let Position { epoch, seq } = p.position;
                        (p.receivers, epoch.0, seq.0, p.is_duplicate).into_bound_py_any(py)?
                    }
                    Err(e) => (e.code(), e.resp()).into_bound_py_any(py)?,
                })?;
            }
            ("answer", ticket, list).into_bound_py_any(py).map(Some)
        }
        Event::Link(link::Event::Link(event)) => crate::cluster::event(py, event).map(Some),
        Event::Link(link::Event::Lead(event)) => crate::leads::event(py, event).map(Some),
        Event::Shard(ShardEvent::RoomMiss(class, room, makes)) => {
            let class = &classes.get(class).name;
            ("room_miss", class, PyBytes::new(py, &room), makes).into_bound_py_any(py).map(Some)
        }
        Event::Shard(ShardEvent::Unused(ticket, rooms)) => {
            let rooms: Vec<_> = rooms.iter().map(|room| PyBytes::new(py, room)).collect();
            ("answer", ticket, rooms).into_bound_py_any(py).map(Some)
        }
        Event::Shard(ShardEvent::Locate(number, room)) => {
            ("locate", number, PyBytes::new(py, &room)).into_bound_py_any(py).map(Some)
        }
        Event::Link(link::Event::Ready) => ("ready",).into_bound_py_any(py).map(Some),
        Event::Link(link::Event::Asked(node, id, body)) => {
            ("asked", node.into_string(), id, PyBytes::new(py, &body)).into_bound_py_any(py).map(Some)
        }
        Event::Link(link::Event::Answered(ticket, Ok(body))) => {
            ("answer", ticket, PyBytes::new(py, &body)).into_bound_py_any(py).map(Some)
        }
        Event::Link(link::Event::Answered(ticket, Err(e))) => {
            ("refused", ticket, e.code(), e.resp()).into_bound_py_any(py).map(Some)
        }
        Event::Log(log::Event::Stream(ticket, outcome)) => stream(py, ticket, outcome).map(Some),
        Event::Log(log::Event::Hub(ticket, outcome)) => hub_answer(py, ticket, outcome).map(Some),
        Event::Shard(ShardEvent::Parts(ticket, parts)) => {
            let Some(wanted) = wanted(ticket) else { return Ok(None) };
            match answer(py, parts, wanted, (node, classes))? {
                Ok(value) => ("answer", ticket, value).into_bound_py_any(py).map(Some),
                Err(e) => ("refused", ticket, e.code(), e.resp()).into_bound_py_any(py).map(Some),
            }
        }
    }
}

/// The reply to a request to a stream.
fn stream(py: Python<'_>, ticket: u64, outcome: Result<StreamAnswer, Refusal>) -> PyResult<Object<'_>> {
    let value = match outcome {
        Ok(StreamAnswer::Opened(number) | StreamAnswer::Offset(number)) => number.into_bound_py_any(py)?,
        Ok(StreamAnswer::Chunk(None)) => py.None().into_bound(py),
        Ok(StreamAnswer::Chunk(Some(chunk))) => bytes(py, &chunk)?.into_any(),
        Err(refusal) => return refused(py, ticket, refusal),
    };
    ("answer", ticket, value).into_bound_py_any(py)
}

/// The reply to a request to open or close a hub.
fn hub_answer(py: Python<'_>, ticket: u64, outcome: Result<HubAnswer, Refusal>) -> PyResult<Object<'_>> {
    let value = match outcome {
        Ok(HubAnswer::Opened(status)) => json(py, &*status)?.into_any(),
        Ok(HubAnswer::Closed(last)) => last.into_bound_py_any(py)?,
        Err(refusal) => return refused(py, ticket, refusal),
    };
    ("answer", ticket, value).into_bound_py_any(py)
}

fn refused(py: Python<'_>, ticket: u64, refusal: Refusal) -> PyResult<Object<'_>> {
    let Refusal { code, value, missing } = refusal;
    ("refused", ticket, code.code(), code.resp(), value, missing).into_bound_py_any(py)
}

/// Copies a chunk's buffers once, into a Python bytes object.
fn bytes<'py>(py: Python<'py>, chunk: &Chunk) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, chunk.len(), |mut place| {
        for piece in chunk.pieces() {
            let here = place.split_off_mut(..piece.len()).expect("there is room for all of them");
            here.copy_from_slice(piece);
        }
        Ok(())
    })
}

type Answer<'py> = Result<Object<'py>, hubsub_types::ErrorCode>;

fn answer<'py>(
    py: Python<'py>,
    parts: Vec<Part>,
    wanted: Wanted,
    (node, classes): (&str, &ClassTable),
) -> PyResult<Answer<'py>> {
    let (mut rooms, mut clients, mut busiest, mut removed) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let (mut history, mut sessions, mut consumers) = (None, Vec::new(), Vec::new());
    let (mut members, mut occupancy) = (Arc::<Shown>::default(), Vec::new());
    let mut traced = TraceSteps::default();
    for part in parts {
        match part {
            Part::Rooms(Ok(some)) => rooms.extend(some),
            Part::Clients(some) => clients.extend(some.into_iter().map(|mut info: ClientInfo| {
                info.subscriptions += info.shard_subscriptions;
                info
            })),
            Part::Busiest(some) => busiest.extend(some),
            Part::Sessions(some) => sessions.extend(some),
            Part::Consumers(some) => consumers.extend(some),
            Part::Members(some) => members = some,
            Part::Occupancy(some) => occupancy.push(some),
            Part::TraceSteps(some) => traced.add(some),
            Part::Number(Ok(n)) => removed += n,
            Part::Rooms(Err(e)) | Part::Number(Err(e)) | Part::Refused(e) => return Ok(Err(e)),
            Part::History(part) => history = Some(part),
            Part::Counts(_) | Part::Counted(..) | Part::Topics(_) | Part::TooLong | Part::Located(_) => {}
        }
    }
    let value = match wanted {
        Wanted::Published | Wanted::Rows(_) => py.None().into_bound(py),
        Wanted::Removed => (removed > 0).into_bound_py_any(py)?,
        Wanted::Room => match rooms.first() {
            Some(listed) => room(py, listed, classes)?.into_any(),
            None => py.None().into_bound(py),
        },
        Wanted::Rooms(limit) => {
            rooms.sort_by(|a, b| a.name().cmp(b.name()));
            rooms.truncate(limit);
            let rooms = rooms.iter().map(|listed| room(py, listed, classes)).collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, rooms)?.into_any()
        }
        Wanted::Clients(sort, limit) => {
            if clients.first().is_some_and(|client| sort_key(client, &sort).is_none()) {
                return Err(PyValueError::new_err(format!("no number of a client: {sort}")));
            }
            let key = |client: &ClientInfo| sort_key(client, &sort).unwrap_or_default();
            clients.sort_by(|a, b| key(b).total_cmp(&key(a)).then(a.id.cmp(&b.id)));
            clients.truncate(limit);
            let named: Vec<_> = clients.iter().map(|of| Named { node, of }).collect();
            json(py, &named)?.into_any()
        }
        Wanted::Busiest(limit) => {
            busiest.sort_by(|a, b| b.1[0].total_cmp(&a.1[0]).then_with(|| a.0.cmp(&b.0)));
            busiest.truncate(limit);
            let rows = busiest.iter().map(|&(ref room, [messages, bytes_in, bytes_out])| {
                (PyBytes::new(py, room), messages, bytes_in, bytes_out)
            });
            PyList::new(py, rows)?.into_any()
        }
        Wanted::Sessions(limit) => {
            sessions.sort_by(|a, b| a.client_id.cmp(&b.client_id));
            sessions.truncate(limit);
            let named: Vec<_> = sessions.iter().map(|of| Named { node, of }).collect();
            json(py, &named)?.into_any()
        }
        Wanted::TraceSteps => json(py, &traced)?.into_any(),
        Wanted::Consumers => {
            consumers.sort_by(|a, b| a.source.cmp(&b.source));
            let rows = consumers.iter().map(|info| {
                let (group, topic) = group_of(&info.source).unwrap_or_default();
                let position = (info.position.epoch.0, info.position.seq.0);
                (
                    PyBytes::new(py, group),
                    PyBytes::new(py, topic),
                    position,
                    info.lag,
                    info.given,
                    info.members,
                )
            });
            PyList::new(py, rows)?.into_any()
        }
        Wanted::Members => {
            let rows = members.members.iter().map(|(run, member)| {
                let reference = reference_text(*run, member.reference);
                (&*member.key, reference, PyBytes::new(py, &member.meta))
            });
            (members.count, PyList::new(py, rows)?).into_bound_py_any(py)?
        }
        Wanted::Occupancy => {
            let all: Counts = occupancy.iter().sum();
            let protocols: Vec<_> = Protocol::NAMES.into_iter().zip(all.subscribers).collect();
            (PyList::new(py, protocols)?, all.publishers, all.members).into_bound_py_any(py)?
        }
        Wanted::History => {
            let Some(part) = history else { return Ok(Err(hubsub_types::ErrorCode::NoSuchRoom)) };
            let rows = PyList::empty(py);
            for record in &part.records {
                let headers = record.headers.iter().flat_map(|headers| headers.iter());
                let headers = headers.map(|(name, value)| (&**name, &**value)).into_py_dict(py)?;
                let row = (
                    record.position.epoch.0,
                    record.position.seq.0,
                    record.timestamp_us,
                    PyBytes::new(py, record.topic()),
                    &*record.publisher,
                    PyBytes::new(py, record.payload()),
                    headers,
                );
                rows.append(row)?;
            }
            (part.recovered, rows).into_bound_py_any(py)?
        }
    };
    Ok(Ok(value))
}

/// Fields that only memory has are None for a room that is only in a log.
fn room<'py>(py: Python<'py>, listed: &Listed, classes: &ClassTable) -> PyResult<Bound<'py, PyDict>> {
    let (class, position, shard, hub, here) = match listed {
        Listed::Here(info) => (info.class, info.position, info.shard, info.hub, Some(info)),
        Listed::InLog(cold) => (cold.class, cold.position, cold.shard, cold.hub, None),
    };
    let class = &classes.get(class).name;
    Ok(dict!(
        py,
        name = PyBytes::new(py, listed.name()),
        class = class,
        epoch = position.epoch.0,
        seq = position.seq.0,
        shard = shard.0,
        hub = format!("{class}-{hub}"),
        in_memory = here.is_some(),
        subscribers = here.map_or(0, |info| info.subscribers),
        topics = here.map_or(0, |info| info.topics),
        history = here.map(|info| info.history),
        history_bytes = here.map(|info| info.history_bytes),
        first_seq = here.map(|info| info.first_seq.0),
        idle_ms = here.map(|info| u64::from(info.idle_s) * 1000),
    ))
}

const COUNTERS: [&str; 4] = ["messages_in", "messages_out", "bytes_in", "bytes_out"];

/// The value by which clients are sorted, descending.
fn sort_key(info: &ClientInfo, sort: &str) -> Option<f64> {
    let (name, rates) = match sort.strip_suffix("_1s") {
        Some(name) => (name, Some(&info.per_second)),
        None => match sort.strip_suffix("_60s") {
            Some(name) => (name, Some(&info.per_minute)),
            None => (sort, None),
        },
    };
    if let Some(i) = COUNTERS.iter().position(|c| *c == name) {
        return Some(rates.map_or(info.totals[i] as f64, |rates| f64::from(rates[i])));
    }
    let value = match sort {
        "age_s" => info.age_s,
        "idle_s" => info.idle_s,
        "subscriptions" => info.subscriptions,
        "patterns" => info.patterns,
        "pending_bytes" => info.pending_bytes,
        "keep_alive_s" => info.keep_alive_s,
        "inflight" => info.inflight,
        "inflight_max" => info.inflight_max,
        "waiting" => info.waiting,
        "dropped" => info.dropped,
        "lagging" => info.lagging,
        "id" => info.id,
        _ => return None,
    };
    Some(value as f64)
}

/// Counters and gauges of all shards and of the node.
pub fn metrics<'py>(
    py: Python<'py>,
    info: &Arc<NodeInfo>,
    events_dropped: u64,
    rooms_left_out: u64,
) -> PyResult<Bound<'py, PyDict>> {
    let shards = info.metrics.iter().map(|metrics| metrics.entries().into_py_dict(py));
    let shards = shards.collect::<PyResult<Vec<_>>>()?;
    let node = dict!(
        py,
        connections = info.connections.load(std::sync::atomic::Ordering::Relaxed),
        descriptors_max = info.descriptors.max,
        descriptors_reserved = info.descriptors.reserved,
        memory_used_bytes = hubsub_node::memory::used_bytes(),
        control_events_dropped_total = events_dropped,
        placed_rooms_left_out_total = rooms_left_out,
    );
    Ok(dict!(py, shards = shards, node = node))
}
