//! Close codes (section 7.4), and the code for each error of the peer.

use super::frame::write_close;
use crate::flaws::flaws;

/// A code that a Close frame may have.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CloseCode(u16);

impl CloseCode {
    pub const NORMAL: CloseCode = CloseCode(1000);
    /// The server stops, or the user leaves the page.
    pub const GOING_AWAY: CloseCode = CloseCode(1001);
    pub const PROTOCOL_ERROR: CloseCode = CloseCode(1002);
    pub const UNSUPPORTED: CloseCode = CloseCode(1003);
    pub const INVALID_DATA: CloseCode = CloseCode(1007);
    /// A message violates a rule of the server.
    pub const POLICY: CloseCode = CloseCode(1008);
    pub const TOO_BIG: CloseCode = CloseCode(1009);
    pub const SERVICE_RESTART: CloseCode = CloseCode(1012);
    pub const TRY_AGAIN_LATER: CloseCode = CloseCode(1013);

    /// `None` unless the code may be sent: a registered one (not 1004, 1005, 1006, 1015), a library's (3000
    /// to 3999) or an application's (4000 to 4999).
    pub fn new(number: u16) -> Option<CloseCode> {
        matches!(number, 1000..=1003 | 1007..=1014 | 3000..=4999).then_some(CloseCode(number))
    }

    #[must_use]
    pub fn number(self) -> u16 {
        self.0
    }
}

flaws! {
    /// Error of a frame. The connection must be closed.
    enum Flaw;
    /// Close code for the peer.
    fn code -> CloseCode;

    ReservedBits(first: u8) => PROTOCOL_ERROR "reserved bits without an extension: {first:#010b}";
    UnknownOpcode(opcode: u8) => PROTOCOL_ERROR "unknown opcode: {opcode}";
    NotMasked => PROTOCOL_ERROR "a client's frame without a mask";
    Masked => PROTOCOL_ERROR "a server's frame with a mask";
    LengthNotShortest => PROTOCOL_ERROR "a length in more bytes than it needs";
    LengthTooLong => PROTOCOL_ERROR "a length of 64 bits";
    ControlFragmented => PROTOCOL_ERROR "a control frame in fragments";
    ControlTooLong(bytes: u64) => PROTOCOL_ERROR "control frame too long: {bytes} bytes, at most 125";
    NothingToContinue => PROTOCOL_ERROR "a continuation of no message";
    NotContinued => PROTOCOL_ERROR "a new message inside another";
    ClosePayload => PROTOCOL_ERROR "a close code of one byte";
    CloseNumber(code: u16) => PROTOCOL_ERROR "close code that may not be sent: {code}";
    NotUtf8 => INVALID_DATA "a text is not UTF-8";
    FrameTooLarge(bytes: u64, max: u64) => TOO_BIG "frame too large: {bytes} bytes, at most {max}";
    MessageTooLarge(bytes: u64, max: u64) => TOO_BIG "message too large: {bytes} bytes, at most {max}";
}

impl Flaw {
    /// Appends the Close frame that a server sends for it.
    pub fn write(self, out: &mut Vec<u8>) {
        write_close(out, self.code(), "", None);
    }
}
