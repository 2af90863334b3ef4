//! Mailboxes between shards. A sender collects what a turn produced for each
//! shard and delivers it as one batch, with at most one wake-up; a shard that
//! is at work is not woken. Order between two shards is kept.

use crate::mail::Mail;
use hubsub_types::ShardId;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Letters for which a list that is empty keeps place.
const KEPT: usize = 4096;

/// What a shard receives into; its only state that other threads touch.
pub struct Inbox {
    queue: Mutex<Vec<Mail>>,
    /// Weight of what was sent here and not yet handled.
    bytes: AtomicUsize,
    /// Whether the shard will look into the queue without being woken.
    awake: AtomicBool,
    waker: mio::Waker,
}

impl Inbox {
    /// An empty one; `waker` ends the owner's wait.
    #[must_use]
    pub fn new(waker: mio::Waker) -> Inbox {
        Inbox {
            queue: Mutex::new(Vec::new()),
            bytes: AtomicUsize::new(0),
            awake: AtomicBool::new(true),
            waker,
        }
    }

    /// Delivers a batch and empties it.
    pub fn send(&self, batch: &mut Vec<Mail>) {
        let bytes: usize = batch.iter().map(Mail::weight).sum();
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.queue.lock().expect("nothing panics under this lock").append(batch);
        if !self.awake.swap(true, Ordering::SeqCst) {
            // A failed wake-up means that the shard is gone, and its mail with it.
            let _ = self.waker.wake();
        }
    }

    /// Takes everything that came; `into` is empty and gives its memory in return.
    pub fn take(&self, into: &mut Vec<Mail>) {
        debug_assert!(into.is_empty());
        std::mem::swap(&mut *self.queue.lock().expect("nothing panics under this lock"), into);
    }

    /// Gives the memory back that a burst of mail took, and likewise that of `taken`, which `take` filled.
    pub fn give_back(&self, taken: &mut Vec<Mail>) {
        taken.shrink_to(KEPT);
        self.queue.lock().expect("nothing panics under this lock").shrink_to(KEPT);
    }

    /// Mail of this weight was handled.
    pub fn handled(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Weight of the mail that waits.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The owner is about to wait: false if there is mail and it must not.
    pub fn may_sleep(&self) -> bool {
        self.awake.store(false, Ordering::SeqCst);
        let is_empty = self.queue.lock().expect("nothing panics under this lock").is_empty();
        if !is_empty {
            self.awake.store(true, Ordering::SeqCst);
        }
        is_empty
    }

    /// The owner is at work again.
    pub fn woke(&self) {
        self.awake.store(true, Ordering::SeqCst);
    }
}

/// The outgoing side: a batch for each shard.
pub struct Mailer {
    shard: ShardId,
    inboxes: Arc<[Inbox]>,
    batches: Vec<Vec<Mail>>,
    bytes_max: usize,
}

impl Mailer {
    /// For the shard `shard`; a peer with more than `bytes_max` waiting is congested.
    #[must_use]
    pub fn new(shard: ShardId, inboxes: Arc<[Inbox]>, bytes_max: usize) -> Mailer {
        let batches = inboxes.iter().map(|_| Vec::new()).collect();
        Mailer { shard, inboxes, batches, bytes_max }
    }

    /// The shard's own inbox.
    #[must_use]
    pub fn own(&self) -> &Inbox {
        &self.inboxes[usize::from(self.shard.0)]
    }

    /// How many shards there are.
    #[must_use]
    pub fn shards(&self) -> u16 {
        self.inboxes.len() as u16
    }

    /// Puts mail into this turn's batch.
    pub fn post(&mut self, to: ShardId, mail: Mail) {
        self.batches[usize::from(to.0)].push(mail);
    }

    /// Whether a shard is too far behind for more.
    #[must_use]
    pub fn congested(&self, to: ShardId) -> bool {
        self.inboxes[usize::from(to.0)].bytes() > self.bytes_max
    }

    /// Whether any shard is.
    #[must_use]
    pub fn any_congested(&self) -> bool {
        self.inboxes.iter().any(|inbox| inbox.bytes() > self.bytes_max)
    }

    /// Whether no mail is under way to any shard.
    #[must_use]
    pub fn all_empty(&self) -> bool {
        self.inboxes.iter().all(|inbox| inbox.bytes() == 0)
    }

    /// Gives the memory back that a burst of mail took.
    pub fn give_back(&mut self) {
        self.batches.iter_mut().for_each(|batch| batch.shrink_to(KEPT));
    }

    /// Sends the turn's batches.
    pub fn flush(&mut self) {
        for (batch, inbox) in self.batches.iter_mut().zip(self.inboxes.iter()) {
            if !batch.is_empty() {
                inbox.send(batch);
            }
        }
    }
}
