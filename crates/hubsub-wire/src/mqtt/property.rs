//! The properties of MQTT 5.0 (section 2.2.2): their types, ranges, and the packets that may have them.
//!
//! They stay encoded: a length, then an identifier and a value each, in any order. Decoding checks all of
//! them once; users iterate over them.

use super::error::{EncodeError, Flaw};
use super::field::{Field, Pair, Reader, SHORT_MAX, SubscriptionId, Writer, write_short};
use super::topic::topic_name;
use super::version::Version;

/// A packet that has properties, with its sender where that matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place(u16);

impl Place {
    pub const CONNECT: Place = Place(1);
    pub const WILL: Place = Place(1 << 1);
    pub const CONNACK: Place = Place(1 << 2);
    pub const CLIENT_PUBLISH: Place = Place(1 << 3);
    pub const SERVER_PUBLISH: Place = Place(1 << 4);
    /// PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK and UNSUBACK.
    pub const ACK: Place = Place(1 << 5);
    pub const SUBSCRIBE: Place = Place(1 << 6);
    pub const UNSUBSCRIBE: Place = Place(1 << 7);
    pub const CLIENT_DISCONNECT: Place = Place(1 << 8);
    pub const SERVER_DISCONNECT: Place = Place(1 << 9);
    pub const AUTH: Place = Place(1 << 10);

    /// The same packet from the other side, 0 if the sender does not matter.
    fn reverse(self) -> u16 {
        match self {
            Place::CLIENT_PUBLISH => SERVER_PUBLISH,
            Place::SERVER_PUBLISH => CLIENT_PUBLISH,
            Place::CLIENT_DISCONNECT => SERVER_DISCONNECT,
            Place::SERVER_DISCONNECT => CLIENT_DISCONNECT,
            _ => 0,
        }
    }
}

const CONNECT: u16 = Place::CONNECT.0;
const WILL: u16 = Place::WILL.0;
const CONNACK: u16 = Place::CONNACK.0;
const CLIENT_PUBLISH: u16 = Place::CLIENT_PUBLISH.0;
const SERVER_PUBLISH: u16 = Place::SERVER_PUBLISH.0;
const PUBLISH: u16 = CLIENT_PUBLISH | SERVER_PUBLISH;
const ACK: u16 = Place::ACK.0;
const SUBSCRIBE: u16 = Place::SUBSCRIBE.0;
const CLIENT_DISCONNECT: u16 = Place::CLIENT_DISCONNECT.0;
const SERVER_DISCONNECT: u16 = Place::SERVER_DISCONNECT.0;
const DISCONNECT: u16 = CLIENT_DISCONNECT | SERVER_DISCONNECT;
const AUTH: u16 = Place::AUTH.0;
const ALL: u16 = (1 << 11) - 1;

macro_rules! properties {
    ($($(#[doc = $doc:literal])* $id:literal $name:ident $type:ty, $places:expr;)+) => {
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Property<'a> { $($(#[doc = $doc])* $name($type),)+ }

        /// Bits of the packets that may have a property; `None` if the identifier is unknown.
        fn places(id: u8) -> Option<u16> {
            match id { $($id => Some($places),)+ _ => None }
        }

        impl<'a> Property<'a> {
            pub fn id(&self) -> u8 {
                match self { $(Property::$name(_) => $id,)+ }
            }

            pub fn fits(&self, place: Place) -> bool {
                places(self.id()).is_some_and(|places| places & place.0 != 0)
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
    /// Whether the payload is UTF-8 text.
    1 PayloadFormat bool, PUBLISH | WILL;
    /// Lifetime of the message, in s.
    2 MessageExpiry u32, PUBLISH | WILL;
    3 ContentType &'a str, PUBLISH | WILL;
    8 ResponseTopic &'a str, PUBLISH | WILL;
    9 CorrelationData &'a [u8], PUBLISH | WILL;
    /// Identifiers of the subscriptions that a message matched; may be repeated there.
    11 SubscriptionId SubscriptionId, SERVER_PUBLISH | SUBSCRIBE;
    /// Session expiry after the end of the connection, in s; `u32::MAX` means no expiry.
    17 SessionExpiry u32, CONNECT | CONNACK | CLIENT_DISCONNECT;
    18 AssignedClientId &'a str, CONNACK;
    /// Keep alive that overrides the client's, in s.
    19 ServerKeepAlive u16, CONNACK;
    21 AuthMethod &'a str, CONNECT | CONNACK | AUTH;
    22 AuthData &'a [u8], CONNECT | CONNACK | AUTH;
    /// Whether reason strings and user properties are accepted in every packet.
    23 RequestProblemInfo bool, CONNECT;
    /// Delay of the will after the end of the connection, in s.
    24 WillDelay u32, WILL;
    25 RequestResponseInfo bool, CONNECT;
    26 ResponseInfo &'a str, CONNACK;
    28 ServerReference &'a str, CONNACK | SERVER_DISCONNECT;
    31 ReasonString &'a str, CONNACK | ACK | DISCONNECT | AUTH;
    /// Most unacknowledged QoS 1 and 2 messages; not 0.
    33 ReceiveMaximum u16, CONNECT | CONNACK;
    /// Greatest topic alias that is accepted; 0 for none.
    34 TopicAliasMaximum u16, CONNECT | CONNACK;
    /// A number for the topic; not 0.
    35 TopicAlias u16, PUBLISH;
    /// Whether the maximum QoS is 1, else it is 0.
    36 MaximumQos bool, CONNACK;
    37 RetainAvailable bool, CONNACK;
    /// Application-defined; may be repeated.
    38 User Pair<'a>, ALL;
    /// Longest packet that is accepted, in bytes; not 0.
    39 MaximumPacketSize u32, CONNECT | CONNACK;
    40 WildcardAvailable bool, CONNACK;
    41 SubscriptionIdsAvailable bool, CONNACK;
    42 SharedAvailable bool, CONNACK;
}

/// A byte of 0 or 1.
impl Field<'_> for bool {
    fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
        match u8::read(from)? {
            0 => Ok(false),
            1 => Ok(true),
            // The iteration over the properties inserts the identifier.
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

/// Valid properties of one packet. `Default` has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Properties<'a>(&'a [u8]);

impl<'a> Properties<'a> {
    /// Reads their length and values, and checks that the packet may have them; none before 5.0.
    #[inline]
    pub(super) fn read_of(
        version: Version,
        from: &mut Reader<'a>,
        place: Place,
    ) -> Result<Properties<'a>, Flaw> {
        if version == Version::V5 { Properties::read(from, place) } else { Ok(Properties::default()) }
    }

    /// Appends them; nothing before 5.0.
    pub(super) fn write_to(self, version: Version, to: &mut Writer<'_>) {
        if version == Version::V5 {
            self.write(to);
        }
    }

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

    pub fn iter(self) -> impl Iterator<Item = Property<'a>> {
        let mut left = Reader(self.0);
        std::iter::from_fn(move || {
            let id = u8::read(&mut left).ok()?;
            Some(Property::read(id, &mut left).expect("they were checked, or written by us"))
        })
    }

    /// The encoded properties, without their length.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

/// Checks that all are known, allowed there, in range, and not repeated unless they may be.
fn check(raw: &[u8], place: Place) -> Result<(), Flaw> {
    let (mut left, mut seen, mut method) = (Reader(raw), 0_u64, None);
    while let Some(&id) = left.0.first() {
        left.0 = &left.0[1..];
        let places = places(id).ok_or(Flaw::UnknownProperty(id))?;
        if places & place.0 == 0 {
            let reversed = places & place.reverse() != 0;
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

/// Properties to send, in the order of their pushes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PropertyList(Vec<u8>);

impl PropertyList {
    /// Appends one. The caller must know that the packet may have it, and have it again.
    ///
    /// # Errors
    /// A text or binary value is longer than 65,535 bytes; the list is unchanged.
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

    pub fn as_properties(&self) -> Properties<'_> {
        Properties(&self.0)
    }
}
