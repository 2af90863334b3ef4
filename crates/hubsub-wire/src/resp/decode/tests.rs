//! Inputs that the decoder accepts or refuses, its cost, and that it does not depend on how the input is
//! split.

use super::*;
use proptest::prelude::*;

const LIMITS: DecodeLimits = DecodeLimits { frame_bytes_max: 1 << 20, args_max: 1_000, inline_bytes_max: 64 };

type Outcome = (Vec<Vec<Vec<u8>>>, usize, Option<ProtocolError>);

/// Commands, remaining bytes and the error, when the input arrives in pieces that end at `cuts`.
fn decode_in_pieces(input: &[u8], cuts: &[usize], limits: &DecodeLimits) -> Outcome {
    let (mut decoder, mut start, mut commands) = (Decoder::default(), 0, Vec::new());
    for &end in cuts.iter().chain([&input.len()]) {
        loop {
            let frame = &input[start..end];
            match decoder.decode(frame, limits) {
                Ok(Decoded::Command { len }) => {
                    let args = (0..decoder.argc()).map(|i| decoder.arg(frame, i).to_vec());
                    commands.push(args.collect());
                    start += len;
                }
                Ok(Decoded::Skip { len }) => start += len,
                Ok(Decoded::Incomplete) => {
                    assert!(decoder.needed() > frame.len(), "a call with no more input finds no more");
                    break;
                }
                Err(e) => return (commands, 0, Some(e)),
            }
        }
    }
    (commands, input.len() - start, None)
}

fn decode(input: &[u8]) -> Outcome {
    decode_in_pieces(input, &[], &LIMITS)
}

fn error_of(input: &[u8]) -> Option<ProtocolError> {
    decode(input).2
}

fn array(args: &[Vec<u8>]) -> Vec<u8> {
    let mut frame = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        frame.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        frame.extend_from_slice(arg);
        frame.extend_from_slice(b"\r\n");
    }
    frame
}

/// A frame, and the command in it, if any.
fn frame() -> impl Strategy<Value = (Vec<u8>, Option<Vec<Vec<u8>>>)> {
    let arg = prop_oneof![
        4 => proptest::collection::vec(any::<u8>(), 0..12),
        1 => proptest::collection::vec(any::<u8>(), 90..300),
    ];
    prop_oneof![
        6 => proptest::collection::vec(arg, 1..6).prop_map(|args| (array(&args), Some(args))),
        1 => proptest::collection::vec("[a-z]{1,9}", 1..5).prop_map(|words| {
            let args = words.iter().map(|word| word.clone().into_bytes()).collect();
            (format!(" {}\r\n", words.join("  ")).into_bytes(), Some(args))
        }),
        1 => proptest::sample::select(vec!["\r\n", "\n", " \r\n", "*0\r\n", "*-1\r\n", "*-77\r\n"])
            .prop_map(|empty| (empty.as_bytes().to_vec(), None)),
    ]
}

/// Bytes that resemble RESP.
fn near_resp() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        proptest::sample::select(vec![
            "*", "$", "\r\n", "\r", "\n", "1", "0", "3", "-", "\"", "'", "\\x4", " "
        ])
        .prop_map(|piece| piece.as_bytes().to_vec()),
        Just(b"*2\r\n".to_vec()),
        Just(b"$3\r\n".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..5),
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_split_of_a_valid_stream_yields_its_commands(
        frames in proptest::collection::vec(frame(), 0..8),
        cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..12),
    ) {
        let stream: Vec<u8> = frames.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
        let commands: Vec<_> = frames.into_iter().filter_map(|(_, command)| command).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.sort_unstable();
        let whole = (commands, 0, None);
        prop_assert_eq!(&decode_in_pieces(&stream, &cuts, &LIMITS), &whole);
        let every: Vec<usize> = (0..stream.len()).collect();
        prop_assert_eq!(&decode_in_pieces(&stream, &every, &LIMITS), &whole);
    }

    #[test]
    fn garbage_ends_the_same_however_it_is_split(
        input in prop_oneof![near_resp(), any::<Vec<u8>>()],
        cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..12),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
        cuts.sort_unstable();
        let once = decode(&input);
        prop_assert_eq!(&decode_in_pieces(&input, &cuts, &LIMITS), &once);
        let every: Vec<usize> = (0..input.len()).collect();
        prop_assert_eq!(&decode_in_pieces(&input, &every, &LIMITS), &once);
    }

    #[test]
    fn memory_is_bounded_by_the_input(input in near_resp()) {
        let mut decoder = Decoder::default();
        let _ = decoder.decode(&input, &LIMITS);
        prop_assert!(decoder.args.capacity() <= 4.max(2 * input.len()));
        prop_assert!(decoder.words.capacity() <= 8.max(2 * input.len()));
    }
}

#[test]
fn what_redis_refuses_is_refused_with_its_words() {
    let long = [b'1'; 100];
    for (input, text) in [
        (&b"*abc\r\n"[..], "invalid multibulk length"),
        (b"*\r\n", "invalid multibulk length"),
        (b"*01\r\n", "invalid multibulk length"),
        (b"*+1\r\n", "invalid multibulk length"),
        (b"*-0\r\n", "invalid multibulk length"),
        (b"*1 \r\n", "invalid multibulk length"),
        (b"*1001\r\n", "invalid multibulk length"),
        (b"*2147483648\r\n", "invalid multibulk length"),
        (b"*99999999999999999999999\r\n", "invalid multibulk length"),
        (b"*1\r\n:4\r\nPING\r\n", "expected '$', got ':'"),
        (b"*1\r\n\r\n", "expected '$', got ' '"),
        (b"*1\r\n\n\r\n", "expected '$', got ' '"),
        (b"*1\r\nX\rY", "expected '$', got 'X'"),
        (b"*2\r\n$4\r\nPING\r\nX\r\n", "expected '$', got 'X'"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$x\r\n", "invalid bulk length"),
        (b"*1\r\n$\r\n", "invalid bulk length"),
        (b"*1\r\n$04\r\nPING\r\n", "invalid bulk length"),
        (b"*1\r\n$9223372036854775807\r\n", "invalid bulk length"),
        (b"*1\r\n$10000000000\r\n", "invalid bulk length"),
        (&[b"*", &long[..]].concat(), "too big mbulk count string"),
        (&[b"*1\r\n$", &long[..]].concat(), "too big bulk count string"),
        (&[b'A'; 100], "too big inline request"),
        (b"ECHO \"a\r\n", "unbalanced quotes in request"),
        (b"ECHO 'a'b\r\n", "unbalanced quotes in request"),
    ] {
        let mut reply = Vec::new();
        error_of(input).unwrap_or_else(|| panic!("{}", input.escape_ascii())).write(&mut reply);
        let reply = String::from_utf8(reply).unwrap();
        assert_eq!(reply, format!("-ERR Protocol error: {text}\r\n"), "{}", input.escape_ascii());
    }
    let mut reply = Vec::new();
    ProtocolError::ExpectedBulk(0xff).write(&mut reply);
    assert_eq!(reply, b"-ERR Protocol error: expected '$', got '\xff'\r\n");
}

#[test]
fn nothing_is_decided_before_redis_decides_it() {
    for input in [&b""[..], b"*", b"*x", b"*1\r", b"*1\r\nX", b"*1\r\nX\r", b"*1\r\n$4\r\nPING", b"PING\r"] {
        assert_eq!(decode(input), (vec![], input.len(), None), "{}", input.escape_ascii());
    }
    assert_eq!(decode(&[b'A'; 64]), (vec![], 64, None));
    assert_eq!(error_of(&[b'A'; 65]), Some(ProtocolError::TooBigInline));
    let at_the_limit = [&[b'A'; 64][..], b"\n"].concat();
    assert_eq!(decode(&at_the_limit).0, [[[b'A'; 64]]]);
}

#[test]
fn the_bytes_of_line_ends_are_not_looked_at() {
    let (commands, left, error) = decode(b"*1\rX$4\rYPINGZZPING\r\n");
    assert_eq!((commands, left, error), (vec![vec![b"PING".to_vec()]; 2], 0, None));
}

#[test]
fn a_frame_over_the_limit_is_refused_at_its_length() {
    let limits = DecodeLimits { frame_bytes_max: 40, ..LIMITS };
    let fits = b"*2\r\n$7\r\nPUBLISH\r\n$16\r\n0123456789abcdef\r\n";
    assert_eq!(fits.len(), 40);
    assert_eq!(decode_in_pieces(fits, &[], &limits).0.len(), 1);
    let over = b"*2\r\n$7\r\nPUBLISH\r\n$17\r\n";
    assert_eq!(decode_in_pieces(over, &[], &limits).2, Some(ProtocolError::InvalidBulkLength));
    let many_empty = b"*20\r\n".iter().copied().chain(b"$0\r\n\r\n".repeat(20)).collect::<Vec<_>>();
    assert_eq!(decode_in_pieces(&many_empty, &[], &limits).2, Some(ProtocolError::InvalidBulkLength));
    let huge = DecodeLimits { frame_bytes_max: usize::MAX, args_max: usize::MAX, ..LIMITS };
    let input = b"*1\r\n$9223372036854775807\r\n";
    assert_eq!(decode_in_pieces(input, &[], &huge).2, Some(ProtocolError::InvalidBulkLength));
}

#[test]
fn an_announcement_costs_nothing() {
    let mut decoder = Decoder::default();
    let input = b"*1000\r\n$1000000\r\nabc";
    assert_eq!(decoder.decode(input, &LIMITS), Ok(Decoded::Incomplete));
    assert_eq!(decoder.needed(), 7 + 10 + 1_000_000 + 2);
    assert_eq!(decoder.args.capacity() + decoder.words.capacity(), 0);
}

#[test]
fn reset_forgets_the_frame_and_keeps_a_small_allocation() {
    let mut decoder = Decoder::default();
    let big = array(&vec![b"x".to_vec(); 1_000]);
    let limits = DecodeLimits { args_max: 100_000, ..LIMITS };
    assert!(matches!(decoder.decode(&array(&vec![vec![]; 9_000]), &limits), Ok(Decoded::Command { .. })));
    decoder.reset();
    assert!(decoder.argc() == 0 && (1..=2_048).contains(&decoder.args.capacity()));
    assert_eq!(decoder.decode(&big[..50], &LIMITS), Ok(Decoded::Incomplete));
    decoder.reset();
    assert_eq!(decoder.decode(b"PING\r\n", &LIMITS), Ok(Decoded::Command { len: 6 }));
    assert_eq!(decoder.arg(b"PING\r\n", 0), b"PING");
}

#[test]
fn the_length_of_a_frame_is_known_once_its_last_argument_has_begun() {
    let frame = b"*3\r\n$3\r\nSET\r\n$5\r\nhello\r\n$4\r\nlast\r\n";
    let last_begins = frame.len() - "last\r\n".len();
    let mut decoder = Decoder::default();
    for length in 1..frame.len() {
        assert!(matches!(decoder.decode(&frame[..length], &LIMITS), Ok(Decoded::Incomplete)));
        let known = if length < last_begins { 0 } else { frame.len() };
        assert_eq!(decoder.frame_len(), known, "of {length} bytes");
    }
    assert!(matches!(decoder.decode(frame, &LIMITS), Ok(Decoded::Command { .. })));
    assert_eq!(decoder.frame_len(), 0);
}

#[test]
fn a_whole_frame_leaves_nothing_needed() {
    let mut decoder = Decoder::default();
    let input = b"*2\r\n$4\r\nECHO\r\n$9\r\n123456789\r\nPING\r\n";
    assert_eq!(decoder.decode(&input[..20], &LIMITS), Ok(Decoded::Incomplete));
    assert_eq!(decoder.needed(), 29);
    assert_eq!(decoder.decode(input, &LIMITS), Ok(Decoded::Command { len: 29 }));
    assert_eq!(decoder.needed(), 0);
}
