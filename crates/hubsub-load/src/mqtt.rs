//! The subset of MQTT 3.1.1 that this generator needs; every broker supports it.
//!
//! ```text
//! out   CONNECT (clean session, no keep alive)   SUBSCRIBE (filters of one QoS)   PUBLISH   PINGREQ
//! in    CONNACK   SUBACK   PUBLISH   PUBACK   PUBREC   PUBREL   PUBCOMP   PINGRESP
//! ```
//! A packet is a byte of type and flags, its length in 1 to 4 bytes of 7 bits, lowest first, and a body;
//! numbers are big endian. An incomplete packet is `None`, never an error.

use crate::codec::Malformed;

/// PINGREQ: the broker answers it after all earlier packets.
pub const PING: [u8; 2] = [0xC0, 0];

pub const DISCONNECT: [u8; 2] = [0xE0, 0];

const PUBACK: u8 = 0x40;
const PUBREC: u8 = 0x50;
const PUBREL: u8 = 0x62;
const PUBCOMP: u8 = 0x70;

/// Packet id of a connection's only SUBSCRIBE.
const SUBSCRIBE_ID: u16 = 1;

/// Highest return code of a SUBACK that grants a subscription.
const GRANTED_MAX: u8 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packet<'a> {
    /// A CONNACK that accepts the connection.
    Connected,
    /// Return code of a refused connection or subscription.
    Refused(u8),
    /// SUBACK with this many granted subscriptions.
    Subscribed(usize),
    Publish {
        topic: &'a [u8],
        payload: &'a [u8],
        /// QoS of the delivery, 0 to 2.
        qos: u8,
        /// Packet id for the acknowledgement; 0 with QoS 0.
        id: u16,
    },
    /// Acknowledges a message of QoS 1.
    Puback(u16),
    /// First acknowledgement of a message of QoS 2.
    Pubrec(u16),
    /// The broker releases a delivery of QoS 2.
    Pubrel(u16),
    /// Final acknowledgement of a message of QoS 2.
    Pubcomp(u16),
    /// PINGRESP: the broker has processed everything sent before the ping.
    Pong,
}

/// The first packet of `input` and its length; `None` if it is incomplete.
pub fn packet(input: &[u8]) -> Result<Option<(Packet<'_>, usize)>, Malformed> {
    let Some((&first, rest)) = input.split_first() else { return Ok(None) };
    let Some((length, digits)) = length(rest)? else { return Ok(None) };
    let Some(body) = rest.get(digits..digits + length) else { return Ok(None) };
    let short = Malformed("a packet ends within a field");
    let id = || number(body, 0).ok_or(short);
    let packet = match first >> 4 {
        2 => match body.get(1).ok_or(short)? {
            0 => Packet::Connected,
            code => Packet::Refused(*code),
        },
        3 => publish_of(first, body).ok_or(short)?,
        4 => Packet::Puback(id()?),
        5 => Packet::Pubrec(id()?),
        6 => Packet::Pubrel(id()?),
        7 => Packet::Pubcomp(id()?),
        9 => {
            let codes = body.get(2..).ok_or(short)?;
            match codes.iter().find(|code| **code > GRANTED_MAX) {
                Some(&code) => Packet::Refused(code),
                None => Packet::Subscribed(codes.len()),
            }
        }
        13 => Packet::Pong,
        _ => return Err(Malformed("a packet that a server does not send")),
    };
    Ok(Some((packet, 1 + digits + length)))
}

fn publish_of(first: u8, body: &[u8]) -> Option<Packet<'_>> {
    let qos = first >> 1 & 3;
    let topic_end = 2 + usize::from(number(body, 0)?);
    let topic = body.get(2..topic_end)?;
    let (id, payload_at) = match qos {
        0 => (0, topic_end),
        _ => (number(body, topic_end)?, topic_end + 2),
    };
    Some(Packet::Publish { topic, payload: body.get(payload_at..)?, qos, id })
}

/// A remaining length and the number of its bytes; `None` if it is incomplete.
fn length(bytes: &[u8]) -> Result<Option<(usize, usize)>, Malformed> {
    let mut value = 0;
    for (place, byte) in bytes.iter().take(4).enumerate() {
        value |= usize::from(byte & 0x7F) << (7 * place);
        if byte & 0x80 == 0 {
            return Ok(Some((value, place + 1)));
        }
    }
    if bytes.len() < 4 { Ok(None) } else { Err(Malformed("a length of more than four bytes")) }
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]))
}

/// Appends a CONNECT without keep-alive.
///
/// With `session`, the broker retains the client's subscriptions after a disconnect.
pub fn connect(out: &mut Vec<u8>, client_id: &str, session: bool) {
    let flags = if session { 0 } else { 2 };
    head(out, 0x10, 12 + client_id.len());
    out.extend_from_slice(&[0, 4, b'M', b'Q', b'T', b'T', 4, flags, 0, 0]);
    text(out, client_id);
}

/// Appends a SUBSCRIBE to all of `filters`; answered by one SUBACK.
pub fn subscribe(out: &mut Vec<u8>, filters: &[String], qos: u8) {
    head(out, 0x82, 2 + filters.iter().map(|filter| 3 + filter.len()).sum::<usize>());
    out.extend_from_slice(&SUBSCRIBE_ID.to_be_bytes());
    for filter in filters {
        text(out, filter);
        out.push(qos);
    }
}

/// Appends a PUBLISH; returns the positions of its packet id, if it has one, and of its payload.
pub fn publish(
    out: &mut Vec<u8>,
    topic: &str,
    payload: &[u8],
    qos: u8,
    retain: bool,
) -> (Option<usize>, usize) {
    let id_bytes = if qos > 0 { 2 } else { 0 };
    head(out, 0x30 | qos << 1 | u8::from(retain), 2 + topic.len() + id_bytes + payload.len());
    text(out, topic);
    let id_at = (qos > 0).then_some(out.len());
    out.extend_from_slice(&[0, 0][..id_bytes]);
    let payload_at = out.len();
    out.extend_from_slice(payload);
    (id_at, payload_at)
}

/// Acknowledges a delivery: nothing with QoS 0, PUBACK with 1, PUBREC with 2.
#[inline]
pub fn taken(out: &mut Vec<u8>, qos: u8, id: u16) {
    match qos {
        0 => {}
        1 => answer(out, PUBACK, id),
        _ => answer(out, PUBREC, id),
    }
}

pub fn release(out: &mut Vec<u8>, id: u16) {
    answer(out, PUBREL, id);
}

pub fn complete(out: &mut Vec<u8>, id: u16) {
    answer(out, PUBCOMP, id);
}

#[inline]
fn answer(out: &mut Vec<u8>, first: u8, id: u16) {
    let [high, low] = id.to_be_bytes();
    out.extend_from_slice(&[first, 2, high, low]);
}

/// Appends the first byte and the remaining length.
pub fn head(out: &mut Vec<u8>, first: u8, length: usize) {
    out.push(first);
    let mut rest = length;
    while rest > 0x7F {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packets(stream: &[u8], cuts: &[usize]) -> Vec<String> {
        let (mut held, mut from, mut got): (Vec<u8>, _, _) = (Vec::new(), 0, Vec::new());
        for to in cuts.iter().copied().chain([stream.len()]) {
            held.extend_from_slice(&stream[from..to]);
            from = to;
            while let Some((one, len)) = packet(&held).expect("a valid stream is well-formed") {
                got.push(format!("{one:?}"));
                held.drain(..len);
            }
        }
        assert!(held.is_empty());
        got
    }

    proptest! {
        #[test]
        fn any_split_of_a_stream_reads_the_same(
            rows in proptest::collection::vec((0u8..3, "[a-z/]{1,40}", proptest::collection::vec(any::<u8>(), 0..300)), 0..8),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let (mut stream, mut expected) = (Vec::new(), Vec::new());
            for (id, (qos, topic, payload)) in (1u16..).zip(&rows) {
                let (id_at, _) = publish(&mut stream, topic, payload, *qos, false);
                if let Some(at) = id_at {
                    stream[at..at + 2].copy_from_slice(&id.to_be_bytes());
                }
                let id = if *qos > 0 { id } else { 0 };
                expected.push(format!("{:?}", Packet::Publish { topic: topic.as_bytes(), payload, qos: *qos, id }));
                complete(&mut stream, id);
                expected.push(format!("{:?}", Packet::Pubcomp(id)));
            }
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            cuts.sort_unstable();
            prop_assert_eq!(packets(&stream, &cuts), expected.clone());
            let every_byte: Vec<usize> = (0..stream.len()).collect();
            prop_assert_eq!(packets(&stream, &every_byte), expected);
        }

        #[test]
        fn garbage_is_refused_or_waited_for(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = packet(&bytes);
        }
    }

    #[test]
    fn a_connection_begins_as_the_standard_has_it() {
        let mut out = Vec::new();
        connect(&mut out, "s1", false);
        assert_eq!(out, b"\x10\x0e\0\x04MQTT\x04\x02\0\0\0\x02s1");
        out.clear();
        subscribe(&mut out, &["a/b".to_owned()], 1);
        assert_eq!(out, b"\x82\x08\0\x01\0\x03a/b\x01");
    }

    #[test]
    fn what_is_refused_is_named() {
        assert_eq!(packet(b"\x20\x02\0\x05"), Ok(Some((Packet::Refused(5), 4))));
        assert_eq!(packet(b"\x90\x04\0\x01\x01\x80"), Ok(Some((Packet::Refused(0x80), 6))));
        assert_eq!(packet(b"\x90\x04\0\x01\x01\x02"), Ok(Some((Packet::Subscribed(2), 6))));
        assert!(packet(b"\x30\xff\xff\xff\xff\x01").is_err());
        assert!(packet(b"\xf0\0").is_err());
    }
}
