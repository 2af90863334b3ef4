//! Executes the reads of sessions of other processes ([`Readings`](hubsub_mqtt::Readings)), and looks for
//! sessions whose holder is gone.

use super::client::client_ref;
use super::connack::{forgo_will, refused};
use super::state::mail::MqttMail;
use super::state::work::{Work, Written};
use super::{claims, delete_retry, offline, store, takeover};
use crate::context::Ctx;
use crate::context::scatter_gather::Then;
use crate::io::log_lines::Level;
use crate::io::questions::{Part, Question};
use hubsub_mqtt::rooms::{snapshot_id, snapshot_room};
use hubsub_mqtt::{ReadAction, snapshot_query};
use hubsub_route::claims::Aim;
use hubsub_route::rooms::HistoryPart;
use hubsub_types::{ConnKey, ErrorCode};
use hubsub_wire::mqtt::Reason;

/// A session of this client id has no holder: takes it over unless another node has or wants the id.
pub(super) fn claim(ctx: &mut Ctx, id: Box<str>) {
    let now_ms = ctx.io.now.mono_ms;
    let in_progress = ctx.io.states.mqtt.readings.may_take_over(&id, now_ms);
    let Some(in_progress) = in_progress.filter(|_| !ctx.io.states.mqtt.is_leaving) else { return };
    let is_full = offline::has_no_room(&ctx.io, in_progress + 1);
    let was_full = std::mem::replace(&mut ctx.io.states.mqtt.readings.is_full, is_full);
    if is_full {
        // It stays persisted: its client may resume it, and the takeover is tried again.
        ctx.io.metrics.mqtt_session_takeovers_failed_total.add(1);
        if !was_full {
            let fields = vec![("limit", "mqtt_sessions_max".to_owned())];
            ctx.io.lines.log(Level::Warning, "sessions without an owner wait for room", fields);
        }
        return;
    }
    let key = ctx.io.conns.reserve();
    ctx.io.states.mqtt.readings.begin_takeover(key, id.clone());
    if claims::claim(ctx, id, key, Aim::Adopt) {
        begin_takeover(ctx, key);
    }
}

/// A claim was refused; returns whether it was for a takeover.
pub(super) fn is_refused(ctx: &mut Ctx, key: ConnKey) -> bool {
    let id = ctx.io.states.mqtt.readings.end_takeover(key);
    id.map(|_| ctx.io.conns.give_back(key)).is_some()
}

/// The holder must release an id; returns whether that was a takeover in progress, which ends.
pub(super) fn ends(ctx: &mut Ctx, key: ConnKey) -> bool {
    let id = ctx.io.states.mqtt.readings.end_takeover(key);
    id.map(|id| release(ctx, key, id)).is_some()
}

fn release(ctx: &mut Ctx, key: ConnKey, id: Box<str>) {
    ctx.io.conns.give_back(key);
    claims::release(ctx, id, claims::here(ctx, key));
}

/// A claim was granted; returns whether it was for a takeover, which continues.
pub(super) fn begin_takeover(ctx: &mut Ctx, key: ConnKey) -> bool {
    let id = ctx.io.states.mqtt.readings.granted(key);
    id.map(|id| request_snapshot(ctx, key, &id)).is_some()
}

pub(super) fn begin(ctx: &mut Ctx, key: ConnKey, id: Box<str>, is_clean: bool) {
    match is_clean && !is_recorded(ctx, key) {
        // Clean Start does not wait for the hub: it continues while that is unavailable.
        true => ctx.ask_home(&snapshot_room(&id), Question::Row(snapshot_query(&id)), then(key)),
        false => request_snapshot(ctx, key, &id),
    }
    ctx.io.states.mqtt.readings.begin(key, id, is_clean);
}

/// Continues the reading at this connection slot with the response.
fn then(key: ConnKey) -> Then {
    Then::work(move |part| Work::Past(key, Part::history(part)))
}

fn request_snapshot(ctx: &mut Ctx, key: ConnKey, id: &str) {
    ctx.ask_home(&snapshot_room(id), Question::History(snapshot_query(id)), then(key));
}

/// True if a connection wants a persistent session that outlives it.
fn is_recorded(ctx: &Ctx, key: ConnKey) -> bool {
    client_ref(&ctx.io, key)
        .is_some_and(|client| client.is_recorded() && client.machine.session_expiry_s() > 0)
}

/// A page of a session's room has arrived.
pub(super) fn came(ctx: &mut Ctx, key: ConnKey, part: Result<HistoryPart, ErrorCode>) {
    if ctx.io.states.mqtt.is_leaving && ends(ctx, key) {
        // The persisted session stays for the remaining nodes.
        return;
    }
    if ctx.io.conns.get(key).is_some_and(|conn| conn.is_closing()) {
        return;
    }
    let action = ctx.io.states.mqtt.readings.page(key, part);
    execute(ctx, key, action);
}

/// The fence of a session is written, or the write failed.
pub(super) fn fenced(ctx: &mut Ctx, key: ConnKey, is_safe: bool) {
    let action = ctx.io.states.mqtt.readings.fenced(key, is_safe);
    execute(ctx, key, action);
}

fn execute(ctx: &mut Ctx, key: ConnKey, action: ReadAction) {
    match action {
        ReadAction::None => {}
        ReadAction::Fence(id, fence) => store::append(ctx, id, fence, Written::Fence(key)),
        ReadAction::Page(query) => {
            ctx.ask_home(&query.room.clone(), Question::History(query), then(key));
        }
        ReadAction::Release(id) => release(ctx, key, id),
        ReadAction::TakeOver(found) => takeover::take_over_offline(ctx, key, found),
        ReadAction::Resume(found, epoch) => takeover::take_over(ctx, key, found, epoch),
        ReadAction::BeginNew(epoch) => takeover::begin_new(ctx, key, epoch),
        ReadAction::Clear { id, snapshot, epoch } => takeover::clear(ctx, key, id, &snapshot, epoch),
        // A client with Clean Start continues; the old session is deleted once it can be read.
        ReadAction::Failed { id, is_clean: true } if !is_recorded(ctx, key) => {
            forgo_will(&mut ctx.io, key);
            delete_retry::retry_later(&mut ctx.io, id);
            takeover::begin_new(ctx, key, 0);
        }
        ReadAction::Failed { .. } => refused(ctx, key, Reason::ServerUnavailable),
    }
}

/// The most sessions without a holder per search.
const SEARCHED_MAX: usize = 256;

/// Starts takeovers of sessions in hubs that this shard leads, whose holder has released them or whose
/// process is gone; the shards of their client ids execute them. Runs periodically.
pub fn start_takeovers(ctx: &mut Ctx) {
    if !store::reads_sessions(ctx) || ctx.io.states.mqtt.is_leaving {
        return;
    }
    let mut gone = std::mem::take(&mut ctx.io.states.mqtt.readings.gone);
    gone.look(ctx.io.states.links.runs());
    for room in ctx.broker.orphans(|run| gone.is(run), SEARCHED_MAX) {
        let Some(id) = snapshot_id(&room) else { continue };
        let home = claims::home_of(&id, ctx.io.mailer.shards());
        claims::post(ctx, home, MqttMail::TakeOver(id.into()));
    }
    ctx.io.states.mqtt.readings.gone = gone;
}
