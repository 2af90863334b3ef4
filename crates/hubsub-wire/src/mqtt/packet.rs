//! All packets, and their types in the first byte.

use super::ack::{Ack, Auth, Connack, Disconnect};
use super::connect::Connect;
use super::field::SHORT_MAX;
use super::publish::Publish;
use super::subscribe::{Suback, Subscribe, Unsuback, Unsubscribe};

pub const REMAINING_LENGTH_MAX: usize = SHORT_MAX as usize;

macro_rules! packets {
    ($($(#[doc = $doc:literal])* $number:literal $name:ident $kind:ident $($content:ty)?;)+) => {
        /// A packet. Texts and payloads borrow from the input; before 5.0 properties are empty.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Packet<'a> { $($(#[doc = $doc])* $name $(($content))?,)+ }

        impl Packet<'_> {
            #[inline]
            pub(super) fn kind(&self) -> u8 {
                match self { $(Packet::$name { .. } => $number,)+ }
            }
        }

        /// Packet types, the upper four bits of the first byte.
        pub(super) mod kind {
            $(pub const $kind: u8 = $number;)+

            /// The lower four bits of the first byte, except of a PUBLISH.
            #[inline]
            pub fn flags(kind: u8) -> u8 {
                if matches!(kind, PUBREL | SUBSCRIBE | UNSUBSCRIBE) { 0b0010 } else { 0 }
            }
        }
    };
}

packets! {
    1 Connect CONNECT Connect<'a>;
    2 Connack CONNACK Connack<'a>;
    3 Publish PUBLISH Publish<'a>;
    4 Puback PUBACK Ack<'a>;
    5 Pubrec PUBREC Ack<'a>;
    6 Pubrel PUBREL Ack<'a>;
    7 Pubcomp PUBCOMP Ack<'a>;
    8 Subscribe SUBSCRIBE Subscribe<'a>;
    9 Suback SUBACK Suback<'a>;
    10 Unsubscribe UNSUBSCRIBE Unsubscribe<'a>;
    11 Unsuback UNSUBACK Unsuback<'a>;
    12 Pingreq PINGREQ;
    13 Pingresp PINGRESP;
    /// The end of a connection; servers send it in 5.0 only.
    14 Disconnect DISCONNECT Disconnect<'a>;
    /// A step of enhanced authentication, in 5.0 only.
    15 Auth AUTH Auth<'a>;
}
