//! Errors: the flaw of a packet with its reason code, and why a packet is not sent.

use super::reason::Reason;
use super::version::Version;
use crate::flaws::flaws;

flaws! {
    /// A flaw, with the reason code that MQTT 5.0 has for it.
    enum Flaw;
    /// The reason code of MQTT 5.0.
    fn reason -> Reason;

    LengthTooLong => MalformedPacket "a length of more than four bytes";
    LengthNotShortest => MalformedPacket "a length in more bytes than it needs";
    TooLarge(bytes: usize, max: usize) => PacketTooLarge "packet too large: {bytes} bytes, at most {max}";
    HeadTooLarge(max: usize) => PacketTooLarge "topic and properties too large: more than {max} bytes";
    UnknownType(kind: u8) => MalformedPacket "unknown packet type: {kind}";
    FixedHeaderFlags(flags: u8) => MalformedPacket "flags that its packet type does not have: {flags:#06b}";
    NotConnect(kind: u8) => ProtocolError "the first packet is not CONNECT, but of type: {kind}";
    NotConnack(kind: u8) => ProtocolError "the first packet is not CONNACK, but of type: {kind}";
    ConnectAgain => ProtocolError "a second CONNECT or CONNACK";
    OtherSide(kind: u8) => ProtocolError "only the other side sends packets of type: {kind}";
    Short => MalformedPacket "a field ends behind its packet";
    Trailing(bytes: usize) => MalformedPacket "bytes behind the last field: {bytes}";
    NotUtf8 => MalformedPacket "a text is not UTF-8";
    NulInText => MalformedPacket "a text has a NUL character";
    ProtocolName => UnsupportedProtocolVersion "the protocol's name is neither MQTT nor MQIsdp";
    ProtocolLevel(level: u8) => UnsupportedProtocolVersion "unsupported protocol level: {level}";
    ConnectFlags(flags: u8) => MalformedPacket "connect flags that exclude each other: {flags:#010b}";
    QosThree => MalformedPacket "a QoS of 3";
    RepeatedQosZero => MalformedPacket "DUP is set in a message of QoS 0";
    PacketIdZero => ProtocolError "a packet identifier of 0";
    UnknownProperty(id: u8) => MalformedPacket "unknown property: {id}";
    PropertyMisplaced(id: u8) => MalformedPacket "property in a packet that cannot have it: {id}";
    PropertyOfOtherSide(id: u8) => ProtocolError "property that only the other side sends: {id}";
    PropertyRepeated(id: u8) => ProtocolError "property more than once: {id}";
    PropertyValue(id: u8) => ProtocolError "property with a value that it cannot have: {id}";
    TopicAliasZero => TopicAliasInvalid "a topic alias of 0";
    TopicEmpty => ProtocolError "an empty topic without an alias";
    TopicWildcard => TopicNameInvalid "a wildcard in a topic name";
    ResponseTopic => ProtocolError "an empty response topic, or a wildcard in it";
    FilterEmpty => TopicFilterInvalid "an empty topic filter";
    FilterWildcard => TopicFilterInvalid "a wildcard in a topic filter is not a whole level, or # not the last";
    ShareName => TopicFilterInvalid "a shared subscription without a name or a filter, or a wildcard in its name";
    ShareNoLocal => ProtocolError "No Local is set in a shared subscription";
    NoFilter => ProtocolError "no topic filter";
    SubscribeOptions(options: u8) => MalformedPacket "subscription options with reserved bits: {options:#010b}";
    RetainHandling => ProtocolError "a retain handling of 3";
    UnknownReason(code: u8) => MalformedPacket "unknown reason or return code: {code:#04x}";
    ReasonMisplaced(code: u8) => ProtocolError "reason code in a packet that cannot have it: {code:#04x}";
    NoAuthMethod => ProtocolError "authentication data or AUTH without a method";
    ConnackFlags(flags: u8) => MalformedPacket "acknowledge flags that are reserved: {flags:#010b}";
    SessionOfRefused => ProtocolError "a refused connection with a session";
}

/// Input that is invalid or not allowed here. The connection must be closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{} ({:#04x})", self.flaw, self.flaw.reason().number())]
pub struct ProtocolError {
    pub flaw: Flaw,
    /// The version in which the peer understands a reply; `None` if unknown.
    pub version: Option<Version>,
    /// Whether the packet is the connection's first.
    pub first: bool,
}

/// Why a packet is not sent; the output is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeError {
    #[error("packet longer than the peer takes: {bytes} bytes")]
    TooLong { bytes: usize },
    #[error("text longer than 65535 bytes: {bytes}")]
    FieldTooLong { bytes: usize },
}
