//! Answers.

/// An answer that is whole.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// The status line's code and phrase.
    pub status: &'a str,
    /// Of the body; empty where there is none.
    pub content_type: &'a str,
    /// Further fields, each with its end of line.
    pub fields: &'a str,
    /// The body.
    pub body: &'a [u8],
    /// Whether the connection ends behind it.
    pub is_last: bool,
}

impl Answer<'_> {
    /// Appends it.
    pub fn write(&self, out: &mut Vec<u8>) {
        let Answer { status, content_type, fields, body, is_last } = self;
        let mut head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{fields}", body.len());
        if !content_type.is_empty() {
            head += &format!("Content-Type: {content_type}\r\n");
        }
        head += if *is_last { "Connection: close\r\n\r\n" } else { "\r\n" };
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(body);
    }
}

/// Appends the head of an answer that goes on until the connection ends.
pub fn write_stream_head(out: &mut Vec<u8>, content_type: &str, fields: &str) {
    let head =
        format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: {content_type}\r\n{fields}\r\n");
    out.extend_from_slice(head.as_bytes());
}

/// Appends an error as the REST API has them, `{code, message, hint}`; the connection ends behind it. Its words are
/// the server's own: none has a quote in it.
pub fn write_error(out: &mut Vec<u8>, status: &str, fields: &str, (code, message, hint): (&str, &str, &str)) {
    let body = format!("{{\"code\":\"{code}\",\"message\":\"{message}\",\"hint\":\"{hint}\"}}");
    let content_type = "application/json";
    Answer { status, content_type, fields, body: body.as_bytes(), is_last: true }.write(out);
}
