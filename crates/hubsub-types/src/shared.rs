//! Bytes that wait to be sent, with a per-thread count of their memory. Bytes that several clients share
//! count once.

use std::cell::Cell;
use std::ops::Deref;
use std::rc::Rc;

thread_local! {
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

/// Memory of all queued bytes of this thread, and of the queue entries that refer to them.
pub fn waiting_bytes() -> usize {
    BYTES.get()
}

/// Memory per receiver of shared bytes: an entry of an output queue, whose size the node asserts; the queue
/// may be half empty.
pub const PLACE_BYTES: usize = 96;

/// Bytes with one owner.
#[derive(Debug, Default)]
pub struct Counted(Vec<u8>);

impl Counted {
    pub fn new(bytes: &[u8]) -> Counted {
        Counted::from(bytes.to_vec())
    }

    pub fn extend_from_slice(&mut self, added: &[u8]) {
        let before = self.0.capacity();
        self.0.extend_from_slice(added);
        BYTES.set(BYTES.get() - before + self.0.capacity());
    }
}

impl From<Vec<u8>> for Counted {
    fn from(bytes: Vec<u8>) -> Counted {
        BYTES.set(BYTES.get() + bytes.capacity());
        Counted(bytes)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        BYTES.set(BYTES.get() - self.0.capacity());
    }
}

impl Deref for Counted {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Bytes shared by several receivers.
#[derive(Debug)]
pub struct Shared(Rc<Counted>);

impl Shared {
    /// Whether both refer to the same allocation.
    pub fn is(&self, other: &Shared) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl From<Vec<u8>> for Shared {
    fn from(mut bytes: Vec<u8>) -> Shared {
        bytes.shrink_to_fit();
        BYTES.set(BYTES.get() + PLACE_BYTES);
        Shared(Rc::new(Counted::from(bytes)))
    }
}

impl From<&[u8]> for Shared {
    fn from(bytes: &[u8]) -> Shared {
        Shared::from(bytes.to_vec())
    }
}

impl Clone for Shared {
    fn clone(&self) -> Shared {
        BYTES.set(BYTES.get() + PLACE_BYTES);
        Shared(Rc::clone(&self.0))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        BYTES.set(BYTES.get() - PLACE_BYTES);
    }
}

impl Deref for Shared {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_once_and_each_who_waits_takes_a_place() {
        let before = waiting_bytes();
        let shared = Shared::from(&[1u8; 1000][..]);
        assert_eq!(waiting_bytes() - before, 1000 + PLACE_BYTES);
        let others = [shared.clone(), shared.clone()];
        assert!(others.iter().all(|other| other.is(&shared) && other.len() == 1000));
        assert_eq!(waiting_bytes() - before, 1000 + 3 * PLACE_BYTES);
        drop(shared);
        drop(others);
        let mut own = Counted::new(&[2; 10]);
        own.extend_from_slice(&[3; 5000]);
        assert_eq!((waiting_bytes() - before, own.len()), (own.0.capacity(), 5010));
        drop(own);
        assert_eq!(waiting_bytes(), before);
    }
}
