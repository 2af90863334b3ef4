//! Converts cluster identity, registered nodes and link events between Python and the data plane.

use crate::config::bad;
use hubsub_node::NodeConfig;
use hubsub_node::link::{
    Change, Identity, LinkEvent, LinkRow, PeerRow, PeerTable, Registered, Secret, VERSIONS,
};
use hubsub_types::{ErrorCode, NodeId};
use hubsub_wire::link::handshake::{CLUSTER_BYTES_MAX, NODE_BYTES_MAX};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::net::SocketAddr;

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
    Ok(dict!(
        py,
        node = &*row.peer.node,
        id = row.peer.id.0,
        incarnation = row.peer.incarnation,
        addresses = row.peer.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        links = row.links.iter().map(|row| link(py, row, now_us)).collect::<PyResult<Vec<_>>>()?,
    ))
}

fn link<'py>(py: Python<'py>, row: &LinkRow, now_us: u64) -> PyResult<Bound<'py, PyDict>> {
    let LinkRow { reason, offset, status, counters, .. } = row;
    let by_lane = |[urgent, live, reads]: [u64; 3]| -> PyResult<Bound<'py, PyDict>> {
        Ok(dict!(py, urgent = urgent, live = live, reads = reads))
    };
    Ok(dict!(
        py,
        state = row.state.name(),
        code = reason.as_ref().map(|(code, _)| *code),
        text = reason.as_ref().map(|(_, text)| &**text),
        heard_ms = (row.heard_us > 0).then(|| now_us.saturating_sub(row.heard_us) as f64 / 1e3),
        round_trip_us = offset.map(|offset| offset.round_trip_us),
        offset_us = offset.map(|offset| offset.offset_us),
        offset_error_us = offset.map(|offset| offset.error_us),
        controller_term = status.controller_term,
        acknowledged_term = status.acknowledged_term,
        classes = status.classes,
        frames_in = counters.frames_in,
        bytes_in = counters.bytes_in,
        bytes_out = counters.bytes_out,
        dropped_bytes = counters.dropped_bytes,
        suspicions = counters.suspicions,
        sent = by_lane(counters.sent)?,
        sent_bytes = by_lane(counters.sent_bytes)?,
        refused = by_lane(counters.refused)?,
    ))
}
