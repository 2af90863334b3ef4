//! Authentication of a link: both ends name themselves, agree on a version, and prove that they know the
//! cluster's secret without sending it.
//!
//! ```text
//!  dialer                                              acceptor
//!    │ Hello      versions, cluster, node, link, nonce    │ refuses visible errors
//!    ├───────────────────────────────────────────────────►│
//!    │ Challenge  version, cluster, node, nonce           │
//!    │◄───────────────────────────────────────────────────┤
//!    │ Proof      HMAC("dialer", Hello, Challenge)        │ the owner admits it or not
//!    ├───────────────────────────────────────────────────►│
//!    │ Welcome    HMAC("acceptor", Hello, …, Proof)       │
//!    │◄───────────────────────────────────────────────────┤
//! ```
//!
//! The proofs cover the frames as sent, so a name or version that is changed on the way invalidates them.
//! Both nonces are in each proof, so old proofs cannot be replayed; the labels differ, so a proof cannot be
//! reflected. The dialer proves first: an unauthenticated peer gets nothing against which it could try
//! passwords. Any frame may be answered by Refuse.

use super::frame::Frame;
use super::parts::Payload;
use super::{HANDSHAKE_FRAME_BYTES_MAX, Refusal};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Protocol versions that this build supports.
pub const VERSIONS: RangeInclusive<u16> = 1..=1;
pub const CLUSTER_BYTES_MAX: usize = 64;
pub const NODE_BYTES_MAX: usize = 255;

/// The secret shared by the nodes of a cluster. It is never logged.
#[derive(Clone)]
pub struct Secret(Box<[u8]>);

impl Secret {
    /// With an empty secret any node with the cluster's name is accepted.
    pub fn new(bytes: &[u8]) -> Secret {
        Secret(bytes.into())
    }

    fn mac(&self, label: &str, frames: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(label.as_bytes());
        mac.update(frames);
        mac
    }

    /// Proof of knowing the secret. The coordinator's nodes also use it, with labels of their own.
    pub fn prove(&self, label: &str, frames: &[u8]) -> [u8; 32] {
        self.mac(label, frames).finalize().into_bytes().into()
    }

    /// Checks a proof in constant time.
    pub fn is_proved(&self, label: &str, frames: &[u8], proof: &[u8]) -> bool {
        self.mac(label, frames).verify_slice(proof).is_ok()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

const DIALER: &str = "hubsub link 1 dialer\0";
const ACCEPTOR: &str = "hubsub link 1 acceptor\0";

#[derive(Clone, Debug)]
pub struct Identity {
    pub cluster: Box<str>,
    pub node: Box<str>,
    pub incarnation: u64,
    /// Number of shards, at least one.
    pub shards: u16,
    pub secret: Secret,
    /// Supported versions, usually [`VERSIONS`].
    pub versions: RangeInclusive<u16>,
}

impl Identity {
    /// Returns itself if its names fit into a Hello.
    ///
    /// # Panics
    /// They do not; configuration must refuse them.
    #[must_use]
    pub fn checked(self) -> Identity {
        assert!(self.cluster.len() <= CLUSTER_BYTES_MAX, "cluster id too long: {}", self.cluster);
        assert!((1..=NODE_BYTES_MAX).contains(&self.node.len()), "node name's length: {}", self.node.len());
        assert!(self.shards > 0 && !self.versions.is_empty(), "a node without shards or versions");
        self
    }

    fn meet(
        &self,
        cluster: &str,
        node: &str,
        (incarnation, shards): (u64, u16),
        link: u16,
        version: u16,
    ) -> Result<Peer, Refused> {
        if cluster != &*self.cluster {
            return Err(refused(Refusal::OtherCluster, &format!("{} here, {cluster} there", self.cluster)));
        }
        if !self.versions.contains(&version) {
            let (least, greatest) = (self.versions.start(), self.versions.end());
            let text = format!("{version} there, {least} to {greatest} here");
            return Err(refused(Refusal::NoCommonVersion, &text));
        }
        match (node == &*self.node, incarnation == self.incarnation) {
            (true, true) => return Err(refused(Refusal::SameNode, node)),
            (true, false) => return Err(refused(Refusal::DuplicateNode, node)),
            (false, _) => {}
        }
        let links = shards.min(self.shards);
        if link >= links {
            return Err(refused(Refusal::NoSuchLink, &format!("link {link}, there are {links}")));
        }
        Ok(Peer { node: node.into(), incarnation, shards, link, links, version })
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    pub node: Box<str>,
    pub incarnation: u64,
    pub shards: u16,
    /// Index of the link in the pair: it belongs to the shard of this number.
    pub link: u16,
    pub links: u16,
    pub version: u16,
}

/// A refusal, with an explanation for people.
pub type Refused = (Refusal, Box<str>);

#[derive(Debug)]
pub enum Step {
    Waiting,
    /// The peer has proved itself: the acceptor's owner calls `welcome`, or refuses it.
    Proved(Peer),
    /// The link is up.
    Done(Peer),
}

#[derive(Debug)]
enum State {
    Hello {
        nonce: [u8; 32],
    },
    /// Dialer, before Challenge: the link's index, and the expected node, if known.
    Challenge {
        link: u16,
        expected: Option<Box<str>>,
    },
    Proof(Peer),
    /// Acceptor: its owner decides.
    Deciding(Peer),
    Welcome(Peer),
}

#[derive(Debug)]
pub struct Handshake {
    identity: Arc<Identity>,
    state: State,
    /// Frames of both sides so far, as sent.
    frames: Vec<u8>,
}

impl Handshake {
    /// Starts as dialer: `nonce` is random, `expected` the node at this address.
    pub fn dial(
        identity: Arc<Identity>,
        link: u16,
        expected: Option<Box<str>>,
        nonce: &[u8; 32],
    ) -> (Handshake, Vec<u8>) {
        let mut hello = Vec::new();
        let bytes = Frame::Hello {
            magic: Frame::MAGIC,
            version_min: *identity.versions.start(),
            version_max: *identity.versions.end(),
            cluster: &identity.cluster,
            node: &identity.node,
            incarnation: identity.incarnation,
            shards: identity.shards,
            link,
            nonce,
            more: Payload(&[]),
        }
        .encode(&mut hello);
        debug_assert!(bytes <= HANDSHAKE_FRAME_BYTES_MAX);
        let state = State::Challenge { link, expected };
        (Handshake { identity, state, frames: hello.clone() }, hello)
    }

    /// Starts as acceptor: `nonce` is random.
    #[must_use]
    pub fn accept(identity: Arc<Identity>, nonce: [u8; 32]) -> Handshake {
        Handshake { identity, state: State::Hello { nonce }, frames: Vec::new() }
    }

    /// Dialer: whether it has sent its proof, so that the peer decides now.
    pub fn is_to_be_welcomed(&self) -> bool {
        matches!(self.state, State::Welcome(_))
    }

    /// Handles a received frame, encoded as `raw`; the reply is appended to `out`.
    ///
    /// # Errors
    /// The peer must be notified and the connection closed.
    pub fn take(&mut self, frame: Frame<'_>, raw: &[u8], out: &mut Vec<u8>) -> Result<Step, Refused> {
        let identity = &*self.identity;
        let secret = &identity.secret;
        let (next, step) = match (&self.state, frame) {
            (State::Hello { nonce }, hello @ Frame::Hello { .. }) => {
                let peer = check_hello(identity, hello)?;
                let (version, incarnation, shards) = (peer.version, identity.incarnation, identity.shards);
                let (cluster, node) = (&*identity.cluster, &*identity.node);
                let challenge = Frame::Challenge { version, cluster, node, incarnation, shards, nonce };
                self.frames.extend_from_slice(raw);
                challenge.encode(&mut self.frames);
                out.extend_from_slice(&self.frames[raw.len()..]);
                (State::Proof(peer), Step::Waiting)
            }
            (State::Challenge { link, expected }, challenge @ Frame::Challenge { .. }) => {
                let peer = check_challenge(identity, challenge, *link, expected.as_deref())?;
                self.frames.extend_from_slice(raw);
                let mac = secret.prove(DIALER, &self.frames);
                let bytes = Frame::Proof { mac: &mac }.encode(&mut self.frames);
                out.extend_from_slice(&self.frames[self.frames.len() - bytes..]);
                (State::Welcome(peer), Step::Waiting)
            }
            (State::Proof(peer), Frame::Proof { mac }) => {
                if !secret.is_proved(DIALER, &self.frames, mac) {
                    return Err(refused(Refusal::WrongSecret, &format!("node {}", peer.node)));
                }
                self.frames.extend_from_slice(raw);
                (State::Deciding(peer.clone()), Step::Proved(peer.clone()))
            }
            (State::Welcome(peer), Frame::Welcome { mac }) => {
                if !secret.is_proved(ACCEPTOR, &self.frames, mac) {
                    return Err(refused(Refusal::WrongSecret, &format!("node {}", peer.node)));
                }
                return Ok(Step::Done(peer.clone()));
            }
            (_, other) => {
                return Err(refused(Refusal::Stranger, &format!("frame out of place: {}", other.name())));
            }
        };
        self.state = next;
        Ok(step)
    }

    /// The owner admits the peer; the reply is appended to `out`.
    ///
    /// # Panics
    /// No peer has proved itself.
    pub fn welcome(self, out: &mut Vec<u8>) -> Peer {
        let State::Deciding(peer) = self.state else { panic!("nobody to be welcomed") };
        let mac = self.identity.secret.prove(ACCEPTOR, &self.frames);
        Frame::Welcome { mac: &mac }.encode(out);
        peer
    }
}

fn check_hello(own: &Identity, hello: Frame<'_>) -> Result<Peer, Refused> {
    let Frame::Hello { magic, version_min, version_max, cluster, node, incarnation, shards, link, .. } =
        hello
    else {
        unreachable!("called with a hello")
    };
    if magic != Frame::MAGIC || node.is_empty() || node.len() > NODE_BYTES_MAX || shards == 0 {
        return Err(refused(Refusal::Stranger, "not a link's hello"));
    }
    // The greatest version that both support; or the peer's least, for the error, if that is greater.
    let version = version_max.min(*own.versions.end()).max(version_min);
    let peer = own.meet(cluster, node, (incarnation, shards), link, version)?;
    if !dials(node, &own.node) {
        return Err(refused(Refusal::WrongSide, &format!("{} dials {node}", own.node)));
    }
    Ok(peer)
}

fn check_challenge(
    own: &Identity,
    challenge: Frame<'_>,
    link: u16,
    expected: Option<&str>,
) -> Result<Peer, Refused> {
    let Frame::Challenge { version, cluster, node, incarnation, shards, nonce: _ } = challenge else {
        unreachable!("called with a challenge")
    };
    let peer = own.meet(cluster, node, (incarnation, shards), link, version)?;
    match expected {
        Some(expected) if expected != node => {
            Err(refused(Refusal::OtherNode, &format!("{node}, not {expected}")))
        }
        _ => Ok(peer),
    }
}

/// Whether, of two nodes, the first one dials.
#[must_use]
pub fn dials(own: &str, other: &str) -> bool {
    own < other
}

/// A refusal with the value that caused it.
pub(super) fn refused(refusal: Refusal, value: &str) -> Refused {
    (refusal, format!("{}: {value}", refusal.words()).into())
}
