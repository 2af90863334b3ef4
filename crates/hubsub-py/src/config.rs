//! Converts Python's resolved configuration for the data plane. Errors name keys that are missing, unknown or
//! out of range; the control plane has checked most of it.

use hubsub_node::log::start::{LogConfig, Numbering};
use hubsub_node::{MqttRules, NodeConfig, StoreConfig};
use hubsub_route::counts::SHARDS_MAX;
use hubsub_types::class::Membership;
use hubsub_types::names::{DeviceTemplate, Matcher, Template};
use hubsub_types::{Class, ClassTable, Durability, History, Limits, OnGap, OnSlow, ShareStrategy};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;

/// The error for a bad value of a key.
pub fn bad(key: &str, why: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("{key}: {why}"))
}

/// A dict of which every key must be used.
pub struct Table<'py> {
    name: String,
    dict: Bound<'py, PyDict>,
    used: Vec<&'static str>,
}

impl<'py> Table<'py> {
    /// `name` is used in errors.
    pub fn new(name: impl Into<String>, value: &Bound<'py, PyAny>) -> PyResult<Table<'py>> {
        let name = name.into();
        let dict = value.cast::<PyDict>().map_err(|_| bad(&name, "not a dict"))?.clone();
        Ok(Table { name, dict, used: Vec::new() })
    }

    fn any(&mut self, key: &'static str) -> PyResult<Bound<'py, PyAny>> {
        self.used.push(key);
        self.dict.get_item(key)?.ok_or_else(|| bad(&self.key(key), "missing"))
    }

    /// Takes a required value.
    pub fn take<T: for<'a> FromPyObject<'a, 'py>>(&mut self, key: &'static str) -> PyResult<T> {
        let value = self.any(key)?;
        value.extract::<T>().map_err(|error| bad(&self.key(key), error.into()))
    }

    fn one_of<T: Copy>(&mut self, key: &'static str, words: &[(&str, T)]) -> PyResult<T> {
        let word: String = self.take(key)?;
        let found = words.iter().find(|(w, _)| *w == word).map(|(_, value)| *value);
        found.ok_or_else(|| bad(&self.key(key), format!("unknown: {word}")))
    }

    pub fn matchers(&mut self, key: &'static str) -> PyResult<Vec<Matcher>> {
        let patterns: Vec<String> = self.take(key)?;
        let matchers = patterns.iter().map(|pattern| Matcher::parse(pattern));
        matchers.collect::<Result<_, _>>().map_err(|e| bad(&self.key(key), e))
    }

    fn key(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    /// Fails if a key was not used.
    pub fn done(self) -> PyResult<()> {
        for (key, _) in self.dict.iter() {
            let key: String = key.extract()?;
            if !self.used.contains(&key.as_str()) {
                return Err(bad(&self.key(&key), "unknown key"));
            }
        }
        Ok(())
    }
}

/// Converts the whole configuration.
pub fn node_config(config: &Bound<'_, PyAny>) -> PyResult<NodeConfig> {
    let mut table = Table::new("", config)?;
    let shards: u16 = table.take("shards")?;
    if !(1..=SHARDS_MAX).contains(&shards) {
        return Err(bad("shards", format!("not within 1 to {SHARDS_MAX}: {shards}")));
    }
    let redis = address(&mut table, "redis")?;
    let redis_cluster = address(&mut table, "redis_cluster")?;
    let mqtt = address(&mut table, "mqtt")?;
    let ws = address(&mut table, "ws")?;
    let mqtt_rules = MqttRules {
        is_strict: table.take("mqtt_strict")?,
        long_ids: table.take("mqtt_long_ids")?,
        records_wills: table.take("mqtt_wills_recorded")?,
    };
    let link = address(&mut table, "link")?;
    let classes = table.any("classes")?;
    let node = NodeConfig {
        name: table.take("node")?,
        incarnation: table.take("incarnation")?,
        shards,
        redis,
        redis_cluster,
        mqtt,
        ws,
        ws_origins: table.take("ws_origins")?,
        hosts: table.take("hosts")?,
        phoenix_topics: table.matchers("phoenix_topics")?,
        mqtt_rules,
        link,
        accepts: table.take("accepts")?,
        advertise: table.take("advertise")?,
        classes: class_table(&classes, table.take("hash_tags")?)?,
        limits: limits(&table.any("limits")?)?,
        log: log(&table.any("log")?)?,
        inflight_store: inflight_store(&table.any("inflight_store")?)?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    table.done()?;
    Ok(node)
}

/// The authority that numbers hubs: `(cluster, adopts)`, or None for the node itself.
type Given = Option<(String, bool)>;

/// From `(directory, identity, None | (cluster, adopts))`, or None.
fn log(value: &Bound<'_, PyAny>) -> PyResult<Option<LogConfig>> {
    let log: Option<(PathBuf, u64, Given)> = value.extract()?;
    Ok(log.map(|(directory, identity, given)| {
        let hubs = given.map_or(Numbering::Own, |(cluster, adopts)| Numbering::Given { cluster, adopts });
        LogConfig { directory, identity, hubs }
    }))
}

/// From `("log" | "memory",)`, `("disk", FILE)`, or `("redis", URL, NAME)`.
fn inflight_store(value: &Bound<'_, PyAny>) -> PyResult<StoreConfig> {
    let parts: Vec<String> = value.extract()?;
    match parts.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["log"] => Ok(StoreConfig::Log),
        ["memory"] => Ok(StoreConfig::Memory),
        ["disk", file] => Ok(StoreConfig::Disk(file.into())),
        ["redis", url, name] => Ok(StoreConfig::Redis(url.to_owned(), name.to_owned())),
        _ => Err(bad("inflight_store", "unknown")),
    }
}

/// From `HOST:PORT`, or None for a disabled listener.
fn address(table: &mut Table<'_>, key: &'static str) -> PyResult<Option<SocketAddr>> {
    let Some(text) = table.take::<Option<String>>(key)? else { return Ok(None) };
    let mut addresses = text.to_socket_addrs().map_err(|e| bad(key, format!("{e}: {text}")))?;
    addresses.next().map(Some).ok_or_else(|| bad(key, format!("no address: {text}")))
}

/// All limits by name; none may be missing.
pub fn limits(value: &Bound<'_, PyAny>) -> PyResult<Limits> {
    let dict = value.cast::<PyDict>().map_err(|_| bad("limits", "not a dict"))?;
    let mut limits = Limits::default();
    for (name, value) in dict.iter() {
        let name: String = name.extract()?;
        let value: u64 =
            value.extract().map_err(|_| bad(&format!("limits.{name}"), "not an unsigned integer"))?;
        if !limits.set(&name, value) {
            return Err(bad(&format!("limits.{name}"), "unknown limit"));
        }
    }
    if let Some(name) = Limits::NAMES.iter().find(|name| !dict.contains(**name).unwrap_or(false)) {
        return Err(bad(&format!("limits.{name}"), "missing"));
    }
    if let Some(flaw) = hubsub_node::link::limits(&limits).flaw() {
        return Err(bad("limits.link_…", flaw));
    }
    if let Some(flaw) = hubsub_node::link::timing(&limits).flaw() {
        return Err(bad("limits.leader_…", flaw));
    }
    Ok(limits)
}

/// Converts room classes, in order of precedence.
pub fn class_table(classes: &Bound<'_, PyAny>, hash_tags: bool) -> PyResult<ClassTable> {
    let mut list = Vec::new();
    for value in classes.try_iter()? {
        list.push(class(&value?)?);
    }
    Ok(ClassTable::new(list, hash_tags))
}

const DURABILITIES: [(&str, Durability); 3] = [
    ("ephemeral", Durability::Ephemeral),
    ("replicated", Durability::Replicated),
    ("durable", Durability::Durable),
];

const ON_SLOW: [(&str, OnSlow); 4] = [
    ("disconnect", OnSlow::Disconnect),
    ("catch-up", OnSlow::CatchUp),
    ("drop-oldest", OnSlow::DropOldest),
    ("conflate", OnSlow::Conflate),
];

/// Converts a room class.
pub fn class(value: &Bound<'_, PyAny>) -> PyResult<Class> {
    let mut table = Table::new("class", value)?;
    let name: String = table.take("name")?;
    table.name = format!("class.{name}");
    let matches = table.matchers("match")?;
    let room: Option<String> = table.take("room")?;
    let room = room.map_or(Ok(None), |text| Template::parse(&text));
    let device: Option<String> = table.take("device")?;
    let device = device.map(|text| DeviceTemplate::parse(&text)).transpose();
    let (history, archive_wait_bytes) = history(&mut table)?;
    let share_strategy: String = table.take("share_strategy")?;
    let share_strategy = ShareStrategy::parse(&share_strategy);
    let class = Class {
        matches,
        room: room.map_err(|e| bad(&table.key("room"), e))?,
        device: device.map_err(|e| bad(&table.key("device"), e))?.map(Arc::new),
        durability: table.one_of("durability", &DURABILITIES)?,
        history,
        keeps_latest: table.take("keeps_latest")?,
        archive_wait_bytes,
        on_slow: table.one_of("on_slow", &ON_SLOW)?,
        on_gap: table
            .one_of("on_gap", &[("continue", OnGap::Continue), ("disconnect", OnGap::Disconnect)])?,
        share_strategy: share_strategy.map_err(|e| bad(&table.key("share_strategy"), e))?,
        payload_bytes_max: table.take("payload_bytes_max")?,
        idle_ms: table.take("idle_ms")?,
        browser_events: table.take("browser_events")?,
        presence: table.one_of(
            "presence",
            &[("asked", Membership::Asked), ("all", Membership::All), ("off", Membership::Off)],
        )?,
        presence_records: table.take("presence_records")?,
        occupancy_records: table.take("occupancy_records")?,
        commit_delay_ms: table.take("commit_delay_ms")?,
        is_removed: table.take("is_removed")?,
        name,
    };
    table.done()?;
    Ok(class)
}

/// The history settings, and the bytes kept for the archive.
fn history(class: &mut Table<'_>) -> PyResult<(Option<History>, u64)> {
    let value = class.any("history")?;
    if value.is_none() {
        return Ok((None, 0));
    }
    let mut table = Table::new(class.key("history"), &value)?;
    let history = History {
        messages: table.take("messages")?,
        bytes: table.take("bytes")?,
        age_ms: table.take("age_ms")?,
    };
    let archive_wait: u64 = table.take("archive_wait")?;
    table.done()?;
    Ok((Some(history), archive_wait))
}
