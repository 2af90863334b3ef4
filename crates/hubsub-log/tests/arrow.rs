//! A stream has exactly the requested rows, each as encoded, for any records, filter and batch size.

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, RecordBatch};
use arrow_ipc::reader::StreamReader;
use hubsub_log::arrow::{COLUMNS, Chunk, Column, Encoder, Filter, Shape};
use hubsub_log::record::{Record, decode_headers, encode_headers};
use hubsub_log::{HubId, Kind};
use hubsub_types::names::{DeviceTemplate, Matcher};
use proptest::prelude::*;
use std::sync::Arc;

#[derive(Clone, Debug)]
struct Sent {
    numbers: [u64; 4],
    timestamp_us: u64,
    kind: Kind,
    room: Vec<u8>,
    topic: Vec<u8>,
    publisher: String,
    headers: Vec<(String, String)>,
    payload: Vec<u8>,
}

impl Sent {
    fn with<T>(&self, take: impl FnOnce(&Record<'_>) -> T) -> T {
        let headers = encode_headers(self.headers.iter().map(|(k, v)| (k.as_str(), v.as_str())));
        let [term, offset, epoch, seq] = self.numbers;
        take(&Record {
            hub: HubId(7),
            kind: self.kind,
            term,
            offset,
            epoch,
            seq,
            timestamp_us: self.timestamp_us,
            room: &self.room,
            topic: &self.topic,
            publisher: self.publisher.as_bytes(),
            headers: &headers,
            payload: &self.payload,
            ..Record::default()
        })
    }
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => "[ab]/[cd]{1,2}".prop_map(String::into_bytes),
        1 => ".{0,6}".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..12),
    ]
}

fn sent() -> impl Strategy<Value = Sent> {
    let numbers = prop::array::uniform4(0..i64::MAX as u64);
    let kind =
        prop_oneof![8 => Just(Kind::Message), 1 => Just(Kind::RoomDeleted), 1 => Just(Kind::Tombstone)];
    let headers = prop::collection::vec(("[a-z]{0,3}", ".{0,5}"), 0..3);
    let payload = prop_oneof![20 => prop::collection::vec(any::<u8>(), 0..60), 1 => Just(vec![b'x'; 3000])];
    (numbers, 0..100u64, kind, (name(), name()), "[^%]{0,4}", headers, payload).prop_map(
        |(numbers, timestamp_us, kind, (room, topic), publisher, headers, payload)| Sent {
            numbers,
            timestamp_us,
            kind,
            room,
            topic,
            publisher,
            headers,
            payload,
        },
    )
}

/// Optional device template: the second level.
fn device() -> impl Strategy<Value = Option<Arc<DeviceTemplate>>> {
    let template = DeviceTemplate::parse("+/{device}/#").expect("it is one");
    prop::option::of(Just(Arc::new(template)))
}

fn device_of(sent: &Sent) -> Option<&[u8]> {
    let levels: Vec<&[u8]> = sent.topic.split(|&byte| byte == b'/').collect();
    let is_own = sent.topic.starts_with(b"$");
    levels.get(1).copied().filter(|level| !level.is_empty() && !is_own)
}

fn filter() -> impl Strategy<Value = Filter> {
    let names = || prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(name(), 0..3)];
    let prefix = || prop_oneof![3 => Just(Vec::new()), 1 => name().prop_map(|mut n| { n.truncate(1); n })];
    let pattern = prop::sample::select(vec!["a*", "a/+", "+/c", "#", "[ab]/*", "b/cd", "?"]);
    let patterns = move || {
        let some = prop::collection::vec(pattern.clone(), 0..3);
        prop_oneof![3 => Just(Vec::new()), 1 => some]
            .prop_map(|p| p.into_iter().map(|p| Matcher::parse(p).unwrap()).collect::<Vec<_>>())
    };
    let devices = prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec("[cd]{1,2}".prop_map(String::into_bytes), 0..3)];
    let times = (0..100u64, prop::option::of(0..100u64), devices);
    (names(), prefix(), patterns(), names(), prefix(), patterns(), times).prop_map(
        |(
            rooms,
            room_prefix,
            room_patterns,
            topics,
            topic_prefix,
            topic_filters,
            (since_us, until_us, devices),
        )| {
            Filter {
                rooms,
                room_prefix,
                room_patterns,
                topics,
                topic_prefix,
                topic_filters,
                devices,
                device: None,
                since_us,
                until_us,
            }
        },
    )
}

/// A second implementation of the filter.
fn is_wanted(filter: &Filter, sent: &Sent) -> bool {
    let is_of = |name: &Vec<u8>, names: &Vec<Vec<u8>>, prefix: &[u8], patterns: &Vec<Matcher>| {
        let is_named = names.is_empty() || names.contains(name);
        let is_matched = patterns.is_empty() || patterns.iter().filter(|p| p.matches(name)).count() > 0;
        is_named && is_matched && name.strip_prefix(prefix).is_some()
    };
    let Filter { rooms, room_prefix, room_patterns, topics, topic_prefix, topic_filters, .. } = filter;
    let until = filter.until_us.unwrap_or(u64::MAX);
    let device = filter.device.as_ref().and_then(|_| device_of(sent));
    let is_of_device =
        filter.devices.is_empty() || device.is_some_and(|name| filter.devices.contains(&name.to_vec()));
    is_of_device
        && (filter.since_us..until).contains(&sent.timestamp_us)
        && is_of(&sent.room, rooms, room_prefix, room_patterns)
        && is_of(&sent.topic, topics, topic_prefix, topic_filters)
}

/// A second implementation of `hubsub.names.text_of`.
fn text_of(name: &[u8]) -> String {
    let mut escaped = Vec::new();
    for (at, &byte) in name.iter().enumerate() {
        escaped.push(byte);
        let digits = name.get(at + 1..at + 3).unwrap_or_default();
        if byte == b'%' && digits.len() == 2 && digits.iter().all(u8::is_ascii_hexdigit) {
            escaped.extend_from_slice(b"25");
        }
    }
    let mut text = String::new();
    for chunk in escaped.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("%{byte:02X}")));
    }
    text
}

fn decoded(chunks: &[Chunk]) -> Vec<RecordBatch> {
    let bytes: Vec<u8> = chunks.iter().flat_map(|c| c.pieces()).flatten().copied().collect();
    assert_eq!(bytes.len(), chunks.iter().map(Chunk::len).sum::<usize>());
    assert!(bytes.ends_with(&[255, 255, 255, 255, 0, 0, 0, 0]), "the end-of-stream mark");
    StreamReader::try_new(&bytes[..], None).unwrap().map(Result::unwrap).collect()
}

/// A value of a row as text, for comparison.
fn value(batch: &RecordBatch, column: Column, row: usize) -> String {
    let array = batch.column_by_name(column.name()).expect("it was asked for");
    if column == Column::Device && array.is_null(row) {
        return "null".to_owned();
    }
    assert!(array.is_valid(row));
    match column {
        Column::Hub => array.as_primitive::<Int32Type>().value(row).to_string(),
        Column::Term | Column::Offset | Column::Epoch | Column::Seq => {
            array.as_primitive::<Int64Type>().value(row).to_string()
        }
        Column::Timestamp => array.as_primitive::<TimestampMicrosecondType>().value(row).to_string(),
        Column::Room | Column::Topic | Column::Publisher => array.as_string::<i32>().value(row).to_owned(),
        Column::Device => format!("{:?}", array.as_string::<i32>().value(row)),
        Column::Payload => format!("{:?}", array.as_binary::<i32>().value(row)),
        Column::Headers => {
            let pairs = array.as_map().value(row);
            let (keys, values) = (pairs.column(0).as_string::<i32>(), pairs.column(1).as_string::<i32>());
            let pairs = (0..pairs.len()).map(|i| (keys.value(i).to_owned(), values.value(i).to_owned()));
            format!("{:?}", pairs.collect::<Vec<_>>())
        }
    }
}

fn expected(sent: &Sent, column: Column, has_template: bool) -> String {
    let [term, offset, epoch, seq] = sent.numbers;
    match column {
        Column::Hub => "7".to_owned(),
        Column::Term => term.to_string(),
        Column::Offset => offset.to_string(),
        Column::Epoch => epoch.to_string(),
        Column::Seq => seq.to_string(),
        Column::Timestamp => sent.timestamp_us.to_string(),
        Column::Room => text_of(&sent.room),
        Column::Topic => text_of(&sent.topic),
        Column::Publisher => sent.publisher.clone(),
        Column::Device => match device_of(sent).filter(|_| has_template) {
            Some(name) => format!("{:?}", text_of(name)),
            None => "null".to_owned(),
        },
        Column::Headers => format!("{:?}", sent.headers),
        Column::Payload => format!("{:?}", sent.payload),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_stream_has_what_passes_the_filter_in_order(
        all in prop::collection::vec(sent(), 0..60),
        filter in filter(),
        device in device(),
        mut columns in prop::sample::subsequence(COLUMNS.to_vec(), 0..=COLUMNS.len()).prop_shuffle(),
        (batch_rows, batch_bytes, is_compressed) in (1..20usize, prop_oneof![1..200usize, Just(1 << 20)], any::<bool>()),
    ) {
        let filter = Filter { device: device.clone(), ..filter }.prepared();
        let shape = Shape { columns: columns.clone(), device: device.clone(), is_compressed, batch_rows, batch_bytes };
        let (mut encoder, mut chunks) = (Encoder::new(shape), Vec::new());
        let mut wanted = Vec::new();
        for one in &all {
            let passes = one.with(|record| {
                let passes = filter.passes(record);
                if passes {
                    encoder.push(record);
                }
                passes
            });
            prop_assert_eq!(passes, is_wanted(&filter, one), "{:?} {:?}", filter, one);
            if passes {
                wanted.push(one);
            }
            if encoder.is_full() {
                chunks.push(encoder.take().unwrap());
            }
        }
        chunks.push(encoder.finish().unwrap());
        prop_assert_eq!(chunks.iter().map(|chunk| chunk.rows).sum::<usize>(), wanted.len());
        let batches = decoded(&chunks);
        columns.sort_unstable();
        let mut rows = wanted.iter();
        for batch in &batches {
            prop_assert!(batch.num_rows() <= batch_rows);
            let names: Vec<_> = batch.schema().fields().iter().map(|f| f.name().clone()).collect();
            prop_assert_eq!(&names, &columns.iter().map(|c| c.name().to_owned()).collect::<Vec<_>>());
            for row in 0..batch.num_rows() {
                let sent = rows.next().expect("no more rows than were sent");
                for &column in &columns {
                    prop_assert_eq!(value(batch, column, row), expected(sent, column, device.is_some()), "{:?}", column);
                }
            }
        }
        prop_assert!(rows.next().is_none());
    }
}

#[test]
fn a_payload_of_20_mib_is_one_row_of_a_batch() {
    let payload = vec![b'p'; 20 << 20];
    for is_compressed in [false, true] {
        let mut encoder = Encoder::new(Shape { is_compressed, ..Shape::default() });
        for payload in [&b"before"[..], &payload] {
            encoder.push(&Record { payload, room: b"r", topic: b"r", ..Record::default() });
        }
        assert!(encoder.is_full());
        let first = encoder.take().unwrap();
        encoder.push(&Record { payload: b"behind", ..Record::default() });
        let batches = decoded(&[first, encoder.finish().unwrap()]);
        let payloads = |batch: &RecordBatch| {
            let column = batch.column_by_name("payload").unwrap().as_binary::<i32>().clone();
            column.iter().map(|payload| payload.unwrap().to_vec()).collect::<Vec<_>>()
        };
        assert!(payloads(&batches[0]) == [b"before".to_vec(), payload.clone()]);
        assert_eq!(payloads(&batches[1]), [b"behind"]);
    }
}

#[test]
fn the_parts_of_a_chunk_are_what_it_was() {
    let payload = vec![7; 5000];
    let mut encoder = Encoder::new(Shape::default());
    let record =
        Record { hub: HubId(1), offset: 1, room: b"r", topic: b"t", payload: &payload, ..Record::default() };
    (0..3).for_each(|_| encoder.push(&record));
    let whole = encoder.take().unwrap();
    let bytes = whole.pieces().collect::<Vec<_>>().concat();
    for bytes_max in [1, 7, 64, 4096, bytes.len(), bytes.len() + 1] {
        let (mut rest, mut parts, mut rows) = (whole.clone(), Vec::new(), 0);
        while !rest.is_empty() {
            let part = rest.split_to(bytes_max);
            assert!(part.len() == bytes_max || rest.is_empty());
            parts.extend(part.pieces().collect::<Vec<_>>().concat());
            rows += part.rows;
        }
        assert!(parts == bytes, "in parts of {bytes_max} bytes");
        assert_eq!(rows, 3);
    }
}

#[test]
fn headers_behind_one_that_cannot_be_read_are_left_out_as_elsewhere() {
    let mut headers = encode_headers([("a", "b")]);
    headers.extend_from_slice(&[200, 0]);
    let mut encoder = Encoder::new(Shape { columns: vec![Column::Headers], ..Shape::default() });
    encoder.push(&Record { headers: &headers, ..Record::default() });
    let batches = decoded(&[encoder.finish().unwrap()]);
    assert_eq!(value(&batches[0], Column::Headers, 0), r#"[("a", "b")]"#);
    assert_eq!(decode_headers(&headers).count(), 1);
}
