//! Encodes member lists and changes: as events of a Phoenix channel, and as JSON for MQTT clients. Each is
//! encoded once per shard for all readers of one format, which share the bytes.
//!
//! ```text
//! {"count":2,"members":[{"key":"ann","ref":"RUN.N","meta":{}}]}
//! {"count":2,"joins":[…],"leaves":[…]}
//! ```

use super::rooms::has_more;
use super::state::Told;
use crate::context::encoding::write_event;
use crate::io::questions::Shown;
use hubsub_route::presence::{Member, Seen};
use hubsub_wire::phoenix::{Present, Version, reference_text, word, write_diff, write_members, write_text};

/// A list or change that can be encoded.
pub trait Tells {
    /// The frames for a Phoenix client of that topic.
    fn frames(&self, version: Version, topic: &str) -> Vec<u8>;

    fn json(&self) -> Vec<u8>;
}

impl Tells for Shown {
    fn frames(&self, version: Version, topic: &str) -> Vec<u8> {
        let (mut payload, mut out) = (Vec::new(), Vec::new());
        write_members(&mut presents(&self.members), &mut payload);
        write_event(&mut out, version, topic, word::PRESENCE_STATE, text(&payload));
        if has_more(self) {
            write_count(&mut out, version, topic, self.count);
        }
        out
    }

    fn json(&self) -> Vec<u8> {
        let mut out = format!("{{\"count\":{},\"members\":", self.count).into_bytes();
        write_list(&self.members, &mut out);
        out.push(b'}');
        out
    }
}

impl Tells for Told {
    fn frames(&self, version: Version, topic: &str) -> Vec<u8> {
        let (mut payload, mut out) = (Vec::new(), Vec::new());
        let diff = &self.diff;
        if !diff.joins.is_empty() || !diff.leaves.is_empty() {
            write_diff(&mut presents(&diff.joins), &mut presents(&diff.leaves), &mut payload);
            write_event(&mut out, version, topic, word::PRESENCE_DIFF, text(&payload));
        }
        if self.is_counted {
            write_count(&mut out, version, topic, diff.count);
        }
        out
    }

    fn json(&self) -> Vec<u8> {
        let mut out = format!("{{\"count\":{},\"joins\":", self.diff.count).into_bytes();
        write_list(&self.diff.joins, &mut out);
        out.extend_from_slice(b",\"leaves\":");
        write_list(&self.diff.leaves, &mut out);
        out.push(b'}');
        out
    }
}

fn write_count(out: &mut Vec<u8>, version: Version, topic: &str, count: u64) {
    write_event(out, version, topic, word::PRESENCE_COUNT, &format!("{{\"count\":{count}}}"));
}

fn presents(members: &[Seen]) -> Vec<Present<'_>> {
    let mut presents = Vec::with_capacity(members.len());
    for (run, member) in members {
        let (reference, former) = (member.reference, member.former);
        presents.push(Present { run: *run, reference, former, key: &member.key, meta: meta_of(member) });
    }
    presents
}

/// A member's metadata; bytes of another node that are no JSON become an empty object.
fn meta_of(member: &Member) -> &str {
    std::str::from_utf8(&member.meta).unwrap_or("{}")
}

fn write_list(members: &[Seen], out: &mut Vec<u8>) {
    out.push(b'[');
    for (at, (run, member)) in members.iter().enumerate() {
        let begin = if at == 0 { "{\"key\":" } else { ",{\"key\":" };
        out.extend_from_slice(begin.as_bytes());
        write_text(out, &member.key);
        let reference = reference_text(*run, member.reference);
        let rest = format!(",\"ref\":\"{reference}\",\"meta\":{}}}", meta_of(member));
        out.extend_from_slice(rest.as_bytes());
    }
    out.push(b']');
}

fn text(payload: &[u8]) -> &str {
    std::str::from_utf8(payload).expect("made of texts")
}
