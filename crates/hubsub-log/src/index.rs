//! The index of a segment: where each room's records are, in *runs*, each for a part of a segment.
//! `docs/log-format.md` documents the layout.
//!
//! A run maps a room to the positions of its records, and by `prev` to the previous run that has some. So a
//! reader walks a room's history backwards from its last record and touches only runs that contain it. Each
//! row has a checksum, since a wrong `prev` would hide records; a wrong position is detected from the record
//! there.
//!
//! The table is open-addressed, with rows in the order of hashes: a row is at its hash's home or shortly
//! after it. So one read finds it, and the position of that read is known in advance: a walk over many
//! segments can request all of them at once.

use crate::record::{end_head, is_head, put_u32, put_u64, u32_at, u64_at};
use crate::rooms::{Last, RoomHash};
use crate::storage::StorageFile;
use std::io::{self, ErrorKind};

const MAGIC: &[u8; 8] = b"HSRUN002";
const HEAD: usize = 64;
const ROOM: usize = 52;
const PLACE: usize = 4;
const SAMPLE: usize = 24;

/// Bytes of segment between two samples.
const SAMPLE_BYTES: u32 = 64 * 1024;

/// Table rows per read of a look-up. The table is seven eighths full, so hardly any row is farther from its
/// home.
const WINDOW: usize = 32;

#[derive(Clone, Copy, Debug)]
pub struct Item {
    pub room: RoomHash,
    pub epoch: u64,
    pub seq: u64,
    pub offset: u64,
    /// Offset of the room's previous record; 0 if there is none.
    pub prev: u64,
    pub position: u32,
}

/// A position in a segment, for searches by offset or time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Offset of the record at `position`.
    pub offset: u64,
    pub timestamp_us: u64,
    pub position: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoomHead {
    pub last: Last,
    /// Offset of the room's record before its first in this run, which compaction may have removed since; 0
    /// if there was none.
    pub prev: u64,
    /// Number of the room's records. 0: the room was deleted and has no later record.
    pub count: u32,
    /// Index of its first position in the run; for a single record, the position itself.
    from: u32,
}

impl RoomHead {
    const DELETED: RoomHead =
        RoomHead { last: Last { epoch: 0, seq: 0, offset: 0 }, prev: 0, count: 0, from: 0 };
}

type RoomRun = (RoomHash, RoomHead, Vec<u32>);

#[derive(Debug, Default)]
pub struct RunBuilder {
    items: Vec<Item>,
    deleted: Vec<RoomHash>,
    samples: Vec<Sample>,
    range: Option<(u64, u64)>,
}

impl RunBuilder {
    /// Adds a record; `item` is none if the record belongs to no room's history.
    pub fn push(&mut self, sample: Sample, item: Option<Item>) {
        let first = self.range.map_or(sample.offset, |(first, _)| first);
        self.range = Some((first, sample.offset));
        if self.samples.last().is_none_or(|last| sample.position - last.position >= SAMPLE_BYTES) {
            self.samples.push(sample);
        }
        self.items.extend(item);
    }

    /// Records the deletion of a room: its history ends here.
    pub fn delete(&mut self, room: RoomHash) {
        self.items.retain(|item| item.room != room);
        self.deleted.push(room);
    }

    /// Sets the covered offsets, of which some may have no record.
    pub fn cover(&mut self, first: u64, last: u64) {
        self.range = Some((first, last));
    }

    pub fn is_empty(&self) -> bool {
        self.range.is_none()
    }

    /// Entry of a room and the positions of its records.
    pub fn room(&self, room: RoomHash) -> Option<(RoomHead, Vec<u32>)> {
        let of_room: Vec<Item> = self.items.iter().filter(|item| item.room == room).copied().collect();
        match of_room.is_empty() {
            false => Some((head_of(&of_room), of_room.iter().map(|item| item.position).collect())),
            true => self.deleted.contains(&room).then_some((RoomHead::DELETED, Vec::new())),
        }
    }

    /// Samples in order of position.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    pub fn bytes(&self) -> usize {
        self.items.capacity() * size_of::<Item>() + self.samples.capacity() * size_of::<Sample>()
    }

    pub fn encode(&self) -> Vec<u8> {
        let Some(range) = self.range else { return Vec::new() };
        let mut items = self.items.clone();
        // The sort is stable, so positions stay in order.
        items.sort_by_key(|item| item.room);
        let of_rooms = items.chunk_by(|a, b| a.room == b.room);
        let places = |of_room: &[Item]| of_room.iter().map(|item| item.position).collect();
        let mut rooms: Vec<RoomRun> =
            of_rooms.map(|of_room| (of_room[0].room, head_of(of_room), places(of_room))).collect();
        let with_items = rooms.len();
        for &room in &self.deleted {
            if rooms[..with_items].binary_search_by_key(&room, |(hash, ..)| *hash).is_err() {
                rooms.push((room, RoomHead::DELETED, Vec::new()));
            }
        }
        rooms.sort_by_key(|(hash, ..)| *hash);
        rooms.dedup_by_key(|(hash, ..)| *hash);
        encode(range, rooms, &self.samples)
    }
}

/// Entry for the records of one room, of which there is at least one.
fn head_of(items: &[Item]) -> RoomHead {
    let (first, last) = (items[0], items[items.len() - 1]);
    let Item { epoch, seq, offset, .. } = last;
    RoomHead { last: Last { epoch, seq, offset }, prev: first.prev, count: items.len() as u32, from: 0 }
}

fn encode((first, last): (u64, u64), rooms: Vec<RoomRun>, samples: &[Sample]) -> Vec<u8> {
    // The number over which the hashes are spread.
    let homes = rooms.len() as u64 * 8 / 7;
    let (mut table, mut places, mut rows) = (Vec::new(), Vec::new(), 0);
    for (hash, head, of_room) in rooms {
        while rows < home(homes, hash) {
            push_row(&mut table, [0; 5], [0; 2]);
            rows += 1;
        }
        rows += 1;
        let [a, b] = [u64::from(hash.low >> 16) << 48, u64::from(hash.low & 0xffff) << 48];
        let Last { epoch, seq, offset } = head.last;
        let count = of_room.len() as u32;
        let from = match *of_room {
            [place] => place,
            _ => {
                let from = places.len() / PLACE;
                put_u32(&mut places, &of_room);
                from as u32
            }
        };
        push_row(&mut table, [hash.high, epoch, a | seq, b | head.prev, offset], [from, count]);
    }
    let mut out = Vec::with_capacity(HEAD + table.len() + places.len() + samples.len() * SAMPLE);
    out.extend_from_slice(MAGIC);
    put_u32(&mut out, &[crate::FORMAT, rows as u32, (places.len() / PLACE) as u32, samples.len() as u32]);
    put_u64(&mut out, &[first, last]);
    put_u32(&mut out, &[homes as u32]);
    end_head(&mut out, HEAD);
    out.extend_from_slice(&table);
    out.extend_from_slice(&places);
    for Sample { offset, timestamp_us, position } in samples {
        put_u64(&mut out, &[*offset, *timestamp_us, u64::from(*position)]);
    }
    out
}

/// Appends a row. A free row is all 0 except for its checksum, so zeroed bytes on the disk hide no room.
fn push_row(table: &mut Vec<u8>, long: [u64; 5], short: [u32; 2]) {
    let start = table.len();
    put_u64(table, &long);
    put_u32(table, &short);
    let checksum = crc32c::crc32c(&table[start..]);
    put_u32(table, &[checksum]);
}

/// First row at which a room can be.
fn home(homes: u64, room: RoomHash) -> u64 {
    ((u128::from(room.high) * u128::from(homes)) >> 64) as u64
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    at: u64,
    /// Rows of the room table, including free ones.
    rows: u32,
    homes: u32,
    places: u32,
    samples: u32,
    pub first: u64,
    pub last: u64,
}

impl Run {
    /// Opens the run at a position of a file.
    ///
    /// # Errors
    /// `InvalidData`: there is none. Others come from the storage.
    pub fn open(file: &impl StorageFile, at: u64) -> io::Result<Run> {
        let mut head = [0; HEAD];
        let n = file.read_full_at(&mut head, at)?;
        let run = Run::of(&head[..n], at).ok_or(ErrorKind::InvalidData)?;
        if at + run.bytes() > file.len()? { Err(ErrorKind::InvalidData.into()) } else { Ok(run) }
    }

    /// Decodes the head of a run that is at position `at` of its file.
    #[must_use]
    pub fn of(bytes: &[u8], at: u64) -> Option<Run> {
        let head = bytes.get(..HEAD)?;
        if !is_head(head, MAGIC) || u32_at(head, 8) != crate::FORMAT {
            return None;
        }
        Some(Run {
            at,
            rows: u32_at(head, 12),
            places: u32_at(head, 16),
            samples: u32_at(head, 20),
            first: u64_at(head, 24),
            last: u64_at(head, 32),
            homes: u32_at(head, 40),
        })
    }

    pub fn bytes(&self) -> u64 {
        self.samples_at() - self.at + u64::from(self.samples) * SAMPLE as u64
    }

    fn places_at(&self) -> u64 {
        self.at + HEAD as u64 + u64::from(self.rows) * ROOM as u64
    }

    fn samples_at(&self) -> u64 {
        self.places_at() + u64::from(self.places) * PLACE as u64
    }

    /// Looks up the entry of a room.
    ///
    /// # Errors
    /// `InvalidData`: the run is damaged. Others come from the storage.
    pub fn room(&self, file: &impl StorageFile, room: RoomHash) -> io::Result<Option<RoomHead>> {
        let mut at = home(u64::from(self.homes), room);
        let mut window = [0; WINDOW * ROOM];
        while at < u64::from(self.rows) {
            let n = (u64::from(self.rows) - at).min(WINDOW as u64);
            let rows = &mut window[..n as usize * ROOM];
            read_exact(file, rows, self.row_at(at))?;
            for row in rows.chunks_exact(ROOM) {
                match read_room(row)? {
                    Some((hash, _)) if hash < room => {}
                    Some((hash, head)) if hash == room => return Ok(Some(head)),
                    // A room is never after a free row that is at or after the room's home.
                    _ => return Ok(None),
                }
            }
            at += n;
        }
        Ok(None)
    }

    /// Announces a look-up of a room to the storage.
    pub fn advise_room(&self, file: &impl StorageFile, room: RoomHash) {
        let at = home(u64::from(self.homes), room).min(u64::from(self.rows));
        let n = (u64::from(self.rows) - at).min(WINDOW as u64);
        file.advise(self.row_at(at), n * ROOM as u64);
    }

    fn row_at(&self, row: u64) -> u64 {
        self.at + HEAD as u64 + row * ROOM as u64
    }

    /// Positions of a room's records: at most `count`, without the first `skip`.
    ///
    /// # Errors
    /// `InvalidData`: the run is damaged. Others come from the storage.
    pub fn places(
        &self,
        file: &impl StorageFile,
        head: &RoomHead,
        skip: u32,
        count: u32,
    ) -> io::Result<Vec<u32>> {
        let count = count.min(head.count.saturating_sub(skip));
        if head.count == 1 {
            return Ok(vec![head.from; count as usize]);
        }
        let from = u64::from(head.from) + u64::from(skip);
        if from + u64::from(count) > u64::from(self.places) {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; count as usize * PLACE];
        read_exact(file, &mut bytes, self.places_at() + from * PLACE as u64)?;
        let places: Vec<u32> = bytes.chunks_exact(PLACE).map(|place| u32_at(place, 0)).collect();
        if places.is_sorted() { Ok(places) } else { Err(ErrorKind::InvalidData.into()) }
    }

    /// Announces a read of these positions to the storage.
    pub fn advise_places(&self, file: &impl StorageFile, head: &RoomHead, skip: u32, count: u32) {
        if head.count > 1 {
            let at = self.places_at() + (u64::from(head.from) + u64::from(skip)) * PLACE as u64;
            file.advise(at, u64::from(count) * PLACE as u64);
        }
    }

    /// Samples in order of position.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn samples(&self, file: &impl StorageFile) -> io::Result<Vec<Sample>> {
        let mut bytes = vec![0; self.samples as usize * SAMPLE];
        read_exact(file, &mut bytes, self.samples_at())?;
        let sample =
            |b: &[u8]| Sample { offset: u64_at(b, 0), timestamp_us: u64_at(b, 8), position: u32_at(b, 16) };
        Ok(bytes.chunks_exact(SAMPLE).map(sample).collect())
    }

    /// Entries of all rooms, by hash.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn rooms(&self, file: &impl StorageFile) -> io::Result<Vec<(RoomHash, RoomHead)>> {
        let mut table = vec![0; self.rows as usize * ROOM];
        read_exact(file, &mut table, self.row_at(0))?;
        table.chunks_exact(ROOM).filter_map(|row| read_room(row).transpose()).collect()
    }

    /// All known positions of records, sorted.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn all_places(&self, file: &impl StorageFile) -> io::Result<Vec<u32>> {
        let rooms = self.rooms_with_places(file)?;
        let mut places: Vec<u32> = rooms.into_iter().flat_map(|(.., places)| places).collect();
        places.extend(self.samples(file)?.iter().map(|sample| sample.position));
        places.sort_unstable();
        places.dedup();
        Ok(places)
    }

    fn rooms_with_places(&self, file: &impl StorageFile) -> io::Result<Vec<RoomRun>> {
        let mut places = vec![0; self.places as usize * PLACE];
        read_exact(file, &mut places, self.places_at())?;
        let places: Vec<u32> = places.chunks_exact(PLACE).map(|place| u32_at(place, 0)).collect();
        let with_places = |(room, head): (RoomHash, RoomHead)| {
            if head.count == 1 {
                return Ok((room, head, vec![head.from]));
            }
            let of_room = places.get(head.from as usize..).and_then(|rest| rest.get(..head.count as usize));
            Ok((room, head, of_room.ok_or(ErrorKind::InvalidData)?.to_vec()))
        };
        self.rooms(file)?.into_iter().map(with_places).collect()
    }
}

/// Decodes a row of the room table; none if it is free.
fn read_room(bytes: &[u8]) -> io::Result<Option<(RoomHash, RoomHead)>> {
    if u32_at(bytes, ROOM - 4) != crc32c::crc32c(&bytes[..ROOM - 4]) {
        return Err(ErrorKind::InvalidData.into());
    }
    const LOW: u64 = (1 << 48) - 1;
    let (a, b) = (u64_at(bytes, 16), u64_at(bytes, 24));
    let room = RoomHash { high: u64_at(bytes, 0), low: ((a >> 48) << 16 | b >> 48) as u32 };
    let last = Last { epoch: u64_at(bytes, 8), seq: a & LOW, offset: u64_at(bytes, 32) };
    let head = RoomHead { last, prev: b & LOW, from: u32_at(bytes, 40), count: u32_at(bytes, 44) };
    let is_free = head == RoomHead::DELETED && (room.high, room.low) == (0, 0);
    Ok((!is_free).then_some((room, head)))
}

/// Merges adjacent runs, oldest first, into one.
///
/// # Errors
/// Errors of the storage.
pub fn merge(file: &impl StorageFile, runs: &[Run]) -> io::Result<Vec<u8>> {
    let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return Ok(Vec::new()) };
    let (mut rooms, mut samples) = (Vec::new(), Vec::new());
    for run in runs {
        rooms.extend(run.rooms_with_places(file)?);
        samples.extend(run.samples(file)?);
    }
    rooms.sort_by_key(|(hash, ..)| *hash);
    let merged = rooms.chunk_by(|a, b| a.0 == b.0).map(|of_room| {
        // If a run has `prev` 0 for the room, the records in earlier runs were deleted.
        let from = of_room.iter().rposition(|(_, head, _)| head.prev == 0).unwrap_or(0);
        let (room, last, _) = &of_room[of_room.len() - 1];
        let places = of_room[from..].iter().flat_map(|(.., places)| places.iter().copied()).collect();
        (*room, RoomHead { prev: of_room[from].1.prev, ..*last }, places)
    });
    Ok(encode((first.first, last.last), merged.collect(), &samples))
}

fn read_exact(file: &impl StorageFile, bytes: &mut [u8], at: u64) -> io::Result<()> {
    if file.read_full_at(bytes, at)? < bytes.len() { Err(ErrorKind::InvalidData.into()) } else { Ok(()) }
}
