//! The start position in the payload of a channel's join.
//!
//! ```text
//! {"rewind": 20}   {"rewind": "10s"}   {"after": "EPOCH-SEQ"}
//! ```

use super::decode::each_member;
use super::json::Reader;
use super::message::Payload;
use hubsub_types::Position;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Start {
    #[default]
    Live,
    /// With this many latest records before it.
    Last(u64),
    /// With the records of this time before it.
    Past {
        ms: u64,
    },
    After(Position),
}

/// Why a join is invalid, with the reason in the reply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum BadJoin {
    #[error("rewind is a count or a time; hint: 20 or \"10s\"")]
    Rewind,
    #[error("after is a position; hint: \"EPOCH-SEQ\"")]
    After,
    #[error("either rewind or after")]
    Both,
    #[error("presence is true or an object; hint: {{\"key\": \"ann\"}}")]
    Presence,
    #[error("presence needs a key, which is a text; hint: {{\"key\": \"ann\"}}")]
    Key,
    #[error("the meta of presence is an object")]
    Meta,
}

impl Start {
    /// Parses a join's payload, if it is an object; members that are null or unknown are ignored.
    ///
    /// # Errors
    /// A member is invalid.
    pub fn read(params: Payload<'_>) -> Result<Start, BadJoin> {
        let Payload::Json(text) = params else { return Ok(Start::Live) };
        if !text.starts_with('{') {
            return Ok(Start::Live);
        }
        let (mut rewind, mut after) = (None, None);
        let walked = each_member(text, |name, value| match name {
            _ if value == "null" => {}
            "rewind" => rewind = Some(value),
            "after" => after = Some(value),
            _ => {}
        });
        // For a payload that was not checked before.
        walked.map_err(|_| BadJoin::Rewind)?;
        match (rewind, after) {
            (None, None) => Ok(Start::Live),
            (Some(value), None) => read_rewind(value).ok_or(BadJoin::Rewind),
            (None, Some(value)) => read_position(value).map(Start::After).ok_or(BadJoin::After),
            (Some(_), Some(_)) => Err(BadJoin::Both),
        }
    }

    #[must_use]
    pub fn of_rewind(text: &str) -> Option<Start> {
        match text.find(|char: char| !char.is_ascii_digit()) {
            None => text.parse().ok().map(Start::Last),
            Some(unit) => past(text.split_at(unit)),
        }
    }
}

fn read_rewind(value: &str) -> Option<Start> {
    if !value.starts_with('"') {
        return value.parse().ok().map(Start::Last);
    }
    let text = Reader::new(value).text().ok()?;
    let unit = text.find(|char: char| !char.is_ascii_digit())?;
    past(text.split_at(unit))
}

fn past((number, unit): (&str, &str)) -> Option<Start> {
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    let ms = number.parse::<u64>().ok()?.checked_mul(unit_ms)?;
    Some(Start::Past { ms })
}

fn read_position(value: &str) -> Option<Position> {
    Reader::new(value).text().ok()?.parse().ok()
}

/// The response: the last record before the channel went live, and whether none is missing since its start.
#[must_use]
pub fn joined_at(position: Position, recovered: bool) -> String {
    format!("{{\"position\":\"{position}\",\"recovered\":{recovered}}}")
}
