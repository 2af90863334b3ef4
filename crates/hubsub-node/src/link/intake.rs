//! Input of links. A link is read a few times per turn, so that clients of the shard get their turn; the rest
//! waits for the next turn. Frames are parsed in the read buffer; only an incomplete one is copied.

use super::dispatch::{self, tell_news};
use super::leads;
use super::state::conn::Role;
use crate::context::Ctx;
use crate::context::io::TURN_BYTES;
use hubsub_types::ConnKey;
use hubsub_wire::link::Next;
use mio::event::Event;
use std::io::{ErrorKind, Read};

/// Reads per link and turn: a link carries the traffic of many clients.
const READS: usize = 4;

/// The capacity that an empty input buffer keeps, in bytes.
const KEPT_BYTES_MAX: usize = 64 * 1024;

pub(crate) fn link_event(ctx: &mut Ctx, event: &Event, scratch: &mut [u8]) {
    let links = &mut ctx.io.states.links;
    let Some(key) = links.key_of(event.token()) else { return };
    if !links.connected(key) {
        return;
    }
    if event.is_writable() {
        links.soil(key);
    }
    if event.is_read_closed()
        && let Some(conn) = links.conns.get_mut(key)
    {
        conn.is_ended = true;
    }
    if event.is_readable() || event.is_read_closed() || event.is_error() {
        read_link(ctx, key, scratch);
    }
}

/// Continues to read links that the last turn left.
pub(crate) fn resume_links(ctx: &mut Ctx, scratch: &mut [u8]) {
    if ctx.io.states.links.accepts_more {
        ctx.io.states.links.accept();
    }
    let mut ready = std::mem::take(&mut ctx.io.states.links.ready);
    for key in ready.drain(..) {
        if let Some(conn) = ctx.io.states.links.conns.get_mut(key) {
            conn.is_ready = false;
            read_link(ctx, key, scratch);
        }
    }
    // Its allocation is reused.
    std::mem::swap(&mut ctx.io.states.links.ready, &mut ready);
    ctx.io.states.links.ready.append(&mut ready);
}

/// Reads a bounded amount and handles its frames.
fn read_link(ctx: &mut Ctx, key: ConnKey, scratch: &mut [u8]) {
    // Input that arrived before its peer was admitted.
    if ctx.io.states.links.conns.get(key).is_some_and(|conn| conn.reads() && !conn.input.is_empty()) {
        link_input(ctx, key, &[]);
    }
    for _ in 0..READS {
        let now = ctx.io.states.links.now;
        let Some(conn) = ctx.io.states.links.conns.get_mut(key).filter(|conn| conn.reads()) else {
            return;
        };
        match conn.socket.read(scratch) {
            Ok(0) => return link_eof(ctx, key),
            Ok(_) if matches!(conn.role, Role::Closing(_)) => {}
            Ok(n) => {
                let is_all = n < scratch.len() && !conn.is_ended;
                if conn.link.heard(now) {
                    ctx.io.states.links.heard_again(key);
                }
                ctx.io.metrics.links_bytes_in_total.add(n as u64);
                link_input(ctx, key, &scratch[..n]);
                if is_all {
                    return;
                }
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => return,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) => return link_eof(ctx, key),
        }
    }
    ctx.io.states.links.again(key);
}

fn link_eof(ctx: &mut Ctx, key: ConnKey) {
    let links = &mut ctx.io.states.links;
    let Some(conn) = links.conns.get_mut(key) else { return };
    if let Role::Closing(_) = conn.role {
        drop(links.remove(key));
        return;
    }
    let end = conn.link.eof();
    links.ended(key, &end);
}

fn link_input(ctx: &mut Ctx, key: ConnKey, bytes: &[u8]) {
    let Some(conn) = ctx.io.states.links.conns.get_mut(key) else { return };
    let mut input = std::mem::take(&mut conn.input);
    let needed = conn.needed;
    if input.is_empty() {
        let used = take_frames(ctx, key, bytes);
        input.extend_from_slice(&bytes[used..]);
    } else {
        input.extend_from_slice(bytes);
        if input.len() >= needed {
            let used = take_frames(ctx, key, &input);
            input.drain(..used);
        }
    }
    if input.is_empty() && input.capacity() > KEPT_BYTES_MAX {
        input = Vec::new();
    }
    let (links, mailer) = (&mut ctx.io.states.links, &mut ctx.io.mailer);
    let Some(conn) = links.conns.get_mut(key) else { return };
    conn.input = input;
    if let Role::Proved(peer, 0) = &conn.role {
        let peer = peer.clone();
        links.proved(key, peer, mailer);
    }
    links.soil(key);
    tell_news(ctx);
}

/// Handles the complete frames of the input; returns the bytes consumed.
fn take_frames(ctx: &mut Ctx, key: ConnKey, input: &[u8]) -> usize {
    let mut used = 0;
    loop {
        let links = &mut ctx.io.states.links;
        let now = links.now;
        let Some(conn) = links.conns.get_mut(key).filter(|conn| !matches!(conn.role, Role::Closing(_)))
        else {
            return input.len();
        };
        match conn.link.next(&input[used..], now) {
            Ok(Next::Incomplete(needed)) => {
                conn.needed = needed;
                return used;
            }
            Ok(Next::Own(bytes)) => {
                used += bytes;
                leads::take_beat(ctx, key);
            }
            Ok(Next::Up(bytes)) => {
                used += bytes;
                links.answered(key);
                tell_news(ctx);
            }
            Ok(Next::Proved(peer, bytes)) => {
                // Nothing more is read before it is admitted.
                conn.role = Role::Proved(peer, 0);
                conn.needed = 0;
                return used + bytes;
            }
            Ok(Next::Frame(frame, bytes)) => {
                used += bytes;
                let lane = frame.lane();
                match dispatch::take_frame(ctx, key, frame, bytes) {
                    Ok(credit) => ctx.io.states.links.count(key, lane, bytes, credit),
                    Err(end) => {
                        let links = &mut ctx.io.states.links;
                        let Some(conn) = links.conns.get_mut(key) else { return input.len() };
                        conn.link.bye(false, &end.to_string());
                        links.ended(key, &end);
                        return input.len();
                    }
                }
                if ctx.io.turn_bytes() > TURN_BYTES {
                    ctx.flush();
                }
            }
            Err(end) => {
                links.ended(key, &end);
                return input.len();
            }
        }
    }
}
