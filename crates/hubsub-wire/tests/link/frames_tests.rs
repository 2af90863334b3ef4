//! Encoding of frames: it loses nothing, splitting the input changes nothing, and errors are named.

use crate::frames::{CODES, stuff};
use hubsub_wire::link::{Decoded, Flaw, Frame, FrameError, Payload, decode};
use proptest::prelude::*;

const BYTES_MAX: usize = 64 * 1_024;

/// Encoded frames and the error, when the input arrives in pieces that end at `cuts`.
fn in_pieces(input: &[u8], cuts: &[usize]) -> (Vec<Vec<u8>>, usize, Option<FrameError>) {
    let (mut at, mut frames) = (0, Vec::new());
    for &end in cuts.iter().chain([&input.len()]) {
        loop {
            match decode(&input[at..end], BYTES_MAX) {
                Ok(Decoded::Frame { frame, bytes }) => {
                    let mut again = Vec::new();
                    frame.encode(&mut again);
                    frames.push(again);
                    at += bytes;
                }
                Ok(Decoded::Incomplete { needed }) => {
                    assert!(needed > end - at, "a call with no more input finds no more");
                    break;
                }
                Err(error) => return (frames, at, Some(error)),
            }
        }
    }
    (frames, at, None)
}

/// A frame with this type and body.
fn raw(code: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = (body.len() as u32 + 1).to_le_bytes().to_vec();
    bytes.push(code);
    bytes.extend_from_slice(body);
    bytes
}

#[test]
fn every_type_there_is_goes_through_these_tests() {
    for code in 0..=u8::MAX {
        let is_known = decode(&raw(code, &[]), BYTES_MAX) != Err(FrameError::UnknownType(code));
        assert_eq!(is_known, CODES.contains(&code), "type {code}");
    }
}

proptest! {
    #[test]
    fn a_frame_of_any_type_reads_back_what_it_wrote(stuff in stuff()) {
        for &code in CODES {
            let stuff = stuff.clone().with_code(code);
            let (frame, mut bytes) = (stuff.frame(), b"before".to_vec());
            let length = frame.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), 6 + length);
            prop_assert_eq!(bytes[10], code);
            prop_assert_eq!(decode(&bytes[6..], BYTES_MAX), Ok(Decoded::Frame { frame, bytes: length }));
        }
    }

    #[test]
    fn cuts_change_nothing(
        frames in proptest::collection::vec(stuff(), 1..6),
        tail in proptest::collection::vec(any::<u8>(), 0..12),
        mut cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        for stuff in &frames {
            let start = bytes.len();
            stuff.frame().encode(&mut bytes);
            expected.push(bytes[start..].to_vec());
        }
        let whole = bytes.len();
        bytes.extend(tail);
        let once = in_pieces(&bytes, &[]);
        prop_assert_eq!(&once.0[..expected.len()], &expected[..]);
        prop_assert!(once.1 >= whole);
        let mut places: Vec<usize> = cuts.drain(..).map(|cut| cut.index(bytes.len() + 1)).collect();
        places.sort_unstable();
        prop_assert_eq!(in_pieces(&bytes, &places), once.clone());
        let singles: Vec<usize> = (0..bytes.len()).collect();
        prop_assert_eq!(in_pieces(&bytes, &singles), once);
    }

    #[test]
    fn any_bytes_are_frames_or_an_error_and_never_a_panic(
        code in proptest::sample::select(CODES),
        body in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        if let Ok(Decoded::Frame { frame, .. }) = decode(&raw(code, &body), BYTES_MAX) {
            let mut again = Vec::new();
            let bytes = frame.encode(&mut again);
            prop_assert_eq!(decode(&again, BYTES_MAX), Ok(Decoded::Frame { frame, bytes }));
        }
        let _ = in_pieces(&body, &[]);
    }

    #[test]
    fn a_frame_with_wrong_bytes_is_another_frame_or_an_error(
        stuff in stuff(),
        wrong in proptest::collection::vec((any::<prop::sample::Index>(), 0_u8..4), 1..4),
    ) {
        let mut bytes = Vec::new();
        stuff.frame().encode(&mut bytes);
        for (place, value) in wrong {
            let place = 5 + place.index(bytes.len() - 5);
            bytes[place] = value;
        }
        if let Ok(Decoded::Frame { frame, .. }) = decode(&bytes, BYTES_MAX) {
            let mut again = Vec::new();
            let length = frame.encode(&mut again);
            prop_assert_eq!(decode(&again, BYTES_MAX), Ok(Decoded::Frame { frame, bytes: length }));
        }
    }

    #[test]
    fn a_body_that_ends_early_or_late_is_refused_or_reads_as_a_shorter_payload(
        stuff in stuff(),
        cut in any::<prop::sample::Index>(),
        extra in 1_usize..9,
    ) {
        let mut bytes = Vec::new();
        let frame = stuff.frame();
        let name = frame.name();
        frame.encode(&mut bytes);
        let body = &bytes[5..];
        match decode(&raw(bytes[4], &body[..cut.index(body.len() + 1)]), BYTES_MAX) {
            Ok(Decoded::Frame { frame, .. }) => prop_assert_eq!(frame.name(), name),
            Err(FrameError::Flawed { frame, .. }) => prop_assert_eq!(frame, name),
            other => prop_assert!(false, "{:?}", other),
        }
        match decode(&raw(bytes[4], &[body, &vec![0; extra][..]].concat()), BYTES_MAX) {
            Ok(Decoded::Frame { frame, .. }) => prop_assert_eq!(frame.name(), name),
            other => {
                let flaw = Flaw::Trailing(extra);
                prop_assert_eq!(other, Err(FrameError::Flawed { frame: name, flaw }));
            }
        }
    }
}

#[test]
fn a_body_is_a_range_of_the_input() {
    let mut bytes = Vec::new();
    Frame::Control { id: 1, is_answer: false, body: Payload(&[7; 1_000]) }.encode(&mut bytes);
    let Ok(Decoded::Frame { frame: Frame::Control { body, .. }, .. }) = decode(&bytes, BYTES_MAX) else {
        panic!("a control frame was encoded")
    };
    assert!(bytes.as_ptr_range().contains(&body.0.as_ptr()));
}

#[test]
fn a_length_is_refused_before_the_frame_has_come() {
    let bytes = 5_000_000_u64.min(u64::from(u32::MAX));
    let announced = (bytes as u32 - 4).to_le_bytes();
    assert_eq!(decode(&announced, BYTES_MAX), Err(FrameError::TooLong { bytes, max: BYTES_MAX }));
    let bytes = u64::from(u32::MAX) + 4;
    assert_eq!(decode(&[255; 4], BYTES_MAX), Err(FrameError::TooLong { bytes, max: BYTES_MAX }));
    assert_eq!(decode(&[0; 4], BYTES_MAX), Err(FrameError::Empty));
    let fits = (BYTES_MAX as u32 - 4).to_le_bytes();
    assert_eq!(decode(&fits, BYTES_MAX), Ok(Decoded::Incomplete { needed: BYTES_MAX }));
}

#[test]
fn what_is_wrong_inside_a_frame_is_named() {
    let flaw = |code, body: &[u8]| match decode(&raw(code, body), BYTES_MAX) {
        Err(FrameError::Flawed { frame, flaw }) => (frame, flaw),
        other => panic!("{other:?}"),
    };
    assert_eq!(flaw(8, &[2, 0]), ("Bye", Flaw::Value(2)));
    assert_eq!(flaw(8, &[0, 1, 0xFF]), ("Bye", Flaw::NotUtf8));
    assert_eq!(flaw(8, &[0, 2, b'a']), ("Bye", Flaw::Short));
    assert_eq!(flaw(8, &[0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0]), ("Bye", Flaw::Value(0x7_FFFF_FFFF)));
    assert_eq!(flaw(29, &[0; 9]), ("PatternsEnd", Flaw::Trailing(1)));
    let hub = |hub: &[u8]| [&[0; 8][..], &[1], hub, &[1, 0, 0]].concat();
    assert_eq!(flaw(48, &hub(&[0xFF, 0xFF, 0xFF, 0xFF, 0x1F])), ("LeadAsk", Flaw::Value(0x1_FFFF_FFFF)));
    let term = [&hub(&[0])[..10], &[0xFF; 9], &[2]].concat();
    assert_eq!(flaw(48, &term), ("LeadAsk", Flaw::Value((1 << 63) - 1)), "a term of 65 bits");
    assert_eq!(flaw(49, &[&[0; 28][..], &[200, 1], &[0; 199]].concat()), ("LeadGranted", Flaw::Short));
    let names = |flags| [&[0; 12][..], &[flags, 0], &[0; 28]].concat();
    assert_eq!(flaw(23, &[&[0; 20][..], &[4, 0]].concat()), ("CountAsk", Flaw::Value(4)));
    assert_eq!(flaw(31, &names(8)), ("Read", Flaw::Value(8)));
    let of_nobody = [&[0; 29][..], &[1], &[0; 30]].concat();
    assert_eq!(flaw(32, &of_nobody), ("Range", Flaw::Value(0)), "a producer that is nobody");
}
