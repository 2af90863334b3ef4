//! Unacknowledged device actions (docs/guides/devices.md). When the device acknowledges one, a record in the
//! action's room reports the delivery, so any node can read it at any time.

use super::message::Content;
use hubsub_route::Headers;
use hubsub_types::ClassTable;

const ID: &str = "hubsub-action";

/// Header with the response topic of an action, which ends with [`DONE`].
const ANSWERS: &str = "mqtt.response-topic";

const DONE: &str = "done";

/// Replaces [`DONE`] in the topic that reports delivery.
const DELIVERED: &str = "delivered";

pub struct Action {
    id: Box<str>,
    topic: Box<str>,
    delivered: Box<str>,
}

impl Action {
    pub(crate) fn of(content: &Content<'_>) -> Option<Action> {
        let header = |wanted: &str| content.headers.iter().find(|(name, _)| **name == *wanted);
        let (_, id) = header(ID)?;
        let before = header(ANSWERS)?.1.strip_suffix(DONE)?;
        let delivered = format!("{before}{DELIVERED}").into();
        Some(Action { id: id.clone(), topic: content.topic.into(), delivered })
    }

    /// The report that this client got the action: its topic and headers. None if the client is not the
    /// action's device, or the action's room has no history.
    #[must_use]
    pub fn report(self, client_id: &str, classes: &ClassTable) -> Option<(Box<str>, Headers)> {
        let (topic, delivered) = (self.topic.as_bytes(), self.delivered.as_bytes());
        let room = classes.room(topic);
        let has_history = classes.get(classes.class_of_room(&room)).history.is_some();
        let mut templates = classes.classes().iter().filter_map(|class| class.device.as_ref());
        let is_its = has_history
            && classes.room(delivered) == room
            && templates.any(|it| it.device(topic) == Some(client_id.as_bytes()));
        is_its.then(|| (self.delivered, Some([(ID.into(), self.id)].into())))
    }
}
