//! HTTP responses.

#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    pub status: &'a str,
    /// Type of the body; empty if there is none.
    pub content_type: &'a str,
    /// Further header fields, each with its line end.
    pub fields: &'a str,
    pub body: &'a [u8],
    pub is_last: bool,
}

impl Answer<'_> {
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

/// Appends the head of a response that continues until the connection ends.
pub fn write_stream_head(out: &mut Vec<u8>, content_type: &str, fields: &str) {
    let head =
        format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: {content_type}\r\n{fields}\r\n");
    out.extend_from_slice(head.as_bytes());
}

/// Appends an error in the format of the REST API, `{code, message, hint}`; the connection closes after it.
/// The texts are constants of the server without quotes.
pub fn write_error(out: &mut Vec<u8>, status: &str, fields: &str, (code, message, hint): (&str, &str, &str)) {
    let body = format!("{{\"code\":\"{code}\",\"message\":\"{message}\",\"hint\":\"{hint}\"}}");
    let content_type = "application/json";
    Answer { status, content_type, fields, body: body.as_bytes(), is_last: true }.write(out);
}
