//! Another implementation (rmqtt-codec) decodes packets that are encoded here and encodes them again;
//! decoding that yields the same packet.

use crate::any_input::WIDE;
use crate::drafts::{Draft, draft};
use bytes::BytesMut;
use hubsub_wire::mqtt::*;
use proptest::prelude::*;
use rmqtt_codec::{v3, v5};
use tokio_util::codec::{Decoder as _, Encoder as _};

/// Decodes and encodes one packet with the other implementation; its error as text.
fn through_the_other(version: Version, bytes: &[u8]) -> Result<Vec<u8>, String> {
    let (mut input, mut output) = (BytesMut::from(bytes), BytesMut::new());
    if version == Version::V5 {
        let mut codec = v5::Codec::default();
        let read = codec.decode(&mut input).map_err(|error| format!("{error:?}"))?;
        let (packet, _) = read.ok_or("incomplete")?;
        // For a connection without problem information it would omit texts.
        v5::Codec::default().encode(packet, &mut output).map_err(|error| format!("{error:?}"))?;
    } else {
        let mut codec = v3::Codec::default();
        let read = codec.decode(&mut input).map_err(|error| format!("{error:?}"))?;
        let (packet, _) = read.ok_or("incomplete")?;
        codec.encode(packet, &mut output).map_err(|error| format!("{error:?}"))?;
    }
    assert!(input.is_empty(), "bytes that it did not take: {input:?}");
    Ok(output.to_vec())
}

/// A packet as text, its properties in a fixed order, without those that equal their default.
fn canonical(packet: Packet<'_>) -> String {
    let mut packet = packet;
    let mut properties = Properties::default();
    let mut of_will = Properties::default();
    match &mut packet {
        Packet::Connect(connect) => {
            properties = std::mem::take(&mut connect.properties);
            of_will =
                connect.will.as_mut().map(|will| std::mem::take(&mut will.properties)).unwrap_or_default();
        }
        Packet::Connack(of) => properties = std::mem::take(&mut of.properties),
        Packet::Publish(of) => properties = std::mem::take(&mut of.properties),
        Packet::Puback(of) | Packet::Pubrec(of) | Packet::Pubrel(of) | Packet::Pubcomp(of) => {
            properties = std::mem::take(&mut of.properties);
        }
        Packet::Subscribe(of) => properties = std::mem::take(&mut of.properties),
        Packet::Suback(of) => properties = std::mem::take(&mut of.properties),
        Packet::Unsubscribe(of) => properties = std::mem::take(&mut of.properties),
        Packet::Unsuback(of) => properties = std::mem::take(&mut of.properties),
        Packet::Disconnect(of) => properties = std::mem::take(&mut of.properties),
        Packet::Auth(of) => properties = std::mem::take(&mut of.properties),
        Packet::Pingreq | Packet::Pingresp => {}
    }
    let in_order = |properties: Properties<'_>| {
        let mut all: Vec<String> =
            properties.iter().filter(|property| !says_nothing(property)).map(|p| format!("{p:?}")).collect();
        all.sort();
        all
    };
    format!("{packet:?} {:?} {:?}", in_order(properties), in_order(of_will))
}

/// Whether its absence means the same (sections 3.1.2.11 and 3.2.2.3 of 5.0).
fn says_nothing(property: &Property<'_>) -> bool {
    matches!(
        property,
        Property::PayloadFormat(false)
            | Property::SessionExpiry(0)
            | Property::WillDelay(0)
            | Property::ReceiveMaximum(65_535)
            | Property::TopicAliasMaximum(0)
            | Property::RequestResponseInfo(false)
            | Property::RequestProblemInfo(true)
            | Property::RetainAvailable(true)
            | Property::WildcardAvailable(true)
            | Property::SubscriptionIdsAvailable(true)
            | Property::SharedAvailable(true)
    )
}

fn decoded(draft: &Draft, bytes: &[u8]) -> String {
    let mut decoder = match draft.kind {
        1 => Decoder::of_client(),
        2 => Decoder::of_server(draft.version),
        _ => crate::any_input::begun(draft.from(), draft.version),
    };
    match decoder.decode(bytes, &WIDE) {
        Ok(Decoded::Packet { packet, len }) if len == bytes.len() => canonical(packet),
        other => panic!("{other:?} of {bytes:?}"),
    }
}

proptest! {
    #[test]
    fn another_implementation_reads_the_same(draft in draft()) {
        // It refuses these ids, in 5.0 too, where the server assigns one; see `Connect::check_client_id`.
        let nameless = draft.kind == 1 && draft.texts[0].is_empty() && !draft.flags[2];
        let bytes = draft.bytes();
        match through_the_other(draft.version, &bytes) {
            Ok(mut again) => {
                // It encodes a CONNECT of 3.1 with the level of 3.1.1.
                let name = again.windows(6).position(|bytes| bytes == b"MQIsdp");
                if let (1, Some(at)) = (draft.kind, name) {
                    again[at + 6] = 3;
                }
                prop_assert_eq!(decoded(&draft, &again), decoded(&draft, &bytes));
            }
            Err(error) => prop_assert!(nameless && error == "InvalidClientId", "{} of {:?}", error, bytes),
        }
    }
}
