//! A list that is usually empty and then costs one pointer.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

/// Reads like the list itself. A mutable borrow allocates it; only [`Seldom::default`] frees it.
#[derive(Clone, Debug)]
pub(super) struct Seldom<L>(Option<Box<L>>);

/// A list that can be borrowed without an instance.
pub(super) trait List: Default + 'static {
    const EMPTY: &'static Self;
}

impl<T: 'static> List for Vec<T> {
    const EMPTY: &'static Vec<T> = &Vec::new();
}

impl<T: 'static> List for VecDeque<T> {
    const EMPTY: &'static VecDeque<T> = &VecDeque::new();
}

impl<L> Default for Seldom<L> {
    fn default() -> Seldom<L> {
        Seldom(None)
    }
}

impl<L: List> Deref for Seldom<L> {
    type Target = L;

    #[inline]
    fn deref(&self) -> &L {
        self.0.as_deref().unwrap_or(L::EMPTY)
    }
}

impl<L: List> DerefMut for Seldom<L> {
    #[inline]
    fn deref_mut(&mut self) -> &mut L {
        self.0.get_or_insert_default()
    }
}
