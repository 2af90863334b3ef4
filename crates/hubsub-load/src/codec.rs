//! The subset of RESP2 and RESP3 that a pub/sub client needs.
//!
//! ```text
//! out   *3 $7 PUBLISH $n <room> $n <payload>          *n $9 SUBSCRIBE $n <room> …
//! in    *3 | >3   $7 message   $n <channel>   $n <payload>      a delivery
//!       *3 | >3   $9 subscribe $n <channel>   :<count>          a confirmed subscription
//!       :<receivers>                                            the reply of a PUBLISH
//!       -<text>                                                 an error
//!       anything else                                           Other (HELLO's map, +OK, …)
//! ```
//! Sharded channels use SPUBLISH, SSUBSCRIBE, smessage and ssubscribe.
//!
//! Every line ends in CR LF. An incomplete frame is `None`, never an error.

use memchr::memchr;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frame<'a> {
    Message {
        channel: &'a [u8],
        payload: &'a [u8],
    },
    /// The confirmation of a subscription.
    Subscribed,
    Integer(i64),
    /// An error line, without `-` and line end.
    Error(&'a [u8]),
    /// Any other well-formed frame.
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed(pub &'static str);

/// Maximum nesting of a reply; HELLO and errors need 2.
const DEPTH_MAX: usize = 8;

/// The first frame of `input` and its length; `None` if it is incomplete.
pub fn frame(input: &[u8]) -> Result<Option<(Frame<'_>, usize)>, Malformed> {
    let Some((line, body)) = line(input, 0) else { return Ok(None) };
    match line.split_first() {
        Some((b':', digits)) => Ok(Some((Frame::Integer(number(digits)?), body))),
        Some((b'-', text)) => Ok(Some((Frame::Error(text), body))),
        Some((b'*' | b'>', b"3")) => triple(input, body),
        _ => Ok(end_of_value(input, 0, 0)?.map(|end| (Frame::Other, end))),
    }
}

/// Appends a command, an array of bulk strings.
pub fn command(out: &mut Vec<u8>, args: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
    for arg in args {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}

fn triple(input: &[u8], body: usize) -> Result<Option<(Frame<'_>, usize)>, Malformed> {
    let whole = |frame, input| Ok(end_of_value(input, 0, 0)?.map(|end| (frame, end)));
    let Some((kind, next)) = bulk(input, body)? else { return whole(Frame::Other, input) };
    match kind {
        b"message" | b"smessage" => {
            let Some((channel, next)) = bulk(input, next)? else { return Ok(None) };
            let Some((payload, next)) = bulk(input, next)? else { return Ok(None) };
            Ok(Some((Frame::Message { channel, payload }, next)))
        }
        b"subscribe" | b"ssubscribe" => whole(Frame::Subscribed, input),
        _ => whole(Frame::Other, input),
    }
}

/// The bulk string at `at` and its end; `None` if it is incomplete or no bulk string.
fn bulk(input: &[u8], at: usize) -> Result<Option<(&[u8], usize)>, Malformed> {
    let Some((line, start)) = line(input, at) else { return Ok(None) };
    let Some((b'$', digits)) = line.split_first() else { return Ok(None) };
    let Ok(len) = usize::try_from(number(digits)?) else { return Ok(None) };
    let end = start + len;
    match input.get(end..end + 2) {
        None => Ok(None),
        Some(b"\r\n") => Ok(Some((&input[start..end], end + 2))),
        Some(_) => Err(Malformed("a bulk string without line end")),
    }
}

/// End of the value at `at`, of any type.
fn end_of_value(input: &[u8], at: usize, depth: usize) -> Result<Option<usize>, Malformed> {
    if depth > DEPTH_MAX {
        return Err(Malformed("a value nested too deep"));
    }
    let Some((line, body)) = line(input, at) else { return Ok(None) };
    let Some((&kind, digits)) = line.split_first() else { return Err(Malformed("an empty line")) };
    let values = match kind {
        b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => return Ok(Some(body)),
        b'$' | b'=' | b'!' => {
            let Ok(len) = usize::try_from(number(digits)?) else { return Ok(Some(body)) };
            let end = body + len + 2;
            return Ok((input.len() >= end).then_some(end));
        }
        b'*' | b'>' | b'~' => number(digits)?,
        b'%' => number(digits)?.saturating_mul(2),
        _ => return Err(Malformed("an unknown type byte")),
    };
    let mut end = body;
    for _ in 0..values {
        match end_of_value(input, end, depth + 1)? {
            Some(next) => end = next,
            None => return Ok(None),
        }
    }
    Ok(Some(end))
}

/// The line at `at` without its end, and the start of the next one.
fn line(input: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let rest = input.get(at..)?;
    let len = memchr(b'\r', rest)?;
    (rest.get(len + 1)? == &b'\n').then(|| (&rest[..len], at + len + 2))
}

fn number(digits: &[u8]) -> Result<i64, Malformed> {
    let (negative, digits) = match digits.split_first() {
        Some((b'-', rest)) => (true, rest),
        _ => (false, digits),
    };
    if digits.is_empty() || digits.len() > 18 || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Malformed("a length or integer that is no number"));
    }
    let value = digits.iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0'));
    Ok(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Owned frames, so that streams can be compared.
    #[derive(PartialEq, Eq, Debug, Clone)]
    enum Owned {
        Message(Vec<u8>, Vec<u8>),
        Subscribed,
        Integer(i64),
        Error(Vec<u8>),
        Other,
    }

    impl From<Frame<'_>> for Owned {
        fn from(frame: Frame<'_>) -> Owned {
            match frame {
                Frame::Message { channel, payload } => Owned::Message(channel.to_vec(), payload.to_vec()),
                Frame::Subscribed => Owned::Subscribed,
                Frame::Integer(value) => Owned::Integer(value),
                Frame::Error(text) => Owned::Error(text.to_vec()),
                Frame::Other => Owned::Other,
            }
        }
    }

    fn bulk_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
        out.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
        out.extend_from_slice(bytes);
        out.extend_from_slice(b"\r\n");
    }

    fn encoded(frame: &Owned, resp3: bool) -> Vec<u8> {
        let head: &[u8] = if resp3 { b">3\r\n" } else { b"*3\r\n" };
        let mut out = Vec::new();
        match frame {
            Owned::Message(channel, payload) => {
                out.extend_from_slice(head);
                bulk_bytes(&mut out, b"message");
                bulk_bytes(&mut out, channel);
                bulk_bytes(&mut out, payload);
            }
            Owned::Subscribed => {
                out.extend_from_slice(head);
                bulk_bytes(&mut out, b"subscribe");
                bulk_bytes(&mut out, b"room");
                out.extend_from_slice(b":1\r\n");
            }
            Owned::Integer(value) => out.extend_from_slice(format!(":{value}\r\n").as_bytes()),
            Owned::Error(text) => {
                out.push(b'-');
                out.extend_from_slice(text);
                out.extend_from_slice(b"\r\n");
            }
            Owned::Other if resp3 => {
                out.extend_from_slice(b"%2\r\n+server\r\n$5\r\nredis\r\n+proto\r\n*2\r\n:3\r\n_\r\n")
            }
            Owned::Other => out.extend_from_slice(b"*3\r\n$-1\r\n+OK\r\n$0\r\n\r\n"),
        }
        out
    }

    fn frames() -> impl Strategy<Value = Vec<(Owned, bool)>> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..60);
        let one = prop_oneof![
            4 => (bytes(), bytes()).prop_map(|(channel, payload)| Owned::Message(channel, payload)),
            1 => Just(Owned::Subscribed),
            1 => (-999_999i64..999_999).prop_map(Owned::Integer),
            1 => "[A-Z]{3,9} [a-z ]{0,20}".prop_map(|text| Owned::Error(text.into_bytes())),
            1 => Just(Owned::Other),
        ];
        proptest::collection::vec((one, any::<bool>()), 0..12)
    }

    /// Reads as a connection does: appends pieces, and takes whole frames from the front.
    fn read_in_pieces(stream: &[u8], cuts: &[usize]) -> Vec<Owned> {
        let mut held: Vec<u8> = Vec::new();
        let mut got = Vec::new();
        let mut from = 0;
        for to in cuts.iter().copied().chain([stream.len()]) {
            held.extend_from_slice(&stream[from..to]);
            from = to;
            let mut at = 0;
            while let Some((one, len)) = frame(&held[at..]).expect("a valid stream is well-formed") {
                got.push(one.into());
                at += len;
            }
            held.drain(..at);
        }
        assert!(held.is_empty());
        got
    }

    proptest! {
        #[test]
        fn any_split_of_a_stream_reads_the_same(frames in frames(), cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8)) {
            let stream: Vec<u8> = frames.iter().flat_map(|(frame, resp3)| encoded(frame, *resp3)).collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            cuts.sort_unstable();
            let expected: Vec<Owned> = frames.into_iter().map(|(frame, _)| frame).collect();
            prop_assert_eq!(read_in_pieces(&stream, &cuts), expected.clone());
            let every_byte: Vec<usize> = (0..stream.len()).collect();
            prop_assert_eq!(read_in_pieces(&stream, &every_byte), expected);
        }

        #[test]
        fn garbage_is_refused_or_waited_for(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = frame(&bytes);
        }
    }

    #[test]
    fn a_command_is_an_array_of_bulk_strings() {
        let mut out = Vec::new();
        command(&mut out, &[b"SUBSCRIBE", b"room:1"]);
        assert_eq!(out, b"*2\r\n$9\r\nSUBSCRIBE\r\n$6\r\nroom:1\r\n");
    }

    #[test]
    fn wrong_bytes_are_named() {
        assert_eq!(frame(b"HTTP/1.1 400\r\n"), Err(Malformed("an unknown type byte")));
        assert_eq!(frame(b":abc\r\n"), Err(Malformed("a length or integer that is no number")));
        assert!(frame(b"*3\r\n$7\r\nmessage\r\n$1\r\nab\r\n").is_err());
    }
}
