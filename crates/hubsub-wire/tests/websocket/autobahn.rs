//! The server cases of the Autobahn test suite, sections 1 to 7, 9 and 10, played frame by frame against an
//! echo server of this test: it decodes, assembles messages and closes as the node does
//! (`hubsub-node/src/phoenix`). docs/autobahn.md has the table; 12 and 13 cover compression, which is not
//! offered.
//!
//! Each case has a client's input and the expected output: echoes and Pongs in order, then the end. Cases
//! that the suite splits are played whole, by frames and by bytes.

mod echo;
mod texts;

use echo::*;

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
    // One message each, which differs at every position.
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
    // 4 MiB in fragments, and 1 MiB split by the network.
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
    // A thousand messages in each direction.
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
