//! Dispatch of the frames and the mail of links. All frames arrive here: messages of brokers, those of
//! control planes, and those of leader leases.
//!
//! Shard `i` owns link `i`. Hub `h` belongs to shard `h mod shards`, which may differ from that of link `h
//! mod L` on nodes with different shard counts. Messages for another shard go there by mail, in order; the
//! peer gets its credit back when that shard's broker has them.
//!
//! The link's shard notifies all shards when a link comes up or ends, before any later message.

use super::credit::Credit;
use super::state::mail::{LinkMail, News};
use super::{leads, ready};
use crate::context::{Ctx, ProcessChange};
use hubsub_message::NodeMessage;
use hubsub_types::{ConnKey, ShardId};
use hubsub_wire::link::{End, Frame};

/// Executes a frame of a link and returns when to credit it.
///
/// # Errors
/// If the link must end: no frame is ignored silently.
pub(super) fn take_frame(
    ctx: &mut Ctx,
    from: ConnKey,
    frame: Frame<'_>,
    bytes: usize,
) -> Result<Credit, End> {
    match frame {
        Frame::Message(message) => return broker_message(ctx, from, message, bytes),
        Frame::Control { id, is_answer, body } => {
            ctx.io.states.links.control_frame(from, id, is_answer, body.0);
        }
        frame => leads::lead_frame(ctx, from, &frame)?,
    }
    Ok(Credit::Now)
}

/// Handles a message between brokers. A node without a cluster ends the link instead of ignoring it.
fn broker_message(ctx: &mut Ctx, via: ConnKey, message: NodeMessage, bytes: usize) -> Result<Credit, End> {
    let from = ctx.io.states.links.node_of(via).filter(|_| ctx.broker.has_nodes());
    let Some(from) = from else { return Err(End::OutOfPlace(message.name())) };
    let (to, own) = (message.shard(ctx.io.mailer.shards()), ctx.io.shard);
    if to.0 >= ctx.io.mailer.shards() {
        // A response that was never requested.
        return Err(End::OutOfPlace(message.name()));
    }
    if to == own {
        ctx.broker.node_message(from, message, ctx.io.now, &mut ctx.io);
        let is_behind = ctx.broker.is_behind(from) || ctx.io.mailer.any_congested();
        return Ok(if is_behind { Credit::Held } else { Credit::Now });
    }
    let mail = LinkMail::Message { from, shard: own, via, message, bytes };
    ctx.io.mailer.post(to, mail);
    Ok(Credit::Elsewhere)
}

pub fn receive(ctx: &mut Ctx, mail: LinkMail) {
    match mail {
        LinkMail::Message { from, shard, via, message, bytes } => {
            let lane = usize::from(message.is_read());
            ctx.io.states.links.owe((shard, via, from), lane, bytes);
            ctx.broker.node_message(from, message, ctx.io.now, &mut ctx.io);
        }
        LinkMail::News(news) => take_news(ctx, &news),
        LinkMail::Begin(identity) => {
            let incarnation = identity.incarnation;
            (ctx.hooks.process_changed)(ctx, ProcessChange::Own(&identity.node, incarnation));
            ctx.io.states.links.begin(identity);
            ctx.io.states.links.set_ready(false);
            leads::begin_leads(ctx, incarnation);
        }
        LinkMail::Roster(roster) => {
            ctx.io.states.links.set_roster(&roster);
            leads::lead_roster(ctx, &roster);
            ready::ready_roster(ctx, &roster);
            let mut others = roster.iter().map(|peer| (peer.id, &*peer.node, peer.incarnation));
            (ctx.hooks.process_changed)(ctx, ProcessChange::Registered(&mut others));
        }
        LinkMail::Status(classes) => ctx.io.states.links.set_classes(classes),
        LinkMail::Ask(ticket, node, body) => ctx.io.states.links.ask(ticket, &node, &body),
        LinkMail::Answer(node, id, body) => ctx.io.states.links.answer(&node, id, &body),
        LinkMail::Handover(handover) => ctx.io.states.links.take_over(*handover),
        LinkMail::Send(key, message) => ctx.io.states.links.send_for_other(key, &message),
        LinkMail::Handled(key, bytes) => ctx.io.states.links.handled(key, bytes),
    }
    tell_news(ctx);
}

#[inline]
pub fn tick(ctx: &mut Ctx) {
    ctx.io.states.links.tick();
    if !ctx.io.states.links.news.is_empty() {
        tell_news(ctx);
    }
    leads::tick_leads(ctx);
    ready::tick_ready(ctx);
}

/// Notifies all shards of changes of this shard's links.
pub(super) fn tell_news(ctx: &mut Ctx) {
    for news in std::mem::take(&mut ctx.io.states.links.news) {
        let own = ctx.io.shard;
        for shard in (0..ctx.io.mailer.shards()).map(ShardId).filter(|&shard| shard != own) {
            ctx.io.mailer.post(shard, LinkMail::News(news.clone()));
        }
        take_news(ctx, &news);
    }
}

fn take_news(ctx: &mut Ctx, news: &News) {
    let now = ctx.io.now;
    match *news {
        News::Up(node, links, ref way) => {
            ctx.io.states.links.reach.set(node, links, way.clone());
            ctx.broker.node_up(node, way.link, links, now, &mut ctx.io);
            if way.link == ctx.io.shard.0 {
                leads::lead_link_up(ctx, node, way.key);
            }
            (ctx.hooks.process_changed)(ctx, ProcessChange::Up(node));
        }
        News::Dead(run) => (ctx.hooks.process_changed)(ctx, ProcessChange::Gone(run)),
        News::Down(node, link) => {
            ctx.io.states.links.reach.unset(node, link);
            ctx.broker.node_down(node, link, now, &mut ctx.io);
            if link == ctx.io.shard.0 {
                leads::lead_link_down(ctx, node);
            }
        }
    }
}
