//! Encoding of the store in a snapshot. An image shares its values with the store, so it is cheap to take,
//! and another thread can encode it.
//!
//! ```text
//! format u8 = 1, then postcard:
//! version, last lease, leases [(id, ttl ms)], entries [(directory, name, revision, lease, value)]
//! ```

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::changes::Changes;
use super::{Entry, Lease, LeaseId, Path, Store, Value};

const FORMAT: u8 = 1;

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    version: u64,
    lease_last: u64,
    leases: Vec<(LeaseId, u32)>,
    entries: Vec<ImageEntry>,
}

type ImageEntry = (Arc<str>, Arc<str>, u64, Option<LeaseId>, Value);

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("the state has format {0}, this version knows {FORMAT}\nhint: a newer version wrote it")]
    Format(u8),
    /// The bytes were not made by [`Image::encode`].
    #[error("the state cannot be read: {0}")]
    Malformed(String),
}

impl Image {
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![FORMAT]).expect("a vector takes all bytes")
    }
}

impl Store {
    pub fn image(&self) -> Image {
        let entries = self.directories.iter().flat_map(|(directory, names)| {
            names.iter().map(|(name, entry)| {
                (directory.clone(), name.clone(), entry.revision, entry.lease, entry.value.clone())
            })
        });
        Image {
            version: self.version,
            lease_last: self.lease_last,
            leases: self.leases().collect(),
            entries: entries.collect(),
        }
    }

    /// Decodes an image to a store. Watchers begin with a listing.
    pub fn decode(bytes: &[u8]) -> Result<Self, ImageError> {
        let malformed = |what: &str| ImageError::Malformed(what.to_owned());
        let (format, rest) = bytes.split_first().ok_or_else(|| malformed("it is empty"))?;
        if *format != FORMAT {
            return Err(ImageError::Format(*format));
        }
        let image: Image = postcard::from_bytes(rest).map_err(|error| malformed(&error.to_string()))?;
        let mut store = Self {
            version: image.version,
            lease_last: image.lease_last,
            changes: Changes::after(image.version),
            ..Self::default()
        };
        for (id, ttl_ms) in image.leases {
            if id.0 > image.lease_last {
                return Err(malformed("a lease that was never given"));
            }
            store.leases.insert(id, Lease { ttl_ms, keys: Default::default() });
        }
        for (directory, name, revision, lease, value) in image.entries {
            if revision == 0 || revision > image.version {
                return Err(malformed("a revision that was never given"));
            }
            if lease.is_some_and(|lease| !store.leases.contains_key(&lease)) {
                return Err(malformed("a key of a lease that is not there"));
            }
            store.place(Path { directory, name }, Entry { revision, value, lease });
        }
        Ok(store)
    }
}
