//! Unacknowledged device actions (docs/guides/devices.md). When the device acknowledges one, a record in the
//! action's room reports the delivery, so any node can read it at any time.

use super::client::Client;
use super::message::Content;
use super::persist::Written;
use crate::io::context::Ctx;
use hubsub_types::ConnKey;
use hubsub_wire::mqtt::PacketId;

/// Header with the id of an action.
const ID: &str = "hubsub-action";

/// Header with the response topic of an action, which ends with [`DONE`].
const ANSWERS: &str = "mqtt.response-topic";

const DONE: &str = "done";

/// Replaces [`DONE`] in the topic that reports delivery.
const DELIVERED: &str = "delivered";

/// The parts of an action that the delivery report needs.
pub struct Action {
    id: Box<str>,
    topic: Box<str>,
    delivered: Box<str>,
}

impl Action {
    fn of(content: &Content<'_>) -> Option<Action> {
        let header = |wanted: &str| content.headers.iter().find(|(name, _)| **name == *wanted);
        let (_, id) = header(ID)?;
        let before = header(ANSWERS)?.1.strip_suffix(DONE)?;
        let delivered = format!("{before}{DELIVERED}").into();
        Some(Action { id: id.clone(), topic: content.topic.into(), delivered })
    }
}

impl Client {
    /// A message is sent under this packet id.
    #[inline]
    pub(super) fn sends_action(&mut self, id: PacketId, content: &Content<'_>) {
        if content.headers.is_empty() && self.shares.is_none() {
            return;
        }
        match Action::of(content) {
            Some(action) => _ = self.shares.get_or_insert_default().actions.insert(id, action),
            // The id may have been an action's before.
            None => _ = self.ends_action(id),
        }
    }

    /// Takes the action of an acknowledged packet id.
    pub(super) fn ends_action(&mut self, id: PacketId) -> Option<Action> {
        self.shares.as_mut()?.actions.remove(&id)
    }
}

/// A client has acknowledged an action. Publishes the delivery report if the client is the action's device
/// and the action's room has history; if the publish fails, the action's state is unchanged.
pub(super) fn delivered(ctx: &mut Ctx, key: ConnKey, action: &Action) {
    let Some(client) = ctx.io.conns.get(key).and_then(|conn| conn.mqtt.as_ref()) else { return };
    let own = client.machine.client_id().as_bytes();
    let classes = &ctx.broker.classes();
    let (topic, delivered) = (action.topic.as_bytes(), action.delivered.as_bytes());
    let mut templates = classes.classes().iter().filter_map(|class| class.device.as_ref());
    let room = classes.room(topic);
    let remembers = classes.get(classes.class_of_room(&room)).history.is_some();
    if remembers && classes.room(delivered) == room && templates.any(|it| it.device(topic) == Some(own)) {
        let headers = [(ID.into(), action.id.clone())];
        ctx.say_with(delivered, b"", Some(headers.into()), None::<Written>);
    }
}
