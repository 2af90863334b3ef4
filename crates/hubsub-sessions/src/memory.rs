//! Sessions in memory: [`Memory`], which ends with its process.

use crate::{Answer, Limits, PAGE_BYTES, Request, SessionStore, StoreError, check};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

#[derive(Debug)]
pub struct Memory {
    limits: Limits,
    sessions: BTreeMap<Box<str>, Session>,
}

#[derive(Debug, Default)]
struct Session {
    snapshot: Vec<u8>,
    /// Entries after the snapshot; the first has number `through + 1`.
    entries: VecDeque<Vec<u8>>,
    bytes: u64,
    /// Number of the last entry covered by the snapshot.
    through: u64,
}

impl Memory {
    pub fn new(limits: Limits) -> Memory {
        Memory { limits, sessions: BTreeMap::new() }
    }

    fn carry_out_one(&mut self, request: &Request) -> Result<Answer, StoreError> {
        check(request)?;
        match request {
            Request::Save { id, snapshot, through, entries } => {
                let (snapshot, through) = (snapshot.clone(), *through);
                let bytes = entries.iter().map(|entry| entry.len() as u64).sum();
                let session =
                    Session { snapshot, entries: entries.iter().cloned().collect(), bytes, through };
                self.sessions.insert(id.clone(), session);
                Ok(Answer::Saved)
            }
            Request::Update { id, snapshot, last, through } => {
                let session = self.sessions.get_mut(id).ok_or(StoreError::NoSession)?;
                session.expect_last(*last)?;
                session.snapshot.clone_from(snapshot);
                session.trim(*through);
                Ok(Answer::Saved)
            }
            Request::Append { id, entry } => {
                let session = self.sessions.get_mut(id).ok_or(StoreError::NoSession)?;
                session.append(entry, &self.limits).map(Answer::Appended)
            }
            Request::Load { id } => {
                let Some(session) = self.sessions.get(id) else {
                    return Ok(Answer::Loaded { snapshot: None, entries: Vec::new() });
                };
                let entries = (session.through + 1..).zip(session.entries.iter().cloned()).collect();
                Ok(Answer::Loaded { snapshot: Some(session.snapshot.clone()), entries })
            }
            Request::List { after, max } => Ok(Answer::Listed(self.list(after.as_deref(), *max))),
            Request::End { id, begins_with } => {
                if self.sessions.get(id).is_some_and(|it| it.snapshot.starts_with(begins_with)) {
                    self.sessions.remove(id);
                }
                Ok(Answer::Ended)
            }
        }
    }

    fn list(&self, after: Option<&str>, max: usize) -> Vec<(Box<str>, Vec<u8>)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let (mut page, mut bytes) = (Vec::new(), 0);
        for (id, session) in self.sessions.range::<str, _>((start, Bound::Unbounded)).take(max.max(1)) {
            bytes += id.len() + session.snapshot.len();
            page.push((id.clone(), session.snapshot.clone()));
            if bytes >= PAGE_BYTES {
                break;
            }
        }
        page
    }
}

impl Session {
    fn append(&mut self, entry: &[u8], limits: &Limits) -> Result<u64, StoreError> {
        limits.admit(self.entries.len() as u64, self.bytes, entry)?;
        self.entries.push_back(entry.to_vec());
        self.bytes += entry.len() as u64;
        Ok(self.through + self.entries.len() as u64)
    }

    fn expect_last(&self, expected: u64) -> Result<(), StoreError> {
        let last = self.through + self.entries.len() as u64;
        if last == expected { Ok(()) } else { Err(StoreError::Gap { last }) }
    }

    /// Removes entries up to a number.
    fn trim(&mut self, through: u64) {
        while self.through < through {
            let Some(entry) = self.entries.pop_front() else { return };
            self.bytes -= entry.len() as u64;
            self.through += 1;
        }
    }
}

impl SessionStore for Memory {
    fn carry_out(&mut self, requests: &[Request]) -> Vec<Result<Answer, StoreError>> {
        requests.iter().map(|request| self.carry_out_one(request)).collect()
    }
}
