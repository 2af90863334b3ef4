//! The encodings of the record that is being delivered, each made when first needed.

use super::{VARIANTS, encode};
use crate::io::output::Output;
use hubsub_route::{RecordView, Via};
use hubsub_types::shared::Shared;
use std::rc::Rc;

/// Frames of at least this size are shared individually instead of through an arena.
pub(crate) const FRAME_SHARED: usize = 16 * 1024;

/// Limit of an arena per turn; further frames are shared individually.
const ARENA_BYTES: usize = 1024 * 1024;

/// The encodings of the current record, each made when first needed: first those for subscribers of its
/// topic, then those for the pattern that was delivered last.
#[derive(Default)]
pub(crate) struct Encoded {
    /// A bit for each valid element of `ranges`.
    in_arena: u32,
    ranges: [(u32, u32); 2 * VARIANTS],
    frames: Vec<(usize, Shared)>,
    pattern: u32,
    /// The topic, for frames that may be dropped.
    topic: Option<Rc<[u8]>>,
}

impl Encoded {
    pub(crate) fn begin(&mut self) {
        self.in_arena = 0;
        self.frames.clear();
        self.topic = None;
    }

    /// Index of an encoding, by variant and kind of subscription.
    pub(crate) fn place(&mut self, variant: usize, via: Via<'_>) -> usize {
        let Via::Pattern(id, _) = via else { return variant };
        if self.pattern != id {
            self.pattern = id;
            self.in_arena &= (1 << VARIANTS) - 1;
            self.frames.retain(|(place, _)| *place < VARIANTS);
        }
        VARIANTS + variant
    }

    pub(crate) fn range(&self, place: usize) -> Option<(u32, u32)> {
        (self.in_arena & 1 << place != 0).then(|| self.ranges[place])
    }

    /// Adds a record to the output of the first receiver of its variant, and keeps the encoding for the next
    /// ones: a long one as a frame, a short one as a range of the arena. An existing frame is shared. Returns
    /// the bytes.
    #[inline(never)]
    pub(crate) fn push_new(
        &mut self,
        output: &mut Output,
        place: usize,
        (arena, variant): (&mut Vec<u8>, usize),
        frame_bytes: &mut usize,
        via: Via<'_>,
        record: &RecordView<'_>,
    ) -> usize {
        if let Some(frame) = self.frame(place) {
            output.push_frame(frame.clone());
            return frame.len();
        }
        let start = arena.len();
        encode(arena, variant, via, record);
        let bytes = arena.len() - start;
        if bytes >= FRAME_SHARED || arena.len() > ARENA_BYTES {
            let frame = Shared::from(&arena[start..]);
            arena.truncate(start);
            *frame_bytes += bytes;
            output.push_frame(frame.clone());
            self.set_frame(place, frame);
        } else {
            let range = (start as u32, (start + bytes) as u32);
            output.push_range(variant as u8, range.0, range.1);
            self.set_range(place, range);
        }
        bytes
    }

    pub(crate) fn set_range(&mut self, place: usize, range: (u32, u32)) {
        self.in_arena |= 1 << place;
        self.ranges[place] = range;
    }

    pub(crate) fn frame(&self, place: usize) -> Option<&Shared> {
        self.frames.iter().find(|(at, _)| *at == place).map(|(_, frame)| frame)
    }

    pub(crate) fn set_frame(&mut self, place: usize, frame: Shared) {
        self.frames.push((place, frame));
    }

    pub(crate) fn topic(&mut self, record: &RecordView<'_>) -> Rc<[u8]> {
        Rc::clone(self.topic.get_or_insert_with(|| record.topic.into()))
    }
}

const _: () = assert!(2 * VARIANTS <= u32::BITS as usize);
