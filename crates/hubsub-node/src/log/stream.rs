//! One scan that is under way: a turn at a time it reads its hub's segments, and gives a
//! chunk when there is one. Who has asked for it, and which thread has it, is for
//! [`super::streams`].

use super::streams::{Answer, Outcome, Refusal, refused};
use super::{Log, State};
use hubsub_log::arrow::{Chunk, Encoder, Filter, Shape};
use hubsub_log::{Chain, Cursor, Disk, LogError, Pace};
use hubsub_types::ErrorCode;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one stream is worked on before another has its turn.
const SLICE: Duration = Duration::from_millis(10);

/// Records between two looks at the clock, at which others have the processor if they want it:
/// a shard that looks for the disk's answer would get it back at the next tick only.
const LOOK_EVERY: u32 = 256;

/// A chunk comes after so long at the latest, whatever is in it: who waits sees that the
/// filter lets little through, and not that nobody is there.
const PATIENCE: Duration = Duration::from_secs(1);

/// Of a chunk so much is given at once: those of short records go whole, and of a long one little is copied at a time.
const GIVEN_BYTES_MAX: usize = 16 << 20;

/// A scan that is under way.
pub struct Stream {
    pub chain: Arc<Chain<Disk>>,
    pub cursor: Cursor<Disk>,
    until: u64,
    filter: Filter,
    /// None once the end was written.
    encoder: Option<Encoder>,
    /// Why it goes no further, told behind the rows before.
    failed: Option<Refusal>,
    /// When work on the present chunk began.
    begun: Option<Instant>,
    /// What it could not read, for the operator.
    pub damage: Option<String>,
    /// What is encoded and not given yet. Nothing more is read while there is any.
    rest: Chunk,
}

/// Whether a slice is over, once others have run.
fn is_past(slice: Instant) -> bool {
    std::thread::yield_now();
    Instant::now() >= slice
}

/// What came of working at a stream.
pub enum Turn {
    /// This.
    Is(Outcome),
    /// There is more to look through.
    GoesOn,
    /// Segments have not yet what comes.
    Waits,
}

impl Stream {
    /// Before the first of some offsets.
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

    /// Whether its end was given.
    pub fn is_over(&self) -> bool {
        self.encoder.is_none() && self.rest.is_empty()
    }

    /// Goes on for a while.
    pub fn turn(&mut self, log: &Log) -> Turn {
        if !self.rest.is_empty() {
            return self.give(Ok(Chunk::default()));
        }
        if let Some(refusal) = self.failed.take() {
            return Turn::Is(Err(refusal));
        }
        let Some(encoder) = &mut self.encoder else { return Turn::Is(Ok(Answer::Chunk(None))) };
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let (slice, mut seen, mut is_over, filter) = (Instant::now() + SLICE, 0, false, &self.filter);
        // Before it reads: else it could miss what came in between.
        let has_ended = log.has_ended();
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
        let refusal = refusal.or_else(|| match (is_over || !waits, log.state()) {
            (true, _) => None,
            // What it waits for will not come.
            (_, _) if has_ended => Some(refused(ErrorCode::LogFailed, log.reason().unwrap_or_default())),
            (_, State::Full) if is_due => {
                Some(refused(ErrorCode::DiskFull, log.reason().unwrap_or_default()))
            }
            _ => None,
        });
        if is_over {
            let encoder = self.encoder.take().expect("it was there");
            return self.give(encoder.finish());
        }
        match refusal {
            Some(refusal) if encoder.rows() == 0 => Turn::Is(Err(refusal)),
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
                Turn::Waits
            }
            None => Turn::GoesOn,
        }
    }

    /// What is left of the chunk before, and this one, as far as it is given at once.
    fn give(&mut self, chunk: Result<Chunk, LogError>) -> Turn {
        self.begun = None;
        let first = chunk.map(|chunk| {
            self.rest.append(chunk);
            self.rest.split_to(GIVEN_BYTES_MAX)
        });
        Turn::Is(first.map(|first| Answer::Chunk(Some(first))).map_err(|e| refusal(&e)))
    }
}

/// Looks for the first record of a time.
pub struct Search {
    chain: Arc<Chain<Disk>>,
    cursor: Cursor<Disk>,
    until: u64,
    timestamp_us: u64,
    begun: Instant,
}

/// What came of looking for it.
pub enum SearchTurn {
    /// This.
    Is(Result<u64, Refusal>),
    /// There is more to look through.
    GoesOn {
        /// Whether segments have not yet what comes.
        waits: bool,
    },
}

impl Search {
    /// In a hub, below an offset.
    pub fn new(chain: Arc<Chain<Disk>>, until: u64, timestamp_us: u64) -> Search {
        let cursor = Cursor::at(chain.offset_before_time(timestamp_us));
        Search { chain, cursor, until, timestamp_us, begun: Instant::now() }
    }

    /// Goes on for a while.
    pub fn turn(&mut self, log: &Log) -> SearchTurn {
        let (slice, mut found, has_ended) = (Instant::now() + SLICE, None, log.has_ended());
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
                // Retention goes on under it: what is asked for is behind that, or nowhere.
                self.cursor = Cursor::at(end);
                SearchTurn::GoesOn { waits: false }
            }
            Err(e) => SearchTurn::Is(Err(refusal(&e))),
            Ok(()) if found.is_some() => SearchTurn::Is(Ok(found.expect("it was found"))),
            Ok(()) if next >= self.until => SearchTurn::Is(Ok(self.until)),
            Ok(())
                if waits && (has_ended || self.begun.elapsed() > PATIENCE && log.state() != State::Open) =>
            {
                SearchTurn::Is(Err(refused(ErrorCode::LogFailed, log.reason().unwrap_or_default())))
            }
            Ok(()) => {
                if waits {
                    log.hurry();
                }
                SearchTurn::GoesOn { waits }
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
