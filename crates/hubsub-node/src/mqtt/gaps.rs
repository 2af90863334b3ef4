//! What a client is to be told that it will not get.

use hubsub_types::Position;
use hubsub_types::names::FILTER_MARK;

/// Gaps that a client can be told of; further ones are one of all topics.
const GAPS_MAX: usize = 64;

/// What a client is to be told that it will not get, with the next record: 5.0 has words for it.
/// Few are, and the others pay for a pointer.
#[derive(Default)]
#[allow(clippy::box_collection, reason = "most clients have none, and pay for a pointer")]
pub(super) struct Gaps(Option<Box<Vec<String>>>);

impl Gaps {
    /// Whether there is nothing to be told.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn texts(&self) -> &[String] {
        self.0.as_ref().map_or(&[], |texts| texts)
    }

    pub(super) fn add(&mut self, topic: &[u8], from: Position, to: Position) {
        let topic = topic.strip_prefix(FILTER_MARK).unwrap_or(topic);
        let text = match self.texts().len() {
            ..GAPS_MAX => format!("{from} {to} {}", String::from_utf8_lossy(topic)),
            GAPS_MAX => format!("{} {} #", Position::default(), Position::default()),
            _ => return,
        };
        if !self.texts().contains(&text) {
            self.0.get_or_insert_default().push(text);
        }
    }
}
