//! Handshakes: accepted peers, and the refusals of all others.

use hubsub_wire::link::{
    Decoded, End, Frame, HANDSHAKE_FRAME_BYTES_MAX, Identity, Link, LinkLimits, Next, Now, Peer, Refusal,
    Roster, Secret, decode,
};
use proptest::prelude::*;
use std::sync::Arc;

const START: Now = Now { mono_us: 5_000_000, wall_us: 1_700_000_000_000_000 };

fn identity(node: &str) -> Identity {
    Identity {
        cluster: "blue".into(),
        node: node.into(),
        incarnation: 7,
        shards: 4,
        secret: Secret::new(b"open sesame"),
        versions: 1..=1,
    }
    .checked()
}

fn dial(own: &Identity, link: u16, expected: Option<&str>) -> Link {
    let limits = Arc::new(LinkLimits::default().checked());
    Link::dial(Arc::new(own.clone()), limits, link, expected.map(Into::into), &[1; 32], START)
}

fn accept(own: &Identity, nonce: u8) -> Link {
    Link::accept(Arc::new(own.clone()), Arc::new(LinkLimits::default()), [nonce; 32], START)
}

/// Passes the output of one side to the other; returns the end, if it ended.
fn pass(from: &mut Link, to: &mut Link, roster: &mut Roster) -> Result<(), End> {
    let said = from.output().to_vec();
    from.written(said.len());
    feed(to, &said, roster)
}

fn feed(to: &mut Link, said: &[u8], roster: &mut Roster) -> Result<(), End> {
    let mut at = 0;
    loop {
        match to.next(&said[at..], START)? {
            Next::Incomplete(_) => return Ok(()),
            Next::Own(bytes) | Next::Up(bytes) => at += bytes,
            Next::Frame(frame, _) => panic!("nobody sends {frame:?}"),
            Next::Proved(peer, bytes) => {
                at += bytes;
                match roster.admit(&peer) {
                    Ok(_) => to.welcome(START),
                    Err(refusal) => return Err(to.refuse(refusal, &peer.node)),
                }
            }
        }
    }
}

/// Runs both sides until both are up or one has ended.
fn shake(dialer: &mut Link, acceptor: &mut Link) -> (Result<Peer, End>, Result<Peer, End>) {
    shake_with(dialer, acceptor, &mut Roster::default())
}

fn shake_with(
    dialer: &mut Link,
    acceptor: &mut Link,
    roster: &mut Roster,
) -> (Result<Peer, End>, Result<Peer, End>) {
    for _ in 0..4 {
        if let Err(end) = pass(dialer, acceptor, roster) {
            return (pass(acceptor, dialer, roster).map(|()| unreachable!("it was told")), Err(end));
        }
        if let Err(end) = pass(acceptor, dialer, roster) {
            return (Err(end), pass(dialer, acceptor, roster).map(|()| unreachable!("it was told")));
        }
    }
    (Ok(dialer.peer().expect("up").clone()), Ok(acceptor.peer().expect("up").clone()))
}

/// The acceptor refuses, and the dialer gets the reason.
#[track_caller]
fn refused_by_acceptor(dialer: &mut Link, acceptor: &mut Link, expected: Refusal) {
    let (here, there) = shake(dialer, acceptor);
    assert!(matches!(there, Err(End::Refused(refusal, _)) if refusal == expected), "{there:?}");
    assert!(matches!(here, Err(End::RefusedByPeer(Some(refusal), _)) if refusal == expected), "{here:?}");
}

/// The dialer refuses, and the acceptor gets the reason.
#[track_caller]
fn refused_by_dialer(dialer: &mut Link, acceptor: &mut Link, expected: Refusal) {
    let (here, there) = shake(dialer, acceptor);
    assert!(matches!(here, Err(End::Refused(refusal, _)) if refusal == expected), "{here:?}");
    assert!(matches!(there, Err(End::RefusedByPeer(Some(refusal), _)) if refusal == expected), "{there:?}");
}

#[test]
fn two_nodes_of_a_cluster_agree_on_who_they_are() {
    let (a, b) = (identity("a"), Identity { shards: 2, incarnation: 9, ..identity("b") });
    let (here, there) = shake(&mut dial(&a, 1, Some("b")), &mut accept(&b, 2));
    let peer = |node: &str, incarnation, shards| Peer {
        node: node.into(),
        incarnation,
        shards,
        link: 1,
        links: 2,
        version: 1,
    };
    assert_eq!(here, Ok(peer("b", 9, 2)));
    assert_eq!(there, Ok(peer("a", 7, 4)));
}

#[test]
fn the_greatest_common_version_is_spoken_and_a_newer_hello_is_understood() {
    let (a, b) =
        (Identity { versions: 2..=5, ..identity("a") }, Identity { versions: 1..=3, ..identity("b") });
    let (here, there) = shake(&mut dial(&a, 0, None), &mut accept(&b, 2));
    assert_eq!((here.expect("up").version, there.expect("up").version), (3, 3));

    let mut newer = dial(&a, 0, None).output().to_vec();
    newer.extend_from_slice(b"what version 5 adds");
    let length = newer.len() as u32 - 4;
    newer[..4].copy_from_slice(&length.to_le_bytes());
    assert_eq!(feed(&mut accept(&b, 2), &newer, &mut Roster::default()), Ok(()));
}

#[test]
fn nodes_that_do_not_go_together_are_refused_with_the_reason() {
    let (a, b) = (identity("a"), identity("b"));
    let cases: [(Identity, u16, Refusal); 7] = [
        (Identity { cluster: "red".into(), ..a.clone() }, 0, Refusal::OtherCluster),
        (Identity { versions: 2..=3, ..a.clone() }, 0, Refusal::NoCommonVersion),
        (Identity { secret: Secret::new(b"open wheat"), ..a.clone() }, 0, Refusal::WrongSecret),
        (b.clone(), 0, Refusal::SameNode),
        (Identity { incarnation: 8, ..b.clone() }, 0, Refusal::DuplicateNode),
        (identity("c"), 0, Refusal::WrongSide),
        (a.clone(), 4, Refusal::NoSuchLink),
    ];
    for (dialer, link, refusal) in cases {
        refused_by_acceptor(&mut dial(&dialer, link, None), &mut accept(&b, 2), refusal);
    }
    let newer = Identity { versions: 2..=3, ..b.clone() };
    refused_by_acceptor(&mut dial(&a, 0, None), &mut accept(&newer, 2), Refusal::NoCommonVersion);
    refused_by_dialer(&mut dial(&a, 0, Some("x")), &mut accept(&b, 2), Refusal::OtherNode);
}

#[test]
fn a_second_process_of_a_name_is_refused_while_the_first_is_well() {
    let (a, b) = (identity("a"), identity("b"));
    let mut roster = Roster::default();
    let (here, _) = shake_with(&mut dial(&a, 0, None), &mut accept(&b, 2), &mut roster);
    assert!(here.is_ok());
    let (here, there) = shake_with(&mut dial(&a, 0, None), &mut accept(&b, 3), &mut roster);
    assert!(matches!(there, Err(End::Refused(Refusal::DuplicateNode, _))), "{there:?}");
    assert!(matches!(here, Err(End::RefusedByPeer(Some(Refusal::DuplicateNode), _))), "{here:?}");
    let later = Identity { incarnation: 8, ..a };
    assert!(shake_with(&mut dial(&later, 0, None), &mut accept(&b, 4), &mut roster).0.is_ok());
}

/// The first frame of an output, and its bytes.
fn first(said: &[u8]) -> (Frame<'_>, &[u8]) {
    let Ok(Decoded::Frame { frame, bytes }) = decode(said, HANDSHAKE_FRAME_BYTES_MAX) else {
        panic!("no frame: {said:?}")
    };
    (frame, &said[..bytes])
}

#[test]
fn an_acceptor_that_does_not_know_the_secret_is_refused() {
    let (a, b) = (identity("a"), identity("b"));
    let (mut dialer, mut acceptor) = (dial(&a, 0, None), accept(&b, 2));
    let roster = &mut Roster::default();
    pass(&mut dialer, &mut acceptor, roster).expect("a hello");
    pass(&mut acceptor, &mut dialer, roster).expect("a challenge");
    // An impostor can only reflect the dialer's own proof.
    let (Frame::Proof { mac }, _) = first(dialer.output()) else { panic!("a proof comes next") };
    let mac = *mac;
    let mut forged = Vec::new();
    Frame::Welcome { mac: &mac }.encode(&mut forged);
    let end = feed(&mut dialer, &forged, roster);
    assert!(matches!(end, Err(End::Refused(Refusal::WrongSecret, _))), "{end:?}");
    assert_eq!(dialer.peer(), None);
}

#[test]
fn a_proof_that_was_overheard_is_worth_nothing_later() {
    let (a, b) = (identity("a"), identity("b"));
    let roster = &mut Roster::default();
    let (mut dialer, mut acceptor) = (dial(&a, 0, None), accept(&b, 2));
    let mut heard = dialer.output().to_vec();
    pass(&mut dialer, &mut acceptor, roster).expect("a hello");
    pass(&mut acceptor, &mut dialer, roster).expect("a challenge");
    heard.extend_from_slice(dialer.output());
    assert_eq!(pass(&mut dialer, &mut acceptor, roster), Ok(()), "the first time it is right");
    let end = feed(&mut accept(&b, 3), &heard, &mut Roster::default());
    assert!(matches!(end, Err(End::Refused(Refusal::WrongSecret, _))), "{end:?}");
}

#[test]
fn what_is_changed_on_the_way_is_noticed() {
    let (a, b) = (identity("a"), Identity { versions: 1..=2, ..identity("b") });
    let a = Identity { versions: 1..=2, ..a };
    let (mut dialer, mut acceptor) = (dial(&a, 0, None), accept(&b, 2));
    let roster = &mut Roster::default();
    let mut hello = dialer.output().to_vec();
    dialer.written(hello.len());
    hello[11..13].copy_from_slice(&1_u16.to_le_bytes());
    let Frame::Hello { version_max: 1, .. } = first(&hello).0 else { panic!("the version is elsewhere") };
    feed(&mut acceptor, &hello, roster).expect("a hello of version 1");
    pass(&mut acceptor, &mut dialer, roster).expect("version 1 is spoken by both");
    let end = pass(&mut dialer, &mut acceptor, roster);
    assert!(matches!(end, Err(End::Refused(Refusal::WrongSecret, _))), "{end:?}");
}

#[test]
fn who_speaks_something_else_is_a_stranger() {
    let b = identity("b");
    let hello = |magic, node| {
        let mut bytes = Vec::new();
        Frame::Hello {
            magic,
            version_min: 1,
            version_max: 1,
            cluster: "blue",
            node,
            incarnation: 1,
            shards: 1,
            link: 0,
            nonce: &[0; 32],
            more: Default::default(),
        }
        .encode(&mut bytes);
        bytes
    };
    let mut early = Vec::new();
    Frame::Control { id: 1, is_answer: false, body: Default::default() }.encode(&mut early);
    let long = (HANDSHAKE_FRAME_BYTES_MAX as u32).to_le_bytes().to_vec();
    let cases = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"*1\r\n$4\r\nPING\r\n".to_vec(),
        vec![0; 64],
        vec![255; 64],
        hello(1, "a"),
        hello(Frame::MAGIC, ""),
        early,
        long,
    ];
    for said in cases {
        let mut acceptor = accept(&b, 2);
        let end = feed(&mut acceptor, &said, &mut Roster::default());
        assert!(matches!(end, Err(End::Refused(Refusal::Stranger, _))), "{said:?}: {end:?}");
        let Frame::Refuse { code, .. } = first(acceptor.output()).0 else { panic!("it is told") };
        assert_eq!(code, Refusal::Stranger as u8);
        assert_eq!(acceptor.next(&said, START), Err(End::Left), "nothing more is read");
    }
}

#[test]
fn a_handshake_that_takes_too_long_is_late_and_not_before() {
    let mut acceptor = accept(&identity("b"), 2);
    let at = |ms: u64| Now { mono_us: START.mono_us + ms * 1_000, wall_us: 0 };
    assert_eq!(acceptor.wake_at(), at(3_000).mono_us);
    assert_eq!(acceptor.tick(at(2_999)), Ok(false));
    assert!(matches!(acceptor.tick(at(3_000)), Err(End::Refused(Refusal::Late, _))));
    let Frame::Refuse { code, .. } = first(acceptor.output()).0 else { panic!("it is told") };
    assert_eq!(Refusal::from_number(code), Some(Refusal::Late));
}

#[test]
fn a_refusal_without_a_name_here_is_still_a_refusal() {
    let mut refuse = Vec::new();
    Frame::Refuse { code: 200, text: "of version 9", more: Default::default() }.encode(&mut refuse);
    let end = feed(&mut dial(&identity("a"), 0, None), &refuse, &mut Roster::default());
    assert_eq!(end, Err(End::RefusedByPeer(None, "of version 9".into())));
}

#[test]
fn refusals_have_a_number_and_a_code_each() {
    let mut codes: Vec<_> = Refusal::ALL.iter().map(|refusal| refusal.code()).collect();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes.len(), Refusal::ALL.len());
    for &refusal in Refusal::ALL {
        assert_eq!(Refusal::from_number(refusal as u8), Some(refusal));
    }
}

proptest! {
    #[test]
    fn a_wrong_byte_anywhere_never_brings_a_link_up_that_differs(
        direction in any::<bool>(),
        turn in 0_usize..2,
        place in any::<prop::sample::Index>(),
        flip in 1_u8..=255,
    ) {
        let (a, b) = (identity("a"), identity("b"));
        let (mut dialer, mut acceptor) = (dial(&a, 0, None), accept(&b, 2));
        let roster = &mut Roster::default();
        let mut over = false;
        for step in 0..4 {
            let (from, to) = if step % 2 == 0 { (&mut dialer, &mut acceptor) } else { (&mut acceptor, &mut dialer) };
            let mut said = from.output().to_vec();
            from.written(said.len());
            let is_meant = (step % 2 == 1) == direction && step / 2 == turn;
            if is_meant {
                let length = first(&said).1.len();
                said[place.index(length)] ^= flip;
            }
            over |= feed(to, &said, roster).is_err();
            if is_meant || over {
                break;
            }
        }
        prop_assert!(
            dialer.peer().is_none() || acceptor.peer().is_none() || over,
            "both sides believe a handshake that was changed"
        );
        // Only the dialer can fail at the last frame; before it neither side is up.
        prop_assert!(dialer.peer().is_none());
    }
}

#[test]
fn who_leaves_before_it_hears_that_it_is_welcome_says_goodbye() {
    let (mut dialer, mut acceptor) = (dial(&identity("a"), 0, None), accept(&identity("b"), 2));
    let mut roster = Roster::default();
    for _ in 0..2 {
        assert_eq!(pass(&mut dialer, &mut acceptor, &mut roster), Ok(()));
        let said = acceptor.output().to_vec();
        if acceptor.peer().is_some() {
            break;
        }
        acceptor.written(said.len());
        assert_eq!(feed(&mut dialer, &said, &mut roster), Ok(()));
    }
    assert!(acceptor.peer().is_some() && dialer.peer().is_none(), "the welcome is under way");
    dialer.bye(true, "the node stops");
    let end = pass(&mut dialer, &mut acceptor, &mut roster);
    assert_eq!(end, Err(End::Bye { stopping: true, text: "the node stops".into() }));
}
