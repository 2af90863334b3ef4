//! Gaps to be reported to a client: records that it will not get.

use hubsub_types::Position;
use hubsub_types::names::FILTER_MARK;

/// The most gaps per client; further ones become one gap of all topics.
const GAPS_MAX: usize = 64;

/// Gaps to report with the next record, in a user property of 5.0; a pointer, since few clients have any.
#[derive(Default)]
#[allow(clippy::box_collection, reason = "most clients have none, and pay for a pointer")]
pub struct Gaps(Option<Box<Vec<String>>>);

impl Gaps {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub fn texts(&self) -> &[String] {
        self.0.as_ref().map_or(&[], |texts| texts)
    }

    pub fn add(&mut self, topic: &[u8], from: Position, to: Position) {
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
