//! Converts cluster identity, registered nodes and link events between Python and the data plane.

use crate::config::bad;
use hubsub_node::NodeConfig;
use hubsub_node::link::{
    Change, Identity, LinkEvent, LinkRow, PeerRow, PeerTable, Registered, Secret, VERSIONS,
};
use hubsub_types::{ErrorCode, NodeId};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::net::SocketAddr;

/// The maximal length of a cluster's id, in bytes.
const CLUSTER_BYTES_MAX: usize = 64;
/// The maximal length of a node's name, in bytes.
const NODE_BYTES_MAX: usize = 255;

/// Name, incarnation, addresses, shards.
pub type RosterRow = (String, u64, Vec<String>, u16);

/// Finds an error by its stable code.
pub fn error_code(code: &str) -> PyResult<ErrorCode> {
    ErrorCode::from_code(code).ok_or_else(|| bad("code", code))
}

/// Builds this node's identity.
pub fn identity(
    config: &NodeConfig,
    cluster: &str,
    node: &str,
    incarnation: u64,
    secret: &[u8],
) -> PyResult<Identity> {
    check("cluster", cluster, CLUSTER_BYTES_MAX)?;
    check("node", node, NODE_BYTES_MAX)?;
    if secret.is_empty() {
        return Err(bad("secret", "empty"));
    }
    Ok(Identity {
        cluster: cluster.into(),
        node: node.into(),
        incarnation,
        shards: config.shards,
        secret: Secret::new(secret),
        versions: VERSIONS,
    })
}

/// Converts the registered nodes.
pub fn roster(rows: Vec<RosterRow>) -> PyResult<Vec<Registered>> {
    let registered = |(node, incarnation, addresses, shards): RosterRow| {
        check("node", &node, NODE_BYTES_MAX)?;
        if shards == 0 {
            return Err(bad("shards", format!("0, of {node}")));
        }
        let parse = |text: String| {
            text.parse::<SocketAddr>()
                .map_err(|_| bad("address", format!("not an IP address and a port: {text}")))
        };
        let addresses = addresses.into_iter().map(parse).collect::<PyResult<_>>()?;
        Ok(Registered { id: NodeId::default(), node: node.into(), incarnation, addresses, shards })
    };
    rows.into_iter().map(registered).collect()
}

fn check(key: &str, text: &str, bytes_max: usize) -> PyResult<()> {
    if (1..=bytes_max).contains(&text.len()) {
        return Ok(());
    }
    Err(bad(key, format!("not within 1 to {bytes_max} bytes: {text:?}")))
}

/// Converts to `("link", kind, node, incarnation, code, text)`.
pub fn event<'py>(py: Python<'py>, event: LinkEvent) -> PyResult<Bound<'py, PyAny>> {
    let LinkEvent { node, incarnation, change } = event;
    let (kind, why) = match change {
        Change::Up => ("up", None),
        Change::Suspected => ("suspected", None),
        Change::Heard => ("heard", None),
        Change::Down(code, text) => ("down", Some((code, text))),
        Change::Refused(code, text) => ("refused", Some((code, text))),
        Change::Dead => ("dead", None),
    };
    let (code, text) = why.map_or((None, None), |(code, text)| (Some(code), Some(text.into_string())));
    ("link", kind, node.into_string(), incarnation, code, text).into_bound_py_any(py)
}

/// Returns a dict per peer.
pub fn peers<'py>(py: Python<'py>, peer_table: &PeerTable) -> PyResult<Bound<'py, PyList>> {
    let (peers, now_us) = py.detach(|| peer_table.peers());
    let rows = peers.iter().map(|row| peer(py, row, now_us)).collect::<PyResult<Vec<_>>>()?;
    PyList::new(py, rows)
}

fn peer<'py>(py: Python<'py>, row: &PeerRow, now_us: u64) -> PyResult<Bound<'py, PyDict>> {
    let peer = PyDict::new(py);
    peer.set_item("node", &*row.peer.node)?;
    peer.set_item("id", row.peer.id.0)?;
    peer.set_item("incarnation", row.peer.incarnation)?;
    let addresses: Vec<String> = row.peer.addresses.iter().map(ToString::to_string).collect();
    peer.set_item("addresses", addresses)?;
    let links = row.links.iter().map(|row| link(py, row, now_us)).collect::<PyResult<Vec<_>>>()?;
    peer.set_item("links", links)?;
    Ok(peer)
}

fn link<'py>(py: Python<'py>, row: &LinkRow, now_us: u64) -> PyResult<Bound<'py, PyDict>> {
    let link = PyDict::new(py);
    link.set_item("state", row.state.name())?;
    let (code, text) = row.reason.as_ref().map_or((None, None), |(code, text)| (Some(*code), Some(&**text)));
    link.set_item("code", code)?;
    link.set_item("text", text)?;
    let heard_ms = (row.heard_us > 0).then(|| now_us.saturating_sub(row.heard_us) as f64 / 1e3);
    link.set_item("heard_ms", heard_ms)?;
    link.set_item("round_trip_us", row.offset.map(|offset| offset.round_trip_us))?;
    link.set_item("offset_us", row.offset.map(|offset| offset.offset_us))?;
    link.set_item("offset_error_us", row.offset.map(|offset| offset.error_us))?;
    link.set_item("controller_term", row.status.controller_term)?;
    link.set_item("acknowledged_term", row.status.acknowledged_term)?;
    link.set_item("classes", row.status.classes)?;
    let counters = row.counters;
    for (name, value) in [
        ("frames_in", counters.frames_in),
        ("bytes_in", counters.bytes_in),
        ("bytes_out", counters.bytes_out),
        ("dropped_bytes", counters.dropped_bytes),
        ("suspicions", counters.suspicions),
    ] {
        link.set_item(name, value)?;
    }
    for (name, by_lane) in
        [("sent", counters.sent), ("sent_bytes", counters.sent_bytes), ("refused", counters.refused)]
    {
        let lanes = PyDict::new(py);
        for (lane, value) in ["urgent", "live", "reads"].into_iter().zip(by_lane) {
            lanes.set_item(lane, value)?;
        }
        link.set_item(name, lanes)?;
    }
    Ok(link)
}
