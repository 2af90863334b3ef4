//! Properties of any input, however it is split: the messages and the end are the same. The fuzz target
//! `websocket_decode` and the test of its sample use this file.

use hubsub_wire::websocket::{
    AnswerFlaw, DecodeLimits, Decoded, Decoder, Flaw, Kind, Peer, Refusal, Request, read_answer,
};

/// Low, so that a short sample exceeds them.
pub const LIMITS: DecodeLimits = DecodeLimits { frame_bytes_max: 300, message_bytes_max: 500 };

/// The result of an input.
#[derive(PartialEq, Debug)]
pub struct Outcome {
    /// As text. Messages are complete, except one that is unfinished at an end without an error.
    pub came: Vec<String>,
    pub flaw: Option<Flaw>,
}

/// Checks all properties of an input.
///
/// # Panics
/// A property is violated.
pub fn check(input: &[u8]) {
    let every: Vec<usize> = (0..input.len()).collect();
    for from in [Peer::Client, Peer::Server] {
        let whole = outcome(from, input, &[]);
        assert_eq!(outcome(from, input, &every), whole, "cut everywhere");
        for &cut in &every {
            assert_eq!(outcome(from, input, &[cut]), whole, "cut at {cut}");
        }
    }
    check_heads(input);
}

/// A head that is accepted or refused stays so whatever follows, and all its beginnings are consistent with
/// that.
fn check_heads(input: &[u8]) {
    let request = Request::read(input);
    let answer = read_answer(input, [0; 16], &["mqtt"]);
    let length = |request: &Request<'_>| request.len;
    for cut in 0..input.len() {
        match (Request::read(&input[..cut]), &request) {
            (Ok(None), _) | (Err(Refusal::HeadTooLarge), Err(Refusal::HeadTooLarge)) => {}
            (Ok(Some(early)), Ok(Some(whole))) => assert_eq!(length(&early), length(whole)),
            (early, whole) => assert_eq!(early.as_ref().err(), whole.as_ref().err()),
        }
        match (read_answer(&input[..cut], [0; 16], &["mqtt"]), &answer) {
            (Ok(None), _) => {}
            (early, whole) => assert_eq!(&early, whole),
        }
    }
    if let Ok(Some(request)) = request {
        let mut out = Vec::new();
        request.write_accept(&mut out, request.choose_subprotocol(&["mqtt"]));
        let refused = read_answer(&out, [0; 16], &["mqtt"]);
        assert!(matches!(refused, Ok(Some(_)) | Err(AnswerFlaw::Accept)), "{refused:?}");
    }
}

/// The result of an input in pieces that end at `cuts`.
pub fn outcome(from: Peer, input: &[u8], cuts: &[usize]) -> Outcome {
    let mut buffer = input.to_vec();
    let (mut decoder, mut came, mut message) = (Decoder::new(from), Vec::new(), Vec::new());
    let mut taken = 0;
    for &end in cuts.iter().chain([&input.len()]) {
        loop {
            let left = end - taken;
            match decoder.decode(&mut buffer[taken..end], &LIMITS) {
                Ok(Decoded::Data { kind, bytes, last, len }) => {
                    message.extend_from_slice(bytes);
                    assert!(message.len() as u64 <= LIMITS.message_bytes_max);
                    if last {
                        let whole = std::mem::take(&mut message);
                        assert!(kind == Kind::Binary || std::str::from_utf8(&whole).is_ok());
                        came.push(format!("{kind:?} {whole:?}"));
                    }
                    taken += len;
                }
                Ok(Decoded::Ping { payload, len }) => {
                    came.push(format!("Ping {payload:?}"));
                    taken += len;
                }
                Ok(Decoded::Pong { payload, len }) => {
                    came.push(format!("Pong {payload:?}"));
                    taken += len;
                }
                Ok(Decoded::Close { code, reason, len }) => {
                    came.push(format!("Close {code:?} {reason:?}"));
                    taken += len;
                }
                Ok(Decoded::AfterClose { len }) => taken += len,
                Ok(Decoded::Incomplete { needed }) => {
                    assert!(needed > left, "a call with no more input finds no more");
                    assert!(needed <= 14 + 125, "more in memory than a control frame: {needed}");
                    break;
                }
                Err(flaw) => {
                    let mut said = Vec::new();
                    flaw.write(&mut said);
                    let close =
                        Decoder::new(Peer::Server).decode(&mut said, &LIMITS).map(|close| match close {
                            Decoded::Close { code, .. } => code,
                            other => panic!("{other:?}"),
                        });
                    assert_eq!(close, Ok(Some(flaw.code())));
                    return Outcome { came, flaw: Some(flaw) };
                }
            }
        }
    }
    came.push(format!("{message:?} under way"));
    Outcome { came, flaw: None }
}
