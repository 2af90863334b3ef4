//! From where a channel wants its topic: what a join's payload says of it.
//!
//! ```text
//! {"rewind": 20}   {"rewind": "10s"}   {"after": "EPOCH-SEQ"}
//! ```

use super::decode::members;
use super::json::Reader;
use super::message::Payload;
use hubsub_types::Position;
use std::fmt;

/// From where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Start {
    /// From now on.
    #[default]
    Live,
    /// With so many latest records before it.
    Last(u64),
    /// With what was said in so many ms before it.
    Past {
        /// How long ago.
        ms: u64,
    },
    /// With what came behind that record.
    After(Position),
}

/// Why a join's payload says nothing of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BadStart {
    /// It is neither a count nor a time.
    Rewind,
    /// It is not a position.
    After,
    /// Only one of them can be.
    Both,
}

impl BadStart {
    /// The reason in the reply.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            BadStart::Rewind => "rewind is a count or a time; hint: 20 or \"10s\"",
            BadStart::After => "after is a position; hint: \"EPOCH-SEQ\"",
            BadStart::Both => "either rewind or after",
        }
    }
}

impl fmt::Display for BadStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl std::error::Error for BadStart {}

impl Start {
    /// What a join's payload says. One that is no object says nothing, and
    /// members that are null, or others, are passed over.
    ///
    /// # Errors
    /// A member is not what it should be.
    pub fn read(params: Payload<'_>) -> Result<Start, BadStart> {
        let Payload::Json(text) = params else { return Ok(Start::Live) };
        if !text.starts_with('{') {
            return Ok(Start::Live);
        }
        let (mut rewind, mut after) = (None, None);
        let walked = members(&mut Reader::new(text), |name, reader| {
            let value = reader.value()?;
            match name {
                _ if value == "null" => {}
                "rewind" => rewind = Some(value),
                "after" => after = Some(value),
                _ => {}
            }
            Ok(())
        });
        // A payload was checked; this is for one that was not.
        walked.map_err(|_| BadStart::Rewind)?;
        match (rewind, after) {
            (None, None) => Ok(Start::Live),
            (Some(value), None) => read_rewind(value).ok_or(BadStart::Rewind),
            (None, Some(value)) => read_position(value).map(Start::After).ok_or(BadStart::After),
            (Some(_), Some(_)) => Err(BadStart::Both),
        }
    }

    /// A count, or a time.
    #[must_use]
    pub fn of_rewind(text: &str) -> Option<Start> {
        match text.find(|char: char| !char.is_ascii_digit()) {
            None => text.parse().ok().map(Start::Last),
            Some(unit) => past(text.split_at(unit)),
        }
    }
}

/// A count, or a time as a text.
fn read_rewind(value: &str) -> Option<Start> {
    if !value.starts_with('"') {
        return value.parse().ok().map(Start::Last);
    }
    let text = Reader::new(value).text().ok()?;
    let unit = text.find(|char: char| !char.is_ascii_digit())?;
    past(text.split_at(unit))
}

/// So long ago.
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

/// The response to a join that says where the channel is: at which record it went live, and whether
/// nothing was missed behind what it asked for.
#[must_use]
pub fn joined_at(position: Position, recovered: bool) -> String {
    format!("{{\"position\":\"{position}\",\"recovered\":{recovered}}}")
}
