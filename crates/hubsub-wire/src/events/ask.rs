//! A request for events.
//!
//! ```text
//! GET /v1/rooms/chat%3Alobby/events?rewind=20
//! Last-Event-ID: EPOCH-SEQ
//! ```

use crate::http::{Refusal, Request, query};
use crate::phoenix::Start;

/// Before the room's name in the path, and behind it.
const AROUND: (&str, &str) = ("/v1/rooms/", "/events");

/// What is asked for. Whether the token is good is the caller's to decide.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Of the path.
    pub topic: Vec<u8>,
    /// What came last, as a browser says it when it comes back; else what the query says.
    pub start: Start,
    /// Of the query.
    pub token: Option<String>,
}

/// The room's name in a path, percent-encoded; none of another path.
#[must_use]
pub fn topic_of(path: &str) -> Option<&str> {
    let name = path.strip_prefix(AROUND.0)?.strip_suffix(AROUND.1)?;
    Some(name).filter(|name| !name.is_empty() && !name.contains('/'))
}

impl Ask {
    /// Reads a request.
    ///
    /// # Errors
    /// It cannot be served, whoever asks.
    pub fn read(request: &Request<'_>) -> Result<Ask, Refusal> {
        let topic = topic_of(request.path).ok_or(Refusal::Path)?;
        if request.method != "GET" {
            return Err(Refusal::Method);
        }
        let topic = query::part(topic).ok_or(Refusal::Topic)?;
        let (mut token, mut rewind, mut after) = (None, None, None);
        for (name, value) in query::pairs(request.query) {
            match name {
                "token" => token = Some(query::value(value).ok_or(Refusal::Token)?),
                "rewind" => rewind = Some(query::value(value).ok_or(Refusal::Rewind)?),
                "after" => after = Some(value),
                _ => {}
            }
        }
        let last = request.field("Last-Event-ID").filter(|id| !id.is_empty());
        let start = match (last.or(after), rewind) {
            // What a browser says when it comes back goes before what its page said when it began.
            (Some(_), Some(_)) if last.is_none() => return Err(Refusal::Both),
            (Some(after), _) => Start::After(after.parse().map_err(|_| Refusal::After)?),
            (None, Some(rewind)) => Start::of_rewind(&rewind).ok_or(Refusal::Rewind)?,
            (None, None) => Start::Live,
        };
        Ok(Ask { topic, start, token })
    }
}
