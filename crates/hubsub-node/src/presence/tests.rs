//! The cost of many members in a room, and of a connection in many rooms.

use super::state::{BATCH_MS, Wish};
use super::*;
use crate::context::io::Timer;
use crate::context::session::Session;
use crate::io::output::Piece;
use crate::lone::Lone;
use hubsub_types::shared::Shared;
use hubsub_types::{ConnKey, Limits};
use hubsub_wire::phoenix::Version;
use std::net::TcpStream;

const ROOM: &str = "crowd";

/// A Phoenix client that has joined the room under this key.
fn page(lone: &mut Lone, key: &str) -> (ConnKey, TcpStream) {
    let (conn, peer) = lone.connect();
    lone.ctx.io.conns.get_mut(conn).unwrap().session = Session::Phoenix(Version::V2, None);
    let who = Some((key.into(), (*b"{}").into()));
    let wish = Wish { topic: ROOM, room: ROOM.as_bytes(), who, watches: true, request: None };
    let seat = reserve(&mut lone.ctx, conn, wish).unwrap();
    joined(&mut lone.ctx, conn, seat);
    crate::shard::internal::take(&mut lone.ctx);
    (conn, peer)
}

/// Advances time until all timers of rooms have fired.
fn pass(lone: &mut Lone) {
    for _ in 0..3 {
        let ctx = &mut lone.ctx;
        ctx.io.now.mono_ms += BATCH_MS + 100;
        let mut due = Vec::new();
        ctx.io.timers.due(ctx.io.now.mono_ms, &mut due);
        for timer in due {
            if let Timer::Presence(room) = timer {
                tick(ctx, &room);
            }
        }
        crate::shard::internal::take(ctx);
    }
}

/// The long frames that a connection gets in this turn.
fn frames(lone: &Lone, conn: ConnKey) -> Vec<Shared> {
    let output = lone.ctx.io.conns.get(conn).unwrap().output.as_ref().unwrap();
    let of = |piece: &Piece| match piece {
        Piece::Frame(frame) => frame.clone(),
        Piece::Range { .. } => panic!("it is long"),
    };
    output.pieces.iter().map(of).collect()
}

#[test]
fn a_crowd_that_comes_at_once_shares_the_bytes_of_one_list() {
    let mut lone = Lone::new(Limits { presence_members_max: 10_000, ..Limits::default() });
    let first = page(&mut lone, "first");
    pass(&mut lone);
    let long = "x".repeat(900);
    let crowd: Vec<_> = (0..40).map(|at| page(&mut lone, &format!("{at}{long}"))).collect();
    pass(&mut lone);
    lone.ctx.flush();
    let newcomers = [page(&mut lone, "a"), page(&mut lone, "b")];
    let lists: Vec<_> = newcomers.iter().flat_map(|(conn, _)| frames(&lone, *conn)).collect();
    assert_eq!(lists.len(), 2);
    assert!(lists[0].is(&lists[1]));
    let names = |list: &[u8]| String::from_utf8_lossy(list).matches("phx_ref").count();
    assert_eq!(names(&lists[0]), 1 + crowd.len());
    // A change makes a new list, and its bytes are shared too.
    lone.ctx.flush();
    let more: Vec<_> = (50..70).map(|at| page(&mut lone, &format!("{at}{long}"))).collect();
    lone.ctx.flush();
    pass(&mut lone);
    let (one, other) = (frames(&lone, first.0), frames(&lone, crowd[7].0));
    assert_eq!((one.len(), names(&one[0])), (1, newcomers.len() + more.len()));
    assert!(one[0].is(&other[0]));
    let late = page(&mut lone, "late");
    assert_eq!(names(&frames(&lone, late.0)[0]), 1 + crowd.len() + newcomers.len() + more.len());
    // Unused lists are dropped.
    assert_eq!(lone.ctx.io.states.presence.lists.len(), 1);
    lone.ctx.io.states.presence.forget_lists();
    assert_eq!(lone.ctx.io.states.presence.lists.len(), 0);
}

#[test]
fn a_connection_has_seats_in_as_many_topics_as_it_may_and_finds_each() {
    let mut lone = Lone::new(Limits::default());
    let (conn, _peer) = lone.connect();
    let (ctx, topics) = (&mut lone.ctx, 100_000);
    let name = |at: u32| format!("$presence/{at}");
    for at in 0..topics {
        let topic = name(at);
        let room = &topic.as_bytes()[10..];
        let wish = Wish { topic: &topic, room, who: None, watches: true, request: Some(at) };
        reserve(ctx, conn, wish).unwrap();
    }
    let edge = &ctx.io.states.presence.edge;
    assert_eq!(edge.watched_by(conn), topics as usize);
    for at in 0..topics {
        assert_eq!(edge.seat_of(conn, &name(at)), edge.seat_of_request(conn, at));
        assert!(edge.seat_of_request(conn, at).is_some());
    }
    for at in 0..topics / 2 {
        left(ctx, conn, &name(at));
        assert_eq!(ctx.io.states.presence.edge.seat_of_request(conn, at), None);
    }
    assert_eq!(ctx.io.states.presence.edge.watched_by(conn), topics as usize / 2);
    ends(ctx, conn);
    assert_eq!((ctx.io.states.presence.edge.watched_by(conn), ctx.io.states.presence.edge.members), (0, 0));
    assert_eq!(ctx.io.states.presence.edge.seat_of(conn, &name(topics - 1)), None);
}
