//! Credit for the frames of peers. A frame counts as handled when a broker has it. While a shard that it may
//! be for lags, credit is withheld: the peer runs out of it and stops sending records, while its pings still
//! arrive.

use super::state::links::Links;
use super::state::mail::LinkMail;
use crate::context::Ctx;
use hubsub_types::{ConnKey, NodeId, ShardId};
use hubsub_wire::link::Lane;

/// When the credit of a frame is returned to the peer.
pub(super) enum Credit {
    /// At once: the broker is done with it.
    Now,
    /// When the shard that lags has caught up.
    Held,
    /// When another shard reports it handled.
    Elsewhere,
}

/// Returns withheld credit for frames that this shard's broker has handled.
pub fn settle_credit(ctx: &mut Ctx) {
    let Ctx { broker, io, .. } = ctx;
    if !io.states.links.held.is_empty() && !io.mailer.any_congested() {
        io.states.links.release(|node| broker.is_behind(node));
    }
    for owed in std::mem::take(&mut io.states.links.owed) {
        let (shard, key, node, bytes) = owed;
        if broker.is_behind(node) {
            io.states.links.owed.push(owed);
        } else {
            io.mailer.post(shard, LinkMail::Handled(key, bytes));
        }
    }
}

impl Links {
    /// Counts a handled frame. Its credit is withheld while the broker is not done with it.
    pub(super) fn count(&mut self, key: ConnKey, lane: Lane, bytes: usize, credit: Credit) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        match credit {
            Credit::Now => conn.link.handled(lane, bytes),
            Credit::Held => {
                if conn.held == [0; 2] {
                    self.held.push(key);
                }
                conn.held[usize::from(lane == Lane::Reads)] += bytes;
            }
            Credit::Elsewhere => {}
        }
    }

    /// A broker has handled these bytes, live and reads.
    pub(super) fn handled(&mut self, key: ConnKey, [live, reads]: [usize; 2]) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.link.handled(Lane::Live, live);
        conn.link.handled(Lane::Reads, reads);
        self.soil(key);
    }

    /// Returns withheld credit, except for nodes whose messages still wait.
    pub(super) fn release(&mut self, is_behind: impl Fn(NodeId) -> bool) {
        for key in std::mem::take(&mut self.held) {
            let Some(conn) = self.conns.get_mut(key) else { continue };
            if conn.node.is_some_and(&is_behind) {
                self.held.push(key);
                continue;
            }
            let bytes = std::mem::take(&mut conn.held);
            self.handled(key, bytes);
        }
    }

    /// Notes credit that this shard owes for a frame of another shard's link.
    pub(super) fn owe(&mut self, (shard, key, node): (ShardId, ConnKey, NodeId), lane: usize, bytes: usize) {
        let place = self.owed.iter().position(|owed| (owed.0, owed.1) == (shard, key));
        let place = place.unwrap_or_else(|| {
            self.owed.push((shard, key, node, [0; 2]));
            self.owed.len() - 1
        });
        self.owed[place].3[lane] += bytes;
    }
}
