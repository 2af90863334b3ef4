//! WebSocket frames for browsers, one per message. They are encoded exactly as they are sent, so they are
//! shared and queued like those of other clients.

use hubsub_route::RecordView;
use hubsub_types::Position;
use hubsub_wire::phoenix::{
    Broadcast, EVENT_HEADER, FORM_HEADER, Form, Message, Payload, Version, record_event, word,
};
use hubsub_wire::websocket::{Kind, Opcode, write_frame, write_frame_header};

/// Appends a record in the encoding of all browsers of a version, with its position for those that asked for
/// positions.
pub fn encode(out: &mut Vec<u8>, version: Version, record: &RecordView<'_>, position: Option<Position>) {
    let mut made = Vec::new();
    let form = record.header(FORM_HEADER).and_then(Form::named);
    let payload = Payload::of_record(record.payload, form, &mut made);
    let event = record_event(record.header(EVENT_HEADER));
    let position = position.map(|position| position.to_string());
    write_broadcast(out, version, record.topic, |topic| Broadcast {
        topic,
        event,
        payload,
        position: position.as_deref(),
    });
}

/// Appends a notice of records of a topic that the browser will not get.
pub fn write_gap(out: &mut Vec<u8>, version: Version, topic: &[u8], from: Position, to: Position) {
    let missing = format!("{{\"from\":\"{from}\",\"to\":\"{to}\"}}");
    write_broadcast(out, version, topic, |topic| Broadcast {
        topic,
        event: word::GAP,
        payload: Payload::Json(&missing),
        position: None,
    });
}

/// Appends an event of the protocol itself, with a JSON payload.
pub fn write_event(out: &mut Vec<u8>, version: Version, topic: &str, event: &str, payload: &str) {
    write_broadcast(out, version, topic.as_bytes(), |topic| Broadcast {
        topic,
        event,
        payload: Payload::Json(payload),
        position: None,
    });
}

fn write_broadcast<'a>(
    out: &mut Vec<u8>,
    version: Version,
    topic: &'a [u8],
    broadcast: impl FnOnce(&'a str) -> Broadcast<'a>,
) {
    let topic = std::str::from_utf8(topic).expect("browsers join texts");
    let broadcast = broadcast(topic);
    let bytes = broadcast.bytes(version);
    write_frame_header(out, opcode(broadcast.kind(version)), true, bytes, None);
    broadcast.write(version, out);
}

/// Appends a message of the protocol's state machine.
pub fn write_message(out: &mut Vec<u8>, version: Version, message: &Message<'_>) {
    let mut bytes = Vec::new();
    let kind = message.write(version, &mut bytes).expect("what the machine says is JSON");
    write_frame(out, opcode(kind), true, &bytes, None);
}

/// Appends an encoded text message.
pub fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    write_frame(out, Opcode::Text, true, text, None);
}

fn opcode(kind: Kind) -> Opcode {
    if kind == Kind::Text { Opcode::Text } else { Opcode::Binary }
}
