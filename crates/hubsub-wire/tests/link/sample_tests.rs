//! A fixed sample of inputs of the fuzz target `link_decode`, in `fuzz/sample/link_decode`: all types of
//! frames, handshakes of both sides, and all kinds of errors. Findings of the fuzzer are added there.

use crate::any_input::{check, ends, steps};
use crate::frames::CODES;
use crate::samples::{samples, with_a_wrong_byte};
use hubsub_wire::link::{Decoded, Frame, decode};

const TARGET: &str = "link_decode";

#[test]
fn any_cut_of_each_sample_makes_the_same_of_it() {
    let sample = samples(TARGET);
    for (name, input) in &sample {
        eprintln!("{name}");
        check(input);
    }
    let all: Vec<u8> = sample.values().filter(|input| input.len() > 4).map(|input| input[4]).collect();
    assert!(CODES.iter().all(|code| all.contains(code)), "a type of frame without a sample");
}

/// Samples with what this version never sends: a record whose room is not its topic, or a code of no error.
const OF_OTHER_VERSIONS: &[&str] = &["frame-16-0", "frame-19-0", "frame-19-1", "frame-25-0", "frame-25-1"];

#[test]
fn a_message_encodes_to_the_bytes_from_which_it_was_read() {
    let (sample, mut differ) = (samples(TARGET), Vec::new());
    for (name, input) in &sample {
        let Ok(Decoded::Frame { frame: frame @ Frame::Message(_), .. }) = decode(input, usize::MAX) else {
            continue;
        };
        let mut again = Vec::new();
        frame.encode(&mut again);
        if again != *input {
            differ.push(name.as_str());
        }
    }
    assert_eq!(differ, OF_OTHER_VERSIONS);
}

#[test]
fn a_sample_with_a_wrong_byte_brings_nothing_down() {
    with_a_wrong_byte(
        TARGET,
        |_| 3,
        |wrong, bytes, at| {
            let whole = ends().map(|end| steps(end, wrong, &[]));
            assert_eq!(ends().map(|end| steps(end, wrong, bytes)), whole, "byte {at}");
        },
    );
}

#[test]
fn the_sample_has_handshakes_that_succeed_and_links_that_go_on_and_end() {
    let sample = samples(TARGET);
    let of = |side: usize, name: &str| {
        let end = ends().into_iter().nth(side).expect("there are two");
        steps(end, &sample[name], &[])
    };
    for (side, name) in [(0, "dialer-up"), (1, "acceptor-up")] {
        let steps = of(side, name);
        assert_eq!(steps.end, None, "{name}");
        let up = |step: &String| step.starts_with("Up") || step.starts_with("Proved");
        assert!(steps.came.iter().any(up), "{name}: {:?}", steps.came);
    }
    let going = of(1, "acceptor-up-and-frames");
    assert!(going.came.iter().any(|step| step.starts_with("Frame(Message(Publish")), "{:?}", going.came);
    for name in ["acceptor-wrong-secret", "acceptor-other-cluster", "acceptor-proof-first", "http"] {
        assert!(of(1, name).end.is_some(), "{name}");
    }
}
