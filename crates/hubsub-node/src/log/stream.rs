//! A scan in progress: reads its hub's segments turn by turn and produces chunks. [`super::streams`] handles
//! requesters and threads.

use super::events::{Refusal, StreamAnswer, refused};
use super::health::State;
use super::reading::Answer;
use super::threads::Log;
use hubsub_log::arrow::{Chunk, Encoder, Filter, Shape};
use hubsub_log::{Chain, Cursor, Disk, LogError, Pace};
use hubsub_types::ErrorCode;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one stream is processed before another gets its turn.
const SLICE: Duration = Duration::from_millis(10);

/// Records between two checks of the clock, which also yield the processor: otherwise a shard that polls for
/// the disk's result would get it back only at the next tick.
const LOOK_EVERY: u32 = 256;

/// The longest time between chunks, whatever they contain: it distinguishes a selective filter from a dead
/// node.
const PATIENCE: Duration = Duration::from_secs(1);

/// The most bytes delivered at once; chunks of short records fit, and of a long one little is copied at a
/// time.
const GIVEN_BYTES_MAX: usize = 16 << 20;

/// The reply to a ticket.
pub(super) type Outcome = Result<StreamAnswer, Refusal>;

pub struct Stream {
    pub chain: Arc<Chain<Disk>>,
    pub cursor: Cursor<Disk>,
    until: u64,
    filter: Filter,
    /// None once the end was encoded.
    encoder: Option<Encoder>,
    /// The error to report after the rows before it.
    failed: Option<Refusal>,
    /// When work on the current chunk began.
    begun: Option<Instant>,
    /// The damage that it met, for the operator.
    pub damage: Option<String>,
    /// Encoded and not delivered yet. Nothing more is read meanwhile.
    rest: Chunk,
}

/// Yields to other threads, then returns whether the slice is over.
fn is_past(slice: Instant) -> bool {
    std::thread::yield_now();
    Instant::now() >= slice
}

impl Stream {
    pub fn new(
        chain: Arc<Chain<Disk>>,
        offsets: Range<u64>,
        filter: Filter,
        shape: Shape,
        pace: Arc<dyn Pace>,
    ) -> Stream {
        Stream {
            cursor: Cursor::paced(offsets.start, pace),
            chain,
            until: offsets.end,
            filter,
            encoder: Some(Encoder::new(shape)),
            failed: None,
            begun: None,
            damage: None,
            rest: Chunk::default(),
        }
    }

    pub fn is_over(&self) -> bool {
        self.encoder.is_none() && self.rest.is_empty()
    }

    /// Reads and encodes for at most `SLICE`.
    pub fn turn(&mut self, log: &Log) -> Answer<Outcome> {
        if !self.rest.is_empty() {
            return self.give(Ok(Chunk::default()));
        }
        if let Some(refusal) = self.failed.take() {
            return Answer::Found(Err(refusal));
        }
        let Some(encoder) = &mut self.encoder else { return Answer::Found(Ok(StreamAnswer::Chunk(None))) };
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let (slice, mut seen, mut is_over, filter) = (Instant::now() + SLICE, 0, false, &self.filter);
        // Checked before the read, which could otherwise miss records written in between.
        let has_ended = log.shared.has_ended();
        let read = self.chain.read_through(&mut self.cursor, self.until, |record| {
            if filter.is_over(record) {
                is_over = true;
                return ControlFlow::Break(());
            }
            if record.kind == hubsub_log::Kind::Message && filter.passes(record) {
                encoder.push(record);
            }
            seen += 1;
            let is_late = seen % LOOK_EVERY == 0 && is_past(slice);
            if encoder.is_full() || is_late { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let refusal = read.err().map(|e| {
            self.damage = super::reading::damage(&e);
            refusal(&e)
        });
        self.cursor.release();
        let (is_due, is_full) = (begun.elapsed() >= PATIENCE, encoder.is_full());
        let next = self.cursor.next();
        let is_over = is_over || (refusal.is_none() && next >= self.until);
        let waits = next >= self.chain.next();
        let refusal = refusal.or_else(|| match (is_over || !waits, log.shared.state()) {
            (true, _) => None,
            // The records that it waits for will not come.
            (_, _) if has_ended => {
                Some(refused(ErrorCode::LogFailed, log.shared.reason().unwrap_or_default()))
            }
            (_, State::Full) if is_due => {
                Some(refused(ErrorCode::DiskFull, log.shared.reason().unwrap_or_default()))
            }
            _ => None,
        });
        if is_over {
            let encoder = self.encoder.take().expect("it was there");
            return self.give(encoder.finish());
        }
        match refusal {
            Some(refusal) if encoder.rows() == 0 => Answer::Found(Err(refusal)),
            Some(refusal) => {
                self.failed = Some(refusal);
                let chunk = encoder.take();
                self.give(chunk)
            }
            None if is_full || is_due => {
                let chunk = encoder.take();
                self.give(chunk)
            }
            None if waits => {
                log.hurry();
                Answer::Waits
            }
            None => Answer::GoesOn,
        }
    }

    /// Delivers the rest of the previous chunk and this one, up to the limit.
    fn give(&mut self, chunk: Result<Chunk, LogError>) -> Answer<Outcome> {
        self.begun = None;
        let first = chunk.map(|chunk| {
            self.rest.append(chunk);
            self.rest.split_to(GIVEN_BYTES_MAX)
        });
        Answer::Found(first.map(|first| StreamAnswer::Chunk(Some(first))).map_err(|e| refusal(&e)))
    }
}

/// Searches for the first record at or after a time.
pub struct Search {
    chain: Arc<Chain<Disk>>,
    cursor: Cursor<Disk>,
    until: u64,
    timestamp_us: u64,
    begun: Instant,
}

impl Search {
    pub fn new(chain: Arc<Chain<Disk>>, until: u64, timestamp_us: u64) -> Search {
        let cursor = Cursor::at(chain.offset_before_time(timestamp_us));
        Search { chain, cursor, until, timestamp_us, begun: Instant::now() }
    }

    /// Searches for at most `SLICE`.
    pub fn turn(&mut self, log: &Log) -> Answer<Result<u64, Refusal>> {
        let (slice, mut found, has_ended) = (Instant::now() + SLICE, None, log.shared.has_ended());
        let wanted = self.timestamp_us;
        let read = self.chain.read_through(&mut self.cursor, self.until, |record| {
            if record.timestamp_us >= wanted {
                found = Some(record.offset);
            }
            let is_late = record.offset % u64::from(LOOK_EVERY) == 0 && is_past(slice);
            if found.is_some() || is_late { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let next = self.cursor.next();
        let waits = next >= self.chain.next();
        match read {
            Err(LogError::Gone { end, .. }) => {
                // Retention removed its position: the record is after that, or does not exist.
                self.cursor = Cursor::at(end);
                Answer::GoesOn
            }
            Err(e) => Answer::Found(Err(refusal(&e))),
            Ok(()) if found.is_some() => Answer::Found(Ok(found.expect("it was found"))),
            Ok(()) if next >= self.until => Answer::Found(Ok(self.until)),
            Ok(())
                if waits
                    && (has_ended
                        || self.begun.elapsed() > PATIENCE && log.shared.state() != State::Open) =>
            {
                Answer::Found(Err(refused(ErrorCode::LogFailed, log.shared.reason().unwrap_or_default())))
            }
            Ok(()) => {
                if !waits {
                    return Answer::GoesOn;
                }
                log.hurry();
                Answer::Waits
            }
        }
    }
}

fn refusal(error: &LogError) -> Refusal {
    match *error {
        LogError::Gone { first, end } => {
            Refusal { code: ErrorCode::OffsetsLost, value: first.to_string(), missing: Some((first, end)) }
        }
        ref error => refused(super::reading::refusal(error), error.to_string()),
    }
}
