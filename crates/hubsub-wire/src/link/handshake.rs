//! Who may speak: both ends name themselves, agree on a version, and prove
//! that they know the cluster's secret without sending it.
//!
//! ```text
//!  dialer                                              acceptor
//!    │ Hello      versions, cluster, node, link, nonce    │ refuses what it can see is wrong
//!    ├───────────────────────────────────────────────────►│
//!    │ Challenge  version, cluster, node, nonce           │
//!    │◄───────────────────────────────────────────────────┤
//!    │ Proof      HMAC("dialer", Hello, Challenge)        │ the owner admits it or not
//!    ├───────────────────────────────────────────────────►│
//!    │ Welcome    HMAC("acceptor", Hello, …, Proof)       │
//!    │◄───────────────────────────────────────────────────┤
//! ```
//!
//! The proofs are over the frames as they went over the wire: who changes a
//! name or a version on the way changes the proof. Each end's nonce is in both,
//! so nothing old can be said again, and the labels differ, so nothing can be
//! said back. The dialer proves first: a stranger learns nothing of the secret
//! that it could try passwords against. Any frame may be answered by Refuse.

use super::frame::Frame;
use super::parts::Payload;
use super::{HANDSHAKE_FRAME_BYTES_MAX, Refusal};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Versions that this build speaks.
pub const VERSIONS: RangeInclusive<u16> = 1..=1;
/// Bytes of a cluster's id.
pub const CLUSTER_BYTES_MAX: usize = 64;
/// Bytes of a node's name.
pub const NODE_BYTES_MAX: usize = 255;

/// What the nodes of a cluster know and nobody else. It is never shown.
#[derive(Clone)]
pub struct Secret(Box<[u8]>);

impl Secret {
    /// An empty one proves nothing: any node of the cluster's name may speak.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Secret {
        Secret(bytes.into())
    }

    fn mac(&self, label: &str, frames: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(label.as_bytes());
        mac.update(frames);
        mac
    }

    /// What shows, to who knows the secret too, that this side does. The coordinator's nodes prove themselves by it as well,
    /// under labels of their own.
    #[must_use]
    pub fn prove(&self, label: &str, frames: &[u8]) -> [u8; 32] {
        self.mac(label, frames).finalize().into_bytes().into()
    }

    /// In a time that does not tell how much of a wrong proof is right.
    #[must_use]
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

/// Who this node is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The cluster it belongs to.
    pub cluster: Box<str>,
    /// Its name.
    pub node: Box<str>,
    /// As it was issued when it registered.
    pub incarnation: u64,
    /// How many shards it has.
    pub shards: u16,
    /// The cluster's secret.
    pub secret: Secret,
    /// Versions that it speaks: [`VERSIONS`].
    pub versions: RangeInclusive<u16>,
}

impl Identity {
    /// Itself, if its names fit into a hello.
    ///
    /// # Panics
    /// They do not; configuration is to refuse them.
    #[must_use]
    pub fn checked(self) -> Identity {
        assert!(self.cluster.len() <= CLUSTER_BYTES_MAX, "cluster id too long: {}", self.cluster);
        assert!((1..=NODE_BYTES_MAX).contains(&self.node.len()), "node name's length: {}", self.node.len());
        assert!(self.shards > 0 && !self.versions.is_empty(), "a node without shards or versions");
        self
    }

    /// The peer of these names, if it and this node go together.
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

/// Who is at the other end, and what was agreed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its name.
    pub node: Box<str>,
    /// As it was issued when it registered.
    pub incarnation: u64,
    /// How many shards it has.
    pub shards: u16,
    /// Which link of the pair this is: it belongs to the shard of this number.
    pub link: u16,
    /// How many links the pair has.
    pub links: u16,
    /// What both speak.
    pub version: u16,
}

/// A refusal, and words for a person.
pub type Refused = (Refusal, Box<str>);

/// How far the handshake has come.
#[derive(Debug)]
pub enum Step {
    /// The peer's next frame is awaited.
    Waiting,
    /// The peer has proved itself: the acceptor's owner calls `welcome`, or refuses it.
    Proved(Peer),
    /// The link is up.
    Done(Peer),
}

#[derive(Debug)]
enum State {
    /// Acceptor.
    Hello { nonce: [u8; 32] },
    /// Dialer: which link, and who should answer, if that is known.
    Challenge { link: u16, expected: Option<Box<str>> },
    /// Acceptor.
    Proof(Peer),
    /// Acceptor: its owner decides.
    Deciding(Peer),
    /// Dialer.
    Welcome(Peer),
}

/// One end of a handshake.
#[derive(Debug)]
pub struct Handshake {
    identity: Arc<Identity>,
    state: State,
    /// Both sides' frames so far, as they went over the wire.
    frames: Vec<u8>,
}

impl Handshake {
    /// Dials: `nonce` is random, `expected` the node that the address is said to be.
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

    /// Answers: `nonce` is random.
    #[must_use]
    pub fn accept(identity: Arc<Identity>, nonce: [u8; 32]) -> Handshake {
        Handshake { identity, state: State::Hello { nonce }, frames: Vec::new() }
    }

    /// Dialer: whether it has proved itself, so that the peer lets it in or not.
    #[must_use]
    pub fn is_to_be_welcomed(&self) -> bool {
        matches!(self.state, State::Welcome(_))
    }

    /// A frame came, as `raw`; the answer is appended to `out`.
    ///
    /// # Errors
    /// The peer is to be told, and the connection to be closed.
    pub fn take(&mut self, frame: &Frame<'_>, raw: &[u8], out: &mut Vec<u8>) -> Result<Step, Refused> {
        let identity = &*self.identity;
        let secret = &identity.secret;
        let (next, step) = match (&self.state, *frame) {
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

    /// The owner lets the peer in; the answer is appended to `out`.
    ///
    /// # Panics
    /// There is no peer that has proved itself.
    pub fn welcome(self, out: &mut Vec<u8>) -> Peer {
        let State::Deciding(peer) = self.state else { panic!("nobody to be welcomed") };
        let mac = self.identity.secret.prove(ACCEPTOR, &self.frames);
        Frame::Welcome { mac: &mac }.encode(out);
        peer
    }
}

/// What can be seen to be wrong before anything is proved.
fn check_hello(own: &Identity, hello: Frame<'_>) -> Result<Peer, Refused> {
    let Frame::Hello {
        magic,
        version_min,
        version_max,
        cluster,
        node,
        incarnation,
        shards,
        link,
        nonce: _,
        more: _,
    } = hello
    else {
        unreachable!("called with a hello")
    };
    if magic != Frame::MAGIC || node.is_empty() || node.len() > NODE_BYTES_MAX || shards == 0 {
        return Err(refused(Refusal::Stranger, "not a link's hello"));
    }
    // The greatest that both may speak; if it is less than the peer's least, that is what it is told.
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

/// Whether, of two nodes, the first is the one that dials.
#[must_use]
pub fn dials(own: &str, other: &str) -> bool {
    own < other
}

/// A refusal with the value it is about.
pub(super) fn refused(refusal: Refusal, value: &str) -> Refused {
    (refusal, format!("{}: {value}", refusal.words()).into())
}
