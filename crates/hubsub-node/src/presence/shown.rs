//! What is told of members: as events of a page's channel, and as JSON for MQTT clients. A change is encoded once for all
//! that read it alike.
//!
//! ```text
//! {"count":2,"members":[{"key":"ann","ref":"RUN.N","meta":{}}]}
//! {"count":2,"joins":[…],"leaves":[…]}
//! ```

use super::{Shown, Told};
use crate::phoenix::write_event;
use hubsub_route::presence::{Member, Seen};
use hubsub_wire::phoenix::{Present, Version, reference_text, word, write_diff, write_members, write_text};
use std::sync::Arc;

/// One change, in each form in which it was asked for: most rooms have one topic.
#[derive(Default)]
pub struct Forms {
    frames: Vec<(Version, Arc<str>, Vec<u8>)>,
    json: Option<Vec<u8>>,
}

impl Forms {
    /// As all pages of a topic are told.
    pub fn frames(&mut self, version: Version, topic: &Arc<str>, told: &Told) -> &[u8] {
        let is_it = |(of, at, _): &(Version, Arc<str>, Vec<u8>)| *of == version && at == topic;
        let at = self.frames.iter().position(is_it).unwrap_or_else(|| {
            self.frames.push((version, topic.clone(), change_frames(version, topic, told)));
            self.frames.len() - 1
        });
        &self.frames[at].2
    }

    /// As all MQTT clients are.
    pub fn json(&mut self, told: &Told) -> &[u8] {
        self.json.get_or_insert_with(|| {
            let mut out = format!("{{\"count\":{},\"joins\":", told.diff.count).into_bytes();
            write_list(&told.diff.joins, &mut out);
            out.extend_from_slice(b",\"leaves\":");
            write_list(&told.diff.leaves, &mut out);
            out.push(b'}');
            out
        })
    }
}

/// Who is there, as a page is told that joins.
pub fn state_frames(version: Version, topic: &str, shown: &Shown) -> Vec<u8> {
    let (mut payload, mut out) = (Vec::new(), Vec::new());
    write_members(&mut presents(&shown.members), &mut payload);
    write_event(&mut out, version, topic, word::PRESENCE_STATE, text(&payload));
    if super::has_more(shown) {
        write_count(&mut out, version, topic, shown.count);
    }
    out
}

/// Likewise an MQTT client.
pub fn state_json(shown: &Shown) -> Vec<u8> {
    let mut out = format!("{{\"count\":{},\"members\":", shown.count).into_bytes();
    write_list(&shown.members, &mut out);
    out.push(b'}');
    out
}

fn change_frames(version: Version, topic: &str, told: &Told) -> Vec<u8> {
    let (mut payload, mut out) = (Vec::new(), Vec::new());
    let diff = &told.diff;
    if !diff.joins.is_empty() || !diff.leaves.is_empty() {
        write_diff(&mut presents(&diff.joins), &mut presents(&diff.leaves), &mut payload);
        write_event(&mut out, version, topic, word::PRESENCE_DIFF, text(&payload));
    }
    if told.is_counted {
        write_count(&mut out, version, topic, diff.count);
    }
    out
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

/// What a member says of itself: what another node says is no JSON counts as nothing.
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
