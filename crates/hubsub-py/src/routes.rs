//! Converts routes from Python. Python uses process names, the data plane ids.

use crate::config::{self, bad};
use hubsub_node::link::PeerTable;
use hubsub_node::routes::{ClassRow, HubRow};
use hubsub_types::{HubId, Term};
use pyo3::prelude::*;

/// Id, class, index, term, and the leader's name and incarnation.
pub type HubTuple = (u32, String, u16, u64, Option<(String, u64)>);

/// Definition as in the configuration, version, number of hubs, placement.
pub type ClassTuple<'py> = (Bound<'py, PyAny>, u64, u16, String);

/// Converts all classes, in order of precedence.
pub fn classes(rows: Vec<ClassTuple<'_>>) -> PyResult<Vec<ClassRow>> {
    let class = |(definition, version, hubs, placement): ClassTuple<'_>| {
        let is_ring = match placement.as_str() {
            "ring" => true,
            "least-busy" => false,
            other => return Err(bad("placement", format!("unknown: {other}"))),
        };
        Ok(ClassRow { class: config::class(&definition)?, version, hubs, is_ring })
    };
    rows.into_iter().map(class).collect()
}

pub fn hubs(rows: Vec<HubTuple>) -> PyResult<Vec<HubRow>> {
    let hub = |(hub, class, index, term, leader): HubTuple| {
        if hub == 0 || term == 0 {
            return Err(bad("hub", "ids and terms begin at 1"));
        }
        let leader = leader.map(|(node, incarnation)| (node.into(), incarnation));
        Ok(HubRow { hub: HubId(hub), class: class.into(), index, term: Term(term), leader })
    };
    rows.into_iter().map(hub).collect()
}

/// Names and incarnations of the ready processes.
pub fn ready(peer_table: &PeerTable) -> Vec<(String, u64)> {
    let names = peer_table.names();
    let ready = peer_table.ready.get().into_iter();
    ready.filter_map(|(id, incarnation)| Some((names.get(&id)?.to_string(), incarnation))).collect()
}
