//! The encodings for a stream of server-sent events.

use hubsub_route::RecordView;
use hubsub_types::Position;
use hubsub_wire::events::{self, record_event, write_record};
use hubsub_wire::phoenix::{EVENT_HEADER, FORM_HEADER, Form, Payload};

/// Appends a record in the encoding of all streams.
pub fn encode(out: &mut Vec<u8>, record: &RecordView<'_>) {
    let mut made = Vec::new();
    let form = record.header(FORM_HEADER).and_then(Form::named);
    let payload = Payload::of_record(record.payload, form, &mut made);
    write_record(out, record.position, record_event(record.header(EVENT_HEADER)), payload);
}

/// Appends a notice of records that the stream will not get.
pub fn write_gap(out: &mut Vec<u8>, from: Position, to: Position) {
    let is_known = from.epoch == to.epoch;
    events::write_gap(out, from, is_known.then_some(to), to);
}
