//! A request for events.
//!
//! ```text
//! GET /v1/rooms/chat%3Alobby/events?rewind=20
//! Last-Event-ID: EPOCH-SEQ
//! ```

use crate::http::{Refusal, Request, query};
use crate::phoenix::Start;

const AROUND: (&str, &str) = ("/v1/rooms/", "/events");

/// A parsed request. The caller validates the token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventsRequest {
    /// Decoded name from the path.
    pub topic: Vec<u8>,
    /// From `Last-Event-ID`, which browsers send when they reconnect; else from the query.
    pub start: Start,
    pub token: Option<String>,
}

/// The percent-encoded name of the room in a path; `None` for any other path.
#[must_use]
pub fn topic_of(path: &str) -> Option<&str> {
    let name = path.strip_prefix(AROUND.0)?.strip_suffix(AROUND.1)?;
    Some(name).filter(|name| !name.is_empty() && !name.contains('/'))
}

impl EventsRequest {
    /// Parses the head of a request.
    ///
    /// # Errors
    /// It cannot be served to any client.
    pub fn read(request: &Request<'_>) -> Result<EventsRequest, Refusal> {
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
            // The header of a reconnecting browser takes precedence over the original query of its page.
            (Some(_), Some(_)) if last.is_none() => return Err(Refusal::Both),
            (Some(after), _) => Start::After(after.parse().map_err(|_| Refusal::After)?),
            (None, Some(rewind)) => Start::of_rewind(&rewind).ok_or(Refusal::Rewind)?,
            (None, None) => Start::Live,
        };
        Ok(EventsRequest { topic, start, token })
    }
}
