//! All errors that a client can get, with stable codes. `python/hubsub/errors/refused.py` defines them, with
//! the reply of each protocol; [`crate::tables`] has the part that the data plane needs.

use std::borrow::Cow;

/// The code of an error, and the replies.
pub(crate) struct Row {
    pub(crate) code: &'static str,
    pub(crate) resp: &'static str,
    pub(crate) settings: Option<&'static str>,
    pub(crate) mqtt_reason: u8,
    pub(crate) retryable: bool,
}

macro_rules! errors {
    ($($name:ident = ($code:literal, $resp:literal, $settings:expr, $mqtt:literal, $retryable:literal);)+) => {
        /// Why a request was refused; [`ErrorCode::resp`] is the text.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum ErrorCode { $($name,)+ }

        impl ErrorCode {
            /// All codes, for the tests that walk them.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name,)+];

            pub(crate) fn row(self) -> $crate::error::Row {
                let (code, resp, settings, mqtt_reason, retryable) = match self {
                    $(ErrorCode::$name => ($code, $resp, $settings, $mqtt, $retryable),)+
                };
                $crate::error::Row { code, resp, settings, mqtt_reason, retryable }
            }
        }
    };
}
pub(crate) use errors;

pub use crate::tables::ErrorCode;

impl ErrorCode {
    /// Finds an error by its stable code.
    pub fn from_code(code: &str) -> Option<ErrorCode> {
        ErrorCode::ALL.iter().copied().find(|known| known.code() == code)
    }

    /// The stable code, the same in REST responses, logs and Python.
    pub fn code(self) -> &'static str {
        self.row().code
    }

    /// The Redis error line, without `-`, hint and CRLF.
    pub fn resp(self) -> &'static str {
        self.row().resp
    }

    /// The settings that raise the limit of this error, for a hint.
    pub fn settings(self) -> Option<&'static str> {
        self.row().settings
    }

    /// The Redis error line: [`ErrorCode::resp`], then the settings of a limit as a hint.
    pub fn resp_line(self) -> Cow<'static, str> {
        self.settings().map_or_else(
            || self.resp().into(),
            |settings| format!("{}; hint: {settings}", self.resp()).into(),
        )
    }

    /// The reason code of MQTT 5.0 in the reply to a publish; earlier versions have none.
    pub fn mqtt_reason(self) -> u8 {
        self.row().mqtt_reason
    }

    /// Whether the same request may succeed later.
    pub fn retryable(self) -> bool {
        self.row().retryable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn codes_are_distinct_and_errors_have_a_prefix() {
        let codes: HashSet<_> = ErrorCode::ALL.iter().map(|e| e.code()).collect();
        assert_eq!(codes.len(), ErrorCode::ALL.len());
        for e in ErrorCode::ALL {
            let prefix = e.resp().split(' ').next().unwrap_or_default();
            assert!(prefix.bytes().all(|b| b.is_ascii_uppercase()), "{}", e.resp());
        }
    }

    #[test]
    fn the_line_of_a_reached_limit_names_settings_that_there_are() {
        assert_eq!(ErrorCode::NoSuchRoom.resp_line(), "ERR no such room");
        let line = "ERR max publishes per minute reached; hint: publishes_per_minute_max";
        assert_eq!(ErrorCode::PublishRate.resp_line(), line);
        for e in ErrorCode::ALL {
            // Those of a class and of a cluster are the control plane's.
            let settings = e.settings().filter(|_| *e != ErrorCode::PayloadLength).unwrap_or_default();
            let settings = settings.split(", in a cluster also ").next().unwrap_or_default();
            for setting in settings.split(", ").filter(|setting| !setting.is_empty()) {
                assert!(crate::Limits::NAMES.contains(&setting), "{setting}");
            }
        }
    }
}
