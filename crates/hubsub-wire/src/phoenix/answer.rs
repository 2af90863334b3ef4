//! A reply whose outcome is not known yet.

use super::encode::{write_reply_head, write_reply_tail};
use super::json;
use super::message::{Payload, Push, Status, Version};

/// The reply to a push, stored until its outcome is known. It stays valid if the channel is gone by then.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    version: Version,
    head: Box<[u8]>,
}

impl Answer {
    pub(super) fn new(version: Version, push: &Push<'_>) -> Answer {
        let mut head = Vec::with_capacity(64 + push.topic.len());
        write_reply_head(&mut head, version, push.join_ref.as_ref(), push.reference.as_ref(), &push.topic);
        Answer { version, head: head.into() }
    }

    /// Appends the reply, a text message: success with a JSON response, or an error with a reason.
    pub fn write(&self, outcome: Result<&str, &str>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head);
        match outcome {
            Ok(response) => write_reply_tail(out, self.version, Status::Ok, Payload::Json(response)),
            Err(why) => {
                write_reply_tail(out, self.version, Status::Error, Payload::Json(&reason(why)));
            }
        }
    }
}

pub(super) fn reason(why: &str) -> String {
    let mut out = b"{\"reason\":".to_vec();
    json::write_text(&mut out, why);
    out.push(b'}');
    String::from_utf8(out).expect("texts around a text")
}
