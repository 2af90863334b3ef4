//! Mailboxes between shards. A sender collects what a turn produced for each
//! shard and delivers it as one batch, with at most one wake-up; a shard that
//! is at work is not woken. Order between two shards is kept.

use crate::mail::Mail;
use hubsub_route::sparse::spare;
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
    /// The most letters that were taken at once since memory was last given back; the owner's.
    most: AtomicUsize,
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
            most: AtomicUsize::new(0),
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
        if into.len() > self.most.load(Ordering::Relaxed) {
            self.most.store(into.len(), Ordering::Relaxed);
        }
    }

    /// Gives the memory back that a burst of mail took, once it is over, and likewise that of `taken`, which `take` filled.
    pub fn give_back(&self, taken: &mut Vec<Mail>) {
        let most = self.most.swap(0, Ordering::Relaxed);
        shrink(taken, most);
        shrink(&mut self.queue.lock().expect("nothing panics under this lock"), most);
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

/// What one turn sends to one shard.
#[derive(Default)]
struct Batch {
    mail: Vec<Mail>,
    /// The most letters since memory was last given back.
    most: usize,
}

/// The outgoing side: a batch for each shard.
pub struct Mailer {
    shard: ShardId,
    inboxes: Arc<[Inbox]>,
    batches: Vec<Batch>,
    bytes_max: usize,
}

/// Shrinks a list of mail of which half was not in use.
fn shrink(list: &mut Vec<Mail>, most: usize) {
    if let Some(places) = spare(most, list.capacity(), KEPT) {
        list.shrink_to(places);
    }
}

impl Mailer {
    /// For the shard `shard`; a peer with more than `bytes_max` waiting is congested.
    #[must_use]
    pub fn new(shard: ShardId, inboxes: Arc<[Inbox]>, bytes_max: usize) -> Mailer {
        let batches = inboxes.iter().map(|_| Batch::default()).collect();
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
        self.batches[usize::from(to.0)].mail.push(mail);
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

    /// Gives the memory back that a burst of mail took, once it is over.
    pub fn give_back(&mut self) {
        for Batch { mail, most } in &mut self.batches {
            shrink(mail, std::mem::take(most));
        }
    }

    /// Sends the turn's batches.
    pub fn flush(&mut self) {
        for (Batch { mail, most }, inbox) in self.batches.iter_mut().zip(self.inboxes.iter()) {
            if !mail.is_empty() {
                *most = (*most).max(mail.len());
                inbox.send(mail);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::{Poll, Token, Waker};

    /// A mailer to so many inboxes, and what keeps their wakers alive.
    fn mailer(shards: usize) -> (Mailer, Vec<Poll>) {
        let polls: Vec<Poll> = (0..shards).map(|_| Poll::new().unwrap()).collect();
        let inbox = |poll: &Poll| Inbox::new(Waker::new(poll.registry(), Token(0)).unwrap());
        let inboxes: Arc<[Inbox]> = polls.iter().map(inbox).collect();
        (Mailer::new(ShardId(0), inboxes, 1 << 20), polls)
    }

    /// A turn in which so many letters are sent and taken.
    fn turn(mailer: &mut Mailer, mail: &mut Vec<Mail>, letters: usize) {
        (0..letters).for_each(|_| mailer.post(ShardId(0), Mail::Accept));
        mailer.flush();
        mailer.own().take(mail);
        mail.clear();
    }

    #[test]
    fn lists_of_mail_keep_their_place_while_they_are_in_use_and_give_it_back_after() {
        let (mut mailer, _polls) = mailer(1);
        let mut mail = Vec::new();
        let capacities = |mailer: &mut Mailer, mail: &mut Vec<Mail>| {
            mailer.give_back();
            mailer.own().give_back(mail);
            let queue = mailer.own().queue.lock().unwrap().capacity();
            [mailer.batches[0].mail.capacity(), queue, mail.capacity()]
        };
        let most = 4 * KEPT;
        (0..2).for_each(|_| turn(&mut mailer, &mut mail, most));
        let full = capacities(&mut mailer, &mut mail);
        assert!(full.iter().all(|&places| (most..2 * most).contains(&places)), "{full:?}");
        for letters in [most, most / 2 + 1] {
            turn(&mut mailer, &mut mail, letters);
            turn(&mut mailer, &mut mail, 1);
            assert_eq!(capacities(&mut mailer, &mut mail), full, "{letters} of {most} were in use");
        }
        turn(&mut mailer, &mut mail, most / 2);
        assert_eq!(capacities(&mut mailer, &mut mail), [most / 2; 3]);
        assert_eq!(capacities(&mut mailer, &mut mail), [KEPT; 3], "nobody sent anything since");
        assert_eq!(capacities(&mut mailer, &mut mail), [KEPT; 3]);
    }

    #[test]
    fn a_busy_shard_does_not_keep_the_room_of_a_burst_to_another() {
        let (mut mailer, _polls) = mailer(2);
        let [one, other] = [ShardId(0), ShardId(1)];
        for to in [one, other] {
            (0..4 * KEPT).for_each(|_| mailer.post(to, Mail::Accept));
        }
        mailer.flush();
        mailer.give_back();
        // A batch and its inbox exchange nothing: what was sent is copied.
        (0..4 * KEPT).for_each(|_| mailer.post(one, Mail::Accept));
        mailer.flush();
        mailer.give_back();
        assert!(mailer.batches[0].mail.capacity() >= 4 * KEPT);
        assert_eq!(mailer.batches[1].mail.capacity(), KEPT);
    }
}
