//! The reason codes of MQTT 5.0 (section 2.4), and their counterparts in 3.1 and 3.1.1: return codes of
//! CONNACK, and the failure of SUBACK.

use super::version::Version;

/// A packet that carries a reason, with its sender where that matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Carrier(u16);

impl Carrier {
    pub const CONNACK: Carrier = Carrier(1);
    /// PUBACK and PUBREC, of either side.
    pub const RECEIVED: Carrier = Carrier(1 << 1);
    /// PUBREL and PUBCOMP, of either side.
    pub const RELEASED: Carrier = Carrier(1 << 2);
    pub const SUBACK: Carrier = Carrier(1 << 3);
    pub const UNSUBACK: Carrier = Carrier(1 << 4);
    pub const CLIENT_DISCONNECT: Carrier = Carrier(1 << 5);
    pub const SERVER_DISCONNECT: Carrier = Carrier(1 << 6);
    pub const CLIENT_AUTH: Carrier = Carrier(1 << 7);
    pub const SERVER_AUTH: Carrier = Carrier(1 << 8);
}

const C: u16 = Carrier::CONNACK.0;
const R: u16 = Carrier::RECEIVED.0;
const L: u16 = Carrier::RELEASED.0;
const S: u16 = Carrier::SUBACK.0;
const U: u16 = Carrier::UNSUBACK.0;
/// DISCONNECT of a client, of a server, of both.
const DC: u16 = Carrier::CLIENT_DISCONNECT.0;
const DS: u16 = Carrier::SERVER_DISCONNECT.0;
const D: u16 = DC | DS;
const AC: u16 = Carrier::CLIENT_AUTH.0;
const AS: u16 = Carrier::SERVER_AUTH.0;

macro_rules! reasons {
    ($($number:literal $name:ident $carriers:expr, $words:literal;)+) => {
        /// A reason code. Success also means QoS 0 in SUBACK, and a normal end in DISCONNECT.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Reason { $(#[doc = $words] $name = $number,)+ }

        impl Reason {
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)+];

            /// `None` if the specification does not define the number.
            #[must_use]
            pub fn from_number(number: u8) -> Option<Reason> {
                match number { $($number => Some(Reason::$name),)+ _ => None }
            }

            #[must_use]
            pub fn words(self) -> &'static str {
                match self { $(Reason::$name => $words,)+ }
            }

            fn carriers(self) -> u16 {
                match self { $(Reason::$name => $carriers,)+ }
            }
        }
    };
}

reasons! {
    0x00 Success C | R | L | S | U | D | AS, "success";
    0x01 GrantedQos1 S, "QoS 1 is granted";
    0x02 GrantedQos2 S, "QoS 2 is granted";
    0x04 DisconnectWithWill DC, "disconnect, and publish the will";
    0x10 NoMatchingSubscribers R, "nobody subscribes to it";
    0x11 NoSubscriptionExisted U, "there was no such subscription";
    0x18 ContinueAuthentication AC | AS, "authentication goes on";
    0x19 ReAuthenticate AC, "authenticate again";
    0x80 Unspecified C | R | S | U | D, "unspecified error";
    0x81 MalformedPacket C | D, "malformed packet";
    0x82 ProtocolError C | D, "protocol error";
    0x83 ImplementationSpecific C | R | S | U | D, "error of this implementation";
    0x84 UnsupportedProtocolVersion C, "unsupported protocol version";
    0x85 ClientIdInvalid C, "client identifier not valid";
    0x86 BadUserNameOrPassword C, "bad user name or password";
    0x87 NotAuthorized C | R | S | U | DS, "not authorized";
    0x88 ServerUnavailable C, "server unavailable";
    0x89 ServerBusy C | DS, "server busy";
    0x8A Banned C, "banned";
    0x8B ServerShuttingDown DS, "server shutting down";
    0x8C BadAuthenticationMethod C | DS, "bad authentication method";
    0x8D KeepAliveTimeout DS, "keep alive time-out";
    0x8E SessionTakenOver DS, "session taken over";
    0x8F TopicFilterInvalid S | U | DS, "topic filter invalid";
    0x90 TopicNameInvalid C | R | D, "topic name invalid";
    0x91 PacketIdInUse R | S | U, "packet identifier in use";
    0x92 PacketIdNotFound L, "packet identifier not found";
    0x93 ReceiveMaximumExceeded D, "receive maximum exceeded";
    0x94 TopicAliasInvalid D, "topic alias invalid";
    0x95 PacketTooLarge C | D, "packet too large";
    0x96 MessageRateTooHigh D, "message rate too high";
    0x97 QuotaExceeded C | R | S | D, "quota exceeded";
    0x98 AdministrativeAction D, "administrative action";
    0x99 PayloadFormatInvalid C | R | D, "payload format invalid";
    0x9A RetainNotSupported C | DS, "retain not supported";
    0x9B QosNotSupported C | DS, "QoS not supported";
    0x9C UseAnotherServer C | DS, "use another server";
    0x9D ServerMoved C | DS, "server moved";
    0x9E SharedSubscriptionsNotSupported S | DS, "shared subscriptions not supported";
    0x9F ConnectionRateExceeded C | DS, "connection rate exceeded";
    0xA0 MaximumConnectTime DS, "maximum connect time";
    0xA1 SubscriptionIdsNotSupported S | DS, "subscription identifiers not supported";
    0xA2 WildcardSubscriptionsNotSupported S | DS, "wildcard subscriptions not supported";
}

impl Reason {
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    #[must_use]
    pub fn is_failure(self) -> bool {
        self.number() >= 0x80
    }

    #[must_use]
    pub fn fits(self, carrier: Carrier) -> bool {
        self.carriers() & carrier.0 != 0
    }

    /// Decodes a return code of CONNACK in 3.1 and 3.1.1.
    #[must_use]
    pub fn from_connect_return(code: u8) -> Option<Reason> {
        let reasons = [
            Reason::Success,
            Reason::UnsupportedProtocolVersion,
            Reason::ClientIdInvalid,
            Reason::ServerUnavailable,
            Reason::BadUserNameOrPassword,
            Reason::NotAuthorized,
        ];
        reasons.get(usize::from(code)).copied()
    }

    /// The closest return code of CONNACK in 3.1 and 3.1.1.
    #[must_use]
    pub fn connect_return(self) -> u8 {
        match self {
            Reason::UnsupportedProtocolVersion => 1,
            Reason::ClientIdInvalid => 2,
            Reason::BadUserNameOrPassword => 4,
            Reason::NotAuthorized | Reason::Banned | Reason::BadAuthenticationMethod => 5,
            _ if self.is_failure() => 3,
            _ => 0,
        }
    }

    /// Its byte in a SUBACK. 3.1.1 has one failure code; 3.1 has none, and grants without messages.
    #[must_use]
    pub fn suback_number(self, version: Version) -> u8 {
        match version {
            Version::V31 if self.is_failure() => 0,
            Version::V311 if self.is_failure() => 0x80,
            _ => self.number(),
        }
    }
}
