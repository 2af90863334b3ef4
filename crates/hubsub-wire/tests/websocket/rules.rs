//! Refused frames with their close codes, and the encoding of Close.

use hubsub_wire::websocket::*;

const LIMITS: DecodeLimits = DecodeLimits { frame_bytes_max: 1 << 40, message_bytes_max: 1 << 41 };
const MASK: [u8; 4] = [1, 2, 3, 4];

/// The error of an input, after its valid part.
fn flaw(from: Peer, input: &[u8]) -> Flaw {
    let (mut decoder, mut input) = (Decoder::new(from), input.to_vec());
    let mut at = 0;
    loop {
        match decoder.decode(&mut input[at..], &LIMITS) {
            Err(flaw) => return flaw,
            Ok(
                Decoded::Data { len, .. }
                | Decoded::Ping { len, .. }
                | Decoded::Pong { len, .. }
                | Decoded::Close { len, .. }
                | Decoded::AfterClose { len },
            ) => at += len,
            Ok(Decoded::Incomplete { .. }) => panic!("taken: {input:?}"),
        }
    }
}

fn frame(opcode: Opcode, fin: bool, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_frame(&mut out, opcode, fin, payload, Some(MASK));
    out
}

#[test]
fn reserved_bits_and_opcodes_are_refused_by_the_first_byte() {
    for bits in [0x40, 0x20, 0x10, 0x70] {
        assert_eq!(flaw(Peer::Client, &[0x82 | bits]), Flaw::ReservedBits(0x82 | bits));
    }
    for opcode in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        assert_eq!(flaw(Peer::Client, &[0x80 | opcode]), Flaw::UnknownOpcode(opcode));
    }
    assert_eq!(Flaw::ReservedBits(0).code(), CloseCode::PROTOCOL_ERROR);
}

#[test]
fn a_clients_frames_are_masked_and_a_servers_are_not() {
    assert_eq!(flaw(Peer::Client, &[0x82, 0]), Flaw::NotMasked);
    assert_eq!(flaw(Peer::Server, &[0x82, 0x80]), Flaw::Masked);
}

#[test]
fn lengths_are_as_short_as_they_can_be() {
    assert_eq!(flaw(Peer::Server, &[0x82, 126, 0, 125]), Flaw::LengthNotShortest);
    assert_eq!(flaw(Peer::Server, &[0x82, 127, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF]), Flaw::LengthNotShortest);
    assert_eq!(flaw(Peer::Server, &[0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0]), Flaw::LengthTooLong);
    for length in [0, 125, 126, 127, 0xFFFF, 0x1_0000] {
        let mut out = Vec::new();
        write_frame(&mut out, Opcode::Binary, true, &vec![7; length], None);
        let all = out.len();
        let decoded = Decoder::new(Peer::Server).decode(&mut out, &LIMITS);
        let wanted = Decoded::Data { kind: Kind::Binary, bytes: &vec![7; length], last: true, len: all };
        assert_eq!(decoded, Ok(wanted));
    }
}

#[test]
fn control_frames_are_short_and_whole() {
    for first in [0x08, 0x09, 0x0A] {
        assert_eq!(flaw(Peer::Client, &[first, 0x80]), Flaw::ControlFragmented);
        assert_eq!(flaw(Peer::Client, &[0x80 | first, 0xFE, 0, 126]), Flaw::ControlTooLong(126));
    }
    let mut ping = frame(Opcode::Ping, true, &[9; 125]);
    let decoded = Decoder::new(Peer::Client).decode(&mut ping, &LIMITS);
    assert_eq!(decoded, Ok(Decoded::Ping { payload: &[9; 125], len: 131 }));
}

#[test]
fn fragments_follow_each_other() {
    assert_eq!(flaw(Peer::Client, &frame(Opcode::Continuation, true, b"x")), Flaw::NothingToContinue);
    let twice = [frame(Opcode::Text, false, b"a"), frame(Opcode::Text, true, b"b")].concat();
    assert_eq!(flaw(Peer::Client, &twice), Flaw::NotContinued);
    let done = [frame(Opcode::Text, true, b"a"), frame(Opcode::Continuation, true, b"b")].concat();
    assert_eq!(flaw(Peer::Client, &done), Flaw::NothingToContinue);
}

#[test]
fn a_text_that_is_not_utf_8_is_refused_at_its_first_wrong_byte() {
    let euro = "€".as_bytes();
    let split =
        [frame(Opcode::Text, false, &euro[..1]), frame(Opcode::Continuation, true, &euro[1..2])].concat();
    assert_eq!(flaw(Peer::Client, &split), Flaw::NotUtf8);
    let wrong = frame(Opcode::Text, false, b"ok\xED\xA0");
    assert_eq!(flaw(Peer::Client, &wrong), Flaw::NotUtf8, "though the message goes on");
    // In a long frame whose rest has not arrived.
    assert_eq!(flaw(Peer::Server, &[0x81, 100, b'a', 0xFF]), Flaw::NotUtf8);
    assert_eq!(Flaw::NotUtf8.code().number(), 1007);
}

#[test]
fn limits_hold_when_lengths_are_read() {
    let limits = DecodeLimits { frame_bytes_max: 10, message_bytes_max: 15 };
    let mut decoder = Decoder::new(Peer::Server);
    assert_eq!(decoder.decode(&mut [0x82, 11], &limits), Err(Flaw::FrameTooLarge(11, 10)));
    let mut decoder = Decoder::new(Peer::Server);
    assert!(decoder.decode(&mut [&[0x02, 10][..], &[0; 10]].concat(), &limits).is_ok());
    assert_eq!(decoder.decode(&mut [0x80, 6], &limits), Err(Flaw::MessageTooLarge(16, 15)));
    assert_eq!(Flaw::MessageTooLarge(16, 15).code().number(), 1009);
    let mut decoder = Decoder::new(Peer::Server);
    for _ in 0..3 {
        let mut message = [&[0x82, 10][..], &[0; 10]].concat();
        assert!(decoder.decode(&mut message, &limits).is_ok(), "each message for itself");
    }
}

#[test]
fn a_frame_of_64_mib_comes_in_pieces_and_needs_no_memory() {
    let (mut decoder, mut piece) = (Decoder::new(Peer::Client), vec![0; 64 << 10]);
    let mut head = Vec::new();
    write_frame_header(&mut head, Opcode::Binary, true, 1 << 26, Some(MASK));
    let needed = head.len() + 1;
    assert_eq!(decoder.decode(&mut head, &LIMITS), Ok(Decoded::Incomplete { needed }));
    let mut first = [&head[..], &[1]].concat();
    let len = first.len();
    let one = Decoded::Data { kind: Kind::Binary, bytes: &[0], last: false, len };
    assert_eq!(decoder.decode(&mut first, &LIMITS), Ok(one));
    let mut left = (1 << 26) - 1;
    while left > 0 {
        let there = left.min(piece.len());
        match decoder.decode(&mut piece[..there], &LIMITS) {
            Ok(Decoded::Data { last, len, .. }) => assert!(len == there && last == (left == there)),
            other => panic!("{other:?}"),
        }
        left -= there;
    }
}

#[test]
fn close_has_a_code_that_may_be_sent_and_a_reason_in_utf_8() {
    for code in [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 4999] {
        let code = CloseCode::new(code).expect("it may be sent");
        let mut out = Vec::new();
        write_close(&mut out, code, "gründe", Some(MASK));
        let len = out.len();
        let decoded = Decoder::new(Peer::Client).decode(&mut out, &LIMITS);
        assert_eq!(decoded, Ok(Decoded::Close { code: Some(code), reason: "gründe", len }));
    }
    for code in [0_u16, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65_535] {
        assert_eq!(CloseCode::new(code), None);
        assert_eq!(
            flaw(Peer::Client, &frame(Opcode::Close, true, &code.to_be_bytes())),
            Flaw::CloseNumber(code)
        );
    }
    assert_eq!(flaw(Peer::Client, &frame(Opcode::Close, true, &[3])), Flaw::ClosePayload);
    assert_eq!(flaw(Peer::Client, &frame(Opcode::Close, true, &[3, 0xE8, 0xFF])), Flaw::NotUtf8);
    let mut empty = frame(Opcode::Close, true, &[]);
    let decoded = Decoder::new(Peer::Client).decode(&mut empty, &LIMITS);
    assert_eq!(decoded, Ok(Decoded::Close { code: None, reason: "", len: 6 }));
}

#[test]
fn a_long_reason_is_cut_between_two_characters() {
    let mut out = Vec::new();
    write_close(&mut out, CloseCode::NORMAL, &"€".repeat(50), None);
    let decoded = Decoder::new(Peer::Server).decode(&mut out, &LIMITS);
    let reason = "€".repeat(41);
    assert_eq!(decoded, Ok(Decoded::Close { code: Some(CloseCode::NORMAL), reason: &reason, len: 127 }));
}

#[test]
fn frames_after_a_close_are_ignored() {
    let mut input = [frame(Opcode::Close, true, &[]), vec![0xFF; 9]].concat();
    let mut decoder = Decoder::new(Peer::Client);
    assert!(matches!(decoder.decode(&mut input, &LIMITS), Ok(Decoded::Close { len: 6, .. })));
    assert_eq!(decoder.decode(&mut input[6..], &LIMITS), Ok(Decoded::AfterClose { len: 9 }));
}

#[test]
fn a_control_frame_inside_a_message_comes_between_its_pieces() {
    let mut input = [
        frame(Opcode::Text, false, b"a"),
        frame(Opcode::Pong, true, b"!"),
        frame(Opcode::Continuation, true, b"b"),
    ]
    .concat();
    let mut decoder = Decoder::new(Peer::Client);
    let text = |bytes, last| Ok(Decoded::Data { kind: Kind::Text, bytes, last, len: 7 });
    assert_eq!(decoder.decode(&mut input, &LIMITS), text(b"a", false));
    assert_eq!(decoder.decode(&mut input[7..], &LIMITS), Ok(Decoded::Pong { payload: b"!", len: 7 }));
    assert_eq!(decoder.decode(&mut input[14..], &LIMITS), text(b"b", true));
}
