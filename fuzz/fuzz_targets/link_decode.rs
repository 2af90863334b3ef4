//! Any input, cut at any one place and into single bytes, decodes to the frames
//! it decodes to at once, and each frame encodes to bytes that say the same.

#![no_main]

use hubsub_wire::link::{Decoded, FrameError, decode};
use libfuzzer_sys::fuzz_target;

const BYTES_MAX: usize = 1_000;

/// Frames, encoded again, bytes taken and the error, when the input comes in
/// pieces that end at `cuts`.
fn frames(input: &[u8], cuts: impl Iterator<Item = usize>) -> (Vec<Vec<u8>>, usize, Option<FrameError>) {
    let (mut start, mut frames) = (0, Vec::new());
    for end in cuts.chain([input.len()]) {
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

fuzz_target!(|input: &[u8]| {
    let once = frames(input, std::iter::empty());
    assert_eq!(frames(input, 0..input.len()), once);
    for cut in 0..input.len() {
        assert_eq!(frames(input, std::iter::once(cut)), once);
    }
});
