//! Leader leases of ephemeral hubs over links. Shard 0, which owns link 0 of each peer, drives the state
//! machine of `hubsub_lead` with pings, pongs, peers' requests, control plane orders and confirmations of
//! shards.
//!
//! It publishes the data for a controller's decisions (`Shown`). Its state is [`super::state::lead_state`]; other
//! shards have `leases::Led`.
//!
//! Invariants:
//!
//! 1. After each call of the machine its actions are executed before anything more is read.
//! 2. A change of leader leases is published before the control plane is notified of it, and tables before
//!    they are answered.
//! 3. Times are taken when a call is made, never at the beginning of a long turn: a holder's lease ends no
//!    later than its grantor believes.

use super::ready;
use super::state::conn::Role;
use super::state::events::{Event, LeadEvent};
use super::state::lead_state::LeadState;
use super::state::leases::{self, LeadMail};
use super::state::links::Links;
use super::state::peer_table::{PeerTable, Registered};
use super::state::shown::LeadView;
use crate::context::Ctx;
use crate::io::log_lines::Level;
use hubsub_lead::{Action, Beat, Grant, HubTerm, LeaseRequest, Process};
use hubsub_types::{ConnKey, HubId, NodeId, ShardId};
use hubsub_wire::link::{End, Frame, Lane, List, Sent, Status};

/// The shard that drives the machine; the link number is the same.
const SHARD: ShardId = ShardId(0);

/// The maximal age of published data, in µs: much less than the silence timeout.
const SHOW_US: u64 = 25_000;

impl Links {
    /// The process at the other end of a link of shard 0.
    fn process_of(&self, key: ConnKey) -> Option<Process> {
        let links = &self.leads.as_ref()?.links;
        links.get(&self.conns.get(key)?.node?).filter(|link| link.1 == key).map(|link| link.0)
    }

    fn name_of(&self, id: NodeId) -> Option<&str> {
        self.peers.iter().find(|(_, peer)| peer.registered.id == id).map(|(name, _)| &**name)
    }

    fn send_urgent(&mut self, to: Process, frame: &Frame<'_>) {
        let link = self.leads.as_ref().and_then(|leads| leads.links.get(&to.node));
        let Some(&(_, key)) = link.filter(|link| link.0 == to) else { return };
        let Some(conn) = self.conns.get_mut(key).filter(|conn| matches!(conn.role, Role::Up(_))) else {
            return;
        };
        // If the queue is full the frame is dropped: requests are repeated, and a response is not sent twice.
        if conn.link.send(frame) == Sent::Refused {
            debug_assert_eq!(frame.lane(), Lane::Urgent);
            self.metrics.links_control_dropped_total.add(1);
        }
        self.soil(key);
    }

    fn send_question(&mut self, to: Process, question: &LeaseRequest) {
        let names: Vec<Box<str>> =
            question.suspects.iter().filter_map(|&node| self.name_of(node)).map(Box::from).collect();
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        let frame = Frame::LeadAsk {
            stamp_us: question.stamp_us,
            claim: List::new(&question.claim),
            gave_up: List::new(&question.gave_up),
            suspects: List::new(&names),
        };
        self.send_urgent(to, &frame);
    }

    fn send_grant(&mut self, to: Process, grant: &Grant) {
        let frame = Frame::LeadGranted {
            stamp_us: grant.stamp_us,
            // Rounded down to ms, so never longer than granted; at most an hour.
            lead_ms: (grant.lease_us / 1_000) as u32,
            controller_term: grant.controller_term,
            voters_revision: grant.voters_revision,
            granted: List::new(&grant.granted),
        };
        self.send_urgent(to, &frame);
    }
}

/// Links begin, or this process has a new incarnation, which leads nothing of the previous one.
pub(super) fn begin_leads(ctx: &mut Ctx, incarnation: u64) {
    let io = &mut ctx.io;
    let is_same = |leads: &LeadState| leads.incarnation == incarnation;
    if io.shard != SHARD || io.states.links.leads.as_deref().is_some_and(is_same) {
        return;
    }
    let leads = LeadState::new(incarnation, io.states.links.lead_timing);
    for shard in (0..io.mailer.shards()).map(ShardId) {
        io.mailer.post(shard, LeadMail::Life(leads.gate.clone()));
    }
    io.states.links.leads = Some(Box::new(leads));
    // The previous incarnation's acknowledgements of controllers do not hold.
    io.states.links.set_beat(Beat::default());
    show_leads(ctx);
}

pub(super) fn lead_roster(ctx: &mut Ctx, roster: &[Registered]) {
    call_leads(ctx, |leads, _| leads.set_registered(roster));
}

pub(crate) fn lead_mail(ctx: &mut Ctx, mail: LeadMail) {
    match mail {
        LeadMail::Life(_) => _ = ctx.io.states.led.take(mail),
        LeadMail::Began(hub, term) => {
            ctx.io.states.led.take(mail);
            ctx.broker.took_up(hub, term, ctx.io.now, &mut ctx.io);
        }
        LeadMail::GiveUp(hub, term) => {
            let said = ctx.io.states.led.take(mail);
            // Before any process can lead it after this shard.
            ctx.broker.gave_up(hub, term, &mut ctx.io);
            if let Some(said) = said {
                ctx.io.mailer.post(SHARD, said);
            }
        }
        LeadMail::GaveUp(hub, term) => gave_up(ctx, (hub, term)),
        LeadMail::Routes(routes) => order(ctx, None, |leads, now| leads.machine.routes(&routes, now)),
        LeadMail::Voters(voters) => order(ctx, None, |leads, now| leads.machine.voters(voters, now)),
        LeadMail::Tables { ticket, controller_term, until_us, confirmed_us, tables, voters_revision } => {
            order(ctx, Some(ticket), |leads, now| {
                if controller_term < leads.controller_term {
                    return;
                }
                leads.controller_term = controller_term;
                if until_us <= now {
                    return leads.machine.resign(now);
                }
                leads.tables += 1;
                leads.machine.controller_term(controller_term, until_us, confirmed_us, now);
                leads.machine.names_voters(voters_revision, now);
                leads.machine.tables(controller_term, leads.tables, tables);
                leads.forget_left();
            });
        }
        LeadMail::Resign(ticket, controller_term) => order(ctx, Some(ticket), |leads, now| {
            if controller_term == leads.controller_term {
                leads.machine.resign(now);
                leads.forget_left();
            }
        }),
    }
}

/// Executes an order of the control plane; it is answered once executed and published.
fn order(ctx: &mut Ctx, ticket: Option<u64>, act: impl FnOnce(&mut LeadState, u64)) {
    if ctx.io.states.links.leads.is_none() {
        ctx.io.lines.log(Level::Error, "an order about leads came before links began", Vec::new());
    }
    call_leads(ctx, act);
    if let Some(ticket) = ticket {
        show_leads(ctx);
        ctx.io.states.links.control.tell(Event::Answered(ticket, Ok(Box::default())));
    }
}

fn gave_up(ctx: &mut Ctx, (hub, term): HubTerm) {
    call_leads(ctx, |leads, now| {
        leads.machine.gave_up((hub, term), now);
        leads.events.push(LeadEvent::GaveUp(hub, term));
    });
}

// -- links --

/// Link 0 of a node is up.
pub(super) fn lead_link_up(ctx: &mut Ctx, node: NodeId, key: ConnKey) {
    let conn = ctx.io.states.links.conns.get(key);
    let Some(Role::Up(peer)) = conn.map(|conn| &conn.role) else { return };
    let process = Process { node, incarnation: peer.incarnation };
    call_leads(ctx, |leads, _| {
        leads.links.insert(node, (process, key));
        leads.machine.suspects(node, false);
    });
}

/// Link 0 of a node has ended.
pub(super) fn lead_link_down(ctx: &mut Ctx, node: NodeId) {
    call_leads(ctx, |leads, now| {
        if let Some((process, _)) = leads.links.remove(&node) {
            leads.machine.gone(process, now);
        }
    });
}

/// Handles the status in the ping or pong that was just read, if it was one.
pub(super) fn take_beat(ctx: &mut Ctx, key: ConnKey) {
    let Some(from) = ctx.io.states.links.process_of(key) else { return };
    let Some(conn) = ctx.io.states.links.conns.get_mut(key) else { return };
    let (pinged, answered) = (conn.link.take_ping(), conn.link.take_answer());
    let said = pinged.or(answered.as_ref().map(|answer| answer.status));
    if let Some(status) = said {
        ready::peer_is_ready(ctx, from, status.is_ready);
    }
    if let Some(status) = pinged {
        call_leads(ctx, |leads, now| leads.machine.ping(from, beat(status), now));
    }
    if let Some(answer) = answered {
        call_leads(ctx, |leads, now| leads.machine.pong(from, answer.stamp_us, beat(answer.status), now));
    }
}

/// A peer requests its leader lease, or responds.
///
/// # Errors
/// If the frame arrived on another link than link 0.
pub(super) fn lead_frame(ctx: &mut Ctx, key: ConnKey, frame: &Frame<'_>) -> Result<(), End> {
    let Some(from) = ctx.io.states.links.process_of(key) else {
        return Err(End::OutOfPlace(frame.name()));
    };
    match *frame {
        Frame::LeadAsk { stamp_us, claim, gave_up, suspects } => {
            let links = &ctx.io.states.links;
            let known = |name: &str| match links.peers.get(name) {
                Some(peer) => Some(peer.registered.id),
                None => links.is_own(name).then_some(PeerTable::OWN),
            };
            let question = LeaseRequest {
                stamp_us,
                claim: claim.iter().collect(),
                gave_up: gave_up.iter().collect(),
                suspects: suspects.iter().filter_map(known).collect(),
            };
            call_leads(ctx, |leads, now| leads.machine.request(from, &question, now));
        }
        Frame::LeadGranted { stamp_us, lead_ms, controller_term, voters_revision, granted } => {
            let grant = Grant {
                stamp_us,
                lease_us: u64::from(lead_ms) * 1_000,
                controller_term,
                voters_revision,
                granted: granted.iter().collect(),
            };
            call_leads(ctx, |leads, now| leads.machine.granted(from, &grant, now));
        }
        _ => return Err(End::OutOfPlace(frame.name())),
    }
    Ok(())
}

// -- time --

/// Runs the timers of leader leases: at the end of each turn that involved them, and when due.
#[inline]
pub(crate) fn tick_leads(ctx: &mut Ctx) {
    let links = &ctx.io.states.links;
    if links.leads.as_ref().is_some_and(|leads| leads.wake_us() <= links.now.mono_us) {
        call_leads(ctx, |leads, now| leads.machine.poll(now));
        show_due(ctx);
    }
}

fn show_due(ctx: &mut Ctx) {
    let now = ctx.io.states.links.peer_table.now_us();
    let Some(leads) = &mut ctx.io.states.links.leads else { return };
    leads.is_touched = false;
    leads.is_changed |= leads.machine.take_changed();
    if leads.is_changed || !leads.events.is_empty() || now >= leads.shown_us + SHOW_US {
        show_leads(ctx);
    }
    let Some(leads) = &mut ctx.io.states.links.leads else { return };
    leads.events.drain(..).for_each(|event| ctx.io.states.links.control.tell(Event::Lead(event)));
    // A lagging control plane is notified with a later view.
    if leads.is_changed && ctx.io.states.links.control.offer(Event::Lead(LeadEvent::Changed)) {
        leads.is_changed = false;
    }
    leads.wake_us = leads.machine.wake_at().min(leads.shown_us + SHOW_US);
}

fn show_leads(ctx: &mut Ctx) {
    let now = ctx.io.states.links.peer_table.now_us();
    let Some(leads) = &mut ctx.io.states.links.leads else { return };
    leads.shown_us = now;
    let snapshot = leads.machine.snapshot(now);
    carry_out(ctx);
    let links = &mut ctx.io.states.links;
    let Some(leads) = &mut links.leads else { return };
    let view = LeadView { snapshot, until_us: leads.gate.until_us(), acknowledges: leads.acknowledges };
    *links.peer_table.leads.lock() = view;
}

// -- actions --

fn call_leads(ctx: &mut Ctx, call: impl FnOnce(&mut LeadState, u64)) {
    let links = &mut ctx.io.states.links;
    let Some(leads) = &mut links.leads else { return };
    leads.is_touched = true;
    call(leads, links.peer_table.now_us());
    carry_out(ctx);
}

fn carry_out(ctx: &mut Ctx) {
    while let Some(action) = ctx.io.states.links.leads.as_mut().and_then(|leads| leads.machine.next_action())
    {
        act_on_lead(ctx, action);
    }
}

fn act_on_lead(ctx: &mut Ctx, action: Action) {
    let Some(leads) = &mut ctx.io.states.links.leads else { return };
    match action {
        Action::Request(to, question) => ctx.io.states.links.send_question(to, &question),
        Action::Grant(to, grant) => ctx.io.states.links.send_grant(to, &grant),
        Action::Report(beat) => say(ctx, beat),
        Action::Began(hub, term) => {
            leads.events.push(LeadEvent::Began(hub, term));
            tell_home(ctx, hub, LeadMail::Began(hub, term));
        }
        Action::GiveUp(hub, term) => tell_home(ctx, hub, LeadMail::GiveUp(hub, term)),
        Action::Opened => {
            leads.events.push(LeadEvent::Opened);
            ctx.io.lines.log(Level::Info, "the lead runs", Vec::new());
        }
        Action::Closed => {
            leads.events.push(LeadEvent::Closed);
            ctx.io.lines.log(Level::Warning, "the lead has ended", Vec::new());
        }
    }
}

/// Notifies the shard of a hub. Shard 0 notifies itself by mail too, so its hubs change between mails, as
/// on other shards.
fn tell_home(ctx: &mut Ctx, hub: HubId, mail: LeadMail) {
    let shards = ctx.io.mailer.shards();
    ctx.io.mailer.post(leases::home(hub, shards), mail);
}

fn say(ctx: &mut Ctx, beat: Beat) {
    let links = &mut ctx.io.states.links;
    links.set_beat(beat);
    let Some(leads) = &mut links.leads else { return };
    if std::mem::replace(&mut leads.acknowledges, beat.acknowledges) != beat.acknowledges {
        leads.events.push(LeadEvent::Acknowledges(beat.acknowledges));
    }
}

fn beat(status: Status) -> Beat {
    let Status { controller_term, acknowledged_term: acknowledges, acknowledgement, .. } = status;
    Beat { controller_term, acknowledges, acknowledgement }
}
