//! Conversion between a message's properties and the headers of its record.
//!
//! | property | header |
//! |---|---|
//! | User Property | same name; a name that begins with `mqtt.` gets the prefix `mqtt.user.` |
//! | Payload Format Indicator | `mqtt.payload-format`: `text` |
//! | Message Expiry Interval | `mqtt.expiry-s`, counted from the record's timestamp |
//! | Content Type | `mqtt.content-type` |
//! | Response Topic | `mqtt.response-topic` |
//! | Correlation Data | `mqtt.correlation-data` if it is UTF-8, else `mqtt.correlation-data.hex` |

use hubsub_wire::mqtt::{Pair, Properties, Property, PropertyList};
use std::fmt::Write as _;

const OWN: &str = "mqtt.";
const USER: &str = "mqtt.user.";
const FORMAT: &str = "mqtt.payload-format";
const FORMAT_TEXT: &str = "text";
const EXPIRY: &str = "mqtt.expiry-s";
const CONTENT: &str = "mqtt.content-type";
const RESPONSE: &str = "mqtt.response-topic";
const CORRELATION: &str = "mqtt.correlation-data";
const CORRELATION_HEX: &str = "mqtt.correlation-data.hex";

/// The headers of a message with these properties, in order.
#[must_use]
pub fn read_headers(properties: Properties<'_>) -> Vec<(Box<str>, Box<str>)> {
    let mut headers: Vec<(Box<str>, Box<str>)> = Vec::new();
    let mut push = |name: &str, value: &str| headers.push((name.into(), value.into()));
    for property in properties.iter() {
        match property {
            Property::User(Pair { name, value }) if name.starts_with(OWN) => {
                push(&format!("{USER}{name}"), value);
            }
            Property::User(Pair { name, value }) => push(name, value),
            Property::PayloadFormat(true) => push(FORMAT, FORMAT_TEXT),
            Property::MessageExpiry(seconds) => push(EXPIRY, &seconds.to_string()),
            Property::ContentType(text) => push(CONTENT, text),
            Property::ResponseTopic(topic) => push(RESPONSE, topic),
            Property::CorrelationData(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => push(CORRELATION, text),
                Err(_) => push(CORRELATION_HEX, &hex(bytes)),
            },
            _ => {}
        }
    }
    headers
}

/// Lifetime of a record with these headers, in s from its timestamp; `None` if unlimited.
#[must_use]
pub fn expiry_s(headers: &[(Box<str>, Box<str>)]) -> Option<u32> {
    headers.iter().find(|(name, _)| &**name == EXPIRY)?.1.parse().ok()
}

/// Appends the properties of a record with these headers that is `age_s` old. Values that MQTT cannot encode
/// are omitted: texts with NUL, or longer than 65,535 bytes.
pub fn write_headers(headers: &[(Box<str>, Box<str>)], age_s: u32, to: &mut PropertyList) {
    for (name, value) in headers {
        let (name, value) = (&**name, &**value);
        let property = match name {
            FORMAT if value == FORMAT_TEXT => Property::PayloadFormat(true),
            EXPIRY => match value.parse::<u32>() {
                Ok(seconds) => Property::MessageExpiry(seconds.saturating_sub(age_s)),
                Err(_) => continue,
            },
            CONTENT => Property::ContentType(value),
            RESPONSE if hubsub_wire::mqtt::topic_name(value.as_bytes()).is_ok() => {
                Property::ResponseTopic(value)
            }
            CORRELATION => Property::CorrelationData(value.as_bytes()),
            CORRELATION_HEX => {
                if let Some(bytes) = unhex(value) {
                    // A decoded header may exceed the length of a property; then it is omitted.
                    let _ = to.push(Property::CorrelationData(&bytes));
                }
                continue;
            }
            _ => {
                let name = name.strip_prefix(USER).unwrap_or(name);
                Property::User(Pair { name, value })
            }
        };
        let has_nul = name.contains('\0') || value.contains('\0');
        if !has_nul || matches!(property, Property::CorrelationData(_)) {
            let _ = to.push(property);
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        write!(text, "{byte:02x}").expect("a string takes all");
    }
    text
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(properties: &[Property<'_>], age_s: u32) -> PropertyList {
        let mut list = PropertyList::default();
        properties.iter().for_each(|property| list.push(*property).unwrap());
        let mut back = PropertyList::default();
        write_headers(&read_headers(list.as_properties()), age_s, &mut back);
        back
    }

    #[test]
    fn every_property_of_a_message_comes_back() {
        let properties = [
            Property::User(Pair { name: "k", value: "1" }),
            Property::PayloadFormat(true),
            Property::MessageExpiry(100),
            Property::ContentType("text/plain"),
            Property::ResponseTopic("answers/7"),
            Property::CorrelationData(&[0, 255, 1]),
            Property::User(Pair { name: "k", value: "2" }),
            Property::User(Pair { name: "mqtt.content-type", value: "mine" }),
            Property::User(Pair { name: "mqtt.user.x", value: "" }),
        ];
        let back = there_and_back(&properties, 0);
        assert_eq!(back.as_properties().iter().collect::<Vec<_>>(), properties);
        let text = [Property::CorrelationData(b"text\0")];
        assert_eq!(there_and_back(&text, 0).as_properties().iter().collect::<Vec<_>>(), text);
    }

    #[test]
    fn what_is_left_of_its_time_is_told() {
        let back = there_and_back(&[Property::MessageExpiry(100)], 40);
        assert_eq!(back.as_properties().iter().collect::<Vec<_>>(), [Property::MessageExpiry(60)]);
    }

    #[test]
    fn headers_that_mqtt_cannot_say_are_left_out() {
        let long = "x".repeat(65_536);
        let headers = [("a\0", "b"), ("a", &*long), ("mqtt.response-topic", "#"), ("ok", "yes")];
        let headers: Vec<(Box<str>, Box<str>)> =
            headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let mut list = PropertyList::default();
        write_headers(&headers, 0, &mut list);
        let said: Vec<Property<'_>> = list.as_properties().iter().collect();
        let user = |name, value| Property::User(Pair { name, value });
        assert_eq!(said, [user("mqtt.response-topic", "#"), user("ok", "yes")]);
    }
}
