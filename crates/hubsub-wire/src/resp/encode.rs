//! Replies and pushes. Each function appends one element, or the header of a collection whose elements
//! follow; `Proto` selects RESP2 or RESP3 where they differ. A frame reserves its memory once.

use hubsub_types::Position;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Proto {
    /// Every connection begins with it.
    #[default]
    Resp2,
    Resp3,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    Message,
    SMessage,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Subscription {
    Subscribe,
    Unsubscribe,
    PSubscribe,
    PUnsubscribe,
    SSubscribe,
    SUnsubscribe,
}

impl Subscription {
    fn word(self) -> &'static [u8] {
        match self {
            Subscription::Subscribe => b"subscribe",
            Subscription::Unsubscribe => b"unsubscribe",
            Subscription::PSubscribe => b"psubscribe",
            Subscription::PUnsubscribe => b"punsubscribe",
            Subscription::SSubscribe => b"ssubscribe",
            Subscription::SUnsubscribe => b"sunsubscribe",
        }
    }
}

/// `[kind, channel, payload]`, with a fourth element if positions are on.
pub fn message(
    out: &mut Vec<u8>,
    proto: Proto,
    kind: Kind,
    channel: &[u8],
    payload: &[u8],
    position: Option<Position>,
) {
    let word: &[u8] = match kind {
        Kind::Message => b"$7\r\nmessage\r\n",
        Kind::SMessage => b"$8\r\nsmessage\r\n",
    };
    push_of_bulks(out, proto, word, [channel, payload], position);
}

/// `[pmessage, pattern, channel, payload]`, with a fifth element if positions are on.
pub fn pmessage(
    out: &mut Vec<u8>,
    proto: Proto,
    pattern: &[u8],
    channel: &[u8],
    payload: &[u8],
    position: Option<Position>,
) {
    push_of_bulks(out, proto, b"$8\r\npmessage\r\n", [pattern, channel, payload], position);
}

/// `[kind, name, count]`: a reply per name; without a name if there was none to unsubscribe.
pub fn subscription(out: &mut Vec<u8>, proto: Proto, kind: Subscription, name: Option<&[u8]>, count: u64) {
    out.reserve(HEADER_MAX + bulk_len(kind.word()) + bulk_len(name.unwrap_or_default()) + HEADER_MAX);
    push_header(out, proto, 3);
    bulk(out, kind.word());
    match name {
        Some(name) => bulk(out, name),
        None => null(out, proto),
    }
    header(out, b':', count);
}

/// A push with an encoded word, strings, and a position if there is one.
#[inline]
fn push_of_bulks<const N: usize>(
    out: &mut Vec<u8>,
    proto: Proto,
    word: &[u8],
    bulks: [&[u8]; N],
    position: Option<Position>,
) {
    let length: usize = bulks.iter().map(|bytes| bulk_len(bytes)).sum();
    let extra = if position.is_some() { HEADER_MAX + POSITION_MAX + 2 } else { 0 };
    out.reserve(HEADER_MAX + word.len() + length + extra);
    push_header(out, proto, 1 + N + usize::from(position.is_some()));
    out.extend_from_slice(word);
    bulks.iter().for_each(|bytes| bulk(out, bytes));
    if let Some(position) = position {
        bulk(out, position_text(position, &mut [0; POSITION_MAX]));
    }
}

/// `+text`. CR and LF become blanks.
pub fn simple(out: &mut Vec<u8>, text: &str) {
    line(out, b'+', text.as_bytes());
}

/// `-text`, which begins with the error's code. CR and LF become blanks.
pub fn error(out: &mut Vec<u8>, text: impl AsRef<[u8]>) {
    line(out, b'-', text.as_ref());
}

fn line(out: &mut Vec<u8>, mark: u8, text: &[u8]) {
    out.reserve(text.len() + 3);
    out.push(mark);
    out.extend(text.iter().map(|&byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }));
    out.extend_from_slice(b"\r\n");
}

pub fn int(out: &mut Vec<u8>, value: i64) {
    if let Ok(value) = u64::try_from(value) {
        return header(out, b':', value);
    }
    out.extend_from_slice(b":-");
    digits_line(out, value.unsigned_abs());
}

#[inline]
pub fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(bulk_len(bytes));
    header(out, b'$', bytes.len() as u64);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

pub fn null(out: &mut Vec<u8>, proto: Proto) {
    out.extend_from_slice(if proto == Proto::Resp3 { b"_\r\n" } else { b"$-1\r\n" });
}

pub fn null_array(out: &mut Vec<u8>, proto: Proto) {
    out.extend_from_slice(if proto == Proto::Resp3 { b"_\r\n" } else { b"*-1\r\n" });
}

pub fn array_header(out: &mut Vec<u8>, len: usize) {
    header(out, b'*', len as u64);
}

/// Header of a map; `pairs` keys and values follow, alternating.
pub fn map_header(out: &mut Vec<u8>, proto: Proto, pairs: usize) {
    match proto {
        Proto::Resp2 => header(out, b'*', 2 * pairs as u64),
        Proto::Resp3 => header(out, b'%', pairs as u64),
    }
}

/// Header of a set; `len` distinct elements follow.
pub fn set_header(out: &mut Vec<u8>, proto: Proto, len: usize) {
    header(out, if proto == Proto::Resp3 { b'~' } else { b'*' }, len as u64);
}

/// Header of a push, which is no reply; `len` elements follow. Clients crash on fewer than 3.
pub fn push_header(out: &mut Vec<u8>, proto: Proto, len: usize) {
    header(out, if proto == Proto::Resp3 { b'>' } else { b'*' }, len as u64);
}

/// Text for people; in RESP2 a string.
pub fn verbatim(out: &mut Vec<u8>, proto: Proto, text: &[u8]) {
    if proto == Proto::Resp2 {
        return bulk(out, text);
    }
    out.reserve(bulk_len(text) + 4);
    header(out, b'=', text.len() as u64 + 4);
    out.extend_from_slice(b"txt:");
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

/// True or false; in RESP2 1 or 0.
pub fn bool(out: &mut Vec<u8>, proto: Proto, value: bool) {
    out.extend_from_slice(match (proto, value) {
        (Proto::Resp2, true) => b":1\r\n",
        (Proto::Resp2, false) => b":0\r\n",
        (Proto::Resp3, true) => b"#t\r\n",
        (Proto::Resp3, false) => b"#f\r\n",
    });
}

/// A floating-point number; in RESP2 a string.
pub fn double(out: &mut Vec<u8>, proto: Proto, value: f64) {
    let text = if value.is_nan() { "nan".to_owned() } else { value.to_string() };
    match proto {
        Proto::Resp2 => bulk(out, text.as_bytes()),
        Proto::Resp3 => line(out, b',', text.as_bytes()),
    }
}

/// Longest header: a mark, a number and CRLF.
const HEADER_MAX: usize = 1 + DIGITS_MAX + 2;
/// Most digits of a `u64`, or sign and digits of an `i64`.
const DIGITS_MAX: usize = 20;
const POSITION_MAX: usize = 2 * DIGITS_MAX + 1;

fn bulk_len(bytes: &[u8]) -> usize {
    HEADER_MAX + bytes.len() + 2
}

#[inline]
fn header(out: &mut Vec<u8>, mark: u8, number: u64) {
    let digit = |power: u64| b'0' + (number / power % 10) as u8;
    // Nearly all lengths have up to three digits; a slice of fixed length is one store.
    match number {
        0..10 => out.extend_from_slice(&[mark, digit(1), b'\r', b'\n']),
        10..100 => out.extend_from_slice(&[mark, digit(10), digit(1), b'\r', b'\n']),
        100..1000 => out.extend_from_slice(&[mark, digit(100), digit(10), digit(1), b'\r', b'\n']),
        _ => {
            out.push(mark);
            digits_line(out, number);
        }
    }
}

fn digits_line(out: &mut Vec<u8>, number: u64) {
    let mut line = [0; DIGITS_MAX + 2];
    line[DIGITS_MAX..].copy_from_slice(b"\r\n");
    let start = digits(number, &mut line[..DIGITS_MAX]);
    out.extend_from_slice(&line[start..]);
}

/// Writes a number at the end of `room`, which is large enough; returns its start.
fn digits(mut number: u64, room: &mut [u8]) -> usize {
    let mut at = room.len();
    loop {
        at -= 1;
        room[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return at;
        }
    }
}

fn position_text(position: Position, room: &mut [u8; POSITION_MAX]) -> &[u8] {
    let dash = digits(position.seq.0, room) - 1;
    room[dash] = b'-';
    let start = digits(position.epoch.0, &mut room[..dash]);
    &room[start..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use hubsub_types::{Epoch, Seq};
    use proptest::prelude::*;

    /// A decoded reply, as far as the tests need it.
    #[derive(Clone, PartialEq, Debug)]
    enum Value {
        Line(u8, Vec<u8>),
        Bulk(u8, Vec<u8>),
        Many(u8, Vec<Value>),
        Null,
    }

    /// Decodes one value; panics on invalid input.
    fn read(input: &mut &[u8]) -> Value {
        let end = input.windows(2).position(|pair| pair == b"\r\n").expect("every header ends");
        let (mark, line) = (input[0], input[1..end].to_vec());
        *input = &input[end + 2..];
        let number = || std::str::from_utf8(&line).unwrap().parse::<i64>().unwrap();
        match mark {
            b'_' => Value::Null,
            b'$' | b'*' if line == b"-1" => Value::Null,
            b'$' | b'=' => {
                let (bytes, rest) = input.split_at(number() as usize);
                *input = rest.strip_prefix(b"\r\n").unwrap();
                Value::Bulk(mark, bytes.to_vec())
            }
            b'*' | b'>' | b'~' => Value::Many(mark, (0..number()).map(|_| read(input)).collect()),
            b'%' => Value::Many(mark, (0..2 * number()).map(|_| read(input)).collect()),
            b'+' | b'-' | b':' | b',' | b'#' => Value::Line(mark, line),
            _ => panic!("unknown mark {mark}"),
        }
    }

    fn read_all(bytes: &[u8]) -> Vec<Value> {
        let mut rest = bytes;
        std::iter::from_fn(|| (!rest.is_empty()).then(|| read(&mut rest))).collect()
    }

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    fn push_mark(proto: Proto) -> u8 {
        if proto == Proto::Resp3 { b'>' } else { b'*' }
    }

    fn bulks(parts: &[&[u8]]) -> Vec<Value> {
        parts.iter().map(|part| Value::Bulk(b'$', part.to_vec())).collect()
    }

    fn proto() -> impl Strategy<Value = Proto> {
        proptest::sample::select(vec![Proto::Resp2, Proto::Resp3])
    }

    fn position() -> impl Strategy<Value = Option<Position>> {
        let position = |(epoch, seq)| Position { epoch: Epoch(epoch), seq: Seq(seq) };
        proptest::option::of(any::<(u64, u64)>().prop_map(position))
    }

    proptest! {
        #[test]
        fn message_frames_read_back_as_they_were_written(
            proto in proto(), pattern: Vec<u8>, channel: Vec<u8>, payload: Vec<u8>, position in position(),
        ) {
            let mut out = Vec::new();
            message(&mut out, proto, Kind::Message, &channel, &payload, position);
            message(&mut out, proto, Kind::SMessage, &channel, &payload, position);
            pmessage(&mut out, proto, &pattern, &channel, &payload, position);
            let position = position.map(|position| position.to_string().into_bytes());
            let with_position = |parts: &[&[u8]]| {
                let mut values = bulks(parts);
                values.extend(position.clone().map(|text| Value::Bulk(b'$', text)));
                Value::Many(push_mark(proto), values)
            };
            prop_assert_eq!(read_all(&out), [
                with_position(&[b"message", &channel, &payload]),
                with_position(&[b"smessage", &channel, &payload]),
                with_position(&[b"pmessage", &pattern, &channel, &payload]),
            ]);
        }

        #[test]
        fn a_message_reserves_once(payload in proptest::collection::vec(any::<u8>(), 100..2_000)) {
            let mut out = Vec::new();
            message(&mut out, Proto::Resp2, Kind::Message, b"c", &payload, None);
            prop_assert!(out.capacity() <= payload.len() + 4 * HEADER_MAX + 20, "{}", out.capacity());
        }

        #[test]
        fn integers_read_back(value: i64) {
            let mut out = Vec::new();
            int(&mut out, value);
            prop_assert_eq!(out, format!(":{value}\r\n").into_bytes());
        }

        #[test]
        fn errors_and_simple_strings_stay_on_one_line(words in "[a-z\r\n ]{0,20}") {
            let mut out = Vec::new();
            error(&mut out, &words);
            simple(&mut out, &words);
            let line = words.replace(['\r', '\n'], " ").into_bytes();
            prop_assert_eq!(read_all(&out), [Value::Line(b'-', line.clone()), Value::Line(b'+', line)]);
        }
    }

    #[test]
    fn each_element_has_the_form_of_its_version() {
        use Proto::{Resp2, Resp3};
        assert_eq!(text(|o| null(o, Resp2)) + &text(|o| null(o, Resp3)), "$-1\r\n_\r\n");
        assert_eq!(text(|o| null_array(o, Resp2)) + &text(|o| null_array(o, Resp3)), "*-1\r\n_\r\n");
        assert_eq!(text(|o| array_header(o, 12)), "*12\r\n");
        assert_eq!(text(|o| map_header(o, Resp2, 7)) + &text(|o| map_header(o, Resp3, 7)), "*14\r\n%7\r\n");
        assert_eq!(text(|o| set_header(o, Resp2, 2)) + &text(|o| set_header(o, Resp3, 2)), "*2\r\n~2\r\n");
        assert_eq!(text(|o| push_header(o, Resp2, 3)) + &text(|o| push_header(o, Resp3, 3)), "*3\r\n>3\r\n");
        assert_eq!(text(|o| verbatim(o, Resp2, b"a\r\nb")), "$4\r\na\r\nb\r\n");
        assert_eq!(text(|o| verbatim(o, Resp3, b"a\r\nb")), "=8\r\ntxt:a\r\nb\r\n");
        assert_eq!(text(|o| bool(o, Resp2, true)) + &text(|o| bool(o, Resp2, false)), ":1\r\n:0\r\n");
        assert_eq!(text(|o| bool(o, Resp3, true)) + &text(|o| bool(o, Resp3, false)), "#t\r\n#f\r\n");
        assert_eq!(
            text(|o| double(o, Resp2, 1.5)) + &text(|o| double(o, Resp3, -0.25)),
            "$3\r\n1.5\r\n,-0.25\r\n"
        );
        assert_eq!(text(|o| double(o, Resp3, f64::NEG_INFINITY)), ",-inf\r\n");
        assert_eq!(text(|o| double(o, Resp3, -f64::NAN)), ",nan\r\n");
        assert_eq!(text(|o| int(o, i64::MIN)), ":-9223372036854775808\r\n");
        assert_eq!(text(|o| bulk(o, b"")), "$0\r\n\r\n");
    }

    #[test]
    fn a_confirmation_has_three_elements_also_without_a_name() {
        let frame = |proto, name| text(|o| subscription(o, proto, Subscription::Unsubscribe, name, 3));
        assert_eq!(frame(Proto::Resp2, Some(&b"a"[..])), "*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:3\r\n");
        assert_eq!(frame(Proto::Resp3, Some(&b"a"[..])), ">3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:3\r\n");
        assert_eq!(frame(Proto::Resp2, None), "*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:3\r\n");
        assert_eq!(frame(Proto::Resp3, None), ">3\r\n$11\r\nunsubscribe\r\n_\r\n:3\r\n");
        let words = [
            (Subscription::Subscribe, "subscribe"),
            (Subscription::PSubscribe, "psubscribe"),
            (Subscription::PUnsubscribe, "punsubscribe"),
            (Subscription::SSubscribe, "ssubscribe"),
            (Subscription::SUnsubscribe, "sunsubscribe"),
        ];
        for (kind, word) in words {
            assert!(
                text(|o| subscription(o, Proto::Resp2, kind, None, 0)).contains(&format!("\r\n{word}\r\n"))
            );
        }
    }
}
