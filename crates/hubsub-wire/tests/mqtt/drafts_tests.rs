//! Random packets, encoded and decoded, and random inputs, split anywhere.

use crate::any_input::{WIDE, begun, connect, decoders, outcome};
use crate::drafts::{Draft, draft};
use hubsub_wire::mqtt::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

fn decoder_for(draft: &Draft) -> Decoder {
    match draft.kind {
        1 => Decoder::of_client(),
        2 => Decoder::of_server(draft.version),
        _ => begun(draft.from(), draft.version),
    }
}

fn ends(cuts: &[Index], len: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(len + 1)).collect();
    cuts.sort_unstable();
    cuts
}

/// Bytes that resemble packets.
fn near_mqtt() -> impl Strategy<Value = Vec<u8>> {
    let mended = (draft(), any::<Index>(), any::<u8>()).prop_map(|(draft, at, byte)| {
        let mut bytes = draft.bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes
    });
    let cut = (draft(), any::<Index>()).prop_map(|(draft, at)| {
        let mut bytes = draft.bytes();
        bytes.truncate(at.index(bytes.len()));
        bytes
    });
    let piece = prop_oneof![
        3 => draft().prop_map(|draft| draft.bytes()),
        3 => mended,
        1 => cut,
        1 => vec(any::<u8>(), 0..6),
    ];
    vec(piece, 0..4).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn what_is_encoded_decodes_to_itself(draft in draft()) {
        let bytes = draft.bytes();
        draft.with(|packet| {
            let len = bytes.len();
            let decoded = decoder_for(&draft).decode(&bytes, &WIDE);
            prop_assert_eq!(decoded, Ok(Decoded::Packet { packet, len }));
            Ok(())
        })?;
    }

    #[test]
    fn any_split_of_valid_packets_yields_the_same(
        drafts in vec(draft(), 1..8),
        version in 3..=5_u8,
        cuts in vec(any::<Index>(), 0..12),
    ) {
        let of_version = |draft: &&Draft| {
            draft.version as u8 == version && draft.from() == Peer::Client && draft.kind != 1
        };
        let all: Vec<Vec<u8>> = drafts.iter().filter(of_version).map(Draft::bytes).collect();
        let version = [Version::V31, Version::V311, Version::V5][usize::from(version - 3)];
        let stream = [connect(version), all.concat()].concat();
        let whole = outcome(Peer::Client, Decoder::of_client(), &stream, &[]);
        if stream.len() < 400 {
            prop_assert_eq!(whole.came.len(), 1 + all.len(), "{:?}", whole.error);
        }
        let split = outcome(Peer::Client, Decoder::of_client(), &stream, &ends(&cuts, stream.len()));
        prop_assert_eq!(&split, &whole);
        let every: Vec<usize> = (0..stream.len()).collect();
        prop_assert_eq!(outcome(Peer::Client, Decoder::of_client(), &stream, &every), whole);
    }

    #[test]
    fn garbage_ends_the_same_however_it_is_split(
        input in prop_oneof![near_mqtt(), any::<Vec<u8>>()],
        cuts in vec(any::<Index>(), 0..12),
    ) {
        let cuts = ends(&cuts, input.len());
        let every: Vec<usize> = (0..input.len()).collect();
        for (from, decoder) in decoders() {
            let once = outcome(from, decoder.clone(), &input, &[]);
            prop_assert_eq!(&outcome(from, decoder.clone(), &input, &cuts), &once);
            prop_assert_eq!(&outcome(from, decoder, &input, &every), &once);
        }
    }

    #[test]
    fn the_short_way_reads_just_the_messages_that_the_long_one_does(
        draft in draft(),
        input in prop_oneof![near_mqtt(), any::<Vec<u8>>()],
    ) {
        for input in [draft.bytes(), input] {
            for (_, mut decoder) in decoders() {
                let short = decoder.publish(&input, &WIDE);
                let long = match decoder.decode(&input, &WIDE) {
                    Ok(Decoded::Packet { packet: Packet::Publish(publish), len }) => Some((publish, len)),
                    _ => None,
                };
                prop_assert_eq!(short, long);
            }
        }
    }

    #[test]
    fn a_packet_longer_than_its_peer_takes_leaves_the_output_as_it_was(draft in draft(), less in 1..9_usize) {
        let bytes = draft.bytes();
        let mut out = b"before".to_vec();
        let max = bytes.len().saturating_sub(less);
        let error = draft.with(|packet| packet.write(&mut out, draft.version, max));
        prop_assert_eq!(error, Err(EncodeError::TooLong { bytes: bytes.len() }));
        prop_assert_eq!(&out, b"before");
        draft.with(|packet| packet.write(&mut out, draft.version, bytes.len())).expect("just short enough");
        prop_assert_eq!(&out[6..], &bytes);
    }
}

#[test]
fn a_decoder_is_a_few_bytes_whatever_it_reads() {
    assert!(size_of::<Decoder>() <= 16, "{}", size_of::<Decoder>());
    assert!(!std::mem::needs_drop::<Decoder>(), "it owns no memory");
}
