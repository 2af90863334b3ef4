//! All errors that a client can get, with stable codes. One table maps each to the reply of each protocol;
//! the Python side has a class for each code.

use std::borrow::Cow;

/// Why a request was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ErrorCode {
    /// The topic is longer than `topic_bytes_max`, or empty where a room is meant.
    TopicLength,
    /// The payload is longer than the class or the node allows.
    PayloadLength,
    /// The limit `rooms_max` or `room_names_bytes_max` is reached, or in a cluster a limit of placed rooms.
    TooManyRooms,
    /// The limit `room_creations_per_second_max` is reached.
    RoomCreationRate,
    /// The limit `publishes_per_minute_max` is reached.
    PublishRate,
    /// The limit `subscriptions_per_client_max` or `patterns_per_client_max` is reached.
    TooManySubscriptions,
    /// `subscription_bytes_per_client_max` or `subscription_bytes_shard_max` is reached.
    SubscriptionBytes,
    /// The principal may not do this.
    NotAllowed,
    /// There is no such room.
    NoSuchRoom,
    /// The room has subscribers, so it cannot be deleted.
    RoomInUse,
    /// The node is stopping.
    Stopping,
    /// No answer came in time.
    TimedOut,
    /// The disk of the log is full.
    DiskFull,
    /// The log has failed; the outcome of the publish is unknown.
    LogFailed,
    /// The log of the room's hub is damaged.
    Quarantined,
    /// A producer numbered a record of a class without a log.
    NotLogged,
    /// The sequence is below the producer's window, so the outcome is unknown.
    SequenceTooOld,
    /// The sequence was skipped: a later one was used.
    SequencePassed,
    /// The sequence was used for another record.
    SequenceReused,
    /// A gapless sequence skipped a number, so the record was not stored.
    SequenceAhead,
    /// Requested records were removed, or lost and given up.
    OffsetsLost,
    /// The offset is after the last committed one.
    OffsetUnknown,
    /// The limit `log_streams_max` is reached.
    TooManyStreams,
    /// There is no link to the target node.
    NotLinked,
    /// The queue of the link to the target node is full.
    LinkFull,
    /// The link to a node ended before it replied; the outcome of the request is unknown.
    LinkLost,
    /// The hub of the room is not open on this node, or is about to be closed.
    HubClosed,
    /// Another hub has this id, or this place in the class.
    HubDiffers,
    /// The class of the room was removed: it gets no new rooms.
    ClassRemoved,
    /// `retained_messages_max` or `retained_bytes_max` is reached.
    TooManyRetained,
    /// The limit `groups_max` is reached.
    TooManyGroups,
    /// `patterns_max`, `patterns_bytes_max` or `patterns_search_max` is reached.
    TooManyPatterns,
    /// A pattern is longer than `pattern_bytes_max`.
    PatternLength,
    /// The limit `presence_members_max` is reached.
    TooManyMembers,
    /// A member's key and meta are longer than `presence_member_bytes_max`.
    MemberLength,
}

impl ErrorCode {
    /// All codes, for tables and the tests that walk them.
    pub const ALL: &'static [ErrorCode] = &[
        ErrorCode::TopicLength,
        ErrorCode::PayloadLength,
        ErrorCode::TooManyRooms,
        ErrorCode::RoomCreationRate,
        ErrorCode::PublishRate,
        ErrorCode::TooManySubscriptions,
        ErrorCode::SubscriptionBytes,
        ErrorCode::NotAllowed,
        ErrorCode::NoSuchRoom,
        ErrorCode::RoomInUse,
        ErrorCode::Stopping,
        ErrorCode::TimedOut,
        ErrorCode::DiskFull,
        ErrorCode::LogFailed,
        ErrorCode::Quarantined,
        ErrorCode::NotLogged,
        ErrorCode::SequenceTooOld,
        ErrorCode::SequencePassed,
        ErrorCode::SequenceReused,
        ErrorCode::SequenceAhead,
        ErrorCode::OffsetsLost,
        ErrorCode::OffsetUnknown,
        ErrorCode::TooManyStreams,
        ErrorCode::NotLinked,
        ErrorCode::LinkFull,
        ErrorCode::LinkLost,
        ErrorCode::HubClosed,
        ErrorCode::HubDiffers,
        ErrorCode::ClassRemoved,
        ErrorCode::TooManyRetained,
        ErrorCode::TooManyGroups,
        ErrorCode::TooManyPatterns,
        ErrorCode::PatternLength,
        ErrorCode::TooManyMembers,
        ErrorCode::MemberLength,
    ];

    /// The stable code, the same in REST responses, logs and Python.
    #[must_use]
    pub fn code(self) -> &'static str {
        self.row().0
    }

    /// The Redis error line, without `-`, hint and CRLF.
    #[must_use]
    pub fn resp(self) -> &'static str {
        self.row().1
    }

    /// The settings that raise the limit of this error, for a hint.
    #[must_use]
    pub fn settings(self) -> Option<&'static str> {
        Some(match self {
            ErrorCode::TopicLength => "topic_bytes_max",
            ErrorCode::PayloadLength => "payload_bytes_max of the class",
            ErrorCode::TooManyRooms => {
                "rooms_max, room_names_bytes_max, in a cluster also placed_rooms_class_max, room_records_bytes_max"
            }
            ErrorCode::RoomCreationRate => "room_creations_per_second_max",
            ErrorCode::PublishRate => "publishes_per_minute_max",
            ErrorCode::TooManySubscriptions => "subscriptions_per_client_max, patterns_per_client_max",
            ErrorCode::SubscriptionBytes => "subscription_bytes_per_client_max, subscription_bytes_shard_max",
            ErrorCode::TooManyStreams => "log_streams_max",
            ErrorCode::TooManyRetained => "retained_messages_max, retained_bytes_max",
            ErrorCode::TooManyGroups => "groups_max",
            ErrorCode::TooManyPatterns => "patterns_max, patterns_bytes_max, patterns_search_max",
            ErrorCode::PatternLength => "pattern_bytes_max",
            ErrorCode::TooManyMembers => "presence_members_max",
            ErrorCode::MemberLength => "presence_member_bytes_max",
            _ => return None,
        })
    }

    /// The Redis error line: [`ErrorCode::resp`], then the settings of a limit as a hint.
    #[must_use]
    pub fn resp_line(self) -> Cow<'static, str> {
        self.settings().map_or_else(
            || self.resp().into(),
            |settings| format!("{}; hint: {settings}", self.resp()).into(),
        )
    }

    /// The reason code of MQTT 5.0 in the reply to a publish; earlier versions have none.
    #[must_use]
    pub fn mqtt_reason(self) -> u8 {
        match self {
            ErrorCode::TopicLength => 0x90,
            ErrorCode::NotAllowed => 0x87,
            ErrorCode::TooManyRooms
            | ErrorCode::RoomCreationRate
            | ErrorCode::PublishRate
            | ErrorCode::TooManySubscriptions
            | ErrorCode::SubscriptionBytes
            | ErrorCode::TooManyRetained
            | ErrorCode::TooManyGroups
            | ErrorCode::TooManyPatterns
            | ErrorCode::PatternLength
            | ErrorCode::TooManyMembers
            | ErrorCode::DiskFull
            | ErrorCode::LinkFull => 0x97,
            ErrorCode::PayloadLength | ErrorCode::ClassRemoved => 0x83,
            _ => 0x80,
        }
    }

    /// Whether the same request may succeed later.
    #[must_use]
    pub fn retryable(self) -> bool {
        self.row().2
    }

    /// (code, Redis error, retryable)
    fn row(self) -> (&'static str, &'static str, bool) {
        match self {
            ErrorCode::TopicLength => ("topic_length", "ERR topic length is out of range", false),
            ErrorCode::PayloadLength => {
                ("payload_length", "ERR payload is longer than its room allows", false)
            }
            ErrorCode::TooManyRooms => ("too_many_rooms", "ERR max number of rooms reached", true),
            ErrorCode::RoomCreationRate => {
                ("room_creation_rate", "ERR too many new rooms, try again later", true)
            }
            ErrorCode::PublishRate => ("publish_rate", "ERR max publishes per minute reached", true),
            ErrorCode::TooManySubscriptions => {
                ("too_many_subscriptions", "ERR max number of subscriptions of this client reached", false)
            }
            ErrorCode::SubscriptionBytes => {
                ("subscription_bytes", "ERR max bytes of names of subscriptions reached", true)
            }
            ErrorCode::NotAllowed => ("not_allowed", "NOPERM this user has no permissions for this", false),
            ErrorCode::NoSuchRoom => ("no_such_room", "ERR no such room", false),
            ErrorCode::RoomInUse => ("room_in_use", "ERR room has subscribers", true),
            ErrorCode::Stopping => ("stopping", "ERR server is stopping", true),
            ErrorCode::TimedOut => ("timed_out", "ERR request timed out, its outcome is unknown", true),
            ErrorCode::DiskFull => (
                "disk_full",
                "ERR the disk is full or a file cannot be opened, the message was not stored",
                true,
            ),
            ErrorCode::LogFailed => ("log_failed", "ERR the log has failed, the outcome is unknown", false),
            ErrorCode::Quarantined => {
                ("quarantined", "ERR the log of this room is damaged and quarantined", false)
            }
            ErrorCode::NotLogged => {
                ("not_logged", "ERR a producer's records need a replicated or durable class", false)
            }
            ErrorCode::SequenceTooOld => (
                "sequence_too_old",
                "ERR the sequence is older than the window, its outcome is unknown",
                false,
            ),
            ErrorCode::SequencePassed => {
                ("sequence_passed", "ERR a later sequence came before, the message was not stored", false)
            }
            ErrorCode::SequenceReused => {
                ("sequence_reused", "ERR the sequence was another message, this one was not stored", false)
            }
            ErrorCode::SequenceAhead => (
                "sequence_ahead",
                "ERR the sequence before it is not stored, and neither was the message",
                true,
            ),
            ErrorCode::OffsetsLost => ("offsets_lost", "ERR records are not there any more", false),
            ErrorCode::OffsetUnknown => ("offset_unknown", "ERR the offset is not committed", false),
            ErrorCode::TooManyStreams => {
                ("too_many_streams", "ERR max number of streams of records reached", true)
            }
            ErrorCode::NotLinked => ("not_linked", "ERR there is no link to that node", true),
            ErrorCode::LinkFull => ("link_full", "ERR too much waits for that node", true),
            ErrorCode::LinkLost => {
                ("link_lost", "ERR the link to that node ended, the outcome is unknown", false)
            }
            ErrorCode::HubClosed => {
                ("hub_closed", "ERR the hub of this room is not open here, try again later", true)
            }
            ErrorCode::HubDiffers => ("hub_differs", "ERR another hub has this id or place", false),
            ErrorCode::TooManyRetained => {
                ("too_many_retained", "ERR max number or bytes of retained messages reached", true)
            }
            ErrorCode::TooManyGroups => {
                ("too_many_groups", "ERR max number of groups that share messages reached", true)
            }
            ErrorCode::TooManyPatterns => {
                ("too_many_patterns", "ERR max number, bytes or work of patterns reached", true)
            }
            ErrorCode::PatternLength => ("pattern_length", "ERR pattern length is out of range", false),
            ErrorCode::TooManyMembers => ("too_many_members", "ERR max members of the node reached", true),
            ErrorCode::MemberLength => {
                ("member_length", "ERR key and meta of the member are too long", false)
            }
            ErrorCode::ClassRemoved => {
                ("class_removed", "ERR the class of this room was removed, it gets no new rooms", false)
            }
        }
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
