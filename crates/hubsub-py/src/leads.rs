//! Converts orders and events about leader leases. Python uses node names, the data plane ids.

use crate::config::bad;
use hubsub_lead::{HubTerm, Peer, Process, Route, Tables, Voters};
use hubsub_node::LeadMail;
use hubsub_node::link::{LeadEvent, PeerTable};
use hubsub_types::{HubId, NodeId, Term};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::HashMap;

/// Node, incarnation, and pairs of hub and term.
pub type TableRow = (String, u64, Vec<(u32, u64)>);

/// From `(hub, term, gives_up)` each.
pub fn routes(rows: Vec<(u32, u64, bool)>) -> LeadMail {
    let route = |(hub, term, gives_up)| Route { hub: HubId(hub), term: Term(term), gives_up };
    LeadMail::Routes(rows.into_iter().map(route).collect())
}

/// Converts the voters; names need not be registered.
pub fn voters(
    peer_table: &PeerTable,
    revision: u64,
    nodes: &[String],
    before: &[String],
) -> PyResult<LeadMail> {
    let ids =
        |names: &[String]| names.iter().map(|name| id(peer_table, name)).collect::<PyResult<Vec<NodeId>>>();
    Ok(LeadMail::Voters(Voters { revision, nodes: ids(nodes)?, before: ids(before)? }))
}

/// Converts the leases that the controller of a term may grant until a time.
pub fn tables(
    peer_table: &PeerTable,
    ticket: u64,
    (controller_term, until_us, confirmed_us): (u64, u64, u64),
    rows: Vec<TableRow>,
    voters_revision: u64,
) -> PyResult<LeadMail> {
    if controller_term == 0 {
        return Err(bad("controller_term", "they begin at 1"));
    }
    let table = |(node, incarnation, pairs): TableRow| {
        let pairs = pairs.into_iter().map(|(hub, term)| (HubId(hub), Term(term)));
        Ok((Process { node: id(peer_table, &node)?, incarnation }, pairs.collect()))
    };
    let tables = rows.into_iter().map(table).collect::<PyResult<Tables>>()?;
    Ok(LeadMail::Tables { ticket, controller_term, until_us, confirmed_us, tables, voters_revision })
}

fn id(peer_table: &PeerTable, node: &str) -> PyResult<NodeId> {
    peer_table.id_of(node).ok_or_else(|| bad("node", format!("no id is left: {node}")))
}

/// Converts to `("lead", kind, hub, term, controller_term)`.
pub fn event(py: Python<'_>, event: LeadEvent) -> PyResult<Bound<'_, PyAny>> {
    let (kind, pair, controller_term) = match event {
        LeadEvent::Opened => ("opened", None, None),
        LeadEvent::Closed => ("closed", None, None),
        LeadEvent::Began(hub, term) => ("began", Some((hub, term)), None),
        LeadEvent::GaveUp(hub, term) => ("gave_up", Some((hub, term)), None),
        LeadEvent::Acknowledges(controller_term) => ("acknowledges", None, Some(controller_term)),
        LeadEvent::Changed => ("changed", None, None),
    };
    let (hub, term) = pair.map_or((None, None), |(hub, term)| (Some(hub.0), Some(term.0)));
    ("lead", kind, hub, term, controller_term).into_bound_py_any(py)
}

/// A consistent snapshot of the data for a controller's decisions.
pub fn snapshot<'py>(py: Python<'py>, peer_table: &PeerTable) -> PyResult<Bound<'py, PyDict>> {
    let (view, names) = py.detach(|| (peer_table.leads.get(), peer_table.names()));
    let named = |process: &Process| names.get(&process.node);
    let peers = view.snapshot.peers.iter().filter_map(|(process, row)| Some((named(process)?, process, row)));
    let peers = peers.map(|(name, process, row)| peer(py, name, process.incarnation, row, &names));
    Ok(dict!(
        py,
        now_us = view.snapshot.now_us,
        controller_term = view.snapshot.controller_term,
        confirmed_us = view.snapshot.confirmed_us,
        alone_us = view.snapshot.alone_us,
        voters_revision = view.snapshot.voters_revision,
        voters_since_us = view.snapshot.voters_since_us,
        until_us = view.until_us,
        acknowledged_term = view.acknowledges,
        peers = peers.collect::<PyResult<Vec<_>>>()?,
    ))
}

fn peer<'py>(
    py: Python<'py>,
    node: &str,
    incarnation: u64,
    row: &Peer,
    names: &HashMap<NodeId, Box<str>>,
) -> PyResult<Bound<'py, PyDict>> {
    let known = row.acknowledges_us.filter(|&since_us| row.acknowledges_until_us >= since_us);
    Ok(dict!(
        py,
        node = node,
        incarnation = incarnation,
        heard_us = row.heard_us,
        acknowledges_us = row.acknowledges_us,
        acknowledges_until_us = known.map(|_| row.acknowledges_until_us),
        lead_until_us = row.lease_until_us,
        gave_up = row.gave_up.iter().map(|&(hub, term): &HubTerm| (hub.0, term.0)).collect::<Vec<_>>(),
        suspects = row.suspects.iter().filter_map(|id| names.get(id)).map(|name| &**name).collect::<Vec<_>>(),
    ))
}
