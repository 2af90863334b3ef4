//! Random packets of all types: a draft owns the data that a packet borrows.

use crate::any_input::VERSIONS;
use hubsub_wire::mqtt::*;
use proptest::prelude::*;

/// Packet types, as in the first byte.
pub const KINDS: std::ops::RangeInclusive<u8> = 1..=15;

/// Random values for packets; each type uses those that it has.
#[derive(Clone, Debug)]
pub struct Draft {
    pub kind: u8,
    pub version: Version,
    /// The sender, if the type does not fix it.
    pub side: Peer,
    pub id: PacketId,
    pub qos: Qos,
    pub flags: [bool; 3],
    pub number: u16,
    pub topic: String,
    pub texts: [String; 2],
    pub payload: Vec<u8>,
    /// Bits of the properties, out of those that its type may have; the second set is for the will.
    pub properties: (u32, u32),
    /// Index into the reasons that its type may have.
    pub reason: usize,
    pub filters: Vec<(String, Options)>,
    pub reasons: Vec<usize>,
}

pub fn draft() -> impl Strategy<Value = Draft> {
    let text = || prop_oneof![4 => "[a-zA-Zäöü€😀]{0,12}", 1 => "[a-z/]{120,180}"];
    let id = (1..=u16::MAX).prop_map(|id| PacketId::new(id).expect("not 0"));
    let qos = (0..3_u8).prop_map(|bits| Qos::from_bits(bits).expect("below 3"));
    let options = (0..3_u8, any::<bool>(), any::<bool>(), 0..3_u8).prop_map(options);
    let filter = prop_oneof![
        3 => "([a-zä€]{0,5}|\\+)(/([a-z]{0,5}|\\+)){1,4}(/#)?",
        1 => "\\$share/[a-z]{1,5}/[a-z]{1,5}(/\\+)?(/#)?",
        1 => Just("#".to_string()),
    ];
    let filters = proptest::collection::vec((filter, options), 1..5);
    let side = prop_oneof![Just(Peer::Client), Just(Peer::Server)];
    let payload = prop_oneof![
        4 => proptest::collection::vec(any::<u8>(), 0..40),
        1 => proptest::collection::vec(any::<u8>(), 100..700),
    ];
    let head = (KINDS, proptest::sample::select(VERSIONS.to_vec()), side, id, qos, any::<[bool; 3]>());
    let values = (any::<u16>(), "[a-zäöü/$ €]{1,30}", [text(), text()], payload);
    let choices =
        (any::<(u32, u32)>(), any::<usize>(), filters, proptest::collection::vec(any::<usize>(), 1..5));
    (head, values, choices).prop_map(|(head, values, choices)| {
        let (kind, version, side, id, qos, flags) = head;
        let (number, topic, texts, payload) = values;
        let (properties, reason, filters, reasons) = choices;
        let version = if kind == 15 { Version::V5 } else { version };
        let side = if kind == 14 && version < Version::V5 { Peer::Client } else { side };
        Draft {
            kind,
            version,
            side,
            id,
            qos,
            flags,
            number,
            topic,
            texts,
            payload,
            properties,
            reason,
            filters,
            reasons,
        }
    })
}

fn options((qos, no_local, retain_as_published, handling): (u8, bool, bool, u8)) -> Options {
    let qos = Qos::from_bits(qos).expect("below 3");
    let all = [RetainHandling::Send, RetainHandling::SendIfNew, RetainHandling::DoNotSend];
    Options { qos, no_local, retain_as_published, retain_handling: all[usize::from(handling)] }
}

impl Draft {
    /// The sender of such a packet.
    pub fn from(&self) -> Peer {
        match self.kind {
            1 | 8 | 10 | 12 => Peer::Client,
            2 | 9 | 11 | 13 => Peer::Server,
            _ => self.side,
        }
    }

    /// Passes the packet to a function.
    pub fn with<R>(&self, then: impl FnOnce(Packet<'_>) -> R) -> R {
        let v5 = self.version == Version::V5;
        let of_client = self.from() == Peer::Client;
        let (properties, will_properties) = if v5 { self.property_lists() } else { Default::default() };
        let (id, properties) = (self.id, properties.as_properties());
        let session = self.flags[0] && self.version > Version::V31;
        let reason = |carrier| self.reason_of(carrier, self.reason);
        let ack = |carrier| Ack { id, reason: reason(carrier), properties };
        let carrier = |client, server| if of_client { client } else { server };
        let mut raw = Vec::new();
        then(match self.kind {
            1 => {
                let will = self.flags[0].then(|| Will {
                    topic: &self.topic,
                    payload: &self.payload,
                    qos: self.qos,
                    retain: self.flags[1],
                    properties: will_properties.as_properties(),
                });
                let credentials = self.number % 3;
                let user_name = (credentials > 0).then_some(&self.texts[1][..]);
                let password = (credentials > 1).then_some(&self.payload[..]);
                let (version, client_id) = (self.version, &self.texts[0][..]);
                let (clean_start, keep_alive_s) = (self.flags[2], self.number);
                Packet::Connect(Connect {
                    version,
                    clean_start,
                    keep_alive_s,
                    client_id,
                    will,
                    user_name,
                    password,
                    properties,
                })
            }
            2 => {
                let reason = reason(Carrier::CONNACK);
                let session_present = session && reason == Reason::Success;
                Packet::Connack(Connack { session_present, reason, properties })
            }
            3 => Packet::Publish(Publish {
                dup: self.flags[0] && self.qos > Qos::AtMostOnce,
                qos: self.qos,
                retain: self.flags[1],
                topic: &self.topic,
                id: (self.qos > Qos::AtMostOnce).then_some(id),
                properties,
                payload: &self.payload,
            }),
            4 => Packet::Puback(ack(Carrier::RECEIVED)),
            5 => Packet::Pubrec(ack(Carrier::RECEIVED)),
            6 => Packet::Pubrel(ack(Carrier::RELEASED)),
            7 => Packet::Pubcomp(ack(Carrier::RELEASED)),
            8 => {
                for (filter, options) in &self.filters {
                    let no_local = options.no_local && v5 && shared(filter).is_none();
                    let full = Options { no_local, ..*options };
                    let options = if v5 { full } else { Options { qos: options.qos, ..Options::default() } };
                    Filters::push(&mut raw, filter, options).expect("short");
                }
                let filters = Filters::new(&raw, self.version).expect("valid");
                Packet::Subscribe(Subscribe { id, properties, filters })
            }
            9 => {
                raw.extend(self.reasons.iter().map(|&nth| self.reason_of(Carrier::SUBACK, nth).number()));
                let reasons = Reasons::new(&raw, Carrier::SUBACK).expect("valid");
                Packet::Suback(Suback { id, properties, reasons })
            }
            10 => {
                self.filters.iter().for_each(|(filter, _)| Names::push(&mut raw, filter).expect("short"));
                let filters = Names::new(&raw).expect("valid");
                Packet::Unsubscribe(Unsubscribe { id, properties, filters })
            }
            11 => {
                let reasons = self.reasons.iter().map(|&nth| self.reason_of(Carrier::UNSUBACK, nth).number());
                raw.extend(reasons.filter(|_| v5));
                let reasons = Reasons::new(&raw, Carrier::UNSUBACK).expect("valid");
                Packet::Unsuback(Unsuback { id, properties, reasons })
            }
            12 => Packet::Pingreq,
            13 => Packet::Pingresp,
            14 => {
                let reason = reason(carrier(Carrier::CLIENT_DISCONNECT, Carrier::SERVER_DISCONNECT));
                Packet::Disconnect(Disconnect { reason, properties })
            }
            _ => {
                let reason = reason(carrier(Carrier::CLIENT_AUTH, Carrier::SERVER_AUTH));
                Packet::Auth(Auth { reason, properties })
            }
        })
    }

    /// Encodes the packet in its version.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.with(|packet| packet.write(&mut out, self.version, usize::MAX)).expect("short enough");
        out
    }

    /// The nth reason that fits the carrier and the version.
    fn reason_of(&self, carrier: Carrier, nth: usize) -> Reason {
        let fits = |reason: &Reason| match self.version {
            Version::V5 => reason.fits(carrier),
            _ if carrier == Carrier::CONNACK => {
                Reason::from_connect_return(reason.connect_return()) == Some(*reason)
            }
            Version::V31 => carrier == Carrier::SUBACK && reason.fits(carrier) && !reason.is_failure(),
            _ => carrier == Carrier::SUBACK && reason.suback_number(self.version) == reason.number(),
        };
        let all: Vec<Reason> =
            Reason::ALL.iter().copied().filter(|reason| fits(reason) && reason.fits(carrier)).collect();
        if all.is_empty() { Reason::Success } else { all[nth % all.len()] }
    }

    fn property_lists(&self) -> (PropertyList, PropertyList) {
        let place = match self.kind {
            1 => Place::CONNECT,
            2 => Place::CONNACK,
            3 if self.from() == Peer::Client => Place::CLIENT_PUBLISH,
            3 => Place::SERVER_PUBLISH,
            4..=7 | 9 | 11 => Place::ACK,
            8 => Place::SUBSCRIBE,
            10 => Place::UNSUBSCRIBE,
            14 if self.from() == Peer::Client => Place::CLIENT_DISCONNECT,
            14 => Place::SERVER_DISCONNECT,
            _ => Place::AUTH,
        };
        (self.list(place, self.properties.0), self.list(Place::WILL, self.properties.1))
    }

    /// The properties of the place whose bit is set; for AUTH always the method.
    fn list(&self, place: Place, chosen: u32) -> PropertyList {
        let mut list = PropertyList::default();
        for (nth, property) in self.candidates().into_iter().filter(|p| p.fits(place)).enumerate() {
            // AUTH must have a method, and data is allowed only with one.
            let auth = matches!(property, Property::AuthMethod(_) | Property::AuthData(_));
            if chosen & (1 << (nth % 32)) != 0 && !auth || auth && place != Place::CONNECT {
                list.push(property).expect("short");
            }
        }
        list
    }

    fn candidates(&self) -> Vec<Property<'_>> {
        let [a, b] = &self.texts;
        let (flag, number) = (self.flags[0], u32::from(self.number) + 1);
        let id = SubscriptionId::new(number * 4_000).expect("in range");
        let user = |name, value| Property::User(Pair { name, value });
        vec![
            user(a, b),
            Property::AuthMethod(a),
            Property::AuthData(&self.payload),
            Property::PayloadFormat(flag),
            Property::MessageExpiry(number),
            Property::ContentType(a),
            Property::ResponseTopic(&self.topic),
            Property::CorrelationData(&self.payload),
            Property::SubscriptionId(id),
            Property::SessionExpiry(number),
            Property::AssignedClientId(b),
            Property::ServerKeepAlive(self.number),
            Property::RequestProblemInfo(flag),
            Property::WillDelay(number),
            Property::RequestResponseInfo(flag),
            Property::ResponseInfo(a),
            Property::ServerReference(b),
            Property::ReasonString(a),
            Property::ReceiveMaximum(self.id.get()),
            Property::TopicAliasMaximum(self.number),
            Property::TopicAlias(self.id.get()),
            Property::MaximumQos(flag),
            Property::RetainAvailable(flag),
            Property::MaximumPacketSize(number),
            Property::WildcardAvailable(flag),
            Property::SubscriptionIdsAvailable(flag),
            Property::SharedAvailable(flag),
            user(b, a),
        ]
    }
}
