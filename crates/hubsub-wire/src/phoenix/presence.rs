//! Members of a room in the format of Phoenix's `Presence` library, and the presence request of a join.
//!
//! ```text
//! {"presence": true}   {"presence": {"key": "ann", "meta": {"name": "Ann"}}}
//! presence_state  {"ann": {"metas": [{"name": "Ann", "phx_ref": "RUN.N"}]}}
//! presence_diff   {"joins": {…}, "leaves": {…}}        presence_count  {"count": 12000}
//! ```

use super::decode::each_member;
use super::join::BadJoin;
use super::json::{Reader, write_text};
use super::message::Payload;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PresenceRequest {
    /// The member that the client becomes; `None`: it only watches members.
    pub member: Option<Member>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Must not be empty.
    pub key: Box<str>,
    /// The client's own data: an encoded JSON object.
    pub meta: Box<str>,
}

impl PresenceRequest {
    /// Parses a join's payload; `None` without a presence request, or if it is null or false.
    ///
    /// # Errors
    /// A member is invalid.
    pub fn read(params: Payload<'_>) -> Result<Option<PresenceRequest>, BadJoin> {
        let Payload::Json(text) = params else { return Ok(None) };
        if !text.starts_with('{') {
            return Ok(None);
        }
        let mut presence = None;
        each_member(text, |name, value| {
            if name == "presence" {
                presence = Some(value);
            }
        })
        .map_err(|_| BadJoin::Presence)?;
        match presence {
            None | Some("null" | "false") => Ok(None),
            Some("true") => Ok(Some(PresenceRequest { member: None })),
            Some(object) if object.starts_with('{') => {
                Member::read(object).map(|member| Some(PresenceRequest { member: Some(member) }))
            }
            Some(_) => Err(BadJoin::Presence),
        }
    }
}

impl Member {
    fn read(object: &str) -> Result<Member, BadJoin> {
        let (mut key, mut meta) = (None, "{}");
        each_member(object, |name, value| match name {
            "key" => key = Some(value),
            "meta" if value != "null" => meta = value,
            _ => {}
        })
        .map_err(|_| BadJoin::Presence)?;
        let key = key.and_then(|key| Reader::new(key).text().ok()).filter(|key| !key.is_empty());
        if !meta.starts_with('{') {
            return Err(BadJoin::Meta);
        }
        Ok(Member { key: key.ok_or(BadJoin::Key)?.into(), meta: meta.into() })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Present<'a> {
    pub run: u64,
    pub reference: u64,
    /// The number before its last update; 0: there was none.
    pub former: u64,
    pub key: &'a str,
    /// An encoded JSON object.
    pub meta: &'a str,
}

/// A unique name of a member, from the run of its node and its own number.
#[must_use]
pub fn reference_text(run: u64, reference: u64) -> String {
    format!("{run:x}.{reference:x}")
}

/// Appends the payload of `presence_state`, or a half of a diff: members grouped by key, ordered by key.
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

pub fn write_diff(joins: &mut [Present<'_>], leaves: &mut [Present<'_>], out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"joins\":");
    write_members(joins, out);
    out.extend_from_slice(b",\"leaves\":");
    write_members(leaves, out);
    out.push(b'}');
}

impl Present<'_> {
    /// Its meta, followed by its references: of two members with one name the last counts.
    fn write(&self, out: &mut Vec<u8>) {
        let meta = self.meta.trim_end().strip_suffix('}').unwrap_or("{").trim_end();
        out.extend_from_slice(meta.as_bytes());
        if !meta.ends_with('{') {
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
