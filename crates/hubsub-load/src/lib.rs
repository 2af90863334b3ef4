//! The load generator: it publishes to rooms of any Redis server or MQTT broker, counts deliveries
//! (delivered, lost, doubled, reordered, misrouted, corrupt), measures latency and reads the server's
//! resource usage.
//!
//! It shares no code with the server, so it cannot share a bug with it, and it is designed to use far less
//! CPU than any server: a thread reads its connections into one large buffer, recognises the expected message
//! frame by one comparison, counts without copying and writes once per turn.
//!
//! `scenario` defines a run; `run` executes it with `worker` threads that own the `publisher`s and
//! `subscriber`s. The smaller measurements are `disk`, `past`, `follow`, `kept` and `joins`.

pub mod codec;
pub mod disk;
pub mod follow;
pub mod joins;
pub mod kept;
pub mod ledger;
pub mod mqtt;
pub mod pace;
pub mod past;
pub mod phoenix;
pub mod procfs;
mod publisher;
pub mod report;
pub mod run;
pub mod scenario;
mod socket;
pub mod stamp;
mod subscriber;
mod worker;
