//! Who is in a room, as the library's `Presence` reads it, and how a page says who it is.
//!
//! ```text
//! {"presence": true}   {"presence": {"key": "ann", "meta": {"name": "Ann"}}}
//! presence_state  {"ann": {"metas": [{"name": "Ann", "phx_ref": "RUN.N"}]}}
//! presence_diff   {"joins": {…}, "leaves": {…}}        presence_count  {"count": 12000}
//! ```

use super::decode::members;
use super::json::{Reader, write_text};
use super::message::Payload;
use std::fmt;

/// What a join says of presence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Who is a member from then on; none: it is only told who is.
    pub who: Option<Who>,
}

/// Who a member is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Who {
    /// Its key: not empty.
    pub key: Box<str>,
    /// What it says of itself: an object of JSON, as it came.
    pub meta: Box<str>,
}

/// Why a join's payload says nothing of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BadWanted {
    /// It is neither true nor an object.
    Presence,
    /// There is no key, or it is no text.
    Key,
    /// The meta is no object.
    Meta,
}

impl BadWanted {
    /// The reason in the reply.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            BadWanted::Presence => "presence is true or an object; hint: {\"key\": \"ann\"}",
            BadWanted::Key => "presence needs a key, which is a text; hint: {\"key\": \"ann\"}",
            BadWanted::Meta => "the meta of presence is an object",
        }
    }
}

impl fmt::Display for BadWanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl std::error::Error for BadWanted {}

impl Wanted {
    /// What a join's payload says; none where it says nothing of it, or null, or false.
    ///
    /// # Errors
    /// A member is not what it should be.
    pub fn read(params: Payload<'_>) -> Result<Option<Wanted>, BadWanted> {
        let Payload::Json(text) = params else { return Ok(None) };
        if !text.starts_with('{') {
            return Ok(None);
        }
        let mut presence = None;
        let walked = members(&mut Reader::new(text), |name, reader| {
            let value = reader.value()?;
            if name == "presence" {
                presence = Some(value);
            }
            Ok(())
        });
        walked.map_err(|_| BadWanted::Presence)?;
        match presence {
            None | Some("null" | "false") => Ok(None),
            Some("true") => Ok(Some(Wanted { who: None })),
            Some(object) if object.starts_with('{') => Ok(Some(Wanted { who: Some(Who::read(object)?) })),
            Some(_) => Err(BadWanted::Presence),
        }
    }
}

impl Who {
    fn read(object: &str) -> Result<Who, BadWanted> {
        let (mut key, mut meta) = (None, "{}");
        let walked = members(&mut Reader::new(object), |name, reader| {
            let value = reader.value()?;
            match name {
                "key" => key = Some(value),
                "meta" if value != "null" => meta = value,
                _ => {}
            }
            Ok(())
        });
        walked.map_err(|_| BadWanted::Presence)?;
        let key = key.and_then(|key| Reader::new(key).text().ok()).filter(|key| !key.is_empty());
        if !meta.starts_with('{') {
            return Err(BadWanted::Meta);
        }
        Ok(Who { key: key.ok_or(BadWanted::Key)?.into(), meta: meta.into() })
    }
}

/// A member as it is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Present<'a> {
    /// Of its node.
    pub run: u64,
    /// Of the member, on its node.
    pub reference: u64,
    /// What that was before it said something else of itself; 0: it has not.
    pub former: u64,
    /// Its key.
    pub key: &'a str,
    /// An object of JSON.
    pub meta: &'a str,
}

/// What a member is called that no other one ever is, by the run of its node and its own reference.
#[must_use]
pub fn reference_text(run: u64, reference: u64) -> String {
    format!("{run:x}.{reference:x}")
}

/// The payload of `presence_state`, or a half of a diff: members by key, in the order of keys. Appends it.
pub fn write_members(members: &mut [Present<'_>], out: &mut Vec<u8>) {
    members.sort_by(|a, b| (a.key, a.run, a.reference).cmp(&(b.key, b.run, b.reference)));
    out.push(b'{');
    for (at, of_key) in members.chunk_by(|a, b| a.key == b.key).enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write_text(out, of_key[0].key);
        out.extend_from_slice(b":{\"metas\":[");
        for (at, member) in of_key.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            member.write(out);
        }
        out.extend_from_slice(b"]}");
    }
    out.push(b'}');
}

/// The payload of `presence_diff`. Appends it.
pub fn write_diff(joins: &mut [Present<'_>], leaves: &mut [Present<'_>], out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"joins\":");
    write_members(joins, out);
    out.extend_from_slice(b",\"leaves\":");
    write_members(leaves, out);
    out.push(b'}');
}

impl Present<'_> {
    /// Its meta, with its references behind what it says itself: the last of two members of one name counts.
    fn write(&self, out: &mut Vec<u8>) {
        let said = self.meta.trim_end().strip_suffix('}').unwrap_or("{").trim_end();
        out.extend_from_slice(said.as_bytes());
        if !said.ends_with('{') {
            out.push(b',');
        }
        let of = |reference| reference_text(self.run, reference);
        out.extend_from_slice(format!("\"phx_ref\":\"{}\"", of(self.reference)).as_bytes());
        if self.former > 0 {
            out.extend_from_slice(format!(",\"phx_ref_prev\":\"{}\"", of(self.former)).as_bytes());
        }
        out.push(b'}');
    }
}
