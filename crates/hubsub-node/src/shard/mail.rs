//! The dispatch of mail to the folder that it concerns.

use crate::context::Ctx;
use crate::context::mail::Mail;
use crate::context::scatter_gather::GatherMail;
use crate::log::{LogMail, OpenedHub};
use std::sync::Arc;

pub(crate) fn receive(ctx: &mut Ctx, mail: Mail) {
    match mail {
        Mail::Broker(msg) => ctx.broker.receive(msg, ctx.io.now, &mut ctx.io),
        Mail::Log(mail) => receive_of_log(ctx, mail),
        Mail::Gather(GatherMail::Ask { from, number, question }) => {
            ctx.answer_question(from, number, &question);
        }
        Mail::Gather(GatherMail::Part { number, part }) => ctx.io.gather(number, part),
        Mail::Request(ticket, request) => ctx.request(ticket, request),
        Mail::Limits(limits) => {
            ctx.broker.set_limits((*limits).clone());
            ctx.io.limits = (*limits).clone();
            ctx.io.states.phoenix.rules = crate::phoenix::rules(&ctx.io.info, &limits);
            ctx.io.states.links.limits = Arc::new(crate::link::limits(&limits));
        }
        Mail::Link(mail) => crate::link::dispatch::receive(ctx, mail),
        Mail::Lead(mail) => crate::link::leads::lead_mail(ctx, mail),
        Mail::Mqtt(mail) => crate::mqtt::receive(ctx, mail),
        Mail::Presence(mail) => crate::presence::receive(ctx, mail),
        Mail::Poll(mail) => crate::phoenix::poll::receive(ctx, mail),
        Mail::PartFromSessions => ctx.io.states.mqtt.is_leaving = true,
        Mail::Route(mail) => crate::shard::routing::route_mail(ctx, mail),
        Mail::Roster(new) => crate::redis::moved_slots::learn(ctx, &new),
        Mail::RosterKnown(roster) => crate::redis::moved_slots::follow(ctx, &roster),
        Mail::Stop(_) | Mail::Accept | Mail::Travel(_) => unreachable!("the shard takes these out"),
    }
}

/// Adds a hub that was opened on this shard. Its log must exist before the broker learns of the hub.
fn hub_opened(ctx: &mut Ctx, opened: OpenedHub) {
    let OpenedHub { hub, seed, producers, rows } = opened;
    if let Some(log) = &mut ctx.io.states.log {
        log.opened(seed.id, hub);
    }
    ctx.broker.open_log(&seed, producers.unwrap_or_default());
    ctx.broker.set_rows(seed.id, rows);
}

fn receive_of_log(ctx: &mut Ctx, mail: LogMail) {
    match mail {
        LogMail::Safe(hubs) => {
            ctx.io.expects_more = true;
            for (hub, offset) in hubs {
                ctx.broker.logged(hub, offset, ctx.io.now, &mut ctx.io);
            }
        }
        LogMail::HubOpened(opened) => hub_opened(ctx, *opened),
        LogMail::HubCloses(hub, told) => {
            if let Some(log) = &mut ctx.io.states.log {
                log.closes(hub);
            }
            // The receiver may have given up.
            let _ = told.send(());
        }
        LogMail::HubClosed(hub) => {
            if let Some(log) = &mut ctx.io.states.log {
                log.closed(hub);
            }
        }
        LogMail::Failed => ctx.broker.log_failed(ctx.io.now, &mut ctx.io),
        LogMail::Found(read, found) => {
            if let Some(log) = &mut ctx.io.states.log {
                log.answered(matches!(read.then, hubsub_route::Then::Range(_)));
            }
            ctx.broker.log_read(*read, found, ctx.io.now, &mut ctx.io);
        }
        LogMail::FoundHub(asked, found) => {
            if let Some(log) = &mut ctx.io.states.log {
                log.answered(true);
            }
            ctx.broker.hub_log_read(*asked, found, ctx.io.now, &mut ctx.io);
        }
        LogMail::Listed(ask, part) => ctx.io.gather(ask.number, part),
    }
}
