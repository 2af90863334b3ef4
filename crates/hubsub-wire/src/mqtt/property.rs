//! The properties of MQTT 5.0 (section 2.2.2): which there are, what each may
//! be, and which packets have them.
//!
//! They stay as they came: a length, then an identifier and a value each, in
//! any order. Decoding checks all of them once; who needs them walks them.

use super::encode::EncodeError;
use super::error::Flaw;
use super::field::{Field, Pair, Reader, SHORT_MAX, SubscriptionId, Writer, write_short};
use super::topic::topic_name;

/// A packet that has properties, by who sends it where that decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    bit: u16,
    /// The same packet from the other side, 0 if it decides nothing.
    reverse: u16,
}

const CONNECT: u16 = 1;
const WILL: u16 = 1 << 1;
const CONNACK: u16 = 1 << 2;
const CLIENT_PUBLISH: u16 = 1 << 3;
const SERVER_PUBLISH: u16 = 1 << 4;
const PUBLISH: u16 = CLIENT_PUBLISH | SERVER_PUBLISH;
const ACK: u16 = 1 << 5;
const SUBSCRIBE: u16 = 1 << 6;
const UNSUBSCRIBE: u16 = 1 << 7;
const CLIENT_DISCONNECT: u16 = 1 << 8;
const SERVER_DISCONNECT: u16 = 1 << 9;
const DISCONNECT: u16 = CLIENT_DISCONNECT | SERVER_DISCONNECT;
const AUTH: u16 = 1 << 10;
const ALL: u16 = (1 << 11) - 1;

impl Place {
    /// CONNECT.
    pub const CONNECT: Place = Place { bit: CONNECT, reverse: 0 };
    /// The will in CONNECT.
    pub const WILL: Place = Place { bit: WILL, reverse: 0 };
    /// CONNACK.
    pub const CONNACK: Place = Place { bit: CONNACK, reverse: 0 };
    /// PUBLISH of a client.
    pub const CLIENT_PUBLISH: Place = Place { bit: CLIENT_PUBLISH, reverse: SERVER_PUBLISH };
    /// PUBLISH of a server.
    pub const SERVER_PUBLISH: Place = Place { bit: SERVER_PUBLISH, reverse: CLIENT_PUBLISH };
    /// PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK and UNSUBACK.
    pub const ACK: Place = Place { bit: ACK, reverse: 0 };
    /// SUBSCRIBE.
    pub const SUBSCRIBE: Place = Place { bit: SUBSCRIBE, reverse: 0 };
    /// UNSUBSCRIBE.
    pub const UNSUBSCRIBE: Place = Place { bit: UNSUBSCRIBE, reverse: 0 };
    /// DISCONNECT of a client.
    pub const CLIENT_DISCONNECT: Place = Place { bit: CLIENT_DISCONNECT, reverse: SERVER_DISCONNECT };
    /// DISCONNECT of a server.
    pub const SERVER_DISCONNECT: Place = Place { bit: SERVER_DISCONNECT, reverse: CLIENT_DISCONNECT };
    /// AUTH.
    pub const AUTH: Place = Place { bit: AUTH, reverse: 0 };
}

macro_rules! properties {
    ($($(#[doc = $doc:literal])+ $id:literal $name:ident $type:ty, $places:expr;)+) => {
        /// A property and its value.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Property<'a> { $($(#[doc = $doc])+ $name($type),)+ }

        /// Where a property may stand, as bits; none if there is no such.
        fn places(id: u8) -> Option<u16> {
            match id { $($id => Some($places),)+ _ => None }
        }

        impl<'a> Property<'a> {
            /// Its identifier.
            #[must_use]
            pub fn id(&self) -> u8 {
                match self { $(Property::$name(_) => $id,)+ }
            }

            /// Whether such a packet may have it.
            #[must_use]
            pub fn fits(&self, place: Place) -> bool {
                places(self.id()).is_some_and(|places| places & place.bit != 0)
            }

            fn read(id: u8, from: &mut Reader<'a>) -> Result<Property<'a>, Flaw> {
                match id {
                    $($id => <$type>::read(from).map(Property::$name),)+
                    _ => Err(Flaw::UnknownProperty(id)),
                }
            }

            fn write(&self, to: &mut Writer<'_>) {
                self.id().write(to);
                match self { $(Property::$name(value) => value.write(to),)+ }
            }
        }
    };
}

properties! {
    /// Whether the payload is a text.
    1 PayloadFormat bool, PUBLISH | WILL;
    /// How long the message is of use, in s.
    2 MessageExpiry u32, PUBLISH | WILL;
    /// What the payload is.
    3 ContentType &'a str, PUBLISH | WILL;
    /// Where an answer is to go.
    8 ResponseTopic &'a str, PUBLISH | WILL;
    /// What an answer is to bring back.
    9 CorrelationData &'a [u8], PUBLISH | WILL;
    /// By which subscriptions a message comes; may be more than once there.
    11 SubscriptionId SubscriptionId, SERVER_PUBLISH | SUBSCRIBE;
    /// How long the session outlives its connection, in s; the largest means for ever.
    17 SessionExpiry u32, CONNECT | CONNACK | CLIENT_DISCONNECT;
    /// The id of a client that brought none.
    18 AssignedClientId &'a str, CONNACK;
    /// The time to keep instead of the client's, in s.
    19 ServerKeepAlive u16, CONNACK;
    /// How to authenticate.
    21 AuthMethod &'a str, CONNECT | CONNACK | AUTH;
    /// What the method says.
    22 AuthData &'a [u8], CONNECT | CONNACK | AUTH;
    /// Whether reason strings and user properties may come in every packet.
    23 RequestProblemInfo bool, CONNECT;
    /// How long after the connection's end the will waits, in s.
    24 WillDelay u32, WILL;
    /// Whether response information is wanted.
    25 RequestResponseInfo bool, CONNECT;
    /// Of what to make response topics.
    26 ResponseInfo &'a str, CONNACK;
    /// Another server to use.
    28 ServerReference &'a str, CONNACK | SERVER_DISCONNECT;
    /// Why, for a person.
    31 ReasonString &'a str, CONNACK | ACK | DISCONNECT | AUTH;
    /// Messages of QoS 1 and 2 that may be unanswered at once; not 0.
    33 ReceiveMaximum u16, CONNECT | CONNACK;
    /// The highest alias that is taken; 0 for none.
    34 TopicAliasMaximum u16, CONNECT | CONNACK;
    /// The topic in two bytes; not 0.
    35 TopicAlias u16, PUBLISH;
    /// Whether QoS 1 is the highest, else QoS 0.
    36 MaximumQos bool, CONNACK;
    /// Whether messages can be retained.
    37 RetainAvailable bool, CONNACK;
    /// The user's own; as many as they like.
    38 User Pair<'a>, ALL;
    /// Bytes of the longest packet that is taken; not 0.
    39 MaximumPacketSize u32, CONNECT | CONNACK;
    /// Whether filters may have wildcards.
    40 WildcardAvailable bool, CONNACK;
    /// Whether there are subscription identifiers.
    41 SubscriptionIdsAvailable bool, CONNACK;
    /// Whether there are shared subscriptions.
    42 SharedAvailable bool, CONNACK;
}

/// A byte of 0 or 1.
impl Field<'_> for bool {
    fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
        match u8::read(from)? {
            0 => Ok(false),
            1 => Ok(true),
            // Whose value it is, the walk over the properties knows.
            _ => Err(Flaw::PropertyValue(0)),
        }
    }

    fn write(&self, to: &mut Writer<'_>) {
        to.out.push(u8::from(*self));
    }
}

impl Field<'_> for SubscriptionId {
    fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
        SubscriptionId::new(from.short()?).ok_or(Flaw::PropertyValue(0))
    }

    fn write(&self, to: &mut Writer<'_>) {
        write_short(to.out, self.get());
    }
}

/// Valid properties of one packet. `Default` is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Properties<'a>(&'a [u8]);

impl<'a> Properties<'a> {
    /// Reads their length and them, and checks that they may stand there.
    #[inline]
    pub(super) fn read(from: &mut Reader<'a>, place: Place) -> Result<Properties<'a>, Flaw> {
        let length = from.short()?;
        let raw = from.take(length as usize)?;
        if !raw.is_empty() {
            check(raw, place)?;
        }
        Ok(Properties(raw))
    }

    pub(super) fn write(self, to: &mut Writer<'_>) {
        match u32::try_from(self.0.len()).ok().filter(|&length| length <= SHORT_MAX) {
            Some(length) => {
                write_short(to.out, length);
                to.out.extend_from_slice(self.0);
            }
            None => to.error = Some(EncodeError::TooLong { bytes: self.0.len() }),
        }
    }

    /// Each, in the order they came.
    pub fn iter(self) -> impl Iterator<Item = Property<'a>> {
        let mut left = Reader(self.0);
        std::iter::from_fn(move || {
            let id = u8::read(&mut left).ok()?;
            Some(Property::read(id, &mut left).expect("they were checked, or written by us"))
        })
    }

    /// As they stand in a packet, without their length.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

/// Whether all are known, allowed there, in range, and none that may not is repeated.
fn check(raw: &[u8], place: Place) -> Result<(), Flaw> {
    let (mut left, mut seen, mut method) = (Reader(raw), 0_u64, None);
    while let Some(&id) = left.0.first() {
        left.0 = &left.0[1..];
        let places = places(id).ok_or(Flaw::UnknownProperty(id))?;
        if places & place.bit == 0 {
            let reversed = places & place.reverse != 0;
            return Err(if reversed { Flaw::PropertyOfOtherSide(id) } else { Flaw::PropertyMisplaced(id) });
        }
        let property = Property::read(id, &mut left).map_err(|flaw| match flaw {
            Flaw::PropertyValue(_) => Flaw::PropertyValue(id),
            flaw => flaw,
        })?;
        let repeats = match property {
            Property::User(_) => true,
            Property::SubscriptionId(_) => place == Place::SERVER_PUBLISH,
            _ => false,
        };
        if seen & (1 << id) != 0 && !repeats {
            return Err(Flaw::PropertyRepeated(id));
        }
        seen |= 1 << id;
        match property {
            Property::TopicAlias(0) => return Err(Flaw::TopicAliasZero),
            Property::ReceiveMaximum(0) | Property::MaximumPacketSize(0) => {
                return Err(Flaw::PropertyValue(id));
            }
            Property::ResponseTopic(topic) if topic_name(topic.as_bytes()).is_err() => {
                return Err(Flaw::ResponseTopic);
            }
            Property::AuthMethod(_) => method = Some(true),
            Property::AuthData(_) => method = method.or(Some(false)),
            _ => {}
        }
    }
    if method == Some(false) { Err(Flaw::NoAuthMethod) } else { Ok(()) }
}

/// Properties to be sent, in the order of their pushes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PropertyList(Vec<u8>);

impl PropertyList {
    /// Appends one. That its packet may have it, and have it again, is the caller's to know.
    ///
    /// # Errors
    /// A text or its bytes are longer than 65,535 bytes; the list is as it was.
    pub fn push(&mut self, property: Property<'_>) -> Result<(), EncodeError> {
        let before = self.0.len();
        let mut writer = Writer { out: &mut self.0, error: None };
        property.write(&mut writer);
        match writer.error {
            None => Ok(()),
            Some(error) => {
                self.0.truncate(before);
                Err(error)
            }
        }
    }

    /// As a packet has them.
    #[must_use]
    pub fn as_properties(&self) -> Properties<'_> {
        Properties(&self.0)
    }
}
