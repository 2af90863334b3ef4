//! Records as PUBLISH packets. A record is encoded once for all clients of a shard with the same version and
//! QoS, and without subscription identifiers and aliases. Packets of QoS 1 and 2 are copies with their own
//! id; a long payload is shared apart from its head.
//!
//! Invariant: a packet id is assigned when the packet is written, not before.

use super::client::Client;
use super::delivery::Way;
use super::gaps::Gaps;
use super::message::{Content, Message};
use super::persistence::Under;
use super::session::Sent;
use crate::machine::{Grant, write_headers};
use hubsub_types::Qos;
use hubsub_types::shared::Shared;
use hubsub_wire::mqtt::{
    Encoded, Pair, Property, PropertyList, Publish, Version, write_publish, write_publish_head,
};
use std::rc::Rc;

/// Payloads of this size and more are shared, in bytes.
pub(crate) const PAYLOAD_SHARED: usize = 16 * 1024;

/// Arena size above which a packet for a single client is written at once, in bytes.
pub const ARENA_BYTES_MAX: usize = 4 * 256 * 1024;

/// Shared encodings of a record: three QoS, with and without properties, with and without RETAIN.
const VARIANTS: usize = 12;

#[derive(Default)]
pub struct Encodings {
    is_used: bool,
    packets: [Option<Encoded>; VARIANTS],
    /// Index 0: before 5.0, 1: 5.0.
    plain: [Option<(u32, u32)>; 2],
    message: Option<Rc<Message>>,
}

impl Encodings {
    #[inline]
    pub fn begin(&mut self) {
        if self.is_used {
            *self = Encodings::default();
        }
    }

    /// The QoS 0 packet of most clients of a version, if any, as a range of the arena; `make` creates it.
    #[inline]
    pub fn plain(&mut self, version: usize, make: impl FnOnce() -> Option<(u32, u32)>) -> Option<(u32, u32)> {
        if self.plain[version].is_none() {
            self.is_used = true;
            self.plain[version] = make();
        }
        self.plain[version]
    }

    /// The current record, to be queued by several clients.
    pub fn message(&mut self, content: &Content<'_>) -> Rc<Message> {
        self.is_used = true;
        Rc::clone(self.message.get_or_insert_with(|| Rc::new(content.keep())))
    }
}

pub struct Outgoing<'a> {
    pub content: &'a Content<'a>,
    pub grant: &'a Grant,
    /// The message, if it was queued; else it is the current record.
    pub queued: Option<&'a Rc<Message>>,
    pub way: Way<'a>,
    pub under: Option<Under>,
}

pub struct Outcome {
    /// True if no acknowledgement will come.
    pub is_final: bool,
    /// The packet; none if the record has expired, or is longer than the client accepts.
    pub packet: Option<WrittenPacket>,
}

pub struct WrittenPacket {
    pub start: usize,
    pub end: usize,
    /// The payload after the range, if it is shared.
    pub payload: Option<Shared>,
    pub is_cached: bool,
    /// True if it reports gaps, of which then none is left.
    pub reports_gaps: bool,
}

const POSITION: &str = "hubsub-position";

/// The user property that reports a gap: first and last missing record, and topic or filter.
const GAP: &str = "hubsub-gap";

impl Client {
    /// Writes a record as a packet, to the end of the arena or as a range that other clients get too.
    pub fn send(
        &mut self,
        outgoing: &Outgoing<'_>,
        cache: &mut Encodings,
        arena: &mut Vec<u8>,
        now_us: u64,
    ) -> Outcome {
        let &Outgoing { content, grant, queued, way: Way { group, counted }, under } = outgoing;
        let is_expired = under.is_none() && content.is_expired(now_us);
        let is_final = grant.qos == Qos::AtMostOnce || is_expired;
        if is_expired {
            self.session.iter_mut().for_each(|session| session.done(counted, content));
            return Outcome { is_final, packet: None };
        }
        let id = match (grant.qos, under) {
            (Qos::AtMostOnce, _) => None,
            (_, Some(Under { id, .. })) => Some(id),
            (qos, None) => {
                let key = self.session.as_mut().map_or(0, |session| session.next_key());
                if let Some(session) = &mut self.session {
                    let message = queued.map_or_else(|| cache.message(content), Rc::clone);
                    session.send(key, Sent { message, grant: grant.clone(), counted, is_recorded: false });
                }
                Some(self.machine.window.send(qos, key).expect("the window was looked at"))
            }
        };
        let version = self.machine.version();
        let retain = content.retain && grant.retain;
        let variant =
            grant.qos as usize + if version >= Version::V5 { 3 } else { 0 } + if retain { 6 } else { 0 };
        let is_alone = !self.machine.own_aliases.is_empty()
            || !grant.ids.is_empty()
            || !self.gaps.is_empty()
            || self.reports_positions;
        let packet_bytes_max = self.machine.packet_bytes_max();
        let is_shared = content.payload.len() >= PAYLOAD_SHARED;
        let start = arena.len();
        let made = cache.packets[variant].filter(|_| !is_alone && !is_shared && queued.is_none());
        let mut reports_gaps = false;
        let range = match made {
            Some(made) if made.end - made.start > packet_bytes_max => None,
            Some(made) => match id {
                None => Some((made.start, made.end)),
                Some(id) => {
                    arena.extend_from_within(made.start..made.end);
                    let shift = start - made.start;
                    let copy = Encoded { start, end: arena.len(), id_at: made.id_at.map(|at| at + shift) };
                    copy.patch(arena, id, false);
                    Some((copy.start, copy.end))
                }
            },
            None => {
                let (properties, is_alone) = self.properties(content, grant, now_us);
                let aliases = &mut self.machine.own_aliases;
                let is_known = !aliases.is_empty() && aliases.find(content.topic).is_some();
                let publish = Publish {
                    dup: under.is_some_and(|under| under.dup),
                    qos: grant.qos,
                    retain,
                    topic: if is_known { "" } else { content.topic },
                    id,
                    properties: properties.as_properties(),
                    payload: if is_shared { &[] } else { content.payload },
                };
                let written = if is_shared {
                    write_publish_head(arena, version, &publish, content.payload.len(), packet_bytes_max)
                } else {
                    write_publish(arena, version, &publish, packet_bytes_max)
                };
                written.ok().map(|written| {
                    if !aliases.is_empty() && !is_known && aliases.free().is_some() {
                        aliases.sent(content.topic);
                    }
                    reports_gaps = !self.gaps.is_empty();
                    self.gaps = Gaps::default();
                    if !is_alone && !is_shared && queued.is_none() {
                        cache.is_used = true;
                        cache.packets[variant] = Some(written);
                    }
                    (written.start, written.end)
                })
            }
        };
        let Some((start, end)) = range else {
            // The client accepts no packet of this length: treated as sent (section 3.1.2.11.4 of 5.0).
            if let Some(id) = id {
                self.machine.window.unsend(id);
                if let Some(session) = &mut self.session {
                    session.ended(under.map_or_else(|| session.last_key(), |under| under.key));
                }
            }
            return Outcome { is_final, packet: None };
        };
        if let Some((group, id)) = group.zip(id) {
            let message = queued.map_or_else(|| cache.message(content), Rc::clone);
            self.shares.get_or_insert_default().sent(id, group, message, grant.qos);
        } else if let Some((shares, id)) = self.shares.as_mut().zip(id) {
            shares.ended(id);
        }
        if let Some(id) = id {
            self.sends_action(id, content);
        }
        let payload = is_shared.then(|| match queued {
            Some(message) => message.payload().clone(),
            None => cache.message(content).payload().clone(),
        });
        let is_cached = cache.packets[variant].is_some_and(|made| made.start == start);
        Outcome { is_final, packet: Some(WrittenPacket { start, end, payload, is_cached, reports_gaps }) }
    }

    /// The properties of a packet, and whether they are specific to this client.
    fn properties(&self, content: &Content<'_>, grant: &Grant, now_us: u64) -> (PropertyList, bool) {
        let mut list = PropertyList::default();
        if self.machine.version() < Version::V5 {
            return (list, false);
        }
        let mut push = |property| list.push(property).expect("numbers and short texts fit");
        let aliases = &self.machine.own_aliases;
        let alias =
            if aliases.is_empty() { None } else { aliases.find(content.topic).or_else(|| aliases.free()) };
        alias.into_iter().for_each(|alias| push(Property::TopicAlias(alias)));
        grant.ids.iter().for_each(|&id| push(Property::SubscriptionId(id)));
        let position = self.reports_positions.then(|| content.position.to_string());
        position.iter().for_each(|position| push(Property::User(Pair { name: POSITION, value: position })));
        for text in self.gaps.texts() {
            // The topic may be too long for a property.
            let _ = list.push(Property::User(Pair { name: GAP, value: text }));
        }
        let is_alone = !list.as_properties().is_empty();
        write_headers(content.headers, content.age_s(now_us), &mut list);
        (list, is_alone)
    }
}
