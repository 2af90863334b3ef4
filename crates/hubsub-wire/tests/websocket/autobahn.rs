//! The cases of the Autobahn test suite for servers, sections 1 to 7, 9 and 10, played frame by frame against an echo that
//! only this test has: it decodes, puts messages together and closes as the node does (`hubsub-node/src/phoenix`).
//! docs/autobahn.md has the table; 12 and 13 are of compression, which is not offered.
//!
//! Each case is what a client sends and what it must get: echoes and Pongs in order, then how it ends. Cases that the suite
//! has cut are played whole, by frames and by bytes, all of them.

use hubsub_wire::websocket::*;

const LIMIT: u64 = 16 << 20;
const MASK: [u8; 4] = [0x37, 0xFA, 0x21, 0x3D];

/// A server that says back what it is told.
struct Echo {
    decoder: Decoder,
    input: Vec<u8>,
    message: Vec<u8>,
    out: Vec<u8>,
    is_closed: bool,
}

impl Echo {
    fn new() -> Echo {
        Echo {
            decoder: Decoder::new(Peer::Client),
            input: Vec::new(),
            message: Vec::new(),
            out: Vec::new(),
            is_closed: false,
        }
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        let limits = DecodeLimits { frame_bytes_max: LIMIT, message_bytes_max: LIMIT };
        let (mut input, mut at) = (std::mem::take(&mut self.input), 0);
        while !self.is_closed {
            at += match self.decoder.decode(&mut input[at..], &limits) {
                Ok(Decoded::Incomplete { .. }) => break,
                Ok(Decoded::Data { kind, bytes, last, len }) => {
                    self.message.extend_from_slice(bytes);
                    if last {
                        let opcode = if kind == Kind::Text { Opcode::Text } else { Opcode::Binary };
                        write_frame(&mut self.out, opcode, true, &self.message, None);
                        self.message.clear();
                    }
                    len
                }
                Ok(Decoded::Ping { payload, len }) => {
                    write_frame(&mut self.out, Opcode::Pong, true, payload, None);
                    len
                }
                Ok(Decoded::Pong { len, .. } | Decoded::AfterClose { len }) => len,
                Ok(Decoded::Close { code, len, .. }) => {
                    self.close(code.unwrap_or(CloseCode::NORMAL));
                    len
                }
                Err(flaw) => {
                    self.close(flaw.code());
                    0
                }
            };
        }
        input.drain(..at);
        self.input = input;
    }

    fn close(&mut self, code: CloseCode) {
        write_close(&mut self.out, code, "", None);
        self.is_closed = true;
    }
}

/// What a client gets.
#[derive(Clone, PartialEq, Eq)]
enum Got {
    Text(Vec<u8>),
    Binary(Vec<u8>),
    Pong(Vec<u8>),
    /// The end, by this code.
    Close(u16),
}

impl std::fmt::Debug for Got {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let short = |bytes: &[u8]| format!("{} bytes, {:02x?}", bytes.len(), &bytes[..bytes.len().min(32)]);
        match self {
            Got::Text(bytes) => write!(f, "Text({})", short(bytes)),
            Got::Binary(bytes) => write!(f, "Binary({})", short(bytes)),
            Got::Pong(bytes) => write!(f, "Pong({})", short(bytes)),
            Got::Close(code) => write!(f, "Close({code})"),
        }
    }
}

fn got(out: &mut [u8]) -> Vec<Got> {
    let limits = DecodeLimits { frame_bytes_max: LIMIT, message_bytes_max: LIMIT };
    let (mut decoder, mut at, mut all) = (Decoder::new(Peer::Server), 0, Vec::new());
    while at < out.len() {
        at += match decoder.decode(&mut out[at..], &limits).expect("a server's frames are valid") {
            Decoded::Data { kind: Kind::Text, bytes, len, .. } => {
                all.push(Got::Text(bytes.to_vec()));
                len
            }
            Decoded::Data { kind: Kind::Binary, bytes, len, .. } => {
                all.push(Got::Binary(bytes.to_vec()));
                len
            }
            Decoded::Pong { payload, len } => {
                all.push(Got::Pong(payload.to_vec()));
                len
            }
            Decoded::Close { code, len, .. } => {
                all.push(Got::Close(code.expect("the server says one").number()));
                len
            }
            other => panic!("a server does not say this: {other:?}"),
        };
    }
    all
}

/// A frame of a client: first byte, payload.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_frame_header(&mut out, Opcode::Binary, true, payload.len(), Some(MASK));
    out[0] = first;
    let at = out.len();
    out.extend_from_slice(payload);
    unmask(&mut out[at..], MASK);
    out
}

const FIN: u8 = 0x80;
const TEXT: u8 = FIN | 1;
const BINARY: u8 = FIN | 2;
const CLOSE: u8 = FIN | 8;
const PING: u8 = FIN | 9;
const PONG: u8 = FIN | 10;

fn text(payload: &str) -> Vec<u8> {
    frame(TEXT, payload.as_bytes())
}

/// Close with a code and a reason.
fn close(code: u16, reason: &[u8]) -> Vec<u8> {
    frame(CLOSE, &[&code.to_be_bytes()[..], reason].concat())
}

/// A text in two frames.
fn halves(one: &str, two: &str) -> [Vec<u8>; 2] {
    [frame(1, one.as_bytes()), frame(FIN, two.as_bytes())]
}

fn echoed(payload: &str) -> Got {
    Got::Text(payload.into())
}

/// Plays a case in every cut: whole, frame by frame, byte by byte where that is not too much.
fn case(name: &str, sent: &[Vec<u8>], expected: &[Got]) {
    let whole = sent.concat();
    let cuts: [&mut dyn FnMut(&mut Echo); 3] = [
        &mut |echo| echo.receive(&whole),
        &mut |echo| sent.iter().for_each(|frame| echo.receive(frame)),
        &mut |echo| match whole.len() {
            0..=70_000 => whole.iter().for_each(|byte| echo.receive(&[*byte])),
            _ => whole.chunks(997).for_each(|part| echo.receive(part)),
        },
    ];
    for (number, cut) in cuts.into_iter().enumerate() {
        let mut echo = Echo::new();
        cut(&mut echo);
        assert_eq!(got(&mut echo.out), expected, "case {name}, cut {number}");
    }
}

const PROTOCOL: Got = Got::Close(1002);
const NOT_UTF8: Got = Got::Close(1007);
const DONE: Got = Got::Close(1000);

#[test]
fn section_1_texts_and_bytes_of_all_lengths() {
    for (number, length) in (1..).zip([0, 125, 126, 127, 128, 65_535, 65_536, 65_536]) {
        let payload = vec![b'*'; length];
        case(
            &format!("1.1.{number}"),
            &[frame(TEXT, &payload), frame(CLOSE, b"")],
            &[Got::Text(payload), DONE],
        );
        let payload = vec![0xFE; length];
        case(
            &format!("1.2.{number}"),
            &[frame(BINARY, &payload), frame(CLOSE, b"")],
            &[Got::Binary(payload), DONE],
        );
    }
}

#[test]
fn section_2_pings_and_pongs() {
    for (name, payload) in [
        ("2.1", b"".to_vec()),
        ("2.2", b"Hello, world!".to_vec()),
        ("2.3", vec![0, 0xFF, 0xFE, 0xFD, 0xFC, 0xFB, 0, 0xFF]),
        ("2.4", vec![0xFE; 125]),
        ("2.6", vec![0xFE; 125]),
    ] {
        case(name, &[frame(PING, &payload)], &[Got::Pong(payload)]);
    }
    case("2.5", &[frame(PING, &[0xFE; 126])], &[PROTOCOL]);
    case("2.7", &[frame(PONG, b""), frame(CLOSE, b"")], &[DONE]);
    case("2.8", &[frame(PONG, b"unsolicited"), frame(CLOSE, b"")], &[DONE]);
    case("2.9", &[frame(PONG, b"unsolicited"), frame(PING, b"ping")], &[Got::Pong(b"ping".to_vec())]);
    let pings: Vec<String> = (0..10).map(|number| format!("payload-{number}")).collect();
    let frames: Vec<_> = pings.iter().map(|ping| frame(PING, ping.as_bytes())).collect();
    let pongs: Vec<_> = pings.iter().map(|ping| Got::Pong(ping.clone().into_bytes())).collect();
    for name in ["2.10", "2.11"] {
        case(name, &frames, &pongs);
    }
}

#[test]
fn section_3_reserved_bits() {
    let hello = text("Hello");
    case("3.1", &[frame(TEXT | 0x10, b"Hello")], &[PROTOCOL]);
    for (name, bits) in [("3.2", 0x20), ("3.3", 0x30), ("3.4", 0x40)] {
        let sent = [hello.clone(), frame(TEXT | bits, b"Hello"), frame(PING, b"")];
        case(name, &sent, &[echoed("Hello"), PROTOCOL]);
    }
    case("3.5", &[frame(BINARY | 0x50, &[0, 0xFF])], &[PROTOCOL]);
    case("3.6", &[frame(PING | 0x60, b"Hello")], &[PROTOCOL]);
    case("3.7", &[frame(CLOSE | 0x70, b"")], &[PROTOCOL]);
}

#[test]
fn section_4_opcodes_that_mean_nothing() {
    for (group, opcodes) in [("4.1", 3..=7u8), ("4.2", 11..=15)] {
        for (number, opcode) in (1..).zip(opcodes) {
            let name = format!("{group}.{number}");
            let payload: &[u8] = if number % 2 == 0 { b"reserved" } else { b"" };
            let unknown = frame(FIN | opcode, payload);
            if number <= 2 {
                case(&name, &[unknown], &[PROTOCOL]);
            } else {
                case(&name, &[text("Hello"), unknown, frame(PING, b"")], &[echoed("Hello"), PROTOCOL]);
            }
        }
    }
}

#[test]
fn section_5_messages_in_fragments() {
    let [one, two] = halves("fragment1", "fragment2");
    let both = echoed("fragment1fragment2");
    case("5.1", &[frame(9, b"fragment1"), frame(FIN, b"fragment2")], &[PROTOCOL]);
    case("5.2", &[frame(10, b"fragment1"), frame(FIN, b"fragment2")], &[PROTOCOL]);
    for name in ["5.3", "5.4", "5.5"] {
        case(name, &[one.clone(), two.clone()], std::slice::from_ref(&both));
    }
    for name in ["5.6", "5.7", "5.8"] {
        let sent = [one.clone(), frame(PING, b"ping"), two.clone()];
        case(name, &sent, &[Got::Pong(b"ping".to_vec()), both.clone()]);
    }
    for (names, first) in [(["5.9", "5.10", "5.11"], FIN), (["5.12", "5.13", "5.14"], 0)] {
        for name in names {
            case(name, &[frame(first, b"non-continuation"), text("Hello")], &[PROTOCOL]);
        }
    }
    let sent = [one.clone(), two.clone(), frame(0, b"fragment3"), text("fragment4")];
    case("5.15", &sent, &[both, PROTOCOL]);
    for (name, first) in [("5.16", 0), ("5.17", FIN)] {
        let [a, b, c] = [frame(first, b"fragment1"), frame(1, b"fragment2"), frame(FIN, b"fragment3")];
        case(name, &[a.clone(), b.clone(), c.clone(), a, b, c], &[PROTOCOL]);
    }
    case("5.18", &[one, text("fragment2")], &[PROTOCOL]);
    let five = [
        frame(1, b"fragment1"),
        frame(0, b"fragment2"),
        frame(PING, b"pongme 1!"),
        frame(0, b"fragment3"),
        frame(0, b"fragment4"),
        frame(PING, b"pongme 2!"),
        frame(FIN, b"fragment5"),
    ];
    let expected = [
        Got::Pong(b"pongme 1!".to_vec()),
        Got::Pong(b"pongme 2!".to_vec()),
        echoed("fragment1fragment2fragment3fragment4fragment5"),
    ];
    for name in ["5.19", "5.20"] {
        case(name, &five, &expected);
    }
}

/// Bytes that are UTF-8, by section: what the suite has of Markus Kuhn's tests of decoders.
fn valid() -> Vec<(&'static str, Vec<u8>)> {
    let chars = |name, codes: &[u32]| {
        let each =
            codes.iter().map(move |&code| (name, char::from_u32(code).unwrap().to_string().into_bytes()));
        each.collect::<Vec<_>>()
    };
    let mut all = vec![("6.2", "Hello-µ@ßöäüàá-UTF-8!!".into()), ("6.5", "κόσμε".into())];
    all.extend(chars("6.7", &[0, 0x80, 0x800, 0x1_0000]));
    all.extend(chars("6.9", &[0x7F, 0x7FF, 0xFFFF, 0x10_FFFF]));
    all.extend(chars("6.11", &[0xD7FF, 0xE000, 0xFFFD, 0x10_FFFF]));
    let planes = (0..=0x10).flat_map(|plane| [plane << 16 | 0xFFFE, plane << 16 | 0xFFFF]);
    all.extend(chars("6.22", &planes.collect::<Vec<_>>()));
    all.extend(chars("6.23", &[0xFFF9, 0xFFFA, 0xFFFB, 0xFFFC, 0xFFFD, 0xFEFF, 0xFEFF]));
    all
}

/// Bytes that are not, likewise.
fn invalid() -> Vec<(&'static str, Vec<u8>)> {
    let mut all: Vec<(&str, Vec<u8>)> = vec![
        ("6.3", b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited".to_vec()),
        ("6.4", b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xf4\x90\x80\x80edited".to_vec()),
        ("6.8", b"\xf8\x88\x80\x80\x80".to_vec()),
        ("6.8", b"\xfc\x84\x80\x80\x80\x80".to_vec()),
        ("6.10", b"\xf7\xbf\xbf\xbf".to_vec()),
        ("6.10", b"\xfb\xbf\xbf\xbf\xbf".to_vec()),
        ("6.10", b"\xfd\xbf\xbf\xbf\xbf\xbf".to_vec()),
        ("6.11", b"\xf4\x90\x80\x80".to_vec()),
        ("6.15", b"\xc0\xe0\x80\xf0\x80\x80\xf8\x80\x80\x80\xfc\x80\x80\x80\x80".to_vec()),
        ("6.16", b"\xfe".to_vec()),
        ("6.16", b"\xff".to_vec()),
        ("6.16", b"\xfe\xfe\xff\xff".to_vec()),
    ];
    // Of a text that is valid, each beginning that ends inside a character.
    let whole = "κόσμε".as_bytes();
    let cut = (1..whole.len()).filter(|&at| std::str::from_utf8(&whole[..at]).is_err());
    all.extend(cut.map(|at| ("6.6", whole[..at].to_vec())));
    all.extend((1..=7).map(|count| ("6.12", [0x80, 0xBF].repeat(4)[..count].to_vec())));
    all.push(("6.12", (0x80..=0xBF).collect()));
    for (range, group) in [
        (0xC0..=0xDFu8, "6.13"),
        (0xE0..=0xEF, "6.13"),
        (0xF0..=0xF7, "6.13"),
        (0xF8..=0xFB, "6.13"),
        (0xFC..=0xFD, "6.13"),
    ] {
        all.push((group, range.flat_map(|byte| [byte, b' ']).collect()));
    }
    for lacks_last in [
        &b"\xc0"[..],
        b"\xe0\x80",
        b"\xf0\x80\x80",
        b"\xf8\x80\x80\x80",
        b"\xfc\x80\x80\x80\x80",
        b"\xdf",
        b"\xef\xbf",
        b"\xf7\xbf\xbf",
        b"\xfb\xbf\xbf\xbf",
        b"\xfd\xbf\xbf\xbf\xbf",
    ] {
        all.push(("6.14", lacks_last.to_vec()));
    }
    // Longer than they need to be: `/`, the last ones of each length, and NUL.
    for (group, forms) in [
        (
            "6.17",
            [
                &b"\xc0\xaf"[..],
                b"\xe0\x80\xaf",
                b"\xf0\x80\x80\xaf",
                b"\xf8\x80\x80\x80\xaf",
                b"\xfc\x80\x80\x80\x80\xaf",
            ],
        ),
        (
            "6.18",
            [
                &b"\xc1\xbf"[..],
                b"\xe0\x9f\xbf",
                b"\xf0\x8f\xbf\xbf",
                b"\xf8\x87\xbf\xbf\xbf",
                b"\xfc\x83\xbf\xbf\xbf\xbf",
            ],
        ),
        (
            "6.19",
            [
                &b"\xc0\x80"[..],
                b"\xe0\x80\x80",
                b"\xf0\x80\x80\x80",
                b"\xf8\x80\x80\x80\x80",
                b"\xfc\x80\x80\x80\x80\x80",
            ],
        ),
    ] {
        all.extend(forms.map(|form| (group, form.to_vec())));
    }
    let halves: [&[u8]; 7] = [
        b"\xed\xa0\x80",
        b"\xed\xad\xbf",
        b"\xed\xae\x80",
        b"\xed\xaf\xbf",
        b"\xed\xb0\x80",
        b"\xed\xbe\x80",
        b"\xed\xbf\xbf",
    ];
    all.extend(halves.map(|half| ("6.20", half.to_vec())));
    for (high, low) in [(0, 4), (0, 6), (1, 4), (1, 6), (2, 4), (2, 6), (3, 4), (3, 6)] {
        all.push(("6.21", [halves[high], halves[low]].concat()));
    }
    all
}

#[test]
fn section_6_texts_that_are_utf_8_and_that_are_not() {
    case("6.1.1", &[text("")], &[echoed("")]);
    case("6.1.2", &[frame(1, b""), frame(0, b""), frame(FIN, b"")], &[echoed("")]);
    case("6.1.3", &[frame(1, b""), frame(0, b"middle"), frame(FIN, b"")], &[echoed("middle")]);
    let bytes_as_frames = |payload: &[u8]| -> Vec<Vec<u8>> {
        let last = payload.len().saturating_sub(1);
        let first = |at: usize| u8::from(at == 0) | if at == last { FIN } else { 0 };
        payload.iter().enumerate().map(|(at, byte)| frame(first(at), &[*byte])).collect()
    };
    for (name, payload) in valid() {
        let expected = [Got::Text(payload.clone())];
        case(name, &[frame(TEXT, &payload)], &expected);
        case(name, &bytes_as_frames(&payload), &expected);
    }
    for (name, payload) in invalid() {
        assert!(std::str::from_utf8(&payload).is_err(), "{name}");
        case(name, &[frame(TEXT, &payload)], &[NOT_UTF8]);
        case(name, &bytes_as_frames(&payload), &[NOT_UTF8]);
    }
}

#[test]
fn section_6_4_a_wrong_byte_is_refused_before_the_message_ends() {
    let (good, bad) = ("κόσμε".as_bytes(), b"\xf4\x90\x80\x80");
    let mut echo = Echo::new();
    echo.receive(&frame(1, good));
    assert!(!echo.is_closed);
    echo.receive(&frame(0, bad));
    assert_eq!(got(&mut echo.out), [NOT_UTF8], "6.4.1, 6.4.2: by the frame");
    let mut echo = Echo::new();
    let sent = frame(TEXT, &[good, bad, b"edited"].concat());
    // The header's six bytes, what is good, and the byte that makes it wrong.
    let wrong_at = 6 + good.len() + 2;
    echo.receive(&sent[..wrong_at - 1]);
    assert!(!echo.is_closed);
    echo.receive(&sent[wrong_at - 1..wrong_at]);
    assert_eq!(got(&mut echo.out), [NOT_UTF8], "6.4.3, 6.4.4: by the byte");
}

#[test]
fn section_7_how_connections_end() {
    let hello = text("Hello World!");
    let echo = echoed("Hello World!");
    case("7.1.1", &[hello.clone(), close(1000, b"")], &[echo.clone(), DONE]);
    case("7.1.2", &[close(1000, b""), close(1000, b"")], &[DONE]);
    case("7.1.3", &[close(1000, b""), frame(PING, b"")], &[DONE]);
    case("7.1.4", &[close(1000, b""), hello.clone()], &[DONE]);
    let [one, two] = halves("fragment1", "fragment2");
    case("7.1.5", &[one, close(1000, b""), two], &[DONE]);
    let long = "BAsd7&jh23".repeat(26_215);
    case("7.1.6", &[text(&long), hello, close(1000, b""), frame(PING, b"")], &[echoed(&long), echo, DONE]);
    case("7.3.1", &[frame(CLOSE, b"")], &[DONE]);
    case("7.3.2", &[frame(CLOSE, b"a")], &[PROTOCOL]);
    case("7.3.3", &[close(1000, b"")], &[DONE]);
    case("7.3.4", &[close(1000, b"Hello World!")], &[DONE]);
    case("7.3.5", &[close(1000, &[b'*'; 123])], &[DONE]);
    case("7.3.6", &[close(1000, &[b'*'; 124])], &[PROTOCOL]);
    case("7.5.1", &[close(1000, b"\xce\xba\xe1\xbd\xb9\xcf\x83\xed\xa0\x80")], &[NOT_UTF8]);
    let may_be_sent = [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999];
    for (number, code) in (1..).zip(may_be_sent) {
        case(&format!("7.7.{number}"), &[close(code, b"")], &[Got::Close(code)]);
    }
    for (number, code) in (1..).zip([0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999]) {
        case(&format!("7.9.{number}"), &[close(code, b"")], &[PROTOCOL]);
    }
    for (number, code) in (1..).zip([5000, 65_535]) {
        case(&format!("7.13.{number}"), &[close(code, b"")], &[PROTOCOL]);
    }
}

#[test]
fn section_9_messages_of_many_bytes() {
    // Each a message that is not the same at every place.
    let payload = |bytes: usize| (0..bytes).map(|at| b'a' + (at % 23) as u8).collect::<Vec<u8>>();
    for (number, kib) in (1..).zip([64, 256, 1024, 4096, 8192, 16_384]) {
        let body = payload(kib << 10);
        let mut echo = Echo::new();
        frame(TEXT, &body).chunks(64 << 10).for_each(|part| echo.receive(part));
        assert_eq!(got(&mut echo.out), [Got::Text(body.clone())], "9.1.{number}");
        let mut echo = Echo::new();
        frame(BINARY, &body).chunks(64 << 10).for_each(|part| echo.receive(part));
        assert_eq!(got(&mut echo.out), [Got::Binary(body)], "9.2.{number}");
    }
    // 4 MiB in fragments, and 1 MiB in cuts of the network.
    let body = payload(4 << 20);
    for (number, bytes) in
        (1..).zip([64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20])
    {
        let last = body.len().div_ceil(bytes) - 1;
        let first = |at: usize| if at == 0 { 1 } else { 0 } | if at == last { FIN } else { 0 };
        let mut echo = Echo::new();
        body.chunks(bytes).enumerate().for_each(|(at, part)| echo.receive(&frame(first(at), part)));
        assert_eq!(got(&mut echo.out), [Got::Text(body.clone())], "9.3.{number}, 9.4.{number}");
    }
    let body = payload(1 << 20);
    for (number, bytes) in (1..).zip([128, 256, 512, 1024, 2048, 4096]) {
        let mut echo = Echo::new();
        frame(BINARY, &body).chunks(bytes).for_each(|part| echo.receive(part));
        assert_eq!(got(&mut echo.out), [Got::Binary(body.clone())], "9.5.{number}, 9.6.{number}");
    }
    // A thousand messages there and back.
    for (number, bytes) in (1..).zip([0, 16, 64, 256, 1024, 4096]) {
        let body = payload(bytes);
        let mut echo = Echo::new();
        for _ in 0..1000 {
            echo.receive(&frame(TEXT, &body));
            assert_eq!(got(&mut echo.out), [Got::Text(body.clone())], "9.7.{number}, 9.8.{number}");
            echo.out.clear();
        }
    }
}

#[test]
fn section_10_a_long_text_in_fragments_of_its_own() {
    let body = vec![b'*'; 65_536];
    let mut frames: Vec<_> = body.chunks(1300).map(|part| frame(0, part)).collect();
    frames.first_mut().unwrap()[0] |= 1;
    frames.last_mut().unwrap()[0] |= FIN;
    case("10.1.1", &frames, &[Got::Text(body)]);
}
