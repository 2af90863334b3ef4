//! Any input, cut at any one place and into single bytes, decodes to what it
//! decodes to at once.

#![no_main]

use hubsub_wire::resp::{DecodeLimits, Decoded, Decoder, ProtocolError};
use libfuzzer_sys::fuzz_target;

const LIMITS: DecodeLimits = DecodeLimits { frame_bytes_max: 1_000, args_max: 50, inline_bytes_max: 40 };

/// Commands, bytes taken and the error, when the input comes in pieces that end
/// at `cuts`.
fn decode(
    input: &[u8],
    cuts: impl Iterator<Item = usize>,
) -> (Vec<Vec<Vec<u8>>>, usize, Option<ProtocolError>) {
    let (mut decoder, mut start, mut commands) = (Decoder::default(), 0, Vec::new());
    for end in cuts.chain([input.len()]) {
        loop {
            let frame = &input[start..end];
            match decoder.decode(frame, &LIMITS) {
                Ok(Decoded::Command { len }) => {
                    commands.push((0..decoder.argc()).map(|i| decoder.arg(frame, i).to_vec()).collect());
                    start += len;
                }
                Ok(Decoded::Skip { len }) => start += len,
                Ok(Decoded::Incomplete) => {
                    assert!(decoder.needed() > frame.len());
                    break;
                }
                Err(error) => return (commands, start, Some(error)),
            }
        }
    }
    (commands, start, None)
}

fuzz_target!(|input: &[u8]| {
    let once = decode(input, std::iter::empty());
    assert_eq!(decode(input, 0..input.len()), once);
    for cut in 0..input.len() {
        assert_eq!(decode(input, std::iter::once(cut)), once);
    }
});
