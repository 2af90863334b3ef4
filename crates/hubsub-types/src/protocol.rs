//! What clients speak.

/// One of the protocols of clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// Redis's.
    Redis,
    /// MQTT; sessions that go on without their clients, too.
    Mqtt,
    /// Phoenix channels, of browsers.
    Phoenix,
    /// Server-sent events.
    Events,
}

impl Protocol {
    /// Their names, in order: that of one is at its number.
    pub const NAMES: [&str; 4] = ["redis", "mqtt", "phoenix", "events"];
}
