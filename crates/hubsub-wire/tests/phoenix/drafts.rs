//! Random messages of either side, by proptest.

use crate::json_tests::value;
use hubsub_wire::phoenix::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::borrow::Cow;

/// A message that owns its content.
#[derive(Clone, Debug)]
pub struct Draft {
    join_ref: Option<String>,
    reference: Option<String>,
    topic: String,
    event: String,
    json: String,
    binary: Option<Vec<u8>>,
    status: Option<bool>,
}

pub fn draft() -> impl Strategy<Value = Draft> {
    let refs = || proptest::option::of("[0-9]{1,5}|.{1,8}");
    (
        refs(),
        refs(),
        ".{0,40}",
        ".{0,20}",
        value(),
        proptest::option::of(vec(any::<u8>(), 0..20)),
        any::<Option<bool>>(),
    )
        .prop_map(|(join_ref, reference, topic, event, json, binary, status)| Draft {
            join_ref,
            reference,
            topic,
            event: if event == word::REPLY { String::new() } else { event },
            json: json.to_string(),
            binary,
            status,
        })
}

impl Draft {
    fn payload(&self) -> Payload<'_> {
        self.binary.as_deref().map_or(Payload::Json(&self.json), Payload::Binary)
    }

    fn refs(&self) -> [Option<Ref<'_>>; 2] {
        let of = |text: &'_ Option<String>| text.clone().map(|text| Ref::new(text).expect("short"));
        [of(&self.join_ref), of(&self.reference)]
    }

    /// The message as a client's push.
    pub fn push(&self) -> Push<'_> {
        let [join_ref, reference] = self.refs();
        let (topic, event) = (Cow::Borrowed(&*self.topic), Cow::Borrowed(&*self.event));
        Push { join_ref, reference, topic, event, payload: self.payload() }
    }

    /// The message as a server's; its binary pushes have no ref.
    pub fn message(&self) -> Message<'_> {
        let push = self.push();
        let Some(ok) = self.status else {
            let reference = push.reference.filter(|_| self.binary.is_none());
            return Message::Push(Push { reference, ..push });
        };
        let Push { join_ref, reference, topic, payload: response, .. } = push;
        let status = if ok { Status::Ok } else { Status::Error };
        Message::Reply(Reply { join_ref, reference, topic, status, response })
    }
}
