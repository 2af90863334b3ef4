//! The head of a request.

use super::head::Head;
use super::refusal::Refusal;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    pub method: &'a str,
    /// Without the query; begins with `/`.
    pub path: &'a str,
    pub query: &'a str,
    pub host: &'a str,
    /// Origin of the page in a browser; `None` for other clients.
    pub origin: Option<&'a str>,
    pub len: usize,
    pub body_bytes: u64,
    head: Head<'a>,
}

impl<'a> Request<'a> {
    /// Parses the head at the start of the input; `None` while it is incomplete.
    ///
    /// # Errors
    /// It is no request, or the length of its body is not declared.
    pub fn read(input: &'a [u8]) -> Result<Option<Request<'a>>, Refusal> {
        let Some(head) = Head::read(input)? else { return Ok(None) };
        let (method, target) = head.request_line().ok_or(Refusal::NotHttp)?;
        let host = head.single("Host").filter(|_| target.starts_with('/')).ok_or(Refusal::NotHttp)?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let origin = head.optional("Origin")?;
        if head.values("Transfer-Encoding").next().is_some() {
            return Err(Refusal::NotHttp);
        }
        let length = head.optional("Content-Length")?;
        let body_bytes = length.map_or(Some(0), number).ok_or(Refusal::NotHttp)?;
        Ok(Some(Request { method, path, query, host, origin, len: head.len, body_bytes, head }))
    }

    /// The value of a field that occurs exactly once.
    pub fn field(&self, name: &'static str) -> Option<&'a str> {
        self.head.single(name)
    }

    /// Whether it requests an upgrade, for example to a WebSocket.
    pub fn is_upgrade(&self) -> bool {
        self.head.values("Upgrade").next().is_some()
    }

    /// Whether the client requests that the connection closes after the response.
    pub fn is_last(&self) -> bool {
        self.head.lists("Connection", "close")
    }
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}
