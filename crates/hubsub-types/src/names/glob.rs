//! Redis globs, compiled once: `*`, `?`, `[abc]`, `[a-c]`, `[^a-c]` and `\` as escape, over bytes. A pattern
//! is cut at its stars into segments of fixed length. The first is matched against the topic's start, the
//! last against its end, each other one at its leftmost position after the previous one. No position is tried
//! twice. A segment of plain bytes is found in linear time; any other costs the topic's length times the
//! segment's, with 64 items of the segment at a time where that product is large.
//!
//! Edge cases follow Redis on x86-64: the empty topic matches only the empty pattern, not `*`; a class
//! without `]` ends with the pattern; a range may be reversed, has no escapes in it, and compares bytes as
//! signed.

use memchr::memmem;
use std::collections::HashMap;
use std::ops::Range;

/// Steps of a search above which its tables pay off.
const STEPS_MAX: usize = 16 * 1024;

/// Items of a segment above which its tables may pay off.
pub const PLAIN_MAX: usize = 16;

/// Steps per item of a segment to build these tables: one per byte value, and at most 1 / [`PLAIN_MAX`] per
/// byte value to clear them.
pub const TABLE_STEPS: usize = 256 + 256 / PLAIN_MAX;

/// A compiled glob. Every byte string is valid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Glob {
    source: Box<[u8]>,
    /// The bytes before the first wildcard, if escapes make them differ from the start of `source`.
    unescaped: Box<[u8]>,
    prefix_len: u32,
    plan: Plan,
}

/// How a topic is matched against the pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Plan {
    /// No wildcard: the topic equals the prefix.
    Exact,
    /// `prefix*`: the topic starts with the prefix.
    Prefix,
    Segments(Box<Segments>),
}

/// The parts between the stars: k stars give k + 1 segments, some empty.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Segments {
    /// Empty if all are bytes.
    items: Box<[Item]>,
    /// `items` as bytes, if they are bytes.
    bytes: Box<[u8]>,
    /// Byte classes, without duplicates.
    classes: Box<[ByteSet]>,
    segments: Box<[Segment]>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Segment {
    start: u32,
    end: u32,
    /// Whether all its items are bytes.
    literal: bool,
}

/// Pattern for one byte of the topic: that byte, any, or one of a class, in four bytes of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Item(u32);

impl Item {
    const ANY: Item = Item(256);

    /// An item for the class with this index in `classes`.
    fn class(index: usize) -> Item {
        Item(257 + index as u32)
    }

    fn is_byte(self) -> bool {
        self.0 < 256
    }

    fn fits(self, classes: &[ByteSet], byte: u8) -> bool {
        match self.0 {
            wanted @ 0..256 => wanted == u32::from(byte),
            256 => true,
            class => classes[class as usize - 257].has(byte),
        }
    }
}

impl Glob {
    /// Compiles a pattern; every pattern is valid.
    ///
    /// # Panics
    /// The pattern has 4 GiB or more; `pattern_bytes_max` is far below.
    pub fn new(source: &[u8]) -> Glob {
        assert!(u32::try_from(source.len()).is_ok(), "limits bound the length of patterns");
        let program = Segments::compile(source);
        let prefix_len = program.literal_len();
        let prefix = &program.bytes[..prefix_len];
        let unescaped = if source.starts_with(prefix) { Box::default() } else { prefix.into() };
        let plan = match &*program.segments {
            [only] if only.literal => Plan::Exact,
            [first, last] if first.literal && last.start == last.end => Plan::Prefix,
            _ => Plan::Segments(Box::new(program)),
        };
        Glob { source: source.into(), unescaped, prefix_len: prefix_len as u32, plan }
    }

    pub fn matches(&self, topic: &[u8]) -> bool {
        if topic.is_empty() {
            return self.source.is_empty();
        }
        match &self.plan {
            Plan::Exact => topic == self.literal_prefix(),
            Plan::Prefix => topic.starts_with(self.literal_prefix()),
            Plan::Segments(program) => program.matches(topic),
        }
    }

    /// The common prefix of all matches, without escapes.
    pub fn literal_prefix(&self) -> &[u8] {
        let from = if self.unescaped.is_empty() { &self.source } else { &self.unescaped };
        &from[..self.prefix_len as usize]
    }

    /// The literal prefix of a pattern, and whether it is the whole pattern, without compiling it.
    pub fn prefix_of(source: &[u8]) -> (Vec<u8>, bool) {
        let mut prefix = Vec::new();
        let mut rest = source;
        loop {
            rest = match rest {
                [] => return (prefix, true),
                [b'*' | b'?' | b'[', ..] => return (prefix, false),
                [b'\\', byte, rest @ ..] | [byte, rest @ ..] => {
                    prefix.push(*byte);
                    rest
                }
            };
        }
    }

    /// Whether there is no wildcard, so only `literal_prefix` itself matches.
    pub fn is_literal(&self) -> bool {
        matches!(self.plan, Plan::Exact)
    }

    /// A matching topic, with every star replaced by `star`; `None` if a class is empty.
    pub(crate) fn sample(&self, star: &[u8]) -> Option<Vec<u8>> {
        match &self.plan {
            Plan::Exact => Some(self.literal_prefix().to_vec()),
            Plan::Prefix => Some([self.literal_prefix(), star].concat()),
            Plan::Segments(program) => program.sample(star),
        }
    }

    /// Most steps that a match takes per byte of a topic. The part between two stars is searched, literal
    /// text at one step per byte and anything else at its length; the rest of a pattern has a fixed position.
    /// Added once: the length of the pattern, or [`TABLE_STEPS`] times that if it is above [`PLAIN_MAX`].
    pub fn search(&self) -> usize {
        match &self.plan {
            Plan::Exact | Plan::Prefix => 0,
            Plan::Segments(program) => program.search(),
        }
    }

    /// Heap memory in bytes.
    pub fn memory(&self) -> usize {
        let program = match &self.plan {
            Plan::Exact | Plan::Prefix => 0,
            Plan::Segments(program) => size_of::<Segments>() + program.memory(),
        };
        self.source.len() + self.unescaped.len() + program
    }

    pub fn source(&self) -> &[u8] {
        &self.source
    }
}

impl Segments {
    fn compile(source: &[u8]) -> Segments {
        let mut items = Vec::with_capacity(source.len());
        let mut classes = Vec::new();
        let mut known = HashMap::new();
        let mut ends = Vec::new();
        let mut at = 0;
        while let Some(&byte) = source.get(at) {
            at += 1;
            match byte {
                b'*' => {
                    if source.get(at) != Some(&b'*') {
                        ends.push(items.len());
                    }
                }
                b'?' => items.push(Item::ANY),
                b'[' => {
                    let (set, next) = ByteSet::parse(source, at);
                    at = next;
                    let class = *known.entry(set.0).or_insert(classes.len());
                    if class == classes.len() {
                        classes.push(set);
                    }
                    items.push(Item::class(class));
                }
                b'\\' if at < source.len() => {
                    items.push(Item(source[at].into()));
                    at += 1;
                }
                _ => items.push(Item(byte.into())),
            }
        }
        ends.push(items.len());
        let mut start = 0;
        let segment = |end| {
            let literal = items[start..end].iter().all(|item| item.is_byte());
            let segment = Segment { start: start as u32, end: end as u32, literal };
            start = end;
            segment
        };
        let segments: Box<[Segment]> = ends.into_iter().map(segment).collect();
        let bytes = items.iter().map(|item| if item.is_byte() { item.0 as u8 } else { 0 }).collect();
        if segments.iter().all(|segment| segment.literal) {
            items = Vec::new();
        }
        Segments { items: items.into(), bytes, classes: classes.into(), segments }
    }

    fn literal_len(&self) -> usize {
        let first = &self.segments[0];
        if first.literal {
            return first.len();
        }
        self.items[first.range()].iter().take_while(|item| item.is_byte()).count()
    }

    fn search(&self) -> usize {
        let inner = self.segments.get(1..self.segments.len() - 1).unwrap_or_default();
        inner.iter().map(|segment| if segment.literal { 1 } else { segment.len() }).max().unwrap_or(0)
    }

    fn memory(&self) -> usize {
        size_of_val(&*self.items)
            + self.bytes.len()
            + size_of_val(&*self.classes)
            + size_of_val(&*self.segments)
    }

    fn matches(&self, topic: &[u8]) -> bool {
        let (first, rest) = self.segments.split_first().expect("compile makes one segment more than stars");
        let Some((last, middle)) = rest.split_last() else {
            return topic.len() == first.len() && self.fits(first, topic);
        };
        if topic.len() < self.bytes.len() {
            return false;
        }
        let (head, rest) = topic.split_at(first.len());
        let (mut rest, tail) = rest.split_at(rest.len() - last.len());
        if !self.fits(first, head) || !self.fits(last, tail) {
            return false;
        }
        for segment in middle {
            match self.find(segment, rest) {
                Some(at) => rest = &rest[at + segment.len()..],
                None => return false,
            }
        }
        true
    }

    fn sample(&self, star: &[u8]) -> Option<Vec<u8>> {
        let mut topic = Vec::new();
        for (i, segment) in self.segments.iter().enumerate() {
            if i > 0 {
                topic.extend_from_slice(star);
            }
            if segment.literal {
                topic.extend_from_slice(&self.bytes[segment.range()]);
                continue;
            }
            for item in &self.items[segment.range()] {
                let fits = |byte: &u8| item.fits(&self.classes, *byte);
                topic.push(std::iter::once(b'x').chain(b'0'..=b'z').chain(0..=u8::MAX).find(fits)?);
            }
        }
        Some(topic)
    }

    /// Whether a part of the topic, as long as the segment, matches it.
    fn fits(&self, segment: &Segment, part: &[u8]) -> bool {
        count_steps(segment.len());
        if segment.literal {
            return self.bytes[segment.range()] == *part;
        }
        self.items[segment.range()].iter().zip(part).all(|(item, &byte)| item.fits(&self.classes, byte))
    }

    /// The leftmost position where the segment matches.
    fn find(&self, segment: &Segment, within: &[u8]) -> Option<usize> {
        if segment.literal {
            let found = memmem::find(within, &self.bytes[segment.range()]);
            count_steps(found.map_or(within.len(), |at| at + segment.len()));
            return found;
        }
        if segment.len() > PLAIN_MAX && within.len() * segment.len() > STEPS_MAX {
            return self.find_bitwise(segment, within);
        }
        within.windows(segment.len()).position(|part| self.fits(segment, part))
    }

    /// As `find`, byte by byte through the topic with one bit per item: bit i is set if the items up to i
    /// match the bytes up to here (shift-and, by Baeza-Yates and Gonnet).
    fn find_bitwise(&self, segment: &Segment, within: &[u8]) -> Option<usize> {
        let words = segment.len().div_ceil(64);
        let last = 1 << ((segment.len() - 1) % 64);
        let mut fitting = vec![0_u64; 256 * words];
        count_steps(256 * (words + segment.len()));
        for (i, item) in self.items[segment.range()].iter().enumerate() {
            let mut fits = |byte: u8| fitting[usize::from(byte) * words + i / 64] |= 1 << (i % 64);
            if item.is_byte() {
                fits(item.0 as u8);
            } else {
                (0..=u8::MAX).filter(|&byte| item.fits(&self.classes, byte)).for_each(fits);
            }
        }
        let mut state = vec![0_u64; words];
        for (at, &byte) in within.iter().enumerate() {
            let mut carry = 1;
            count_steps(words);
            let fitting = &fitting[usize::from(byte) * words..][..words];
            for (state, fitting) in state.iter_mut().zip(fitting) {
                let next = *state >> 63;
                *state = (*state << 1 | carry) & fitting;
                carry = next;
            }
            if state[words - 1] & last != 0 {
                return Some(at + 1 - segment.len());
            }
        }
        None
    }
}

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// For tests that compare the work with its bound.
#[inline]
fn count_steps(_steps: usize) {
    #[cfg(test)]
    STEPS.set(STEPS.get() + _steps);
}

impl Segment {
    fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    fn range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// The bytes in a class `[…]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ByteSet([u64; 4]);

impl ByteSet {
    /// Parses the class whose `[` is just before `at`; also returns the position after it.
    fn parse(source: &[u8], mut at: usize) -> (ByteSet, usize) {
        let mut set = ByteSet([0; 4]);
        let negated = source.get(at) == Some(&b'^');
        at += usize::from(negated);
        loop {
            at += match source[at..] {
                [b'\\', escaped, ..] => {
                    set.insert(escaped);
                    2
                }
                [b']', ..] => {
                    at += 1;
                    break;
                }
                [from, b'-', to, ..] => {
                    let (from, to) = (from as i8, to as i8);
                    (from.min(to)..=from.max(to)).for_each(|byte| set.insert(byte as u8));
                    3
                }
                [byte, ..] => {
                    set.insert(byte);
                    1
                }
                [] => break,
            }
        }
        if negated {
            set.0 = set.0.map(|word| !word);
        }
        (set, at)
    }

    fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte / 64)] |= 1 << (byte % 64);
    }

    fn has(&self, byte: u8) -> bool {
        self.0[usize::from(byte / 64)] & 1 << (byte % 64) != 0
    }
}

#[cfg(test)]
mod tests;
