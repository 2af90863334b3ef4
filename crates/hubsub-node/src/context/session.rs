//! The protocol of a connection, with the state of its session.

use crate::io::listener::ListenerKind;
use crate::phoenix::state::Client as Browser;
use hubsub_mqtt::{Client, Plain};
use hubsub_wire::mqtt;
use hubsub_wire::phoenix::Version;
use hubsub_wire::resp::Proto;

pub enum Session {
    Redis(Proto),
    /// Whether its records take the fast path, and the client once it has sent its CONNECT.
    Mqtt(Plain, Option<Box<Client>>),
    /// The version is beside the browser, who is there once admitted, as each delivery reads it.
    Phoenix(Version, Option<Box<Browser>>),
    /// HTTP requests; the flag is whether one awaits its response. No further one is read meanwhile.
    Http(bool),
    /// A stream of server-sent events.
    Events,
}

/// The encoding of messages to a client that does not use MQTT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    Redis(Proto),
    Phoenix(Version),
    /// A stream of server-sent events.
    Events,
}

impl Session {
    /// The session with which a connection of this listener begins.
    #[must_use]
    pub fn at(kind: ListenerKind) -> Session {
        if kind.is_mqtt() { Session::Mqtt(Plain::No, None) } else { Session::Redis(Proto::Resp2) }
    }

    /// The MQTT client, once it has sent its CONNECT.
    #[inline]
    pub fn mqtt(&self) -> Option<&Client> {
        if let Session::Mqtt(_, client) = self { client.as_deref() } else { None }
    }

    #[inline]
    #[must_use]
    pub fn mqtt_mut(&mut self) -> Option<&mut Client> {
        if let Session::Mqtt(_, client) = self { client.as_deref_mut() } else { None }
    }

    /// Whether records of an MQTT client take the fast path.
    #[inline]
    pub fn plain(&self) -> Plain {
        if let Session::Mqtt(plain, _) = self { *plain } else { Plain::No }
    }

    pub fn set_plain(&mut self, now: Plain) {
        if let Session::Mqtt(plain, _) = self {
            *plain = now;
        }
    }

    /// Adds the MQTT client.
    pub fn put_mqtt(&mut self, client: Box<Client>) {
        let Session::Mqtt(_, place) = self else { return debug_assert!(false, "no MQTT connection") };
        *place = Some(client);
    }

    /// Removes the MQTT client.
    pub fn take_mqtt(&mut self) -> Option<Box<Client>> {
        if let Session::Mqtt(_, client) = self { client.take() } else { None }
    }

    /// The browser, once it is admitted.
    #[inline]
    pub fn browser(&self) -> Option<&Browser> {
        if let Session::Phoenix(_, browser) = self { browser.as_deref() } else { None }
    }

    #[inline]
    #[must_use]
    pub fn browser_mut(&mut self) -> Option<&mut Browser> {
        if let Session::Phoenix(_, browser) = self { browser.as_deref_mut() } else { None }
    }

    #[inline]
    pub fn is_mqtt(&self) -> bool {
        matches!(self, Session::Mqtt(..))
    }

    #[inline]
    pub fn is_events(&self) -> bool {
        matches!(self, Session::Events)
    }

    /// Whether it is an HTTP request that awaits its response.
    #[inline]
    pub fn awaits_answer(&self) -> bool {
        matches!(self, Session::Http(true))
    }

    /// The RESP version; that of an error before the protocol is known, too.
    #[inline]
    pub fn proto(&self) -> Proto {
        if let Session::Redis(proto) = self { *proto } else { Proto::Resp2 }
    }

    /// The encoding of messages to it, if it is not an MQTT client.
    #[inline]
    pub fn dialect(&self) -> Dialect {
        match self {
            Session::Phoenix(version, _) => Dialect::Phoenix(*version),
            Session::Events => Dialect::Events,
            Session::Redis(proto) => Dialect::Redis(*proto),
            Session::Mqtt(..) | Session::Http(_) => Dialect::Redis(Proto::Resp2),
        }
    }

    /// The name of the protocol, with the version.
    pub fn name(&self) -> &'static str {
        match self {
            Session::Redis(Proto::Resp2) => "resp2",
            Session::Redis(Proto::Resp3) => "resp3",
            Session::Mqtt(_, None) => "mqtt",
            Session::Mqtt(_, Some(client)) => match client.machine.version() {
                mqtt::Version::V31 => "mqtt3.1",
                mqtt::Version::V311 => "mqtt3.1.1",
                mqtt::Version::V5 => "mqtt5",
            },
            Session::Phoenix(..) => "phoenix",
            Session::Http(_) => "http",
            Session::Events => "events",
        }
    }

    /// Whether the client was sent the reason why its connection ends.
    pub fn was_told(&self) -> bool {
        match self {
            Session::Redis(_) => false,
            Session::Mqtt(_, client) => client.as_ref().is_some_and(|client| client.was_notified),
            Session::Phoenix(_, browser) => browser.as_ref().is_some_and(|browser| browser.was_told),
            Session::Http(_) | Session::Events => true,
        }
    }
}
