//! Errors of messages, and the codes that close their connections.

use crate::flaws::flaws;
use crate::websocket::CloseCode;

flaws! {
    /// Error of a message. The connection must be closed.
    enum Flaw;
    /// Close code for the peer.
    fn code -> CloseCode;

    NotJson(at: usize) => INVALID_DATA "not JSON at byte: {at}";
    TooDeep(max: u32) => POLICY "JSON nested too deep: more than {max} levels";
    HalfCharacter => INVALID_DATA "half a character of UTF-16 in a topic, an event or a ref";
    NotEnvelope => INVALID_DATA "a message of version 2 is [join_ref, ref, topic, event, payload]";
    NotObject => INVALID_DATA "a message of version 1 is an object of topic, event, payload and ref";
    Missing(name: &'static str) => INVALID_DATA "a message without its member: {name}";
    Repeated(name: &'static str) => INVALID_DATA "a message with a member twice: {name}";
    RefKind => INVALID_DATA "a ref is neither a text nor a whole number nor null";
    RefTooLong(bytes: usize, max: usize) => POLICY "ref too long: {bytes} bytes, at most {max}";
    TopicTooLong(bytes: usize, max: usize) => POLICY "topic too long: {bytes} bytes, at most {max}";
    EventTooLong(bytes: usize, max: usize) => POLICY "event too long: {bytes} bytes, at most {max}";
    BinaryInV1 => UNSUPPORTED "version 1 has no binary messages; hint: connect with vsn=2.0.0";
    BinaryKind(kind: u8) => INVALID_DATA "unknown kind of binary message: {kind}";
    BinaryShort => INVALID_DATA "a binary message ends inside its fields";
    NotUtf8 => INVALID_DATA "a topic, an event or a ref is not UTF-8";
    ReplyForm => INVALID_DATA "a reply's payload is not an object of status and response";
    ReplyStatus => INVALID_DATA "a reply is neither ok nor error";
}
