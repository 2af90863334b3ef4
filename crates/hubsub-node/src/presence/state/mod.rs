//! The presence state of a shard: [`members`] has the rest, which is [`seats`] of connections, [`records`]
//! that are not logged yet, and [`mail`].

mod mail;
mod members;
mod records;
mod seats;

pub use mail::{PresenceAsked, PresenceMail, Told};
#[cfg(test)]
pub use members::BATCH_MS;
pub use members::{Members, Occupancies, Out, Waiting};
pub use records::{Next, Unsaid};
pub use seats::{Forms, Refusal, Seat, Watcher, Who, Wish};
