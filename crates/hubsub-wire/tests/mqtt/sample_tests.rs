//! Fixed samples of fuzz inputs, in `fuzz/sample/mqtt_decode`: all types of packets in each version, and many
//! errors. Findings of the fuzzer are added there.

use crate::any_input::{check, decoders, outcome};
use crate::samples::{samples, with_a_wrong_byte};

const TARGET: &str = "mqtt_decode";

#[test]
fn any_cut_of_each_sample_makes_the_same_of_it() {
    let sample = samples(TARGET);
    for (name, input) in &sample {
        eprintln!("{name}");
        check(input);
    }
    let came: Vec<String> = sample
        .values()
        .flat_map(|input| decoders().into_iter().map(|(from, decoder)| outcome(from, decoder, input, &[])))
        .flat_map(|outcome| outcome.came)
        .collect();
    for name in [
        "Connect(",
        "Connack(",
        "Publish(",
        "Puback(",
        "Pubrec(",
        "Pubrel(",
        "Pubcomp(",
        "Subscribe(",
        "Suback(",
        "Unsubscribe(",
        "Unsuback(",
        "Pingreq",
        "Pingresp",
        "Disconnect(",
        "Auth(",
    ] {
        assert!(came.iter().any(|packet| packet.starts_with(name)), "no sample is a {name}");
    }
}

#[test]
fn a_sample_with_a_wrong_byte_brings_nothing_down() {
    with_a_wrong_byte(
        TARGET,
        |length| 1 + length / 60,
        |wrong, bytes, at| {
            for (from, decoder) in decoders() {
                let whole = outcome(from, decoder.clone(), wrong, &[]);
                assert_eq!(outcome(from, decoder, wrong, bytes), whole, "byte {at}");
            }
        },
    );
}
