//! The class `Core`: a node's data plane, driven by its control plane.

use crate::answers::{self, Wanted};
use crate::cluster::{self, RosterRow};
use crate::leads::{self, TableRow};
use crate::routes::{self, ClassTuple, HubTuple};
use crate::rows::{self, RowReader};
use crate::{config, scan};
use hubsub_node::LeadMail;
use hubsub_node::log::{Openings, Streams};
use hubsub_node::questions::{Call, ClientFilter, Item, Question, Request};
use hubsub_node::{ClusterNode, Control, Node, NodeConfig, NotStarted};
use hubsub_route::Producer;
use hubsub_route::rooms::HistoryQuery;
use hubsub_route::traces::Bounds;
use hubsub_types::class::ClassIndex;
use hubsub_types::names::group_pattern;
use hubsub_types::{Class, ClassTable, Epoch, HubId, Position, PrincipalId, ProducerId, Seq, Term};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// A node's data plane: its shards and their threads.
#[pyclass(frozen, module = "hubsub._core")]
pub struct Core {
    config: NodeConfig,
    /// The classes at the start of the node.
    classes: Arc<ClassTable>,
    /// The limit used to check rows of a stage; a reload changes it.
    topic_bytes_max: AtomicU64,
    control: Arc<Control>,
    node: OnceLock<Node>,
    /// The expected result type of each ticket.
    tickets: Mutex<HashMap<u64, Wanted>>,
    /// The process that created it: threads do not survive a fork.
    pid: u32,
}

#[pymethods]
impl Core {
    #[new]
    fn new(config: &Bound<'_, PyAny>) -> PyResult<Core> {
        let config = config::node_config(config)?;
        let control = Control::new(config.limits.control_events_max as usize)?;
        Ok(Core {
            classes: Arc::new(config.classes.clone()),
            topic_bytes_max: AtomicU64::new(config.limits.topic_bytes_max),
            config,
            control: Arc::new(control),
            node: OnceLock::new(),
            tickets: Mutex::default(),
            pid: std::process::id(),
        })
    }

    fn start(&self, py: Python<'_>) -> PyResult<HashMap<&'static str, Option<String>>> {
        self.check_process()?;
        if self.node.get().is_some() {
            return Err(PyRuntimeError::new_err("already started"));
        }
        let (config, control) = (self.config.clone(), Arc::clone(&self.control));
        let node = py.detach(|| Node::start(config, control)).map_err(|NotStarted { error, address }| {
            let address = address.map(|a| a.to_string());
            PyOSError::new_err((error.raw_os_error().unwrap_or(0), os_message(&error), address))
        })?;
        let text = |address: Option<SocketAddr>| address.map(|address| address.to_string());
        let listeners = HashMap::from([
            ("redis", text(node.redis)),
            ("redis_cluster", text(node.redis_cluster)),
            ("mqtt", text(node.mqtt)),
            ("ws", text(node.ws)),
            ("link", text(node.link)),
        ]);
        // Only this call sets it; a second caller got an error above.
        let _ = self.node.set(node);
        Ok(listeners)
    }

    fn wake_fd(&self) -> i32 {
        self.control.wake_fd()
    }

    fn drain<'py>(&self, py: Python<'py>, events_max: usize) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let mut tickets = self.tickets.lock().expect("nothing panics under this lock");
        let mut events = Vec::new();
        for event in self.control.drain(events_max) {
            let of = (&*self.config.name, &*self.classes());
            events.extend(answers::event(py, event, of, |ticket| tickets.remove(&ticket))?);
        }
        Ok(events)
    }

    #[allow(clippy::type_complexity, reason = "this is what crosses")]
    fn publish(
        &self,
        ticket: u64,
        items: Vec<(Vec<u8>, Vec<u8>, HashMap<String, String>, String, Option<(u64, u64)>)>,
        as_node: bool,
    ) -> PyResult<()> {
        let items = items.into_iter().map(|(topic, payload, headers, publisher, producer)| {
            let mut headers: Vec<(Box<str>, Box<str>)> =
                headers.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
            headers.sort_unstable();
            let headers = (!headers.is_empty()).then(|| headers.into());
            let producer = producer
                .map(|numbers| match numbers {
                    (0, _) | (_, 0) => Err(PyValueError::new_err("a producer and its sequence begin at 1")),
                    (id, sequence) => Ok(Producer { id: ProducerId(id), sequence }),
                })
                .transpose()?;
            Ok(Item { topic, payload, headers, publisher, producer })
        });
        let items = items.collect::<PyResult<Vec<Item>>>()?;
        self.request_as(ticket, Wanted::Published, Call::Publish(items), as_node)
    }

    fn row_reader(&self, topic: Option<Vec<u8>>, publisher: String) -> RowReader {
        let topic_bytes_max = self.topic_bytes_max.load(Ordering::Relaxed);
        RowReader::new(self.classes(), topic_bytes_max, topic, publisher)
    }

    fn publish_rows(
        &self,
        py: Python<'_>,
        ticket: u64,
        chunk: &[u8],
        left: Option<Vec<u32>>,
        of: Option<Vec<u32>>,
        producer: u64,
    ) -> PyResult<()> {
        let classes = self.classes();
        let (numbers, items) =
            py.detach(|| rows::items(chunk, (left.as_deref(), of.as_deref()), producer, &classes))?;
        // Rows were checked when staged; only the node may write statistics.
        self.request_as(ticket, Wanted::Rows(numbers), Call::Publish(items), true)
    }

    fn room(&self, ticket: u64, room: Vec<u8>) -> PyResult<()> {
        self.request(ticket, Wanted::Room, Call::Room(room.clone(), Question::Room(room, false)))
    }

    fn rooms(
        &self,
        ticket: u64,
        r#match: Option<Vec<u8>>,
        after: Option<Vec<u8>>,
        limit: usize,
    ) -> PyResult<()> {
        self.request(ticket, Wanted::Rooms(limit), Call::All(Question::Rooms(r#match, after, limit)))
    }

    fn room_create(&self, ticket: u64, room: Vec<u8>) -> PyResult<()> {
        self.request(ticket, Wanted::Room, Call::Room(room.clone(), Question::Room(room, true)))
    }

    fn room_delete(&self, ticket: u64, room: Vec<u8>, as_node: bool) -> PyResult<()> {
        let call = Call::Room(room.clone(), Question::DeleteRoom(room));
        self.request_as(ticket, Wanted::Removed, call, as_node)
    }

    fn history(
        &self,
        ticket: u64,
        room: Vec<u8>,
        count: u64,
        after: Option<(u64, u64)>,
        topic: Option<Vec<u8>>,
        as_node: bool,
    ) -> PyResult<()> {
        let after = after.map(|(epoch, seq)| Position { epoch: Epoch(epoch), seq: Seq(seq) });
        let query = HistoryQuery { room: room.clone(), count, after, topic };
        self.request_as(ticket, Wanted::History, Call::Room(room, Question::History(query)), as_node)
    }

    fn clients(
        &self,
        ticket: u64,
        sort: String,
        limit: usize,
        client: Option<u64>,
        mut client_ids: Vec<String>,
    ) -> PyResult<()> {
        client_ids.sort_unstable();
        let filter =
            ClientFilter { ids: client.into_iter().collect(), client_ids, ..ClientFilter::default() };
        self.request(ticket, Wanted::Clients(sort, limit), Call::All(Question::Clients(filter, u64::MAX)))
    }

    fn client_kill(&self, ticket: u64, client: u64, reason: String) -> PyResult<()> {
        let filter = ClientFilter { ids: vec![client], ..ClientFilter::default() };
        self.request(ticket, Wanted::Removed, Call::All(Question::KillClients(filter, reason)))
    }

    fn sessions(
        &self,
        ticket: u64,
        limit: usize,
        after: Option<String>,
        client_id: Option<String>,
    ) -> PyResult<()> {
        let call = Call::All(Question::Sessions(client_id, after, limit));
        self.request(ticket, Wanted::Sessions(limit), call)
    }

    fn session_end(&self, ticket: u64, client_id: String) -> PyResult<()> {
        self.request(ticket, Wanted::Removed, Call::All(Question::EndSession(client_id)))
    }

    fn busiest_rooms(&self, ticket: u64, limit: usize) -> PyResult<()> {
        self.request(ticket, Wanted::Busiest(limit), Call::All(Question::Busiest(limit)))
    }

    fn members(&self, ticket: u64, room: Vec<u8>) -> PyResult<()> {
        self.request(ticket, Wanted::Members, Call::Members(room))
    }

    fn trace_start(
        &self,
        ticket: u64,
        number: u64,
        topic: Vec<u8>,
        records: usize,
        ms: u64,
        every: u64,
    ) -> PyResult<()> {
        let call = Call::All(Question::TraceStart(number, topic, Bounds { records, ms, every }));
        self.request(ticket, Wanted::Removed, call)
    }

    fn trace_steps(&self, ticket: u64, number: u64) -> PyResult<()> {
        self.request(ticket, Wanted::TraceSteps, Call::All(Question::TraceSteps(number)))
    }

    fn trace_end(&self, ticket: u64, number: u64) -> PyResult<()> {
        self.request(ticket, Wanted::Removed, Call::All(Question::TraceEnd(number)))
    }

    fn occupancy(&self, ticket: u64, room: Vec<u8>) -> PyResult<()> {
        self.request(ticket, Wanted::Occupancy, Call::All(Question::Occupancy(room)))
    }

    fn consumers(&self, ticket: u64) -> PyResult<()> {
        self.request(ticket, Wanted::Consumers, Call::All(Question::Consumers))
    }

    fn forget_consumer(&self, ticket: u64, group: &[u8], topic: &[u8]) -> PyResult<()> {
        let source = group_pattern(group, topic);
        self.request(ticket, Wanted::Removed, Call::All(Question::ForgetConsumer(source)))
    }

    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let node = self.started()?;
        answers::metrics(py, &node.info, self.control.dropped(), node.routes().left_out())
    }

    fn log<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let status = self.started()?.log_status();
        status.map(|status| answers::json(py, &status)).transpose()
    }

    fn inflight_store<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let status = self.started()?.store_status();
        status.map(|status| answers::json(py, &status)).transpose()
    }

    fn log_hub_of(&self, room: &[u8]) -> PyResult<(String, Option<u32>)> {
        let (class, hub) = self.started()?.logged_hub_of(room);
        Ok((class, hub.map(|hub| hub.0)))
    }

    fn log_archived(&self, offsets: HashMap<u32, u64>) -> PyResult<()> {
        let node = self.started()?;
        offsets.into_iter().for_each(|(hub, offset)| node.log_archived(HubId(hub), offset));
        Ok(())
    }

    fn open_hub(&self, py: Python<'_>, ticket: u64, hub: u32, room_class: &str, index: u16) -> PyResult<()> {
        let openings = self.openings()?;
        if hub == 0 {
            return Err(config::bad("hub", "ids begin at 1"));
        }
        let is_it = |known: &Class| known.name == room_class && known.durability.is_logged();
        let classes = self.classes();
        let class = classes.classes().iter().position(is_it);
        let class = class.ok_or_else(|| config::bad("room_class", "not one that the node knows and logs"))?;
        py.detach(|| openings.open(ticket, HubId(hub), class as ClassIndex, index));
        Ok(())
    }

    fn close_hub(&self, py: Python<'_>, ticket: u64, hub: u32) -> PyResult<()> {
        self.openings().map(|openings| py.detach(|| openings.close(ticket, HubId(hub))))
    }

    fn log_open(&self, py: Python<'_>, ticket: u64, scan: &Bound<'_, PyAny>) -> PyResult<()> {
        let (scan, streams) = (scan::scan(scan)?, self.streams()?);
        py.detach(|| streams.open(ticket, scan));
        Ok(())
    }

    fn log_next(&self, py: Python<'_>, ticket: u64, stream: u64) -> PyResult<()> {
        self.streams().map(|streams| py.detach(|| streams.next(ticket, stream)))
    }

    fn log_close(&self, py: Python<'_>, stream: u64) -> PyResult<()> {
        self.streams().map(|streams| py.detach(|| streams.close(stream)))
    }

    fn log_offset(&self, py: Python<'_>, ticket: u64, hub: u32, timestamp_us: u64) -> PyResult<()> {
        self.streams().map(|streams| py.detach(|| streams.offset(ticket, HubId(hub), timestamp_us)))
    }

    fn redis_cluster_nodes(&self, py: Python<'_>, nodes: Vec<(String, String, String, u16)>) -> PyResult<()> {
        let of = |(name, id, host, port)| ClusterNode { name, id, host, port };
        let (node, nodes) = (self.started()?, nodes.into_iter().map(of).collect());
        py.detach(|| node.set_cluster_nodes(nodes)).map_err(PyValueError::new_err)
    }

    fn accept(&self) -> PyResult<()> {
        self.started().map(Node::accept)
    }

    fn link_begin(&self, cluster: &str, node: &str, incarnation: u64, secret: &[u8]) -> PyResult<()> {
        let here = self.started()?;
        if here.link.is_none() {
            return Err(PyRuntimeError::new_err("this node has no listener for links"));
        }
        here.link_begin(cluster::identity(&self.config, cluster, node, incarnation, secret)?);
        Ok(())
    }

    fn link_roster(&self, peers: Vec<RosterRow>) -> PyResult<()> {
        self.started()?.link_roster(cluster::roster(peers)?);
        Ok(())
    }

    fn link_peers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        cluster::peers(py, &self.started()?.peer_table)
    }

    fn link_status(&self, classes: u64) -> PyResult<()> {
        self.started().map(|node| node.link_status(classes))
    }

    fn link_ask(&self, ticket: u64, node: &str, body: Vec<u8>) -> PyResult<()> {
        self.started().map(|here| here.link_ask(ticket, node, body))
    }

    fn link_answer(&self, node: &str, number: u64, body: Vec<u8>) -> PyResult<()> {
        self.started().map(|here| here.link_answer(node, number, body))
    }

    fn clock_us(&self) -> PyResult<u64> {
        Ok(self.started()?.peer_table.now_us())
    }

    fn lead_routes(&self, routes: Vec<(u32, u64, bool)>) -> PyResult<()> {
        self.started()?.lead(leads::routes(routes));
        Ok(())
    }

    fn lead_voters(&self, revision: u64, nodes: Vec<String>, before: Vec<String>) -> PyResult<()> {
        let node = self.started()?;
        node.lead(leads::voters(&node.peer_table, revision, &nodes, &before)?);
        Ok(())
    }

    fn lead_tables(
        &self,
        ticket: u64,
        controller_term: u64,
        until_us: u64,
        confirmed_us: u64,
        tables: Vec<TableRow>,
        voters_revision: u64,
    ) -> PyResult<()> {
        let node = self.started()?;
        node.lead(leads::tables(
            &node.peer_table,
            ticket,
            (controller_term, until_us, confirmed_us),
            tables,
            voters_revision,
        )?);
        Ok(())
    }

    fn lead_resign(&self, ticket: u64, controller_term: u64) -> PyResult<()> {
        self.started().map(|node| node.lead(LeadMail::Resign(ticket, controller_term)))
    }

    fn lead_snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        leads::snapshot(py, &self.started()?.peer_table)
    }

    fn route_classes(&self, py: Python<'_>, rows: Vec<ClassTuple<'_>>) -> PyResult<()> {
        let (node, rows) = (self.started()?, routes::classes(rows)?);
        py.detach(|| node.set_classes(rows)).map_err(|why| config::bad("classes", why))
    }

    fn route_hubs(&self, py: Python<'_>, rows: Vec<HubTuple>) -> PyResult<()> {
        let (node, rows) = (self.started()?, routes::hubs(rows)?);
        py.detach(|| node.set_hubs(rows));
        Ok(())
    }

    fn route_serves(&self, py: Python<'_>, hubs: Vec<u32>) -> PyResult<()> {
        let (node, hubs) = (self.started()?, hubs.into_iter().map(HubId).collect());
        py.detach(|| node.routes().set_served(hubs));
        Ok(())
    }

    fn route_rooms(
        &self,
        py: Python<'_>,
        room_class: &str,
        hubs: Vec<(Vec<u8>, Option<u32>)>,
    ) -> PyResult<()> {
        let hubs = hubs.into_iter().map(|(room, hub)| (room.into(), hub.map(HubId)));
        let (node, hubs) = (self.started()?, hubs.collect());
        py.detach(|| node.routes().set_rooms(room_class, hubs)).map_err(|why| config::bad("room_class", why))
    }

    fn route_refuse(&self, py: Python<'_>, rooms: Vec<Vec<u8>>, code: &str) -> PyResult<()> {
        let (node, rooms) = (self.started()?, rooms.into_iter().map(Into::into).collect());
        let code = cluster::error_code(code)?;
        py.detach(|| node.routes().refuse_rooms(rooms, code));
        Ok(())
    }

    fn route_absent(&self, py: Python<'_>, rooms: Vec<Vec<u8>>) -> PyResult<()> {
        let (node, rooms) = (self.started()?, rooms.into_iter().map(Into::into).collect());
        py.detach(|| node.routes().absent_rooms(rooms));
        Ok(())
    }

    fn route_unused(
        &self,
        ticket: u64,
        hub: u32,
        term: u64,
        rooms: Vec<Vec<u8>>,
        gives_up: bool,
    ) -> PyResult<()> {
        let rooms = rooms.into_iter().map(Into::into).collect();
        self.started().map(|node| node.routes().ask_unused(ticket, (HubId(hub), Term(term)), rooms, gives_up))
    }

    fn route_located(&self, number: u64, members: Option<Vec<(String, String)>>, code: &str) -> PyResult<()> {
        self.started()?.located(number, members.ok_or(cluster::error_code(code)?));
        Ok(())
    }

    fn route_of<'py>(&self, py: Python<'py>, topic: &[u8]) -> PyResult<(Bound<'py, PyBytes>, String, u16)> {
        let (room, class, index) = self.started()?.routes().of(topic);
        Ok((PyBytes::new(py, &room), class, index))
    }

    fn route_ready(&self, py: Python<'_>) -> PyResult<Vec<(String, u64)>> {
        let peer_table = &self.started()?.peer_table;
        Ok(py.detach(|| routes::ready(peer_table)))
    }

    fn reload(&self, limits: &Bound<'_, PyAny>) -> PyResult<()> {
        let limits = config::limits(limits)?;
        self.started()?.set_limits(&limits);
        self.topic_bytes_max.store(limits.topic_bytes_max, Ordering::Relaxed);
        Ok(())
    }

    fn part_from_sessions(&self) -> PyResult<()> {
        self.started().map(Node::part_from_sessions)
    }

    fn stop(&self, grace_ms: u64) -> PyResult<()> {
        self.started().map(|node| node.stop(grace_ms))
    }

    fn join(&self, py: Python<'_>) -> PyResult<()> {
        let node = self.started()?;
        py.detach(|| node.join());
        Ok(())
    }
}

impl Core {
    fn request(&self, ticket: u64, wanted: Wanted, call: Call) -> PyResult<()> {
        self.request_as(ticket, wanted, call, false)
    }

    fn request_as(&self, ticket: u64, wanted: Wanted, call: Call, as_node: bool) -> PyResult<()> {
        let node = self.started()?;
        self.tickets.lock().expect("nothing panics under this lock").insert(ticket, wanted);
        // The API has no users yet.
        let principal = if as_node { PrincipalId::NODE } else { PrincipalId::default() };
        node.request(ticket, Request { principal, call });
        Ok(())
    }

    fn openings(&self) -> PyResult<&Openings> {
        self.started()?.openings().ok_or_else(|| PyRuntimeError::new_err("no class has a log"))
    }

    fn streams(&self) -> PyResult<&Streams> {
        self.started()?.streams().ok_or_else(|| PyRuntimeError::new_err("no class has a log"))
    }

    /// The current room classes.
    fn classes(&self) -> Arc<ClassTable> {
        self.node.get().map_or_else(|| Arc::clone(&self.classes), Node::classes)
    }

    fn started(&self) -> PyResult<&Node> {
        self.check_process()?;
        self.node.get().ok_or_else(|| PyRuntimeError::new_err("not started"))
    }

    fn check_process(&self) -> PyResult<()> {
        if self.pid == std::process::id() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err("a node does not survive a fork: its threads run in the parent process"))
    }
}

fn os_message(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
