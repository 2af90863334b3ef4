//! Nodes on threads of their own, over real sockets, through the handle that the binding uses.

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hubsub_raft::error::{Error, Refusal};
use hubsub_raft::handle::{Handle, Request, Response, Start};
use hubsub_raft::limits::UNAUTHENTICATED_MAX;
use hubsub_raft::node::{Options, StartError};
use hubsub_raft::store::{Answer, Command, Expect, Write};
use hubsub_raft::tcp::Gate;
use hubsub_raft::types::Peer;
use tempfile::TempDir;

const WAIT: Duration = Duration::from_secs(30);

/// An insecure gate that shows that both sides are authenticated.
#[derive(Clone)]
struct Secret(&'static str);

impl Gate for Secret {
    fn prove(&self, greetings: &[u8], caller: bool) -> Vec<u8> {
        let mut proof =
            crc32c::crc32c_append(crc32c::crc32c(greetings), self.0.as_bytes()).to_le_bytes().to_vec();
        proof.push(u8::from(caller));
        proof
    }

    fn admits(&self, greetings: &[u8], caller: bool, proof: &[u8]) -> bool {
        self.prove(greetings, caller) == proof
    }
}

struct Running {
    handle: Handle,
    address: String,
    wakes: Arc<AtomicUsize>,
}

fn start(directory: &TempDir, name: &str, secret: &'static str, how: Start) -> Result<Running, StartError> {
    start_with(directory, name, secret, how, |_| {})
}

fn start_with(
    directory: &TempDir,
    name: &str,
    secret: &'static str,
    how: Start,
    set: impl FnOnce(&mut Options),
) -> Result<Running, StartError> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let peer = Peer { name: name.into(), address: address.clone() };
    let wakes = Arc::new(AtomicUsize::new(0));
    let wake = {
        let wakes = wakes.clone();
        move || {
            wakes.fetch_add(1, Ordering::Relaxed);
        }
    };
    let mut options = Options::new(directory.path().into(), peer);
    set(&mut options);
    let handle = Handle::start(options, how, listener, (Secret(secret), HashMap::new()), wake)?;
    Ok(Running { handle, address, wakes })
}

fn request(running: &Running, request: Request) -> Result<Response, Error> {
    running.handle.submit(7, request).expect("taken");
    let mut answers = running.handle.drain(1, WAIT);
    let (ticket, answer) = answers.pop().expect("an answer");
    assert_eq!(ticket, 7);
    answer
}

fn commit(running: &Running, key: &str, revision: u64) -> Result<Answer, Error> {
    let expect = vec![Expect { key: key.into(), revision }];
    let write = Write::Put { key: key.into(), value: b"v"[..].into(), lease: None };
    match request(running, Request::Propose(Command::Commit { expect, writes: vec![write] }))? {
        Response::Answer(answer) => Ok(answer),
        other => panic!("{other:?}"),
    }
}

fn until_voters(running: &Running, count: usize) {
    let deadline = std::time::Instant::now() + WAIT;
    loop {
        let Ok(Response::Status(status)) = request(running, Request::Status) else { panic!("no status") };
        if status.members.values().filter(|(_, votes)| *votes).count() == count {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{status:?}");
        std::thread::yield_now();
    }
}

#[test]
fn three_nodes_over_tcp_agree_survive_one_and_come_back_from_disk() {
    let directories = [(); 3].map(|()| tempfile::tempdir().expect("a directory"));
    let a = start(&directories[0], "a", "secret", Start::Bootstrap).expect("bootstrapped");
    let join = || Start::Join(vec![a.address.clone()], WAIT);
    let b = start(&directories[1], "b", "secret", join()).expect("joined");
    let c = start(&directories[2], "c", "secret", join()).expect("joined");
    until_voters(&b, 3);
    assert_eq!(commit(&c, "k", 0), Ok(Answer::Committed(vec![1])));
    assert_eq!(commit(&b, "k", 0), Ok(Answer::Mismatch { index: 0, revision: 1 }));
    assert!(b.wakes.load(Ordering::Relaxed) > 0);

    a.handle.stop();
    assert_eq!(commit(&c, "k", 1), Ok(Answer::Committed(vec![2])));
    assert!(matches!(a.handle.submit(1, Request::Status), Err(Refusal::Stopped { .. })));
    let a = start(&directories[0], "a", "secret", Start::Join(vec![b.address.clone()], WAIT)).expect("back");
    let found = request(&a, Request::Get { key: "k".into() });
    assert!(matches!(found, Ok(Response::Value(Some((_, 2))))), "{found:?}");
    for running in [a, b, c] {
        running.handle.stop();
    }
}

#[test]
fn a_leader_whose_process_is_gone_is_followed_although_an_election_would_take_minutes() {
    let directories = [(); 3].map(|()| tempfile::tempdir().expect("a directory"));
    let start = |n: usize, name: &str, how| {
        start_with(&directories[n], name, "secret", how, |options| {
            options.timing.election = (Duration::from_secs(300), Duration::from_secs(600));
        })
    };
    let a = start(0, "a", Start::Bootstrap).expect("bootstrapped");
    let join = || Start::Join(vec![a.address.clone()], WAIT);
    let (b, c) = (start(1, "b", join()).expect("joined"), start(2, "c", join()).expect("joined"));
    until_voters(&b, 3);
    assert_eq!(commit(&c, "k", 0), Ok(Answer::Committed(vec![1])));
    a.handle.stop();
    assert_eq!(commit(&c, "k", 1), Ok(Answer::Committed(vec![2])));
    for running in [b, c] {
        running.handle.stop();
    }
}

#[test]
fn unauthenticated_connections_do_not_block_members() {
    let directories = [(); 3].map(|()| tempfile::tempdir().expect("a directory"));
    let a = start(&directories[0], "a", "secret", Start::Bootstrap).expect("bootstrapped");
    let connect = || std::net::TcpStream::connect(&a.address).expect("a connection");
    let unauthenticated: Vec<_> = (0..UNAUTHENTICATED_MAX + 20).map(|_| connect()).collect();
    let join = || Start::Join(vec![a.address.clone()], WAIT);
    let b = start(&directories[1], "b", "secret", join())
        .expect("joined while unauthenticated peers hold all of their places");
    // The oldest ones were disconnected: they read the greeting, and then the end.
    let mut oldest = &unauthenticated[0];
    oldest.set_read_timeout(Some(WAIT)).expect("set");
    let read = std::io::Read::read_to_end(&mut oldest, &mut Vec::new());
    assert!(read.is_ok_and(|bytes| bytes <= 26));
    let more: Vec<_> = (0..UNAUTHENTICATED_MAX).map(|_| connect()).collect();
    assert_eq!(commit(&b, "k", 0), Ok(Answer::Committed(vec![1])));
    let c = start(&directories[2], "c", "secret", join()).expect("joined");
    drop((unauthenticated, more));
    for running in [a, b, c] {
        running.handle.stop();
    }
}

#[test]
fn peers_without_the_secret_or_with_garbage_are_refused_and_others_are_still_served() {
    use std::io::{Read, Write};
    let directories = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let a = start(&directories[0], "a", "secret", Start::Bootstrap).expect("bootstrapped");
    let join = Start::Join(vec![a.address.clone()], Duration::from_millis(300));
    let refused = start(&directories[1], "b", "guess", join).err().expect("refused");
    assert!(matches!(&refused, StartError::WrongSecret(address) if *address == a.address), "{refused}");
    for garbage in [&b"GET / HTTP/1.1\r\nhost: there\r\nuser-agent: somebody\r\n\r\n"[..], &[0xff; 200]] {
        let mut stream = std::net::TcpStream::connect(&a.address).expect("a connection");
        stream.write_all(garbage).expect("sent");
        stream.set_read_timeout(Some(WAIT)).expect("set");
        let mut sink = Vec::new();
        // The connection ends, by a close or a reset.
        if let Err(error) = stream.read_to_end(&mut sink) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
        assert!(sink.len() <= 26, "a greeting and no more: {}", sink.len());
    }
    assert_eq!(commit(&a, "k", 0), Ok(Answer::Committed(vec![1])));
    a.handle.stop();
}
