//! Properties of any input, however it is split: the packets and the end are the same; each packet encodes to
//! an equivalent one. The fuzz target `mqtt_decode` and the test of its sample use this file.

use hubsub_wire::mqtt::{DecodeLimits, Decoded, Decoder, Packet, Peer, ProtocolError, Version};

/// Low, so that a short sample exceeds them.
pub const LIMITS: DecodeLimits =
    DecodeLimits { packet_bytes_max: 2_000, connect_bytes_max: 300, whole_bytes_max: 400 };

/// Above all packets of the tests.
pub const WIDE: DecodeLimits =
    DecodeLimits { packet_bytes_max: usize::MAX, connect_bytes_max: usize::MAX, whole_bytes_max: usize::MAX };

pub const VERSIONS: [Version; 3] = [Version::V31, Version::V311, Version::V5];

/// The shortest CONNECT of a version, with client id `c`.
pub fn connect(version: Version) -> Vec<u8> {
    let name = version.protocol_name();
    let mut body = vec![0, name.len() as u8];
    body.extend_from_slice(name.as_bytes());
    body.extend_from_slice(&[version as u8, 2, 0, 60]);
    if version == Version::V5 {
        body.push(0);
    }
    body.extend_from_slice(&[0, 1, b'c']);
    [vec![0x10, body.len() as u8], body].concat()
}

/// A decoder for that side's packets, after its CONNECT or CONNACK.
pub fn begun(from: Peer, version: Version) -> Decoder {
    let (mut decoder, first) = match from {
        Peer::Client => (Decoder::of_client(), connect(version)),
        Peer::Server if version == Version::V5 => (Decoder::of_server(version), vec![0x20, 3, 0, 0, 0]),
        Peer::Server => (Decoder::of_server(version), vec![0x20, 2, 0, 0]),
    };
    match decoder.decode(&first, &WIDE) {
        Ok(Decoded::Packet { len, .. }) if len == first.len() => decoder,
        other => panic!("{other:?}"),
    }
}

/// Decoders in all states that can precede an input.
pub fn decoders() -> Vec<(Peer, Decoder)> {
    let mut all = vec![(Peer::Client, Decoder::of_client())];
    for version in VERSIONS {
        all.push((Peer::Server, Decoder::of_server(version)));
        all.extend([Peer::Client, Peer::Server].map(|from| (from, begun(from, version))));
    }
    all
}

/// The result of an input.
#[derive(PartialEq, Debug)]
pub struct Outcome {
    /// As text; the payload of a message in pieces is joined.
    pub came: Vec<String>,
    /// Number of bytes consumed.
    pub taken: usize,
    pub error: Option<ProtocolError>,
}

/// Checks all properties of an input.
///
/// # Panics
/// A property is violated.
pub fn check(input: &[u8]) {
    for (from, decoder) in decoders() {
        let whole = outcome(from, decoder.clone(), input, &[]);
        let every: Vec<usize> = (0..input.len()).collect();
        assert_eq!(outcome(from, decoder.clone(), input, &every), whole, "cut everywhere");
        for cut in every {
            assert_eq!(outcome(from, decoder.clone(), input, &[cut]), whole, "cut at {cut}");
        }
    }
}

/// The result of an input in pieces that end at `cuts`.
pub fn outcome(from: Peer, mut decoder: Decoder, input: &[u8], cuts: &[usize]) -> Outcome {
    let (mut came, mut taken, mut payload) = (Vec::new(), 0, Vec::new());
    for &end in cuts.iter().chain([&input.len()]) {
        loop {
            let left = &input[taken..end];
            match decoder.decode(left, &LIMITS) {
                Ok(Decoded::Packet { packet, len }) => {
                    let version = decoder.version().expect("a packet has come");
                    comes_again(from, packet, version);
                    came.push(format!("{packet:?}"));
                    taken += len;
                }
                Ok(Decoded::Head { publish, payload_bytes, len }) => {
                    assert!(publish.payload.is_empty() && payload_bytes > 0);
                    assert!(len <= LIMITS.whole_bytes_max && len + payload_bytes <= LIMITS.packet_bytes_max);
                    came.push(format!("{publish:?} {payload_bytes}"));
                    taken += len;
                }
                Ok(Decoded::Chunk { bytes, last, len }) => {
                    assert_eq!(bytes.len(), len);
                    payload.extend_from_slice(bytes);
                    if last {
                        came.push(format!("{:?}", std::mem::take(&mut payload)));
                    }
                    taken += len;
                }
                Ok(Decoded::Incomplete { needed }) => {
                    assert!(needed > left.len(), "a call with no more input finds no more");
                    assert!(needed <= LIMITS.whole_bytes_max + 4, "more in memory than the limit: {needed}");
                    break;
                }
                Err(error) => {
                    let mut said = Vec::new();
                    error.write(&mut said);
                    return Outcome { came, taken, error: Some(error) };
                }
            }
        }
    }
    if !payload.is_empty() {
        came.push(format!("{payload:?} and more"));
    }
    Outcome { came, taken, error: None }
}

/// Checks that a packet is equal after encoding and decoding.
fn comes_again(from: Peer, packet: Packet<'_>, version: Version) {
    let mut bytes = Vec::new();
    packet.write(&mut bytes, version, usize::MAX).expect("it was short enough");
    let first = matches!(packet, Packet::Connect(_) | Packet::Connack(_));
    let mut decoder = match from {
        Peer::Client if first => Decoder::of_client(),
        Peer::Server if first => Decoder::of_server(version),
        _ => begun(from, version),
    };
    assert_eq!(decoder.decode(&bytes, &WIDE), Ok(Decoded::Packet { packet, len: bytes.len() }));
}
