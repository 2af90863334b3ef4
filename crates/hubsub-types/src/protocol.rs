//! Client protocols.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    Redis,
    /// MQTT, including offline sessions.
    Mqtt,
    /// Phoenix channels, of browsers.
    Phoenix,
    Events,
}

impl Protocol {
    /// Names, indexed by the protocol's number.
    pub const NAMES: [&str; 4] = ["redis", "mqtt", "phoenix", "events"];
}
