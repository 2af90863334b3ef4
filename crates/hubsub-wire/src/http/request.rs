//! A request's head.

use super::head::Head;
use super::refusal::Refusal;

/// A request, as far as its head says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// Its method, in capitals.
    pub method: &'a str,
    /// Without its query; begins with `/`.
    pub path: &'a str,
    /// Behind the `?`; empty where there is none.
    pub query: &'a str,
    /// The server as the client calls it.
    pub host: &'a str,
    /// The page that a browser runs; none of other clients.
    pub origin: Option<&'a str>,
    /// Bytes of the head.
    pub len: usize,
    /// Bytes of the body behind it.
    pub body_bytes: u64,
    head: Head<'a>,
}

impl<'a> Request<'a> {
    /// Reads the head that the input begins with; none while it is not whole.
    ///
    /// # Errors
    /// It is no request, or one whose body has no length that it says.
    pub fn read(input: &'a [u8]) -> Result<Option<Request<'a>>, Refusal> {
        let Some(head) = Head::read(input)? else { return Ok(None) };
        let mut words = head.first.split(' ');
        let (Some(method), Some(target), Some("HTTP/1.1"), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(Refusal::NotHttp);
        };
        let host = head.single("Host").filter(|_| target.starts_with('/')).ok_or(Refusal::NotHttp)?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut origins = head.values("Origin");
        let origin = origins.next();
        if origins.next().is_some() {
            return Err(Refusal::NotHttp);
        }
        if head.values("Transfer-Encoding").next().is_some() {
            return Err(Refusal::NotHttp);
        }
        let body_bytes = match head.values("Content-Length").next() {
            None => 0,
            Some(_) => head.single("Content-Length").and_then(number).ok_or(Refusal::NotHttp)?,
        };
        Ok(Some(Request { method, path, query, host, origin, len: head.len, body_bytes, head }))
    }

    /// The value of a field that is there once.
    #[must_use]
    pub fn field(&self, name: &'static str) -> Option<&'a str> {
        self.head.single(name)
    }

    /// Whether it asks to become something else, such as a WebSocket.
    #[must_use]
    pub fn is_upgrade(&self) -> bool {
        self.head.values("Upgrade").next().is_some()
    }

    /// Whether the client wants no other request answered on this connection.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.head.lists("Connection", "close")
    }
}

/// A length: digits and nothing else.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}
