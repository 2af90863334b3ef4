//! Actions of devices (docs/guides/devices.md) that a client was sent and has not acknowledged. Once it has, and is the
//! device, the room of the action is told by a record beside the device's answers: so that any node knows it, at any time.

use super::client::Client;
use super::message::Said;
use crate::core::Core;
use crate::own::Asked;
use hubsub_types::ConnKey;
use hubsub_wire::mqtt::PacketId;

/// Header of an action: its id.
const ID: &str = "hubsub-action";

/// Header of an action: the topic of its answers, which ends with [`DONE`].
const ANSWERS: &str = "mqtt.response-topic";

const DONE: &str = "done";

/// What stands for [`DONE`] in the topic on which it is said that the device has it.
const DELIVERED: &str = "delivered";

/// An action, as far as is needed to say that its device has it.
pub struct Action {
    id: Box<str>,
    topic: Box<str>,
    delivered: Box<str>,
}

impl Action {
    fn of(said: &Said<'_>) -> Option<Action> {
        let header = |wanted: &str| said.headers.iter().find(|(name, _)| **name == *wanted);
        let (_, id) = header(ID)?;
        let before = header(ANSWERS)?.1.strip_suffix(DONE)?;
        let delivered = format!("{before}{DELIVERED}").into();
        Some(Action { id: id.clone(), topic: said.topic.into(), delivered })
    }
}

impl Client {
    /// A message is sent under this id.
    #[inline]
    pub(super) fn sends_action(&mut self, id: PacketId, said: &Said<'_>) {
        if said.headers.is_empty() && self.shares.is_none() {
            return;
        }
        match Action::of(said) {
            Some(action) => _ = self.shares.get_or_insert_default().actions.insert(id, action),
            // The id was an action's before.
            None => _ = self.ends_action(id),
        }
    }

    /// It is acknowledged: the action that it was.
    pub(super) fn ends_action(&mut self, id: PacketId) -> Option<Action> {
        self.shares.as_mut()?.actions.remove(&id)
    }
}

/// A client has acknowledged an action. If it is the action's device, and the room of the action remembers, that is said
/// there; if it cannot be, the action stays as it was.
pub(super) fn delivered(core: &mut Core, key: ConnKey, action: &Action) {
    let Some(client) = core.rim.conns.get(key).and_then(|conn| conn.mqtt.as_ref()) else { return };
    let own = client.machine.client_id().as_bytes();
    let classes = &core.broker.classes();
    let (topic, delivered) = (action.topic.as_bytes(), action.delivered.as_bytes());
    let mut templates = classes.classes().iter().filter_map(|class| class.device.as_ref());
    let room = classes.room(topic);
    let remembers = classes.get(classes.class_of_room(&room)).history.is_some();
    if remembers && classes.room(delivered) == room && templates.any(|it| it.device(topic) == Some(own)) {
        let headers = [(ID.into(), action.id.clone())];
        core.say_with(delivered, b"", Some(headers.into()), Asked::Nobody);
    }
}
