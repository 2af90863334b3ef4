//! Hubs that other nodes lead (docs/adr/0014): what nodes say to each other.

pub mod message;

pub use message::{AskId, Names, NodeMessage};
