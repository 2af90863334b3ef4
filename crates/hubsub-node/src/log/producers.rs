//! Rebuilds a hub's duplicate window from the end of its log.

use super::reading::owned;
use hubsub_log::storage::Storage;
use hubsub_log::{Chain, LogError, record};
use hubsub_route::producers::{Producers, Window, log_bytes};
use hubsub_route::{Producer, Record};
use hubsub_types::ProducerId;

const READ_BYTES: usize = 1 << 20;

/// The duplicate window of the hub that wrote the chain.
///
/// # Errors
/// If the end of the chain is damaged or cannot be read.
pub fn rebuild<S: Storage>(chain: &Chain<S>, window: Window) -> Result<Producers, LogError> {
    let (next, earliest) = (chain.next(), chain.info().earliest);
    // A window counts at least as many bytes per record as the chain uses.
    let of_bytes = chain.offset_of_last(window.bytes)?;
    let mut at = of_bytes.max(next.saturating_sub(window.records)).max(earliest);
    let mut producers = Producers::new(window);
    let mut bytes = Vec::new();
    while at < next {
        bytes.clear();
        let behind = chain.read_offsets(at, READ_BYTES, &mut bytes)?;
        if behind <= at {
            break;
        }
        at = behind;
        let mut rest = &bytes[..];
        while let Ok((record, len)) = record::decode(rest) {
            rest = &rest[len..];
            take(&mut producers, &record);
        }
    }
    Ok(producers)
}

fn take(producers: &mut Producers, record: &record::Record<'_>) {
    // A deletion counts too: it has an offset and bytes.
    let record::Record { room, topic, publisher, headers, payload, offset, .. } = *record;
    let bytes = log_bytes(room.len(), topic.len(), publisher.len(), headers.len(), payload.len());
    match numbered(record) {
        Some(record) => producers.keep(offset, bytes, &record),
        None => producers.pass(offset, bytes),
    }
}

fn numbered(record: &record::Record<'_>) -> Option<Record> {
    let producer = Producer { id: ProducerId(record.producer), sequence: record.producer_seq };
    (record.producer != 0).then(|| owned(record).from_producer(Some(producer)))
}
