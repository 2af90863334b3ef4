//! The encoding of messages with a record that has a position and a place in a log: these are on the wire
//! among the message's other fields, before the record.

use crate::error::Flaw;
use crate::field::{Field, Reader, Short};
use crate::fields::place;
use crate::{AskId, Give, NodeMessage, Record};
use hubsub_types::{HubId, Position, Seq, Term};
use std::sync::Arc;

fn read_record(
    from: &mut Reader<'_>,
    position: Position,
    hub: HubId,
    offset: Short,
) -> Result<Arc<Record>, Flaw> {
    let mut record = Record::read(from)?;
    (record.position, record.place) = (position, place(hub, offset));
    Ok(Arc::new(record))
}

/// hub, term, position, previous, offset, before, record
pub mod deliver {
    use super::*;

    pub fn write(
        out: &mut Vec<u8>,
        hub: &HubId,
        term: &Term,
        previous: &Seq,
        before: &u64,
        record: &Arc<Record>,
    ) {
        hub.write(out);
        term.write(out);
        record.position.write(out);
        previous.write(out);
        Short(record.place.offset).write(out);
        Short(*before).write(out);
        record.write(out);
    }

    pub fn read(from: &mut Reader<'_>) -> Result<NodeMessage, Flaw> {
        let (hub, term, position) = (HubId::read(from)?, Term::read(from)?, Position::read(from)?);
        let (previous, offset) = (Seq::read(from)?, Short::read(from)?);
        let Short(before) = Field::read(from)?;
        let record = read_record(from, position, hub, offset)?;
        Ok(NodeMessage::Deliver { hub, term, previous, before, record })
    }
}

/// hub, group, tries, was_taken, position, offset, record
pub mod give {
    use super::*;

    pub fn write(out: &mut Vec<u8>, hub: &HubId, Give { group, record, tries, was_taken }: &Give) {
        hub.write(out);
        group.write(out);
        tries.write(out);
        was_taken.write(out);
        record.position.write(out);
        Short(record.place.offset).write(out);
        record.write(out);
    }

    pub fn read(from: &mut Reader<'_>) -> Result<NodeMessage, Flaw> {
        let (hub, group) = (HubId::read(from)?, Field::read(from)?);
        let (tries, was_taken) = (Field::read(from)?, Field::read(from)?);
        let (position, offset) = (Position::read(from)?, Short::read(from)?);
        let record = read_record(from, position, hub, offset)?;
        Ok(NodeMessage::Give { hub, give: Give { group, record, tries, was_taken } })
    }
}

/// ask, position, hub, offset, record
pub mod range {
    use super::*;

    pub fn write(out: &mut Vec<u8>, ask: &AskId, record: &Arc<Record>) {
        ask.write(out);
        record.position.write(out);
        record.place.hub.write(out);
        Short(record.place.offset).write(out);
        record.write(out);
    }

    pub fn read(from: &mut Reader<'_>) -> Result<NodeMessage, Flaw> {
        let (ask, position) = (AskId::read(from)?, Position::read(from)?);
        let (hub, offset) = (HubId::read(from)?, Short::read(from)?);
        let record = read_record(from, position, hub, offset)?;
        Ok(NodeMessage::Range { ask, record })
    }
}
