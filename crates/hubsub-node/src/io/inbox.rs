//! Mailboxes between shards. A sender collects a turn's mail per shard and delivers it as one batch, with at
//! most one wake-up; a busy shard is not woken. Mail from one shard to another keeps its order.

use hubsub_message::home;
use hubsub_route::sparse::spare;
use hubsub_types::{HubId, ShardId};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The least capacity to which a list is shrunk, in letters.
const KEPT: usize = 4096;

/// Memory of a letter of any kind in a mailbox, in bytes, without what it points to.
pub const LETTER_BYTES: usize = 240;

/// A letter between shards.
pub trait Letter: Send + 'static {
    /// Bytes that count against the mailbox limit.
    fn weight(&self) -> usize;
}

/// The inboxes of all shards, as a thread sees them that sends letters of one kind.
pub trait Post<T>: Send + Sync {
    fn post(&self, to: ShardId, letter: T) {
        self.post_all(to, vec![letter]);
    }

    /// Delivers letters as one batch.
    fn post_all(&self, to: ShardId, letters: Vec<T>);

    /// The number of shards.
    fn shards(&self) -> u16;
}

impl<T, M: Letter + From<T>> Post<T> for Inboxes<M> {
    fn post_all(&self, to: ShardId, letters: Vec<T>) {
        self[usize::from(to.0)].send(&mut letters.into_iter().map(Into::into).collect());
    }

    fn shards(&self) -> u16 {
        self.len() as u16
    }
}

/// The inboxes of all shards, by their number.
pub struct Inboxes<M>(Box<[Inbox<M>]>);

impl<M> std::ops::Deref for Inboxes<M> {
    type Target = [Inbox<M>];

    fn deref(&self) -> &[Inbox<M>] {
        &self.0
    }
}

impl<M> FromIterator<Inbox<M>> for Inboxes<M> {
    fn from_iter<I: IntoIterator<Item = Inbox<M>>>(inboxes: I) -> Inboxes<M> {
        Inboxes(inboxes.into_iter().collect())
    }
}

impl<M: Letter> Inboxes<M> {
    /// Delivers a letter to each shard.
    pub fn send_all(&self, letter: impl Fn() -> M) {
        self.iter().for_each(|inbox| inbox.send(&mut vec![letter()]));
    }

    /// Delivers items to the shards that are the homes of their hubs, a letter to each with any.
    pub fn send_home<T: Clone>(
        &self,
        items: impl Iterator<Item = (HubId, T)>,
        letter: impl Fn(Vec<(HubId, T)>) -> M,
    ) {
        let shards = self.len() as u16;
        let mut by_shard: Vec<Vec<(HubId, T)>> = vec![Vec::new(); usize::from(shards)];
        items.for_each(|(hub, item)| by_shard[usize::from(home(hub, shards).0)].push((hub, item)));
        for (items, inbox) in by_shard.into_iter().zip(self.iter()).filter(|(items, _)| !items.is_empty()) {
            inbox.send(&mut vec![letter(items)]);
        }
    }
}

/// Incoming mail of a shard; other threads append to it.
pub struct Inbox<M> {
    queue: Mutex<Vec<M>>,
    /// Weight of the mail that was sent and is not yet handled.
    bytes: AtomicUsize,
    /// Whether the shard will look into the queue without being woken.
    awake: AtomicBool,
    waker: mio::Waker,
    /// The most letters taken at once since memory was last released; only the owner uses it.
    most: AtomicUsize,
}

impl<M: Letter> Inbox<M> {
    /// An empty inbox; `waker` ends the owner's wait.
    pub fn new(waker: mio::Waker) -> Inbox<M> {
        Inbox {
            queue: Mutex::new(Vec::new()),
            bytes: AtomicUsize::new(0),
            awake: AtomicBool::new(true),
            waker,
            most: AtomicUsize::new(0),
        }
    }

    /// Delivers a batch and empties it.
    pub fn send(&self, batch: &mut Vec<M>) {
        let bytes: usize = batch.iter().map(M::weight).sum();
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.queue.lock().expect("nothing panics under this lock").append(batch);
        if !self.awake.swap(true, Ordering::SeqCst) {
            // A failed wake-up means that the shard is gone, and its mail with it.
            let _ = self.waker.wake();
        }
    }

    /// Takes all mail into `into`, which must be empty and whose buffer becomes the queue.
    pub fn take(&self, into: &mut Vec<M>) {
        debug_assert!(into.is_empty());
        std::mem::swap(&mut *self.queue.lock().expect("nothing panics under this lock"), into);
        if into.len() > self.most.load(Ordering::Relaxed) {
            self.most.store(into.len(), Ordering::Relaxed);
        }
    }

    /// Releases the memory of a past burst of mail, in the queue and in `taken`, which `take` filled.
    pub fn give_back(&self, taken: &mut Vec<M>) {
        let most = self.most.swap(0, Ordering::Relaxed);
        shrink(taken, most);
        shrink(&mut self.queue.lock().expect("nothing panics under this lock"), most);
    }

    /// Subtracts the weight of handled mail.
    pub fn handled(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Weight of the mail that is not yet handled.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Called before the owner waits; false if there is mail, so that it must not wait.
    pub fn may_sleep(&self) -> bool {
        self.awake.store(false, Ordering::SeqCst);
        let is_empty = self.queue.lock().expect("nothing panics under this lock").is_empty();
        if !is_empty {
            self.awake.store(true, Ordering::SeqCst);
        }
        is_empty
    }

    /// Called when the owner has stopped waiting.
    pub fn woke(&self) {
        self.awake.store(true, Ordering::SeqCst);
    }
}

/// Mail of one turn to one shard.
struct Batch<M> {
    mail: Vec<M>,
    /// The most letters sent at once since memory was last released.
    most: usize,
}

impl<M> Default for Batch<M> {
    fn default() -> Batch<M> {
        Batch { mail: Vec::new(), most: 0 }
    }
}

/// The outgoing side: a batch per shard.
pub struct Mailer<M> {
    shard: ShardId,
    inboxes: Arc<Inboxes<M>>,
    batches: Vec<Batch<M>>,
    bytes_max: usize,
}

/// Shrinks a list of mail if at least half of its capacity was not used.
fn shrink<M>(list: &mut Vec<M>, most: usize) {
    if let Some(places) = spare(most, list.capacity(), KEPT) {
        list.shrink_to(places);
    }
}

impl<M: Letter> Mailer<M> {
    /// The mailer of `shard`; a shard with more than `bytes_max` of unhandled mail is congested.
    pub fn new(shard: ShardId, inboxes: Arc<Inboxes<M>>, bytes_max: usize) -> Mailer<M> {
        let batches = inboxes.iter().map(|_| Batch::default()).collect();
        Mailer { shard, inboxes, batches, bytes_max }
    }

    /// The shard's own inbox.
    pub fn own(&self) -> &Inbox<M> {
        &self.inboxes[usize::from(self.shard.0)]
    }

    /// The number of shards.
    pub fn shards(&self) -> u16 {
        self.inboxes.len() as u16
    }

    /// Adds mail to this turn's batch.
    pub fn post<T>(&mut self, to: ShardId, letter: T)
    where
        M: From<T>,
    {
        self.batches[usize::from(to.0)].mail.push(letter.into());
    }

    /// Whether a shard has more unhandled mail than the limit.
    pub fn congested(&self, to: ShardId) -> bool {
        self.inboxes[usize::from(to.0)].bytes() > self.bytes_max
    }

    /// Whether any shard has more unhandled mail than the limit.
    pub fn any_congested(&self) -> bool {
        self.inboxes.iter().any(|inbox| inbox.bytes() > self.bytes_max)
    }

    /// Whether all shards have handled all mail that was sent to them.
    pub fn all_empty(&self) -> bool {
        self.inboxes.iter().all(|inbox| inbox.bytes() == 0)
    }

    /// Releases the memory of a past burst of mail.
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

/// The shard, out of `shards`, that represents its node in an internal room of this name. All shards must
/// agree on it, so it does not use their hash seeds (FNV-1a).
pub fn shard_of(name: &[u8], shards: u16) -> ShardId {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325, step);
    ShardId((hash % u64::from(shards)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::mail::Mail;
    use mio::{Poll, Token, Waker};

    /// A mailer to `shards` inboxes, and the polls that keep their wakers alive.
    fn mailer(shards: usize) -> (Mailer<Mail>, Vec<Poll>) {
        let polls: Vec<Poll> = (0..shards).map(|_| Poll::new().unwrap()).collect();
        let inbox = |poll: &Poll| Inbox::new(Waker::new(poll.registry(), Token(0)).unwrap());
        let inboxes: Arc<Inboxes<Mail>> = Arc::new(polls.iter().map(inbox).collect());
        (Mailer::new(ShardId(0), inboxes, 1 << 20), polls)
    }

    /// A turn in which `letters` letters are sent and taken.
    fn turn(mailer: &mut Mailer<Mail>, mail: &mut Vec<Mail>, letters: usize) {
        (0..letters).for_each(|_| mailer.post(ShardId(0), Mail::Accept));
        mailer.flush();
        mailer.own().take(mail);
        mail.clear();
    }

    #[test]
    fn lists_of_mail_keep_their_place_while_they_are_in_use_and_give_it_back_after() {
        let (mut mailer, _polls) = mailer(1);
        let mut mail = Vec::new();
        let capacities = |mailer: &mut Mailer<Mail>, mail: &mut Vec<Mail>| {
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
        // A batch and its inbox do not swap buffers: the letters are moved.
        (0..4 * KEPT).for_each(|_| mailer.post(one, Mail::Accept));
        mailer.flush();
        mailer.give_back();
        assert!(mailer.batches[0].mail.capacity() >= 4 * KEPT);
        assert_eq!(mailer.batches[1].mail.capacity(), KEPT);
    }
}
