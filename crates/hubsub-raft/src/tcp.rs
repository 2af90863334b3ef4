//! The transport: TCP connections of the coordinator's own. They are separate from the links, because a node
//! is in its cluster before it has an incarnation, and so before it has links (docs/adr/0013-a-cluster.md).
//!
//! ```text
//! greeting  both sides: magic [u8; 8], protocol u16, challenge [u8; 16]
//! proof     the caller: length u16, the gate's proof over both greetings
//! verdict   the other: 0 and the end, or 1 and its own proof (length u16, proof)
//! frame     length u32, bytes: a request, then its reply; repeated
//! ```
//! Numbers are little-endian. A connection carries one request at a time; as many are opened as requests run
//! concurrently, and a few idle ones are retained. A peer is disconnected if it fails authentication, uses
//! another protocol version or sends a frame that is too large. The caller proves itself first, so an
//! unauthenticated caller gets nothing for an offline attack on the secret.
//!
//! Unauthenticated callers have a separate limit, [`UNAUTHENTICATED_MAX`]. At the limit the oldest is
//! disconnected: a handshake takes milliseconds, so members still get in while unauthenticated peers only
//! connect.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use openraft::AsyncRuntime;
use rand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};

use crate::limits::{CONNECTIONS_MAX, FRAME_BYTES_MAX, IDLE_CONNECTIONS_MAX, UNAUTHENTICATED_MAX};
use crate::node::{Node, PROTOCOL};
use crate::runtime::Runtime;
use crate::transport::{CallError, Lane, Transport};
use crate::types::Peer;

const MAGIC: &[u8; 8] = b"HUBRAFTP";
const GREETING: usize = MAGIC.len() + 2 + 16;
const REFUSED: u8 = 0;
const ADMITTED: u8 = 1;
const PROOF_BYTES_MAX: usize = 256;
/// Time limits of the handshake, and of a served connection without a request.
const HANDSHAKE: Duration = Duration::from_secs(2);
const IDLE: Duration = Duration::from_secs(60);
/// Time limit per address of a name.
const DIAL: Duration = Duration::from_secs(1);
/// Interval between checks whether the process of a closed connection is gone.
const PROBE: Duration = Duration::from_millis(2);
/// Maximum of concurrent name lookups.
const LOOKUPS_MAX: usize = 4;

/// Proves that a side knows the cluster's secret, without revealing it.
pub trait Gate: Clone + 'static {
    /// The proof of a side over both greetings, the caller's first. It depends on the side, so that a proof
    /// cannot be reflected.
    fn prove(&self, greetings: &[u8], caller: bool) -> Vec<u8>;

    /// Whether a proof shows knowledge of the secret.
    fn admits(&self, greetings: &[u8], caller: bool, proof: &[u8]) -> bool;
}

/// Admits everybody: for tests, and for private networks.
#[derive(Clone, Copy, Debug)]
pub struct Open;

impl Gate for Open {
    fn prove(&self, _: &[u8], _: bool) -> Vec<u8> {
        Vec::new()
    }

    fn admits(&self, _: &[u8], _: bool, _: &[u8]) -> bool {
        true
    }
}

/// Replacement addresses, by address: tests insert faulty proxies.
pub type Detours = HashMap<String, String>;

#[derive(Clone)]
pub struct Tcp<G> {
    gate: G,
    idle: Rc<RefCell<Idle>>,
    detours: Rc<Detours>,
    /// Limits concurrent name lookups, so that an unreachable name server does not block the threads that
    /// sync.
    lookups: Rc<Semaphore>,
}

type Idle = HashMap<(String, Lane), Vec<TcpStream>>;

impl<G: Gate> Tcp<G> {
    /// Connections are opened on demand.
    pub fn new(gate: G, detours: Detours) -> Self {
        Self {
            gate,
            idle: Rc::default(),
            detours: Rc::new(detours),
            lookups: Rc::new(Semaphore::new(LOOKUPS_MAX)),
        }
    }

    /// Takes an idle connection that is still open, or opens a new one.
    async fn connection(&self, key: &(String, Lane)) -> Result<TcpStream, CallError> {
        loop {
            let idle = self.idle.borrow_mut().get_mut(key).and_then(Vec::pop);
            let Some(stream) = idle else { break };
            // A good idle connection has nothing to read; data or an end of stream means that it is unusable.
            if stream.try_read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                return Ok(stream);
            }
        }
        let mut stream = self.dial(&key.0).await.map_err(|error| CallError::NotSent(error.to_string()))?;
        match timeout(HANDSHAKE, call_on(&mut stream, &self.gate)).await {
            Ok(Ok(true)) => Ok(stream),
            Ok(Ok(false)) => Err(CallError::WrongSecret),
            Ok(Err(error)) => Err(CallError::NotSent(error.to_string())),
            Err(_) => Err(CallError::NotSent("no greeting in time".into())),
        }
    }

    /// Connects to the first of a name's addresses that accepts.
    async fn dial(&self, address: &str) -> io::Result<TcpStream> {
        let mut last = io::Error::other("the name stands for no address");
        for address in self.look_up(address).await? {
            match timeout(DIAL, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(last)
    }

    async fn look_up(&self, address: &str) -> io::Result<Vec<SocketAddr>> {
        let address = self.detours.get(address).map_or(address, String::as_str);
        if let Ok(address) = address.parse() {
            return Ok(vec![address]);
        }
        let _turn = self.lookups.acquire().await.map_err(io::Error::other)?;
        Ok(lookup_host(address).await?.collect())
    }

    fn keep(&self, key: (String, Lane), stream: TcpStream) {
        let mut idle = self.idle.borrow_mut();
        let idle_streams = idle.entry(key).or_default();
        if idle_streams.len() < IDLE_CONNECTIONS_MAX {
            idle_streams.push(stream);
        }
    }
}

impl<G: Gate> Transport for Tcp<G> {
    async fn call(
        &self,
        peer: &Peer,
        lane: Lane,
        request: Vec<u8>,
        limit: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let deadline = Instant::now() + limit;
        let key = (peer.address.clone(), lane);
        let mut stream = match timeout_at(deadline, self.connection(&key)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(CallError::NotSent("no connection in time".into())),
        };
        if request.len() > FRAME_BYTES_MAX {
            return Err(CallError::NotSent(format!("a request of {} bytes is too large", request.len())));
        }
        let exchange = async {
            write_frame(&mut stream, &request).await?;
            read_frame(&mut stream).await
        };
        match timeout_at(deadline, exchange).await {
            Ok(Ok(reply)) => {
                self.keep(key, stream);
                Ok(reply)
            }
            Ok(Err(error)) => Err(CallError::Unanswered(error.to_string())),
            Err(_) => Err(CallError::Unanswered("no reply in time".into())),
        }
    }

    async fn resolve(&self, address: &str) -> Result<Vec<String>, String> {
        let found = timeout(HANDSHAKE, self.look_up(address)).await;
        let found = found.map_err(|_| "its name was not looked up in time".to_owned())?;
        let found = found.map_err(|error| error.to_string())?;
        Ok(found.into_iter().map(|address| address.to_string()).collect())
    }

    async fn is_refused(&self, address: &str) -> bool {
        let Ok(Ok(found)) = timeout(DIAL, self.look_up(address)).await else { return false };
        for address in &found {
            if !matches!(timeout(DIAL, refuses(*address)).await, Ok(true)) {
                return false;
            }
        }
        !found.is_empty()
    }
}

/// Serves a node's peers until its task is dropped. A peer that breaks the protocol is disconnected.
pub async fn listen<G: Gate>(listener: TcpListener, gate: G, node: Node<Tcp<G>>) {
    let mut unauthenticated = Unauthenticated::default();
    let mut served = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => unauthenticated.take(stream, gate.clone()),
                // Too many open files, or a connection that is closed already.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
            Some(authenticated) = unauthenticated.next() => {
                if let Some(stream) = authenticated
                    && served.len() < CONNECTIONS_MAX
                {
                    served.spawn_local(serve(stream, node.clone()));
                }
            }
            Some(_) = served.join_next() => {}
        }
    }
}

/// Callers in the handshake, at most [`UNAUTHENTICATED_MAX`].
#[derive(Default)]
struct Unauthenticated {
    handshakes: JoinSet<Option<TcpStream>>,
    /// Handles of these, the oldest first, and of some that have ended.
    order: VecDeque<AbortHandle>,
}

impl Unauthenticated {
    fn take<G: Gate>(&mut self, mut stream: TcpStream, gate: G) {
        self.order.retain(|handshake| !handshake.is_finished());
        if self.order.len() >= UNAUTHENTICATED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            oldest.abort();
        }
        self.order.push_back(self.handshakes.spawn_local(async move {
            let handshake = timeout(HANDSHAKE, receive(&mut stream, &gate)).await;
            matches!(handshake, Ok(Ok(()))).then_some(stream)
        }));
    }

    /// Result of the next handshake that ends: a connection if the caller authenticated. None while there is
    /// no handshake.
    async fn next(&mut self) -> Option<Option<TcpStream>> {
        // An aborted handshake is an error here.
        self.handshakes.join_next().await.map(|done| done.ok().flatten())
    }
}

async fn serve<G: Gate>(mut stream: TcpStream, node: Node<Tcp<G>>) {
    loop {
        let Ok(request) = timeout(IDLE, read_frame(&mut stream)).await else { return };
        let Ok(request) = request else { break };
        if write_frame(&mut stream, &node.serve(&request).await).await.is_err() {
            break;
        }
    }
    // Followers detect the death of the leader's process this way.
    node.lost_connection().await;
}

/// The caller's side of the handshake; false if the other side rejects this secret, or does not know it.
async fn call_on(stream: &mut TcpStream, gate: &impl Gate) -> io::Result<bool> {
    let ours = greeting();
    stream.write_all(&ours).await?;
    let greetings = [ours, read_greeting(stream).await?].concat();
    write_proof(stream, &gate.prove(&greetings, true)).await?;
    if stream.read_u8().await? != ADMITTED {
        return Ok(false);
    }
    Ok(gate.admits(&greetings, false, &read_proof(stream).await?))
}

async fn receive(stream: &mut TcpStream, gate: &impl Gate) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let ours = greeting();
    stream.write_all(&ours).await?;
    let greetings = [read_greeting(stream).await?, ours].concat();
    let proof = read_proof(stream).await?;
    if !gate.admits(&greetings, true, &proof) {
        stream.write_u8(REFUSED).await?;
        return Err(io::Error::other("the other side does not know the cluster's secret"));
    }
    stream.write_u8(ADMITTED).await?;
    write_proof(stream, &gate.prove(&greetings, false)).await
}

fn greeting() -> [u8; GREETING] {
    let mut greeting = [0; GREETING];
    greeting[..8].copy_from_slice(MAGIC);
    greeting[8..10].copy_from_slice(&PROTOCOL.to_le_bytes());
    Runtime::thread_rng().fill_bytes(&mut greeting[10..]);
    greeting
}

async fn read_greeting(stream: &mut TcpStream) -> io::Result<[u8; GREETING]> {
    let mut theirs = [0; GREETING];
    stream.read_exact(&mut theirs).await?;
    if theirs[..8] != *MAGIC {
        return Err(io::Error::other("the other side is no coordinator"));
    }
    match u16::from_le_bytes([theirs[8], theirs[9]]) {
        PROTOCOL => Ok(theirs),
        other => {
            Err(io::Error::other(format!("the other side speaks protocol {other}, this one {PROTOCOL}")))
        }
    }
}

async fn write_proof(stream: &mut TcpStream, proof: &[u8]) -> io::Result<()> {
    stream.write_u16_le(proof.len() as u16).await?;
    stream.write_all(proof).await
}

async fn read_proof(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16_le().await?);
    if length > PROOF_BYTES_MAX {
        return Err(io::Error::other("a proof that is too long"));
    }
    let mut proof = vec![0; length];
    stream.read_exact(&mut proof).await?;
    Ok(proof)
}

/// Whether no process listens at an address. A dying process may close its connections before its listener,
/// which still accepts connections; but it sends no greeting.
async fn refuses(address: SocketAddr) -> bool {
    loop {
        match TcpStream::connect(address).await {
            Ok(mut stream) => {
                if stream.read_u8().await.is_ok() {
                    return false;
                }
                tokio::time::sleep(PROBE).await;
            }
            Err(error) => return error.kind() == io::ErrorKind::ConnectionRefused,
        }
    }
}

async fn write_frame(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut frame = Vec::with_capacity(4 + bytes.len());
    frame.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    frame.extend_from_slice(bytes);
    stream.write_all(&frame).await
}

async fn read_frame(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u32_le().await? as usize;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other(format!("a frame of {length} bytes, at most {FRAME_BYTES_MAX}")));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}
