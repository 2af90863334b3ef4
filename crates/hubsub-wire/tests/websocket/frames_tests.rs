//! Random messages, encoded and decoded, and random inputs, split anywhere.

use crate::any_input::outcome;
use hubsub_wire::websocket::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// A message in fragments, with pings between them, from a client or a server.
fn message() -> impl Strategy<Value = (Vec<u8>, Kind, Vec<Index>, Option<[u8; 4]>)> {
    let text = "[a-zäöü€😀]{0,60}".prop_map(|text| (text.into_bytes(), Kind::Text));
    let binary = vec(any::<u8>(), 0..300).prop_map(|bytes| (bytes, Kind::Binary));
    let kind = prop_oneof![text, binary];
    (kind, vec(any::<Index>(), 0..4), any::<[u8; 4]>())
        .prop_map(|((bytes, kind), cuts, mask)| (bytes, kind, cuts, Some(mask)))
}

/// Appends the frames of a message.
fn write(out: &mut Vec<u8>, (bytes, kind, cuts, mask): &(Vec<u8>, Kind, Vec<Index>, Option<[u8; 4]>)) {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    ends.sort_unstable();
    let (mut start, mut opcode) = (0, if *kind == Kind::Text { Opcode::Text } else { Opcode::Binary });
    for end in ends {
        write_frame(out, opcode, false, &bytes[start..end], *mask);
        write_frame(out, Opcode::Ping, true, b"still there?", *mask);
        (start, opcode) = (end, Opcode::Continuation);
    }
    write_frame(out, opcode, true, &bytes[start..], *mask);
}

fn ends(cuts: &[Index], len: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(len + 1)).collect();
    cuts.sort_unstable();
    cuts
}

/// Bytes that resemble frames.
fn near_frames() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        3 => message().prop_map(|message| { let mut out = Vec::new(); write(&mut out, &message); out }),
        2 => (message(), any::<Index>(), any::<u8>()).prop_map(|(message, at, byte)| {
            let mut out = Vec::new();
            write(&mut out, &message);
            let at = at.index(out.len());
            out[at] = byte;
            out
        }),
        1 => vec(any::<u8>(), 0..8),
        1 => (any::<u16>(), "[a-zä]{0,9}").prop_map(|(code, reason)| {
            let payload = [&code.to_be_bytes(), reason.as_bytes()].concat();
            let mut out = Vec::new();
            write_frame(&mut out, Opcode::Close, true, &payload, Some([1, 2, 3, 4]));
            out
        }),
    ];
    vec(piece, 0..4).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn messages_in_fragments_arrive_whole_however_they_are_cut(
        messages in vec(message(), 0..5),
        masked in any::<bool>(),
        cuts in vec(any::<Index>(), 0..12),
    ) {
        let (mut stream, mut wanted) = (Vec::new(), Vec::new());
        for (bytes, kind, fragments, mask) in messages {
            write(&mut stream, &(bytes.clone(), kind, fragments.clone(), mask.filter(|_| masked)));
            let ping = format!("Ping {:?}", b"still there?".to_vec());
            wanted.extend(fragments.iter().map(|_| ping.clone()));
            wanted.push(format!("{kind:?} {bytes:?}"));
        }
        wanted.push("[] under way".to_string());
        let from = if masked { Peer::Client } else { Peer::Server };
        let whole = outcome(from, &stream, &[]);
        prop_assert_eq!(&whole.came, &wanted);
        prop_assert_eq!(whole.flaw, None);
        prop_assert_eq!(&outcome(from, &stream, &ends(&cuts, stream.len())), &whole);
        let every: Vec<usize> = (0..stream.len()).collect();
        prop_assert_eq!(outcome(from, &stream, &every), whole);
    }

    #[test]
    fn garbage_ends_the_same_however_it_is_split(
        input in prop_oneof![near_frames(), any::<Vec<u8>>()],
        cuts in vec(any::<Index>(), 0..12),
    ) {
        let every: Vec<usize> = (0..input.len()).collect();
        for from in [Peer::Client, Peer::Server] {
            let once = outcome(from, &input, &[]);
            prop_assert_eq!(&outcome(from, &input, &ends(&cuts, input.len())), &once);
            prop_assert_eq!(&outcome(from, &input, &every), &once);
        }
    }

    #[test]
    fn masking_is_byte_by_byte_whatever_the_pieces(
        bytes in vec(any::<u8>(), 0..70), mask in any::<[u8; 4]>(), cut in any::<Index>(),
    ) {
        let slow: Vec<u8> = bytes.iter().enumerate().map(|(i, byte)| byte ^ mask[i % 4]).collect();
        let mut fast = bytes.clone();
        let (first, second) = fast.split_at_mut(cut.index(bytes.len() + 1));
        let mask = unmask(first, mask);
        unmask(second, mask);
        prop_assert_eq!(fast, slow);
    }
}

#[test]
fn a_decoder_owns_no_memory() {
    assert!(!std::mem::needs_drop::<Decoder>());
    assert!(size_of::<Decoder>() <= 48, "{}", size_of::<Decoder>());
}
