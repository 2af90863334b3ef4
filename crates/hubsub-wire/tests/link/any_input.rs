//! Properties of any input, however it is split: the frames, the handshake and the end are the same. The fuzz
//! target `link_decode` and the test of its sample use this file.

use hubsub_wire::link::{Decoded, End, FrameError, Identity, Link, LinkLimits, Next, Now, Secret, decode};
use std::sync::Arc;

/// Longest frame; low, so that samples of frames that are too long stay short.
const BYTES_MAX: usize = 2_000;

const NOW: Now = Now { mono_us: 5_000_000, wall_us: 1_700_000_000_000_000 };

/// Identity of the dialer or the acceptor.
pub fn identity(node: &str) -> Arc<Identity> {
    let (cluster, secret) = ("blue".into(), Secret::new(b"open sesame"));
    let node = node.into();
    Arc::new(Identity { cluster, node, incarnation: 7, shards: 4, secret, versions: 1..=1 }.checked())
}

/// Both ends, the dialer first. Their nonces are constant, so their output is deterministic.
pub fn ends() -> [Link; 2] {
    let limits = Arc::new(LinkLimits { frame_bytes_max: BYTES_MAX, ..LinkLimits::default() }.checked());
    let dialer = Link::dial(identity("a"), Arc::clone(&limits), 1, Some("b".into()), &[1; 32], NOW);
    [dialer, Link::accept(identity("b"), limits, [2; 32], NOW)]
}

/// Checks all properties of an input.
///
/// # Panics
/// A property is violated.
pub fn check(input: &[u8]) {
    let (frames, steps) = (frames(input, &[]), ends().map(|end| steps(end, input, &[])));
    let again = |cuts: &[usize]| {
        assert_eq!(self::frames(input, cuts), frames, "cut at {cuts:?}");
        assert_eq!(ends().map(|end| self::steps(end, input, cuts)), steps, "cut at {cuts:?}");
    };
    again(&(0..input.len()).collect::<Vec<_>>());
    (0..input.len()).for_each(|cut| again(&[cut]));
}

/// Encoded frames, consumed bytes and the error, when the input arrives in pieces that end at `cuts`.
fn frames(input: &[u8], cuts: &[usize]) -> (Vec<Vec<u8>>, usize, Option<FrameError>) {
    let (mut start, mut frames) = (0, Vec::new());
    for &end in cuts.iter().chain([&input.len()]) {
        loop {
            match decode(&input[start..end], BYTES_MAX) {
                Ok(Decoded::Frame { frame, bytes }) => {
                    let mut again = Vec::new();
                    let length = frame.encode(&mut again);
                    assert_eq!(decode(&again, usize::MAX), Ok(Decoded::Frame { frame, bytes: length }));
                    frames.push(again);
                    start += bytes;
                }
                Ok(Decoded::Incomplete { needed }) => {
                    assert!(needed > end - start);
                    break;
                }
                Err(error) => return (frames, start, Some(error)),
            }
        }
    }
    (frames, start, None)
}

/// The reaction of a link to an input.
#[derive(PartialEq, Debug)]
pub struct Steps {
    /// Events as text, with the bytes of each.
    pub came: Vec<String>,
    /// Output of the link.
    pub said: Vec<u8>,
    pub end: Option<End>,
}

/// One end of a link reads the input in pieces that end at `cuts`; a peer that proves itself is admitted, and
/// frames are handled.
pub fn steps(mut link: Link, input: &[u8], cuts: &[usize]) -> Steps {
    let (mut start, mut steps) = (0, Steps { came: Vec::new(), said: Vec::new(), end: None });
    for &end in cuts.iter().chain([&input.len()]) {
        while steps.end.is_none() {
            let mut handled = None;
            match link.next(&input[start..end], NOW) {
                Ok(Next::Incomplete(needed)) => {
                    assert!(needed > end - start);
                    break;
                }
                Ok(next) => {
                    steps.came.push(format!("{next:?}"));
                    match next {
                        Next::Frame(frame, bytes) => {
                            handled = Some((frame.lane(), bytes));
                            start += bytes;
                        }
                        Next::Proved(_, bytes) => {
                            start += bytes;
                            link.welcome(NOW);
                        }
                        Next::Up(bytes) | Next::Own(bytes) => start += bytes,
                        Next::Incomplete(_) => unreachable!("matched before"),
                    }
                }
                Err(end) => steps.end = Some(end),
            }
            if let Some((lane, bytes)) = handled {
                link.handled(lane, bytes);
            }
            steps.said.extend_from_slice(link.output());
            link.written(link.output().len());
        }
    }
    steps
}
