//! Who may do what. One call before each publish, subscribe and admin command
//! of a client, and before each request of the control plane; users and roles
//! fill it, the callers stay.

use hubsub_types::PrincipalId;
use hubsub_types::names::{Filter, Glob, has_reserved_tag, is_reserved};

/// What a principal wants to do with a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Publish to it.
    Publish,
    /// Subscribe to it, or read its history.
    Subscribe,
    /// Administer the node, or the room of that name; empty for all else.
    Admin,
}

/// What is allowed on this node. Until there are users, the default user may
/// do everything and there is no other; but names that begin with `$` are the node's
/// own, of which users read what the node says of itself and nothing else.
///
/// Invariant: who may subscribe to a pattern may subscribe to every topic that it matches.
#[derive(Clone, Debug, Default)]
pub struct Access;

/// What of the reserved names anyone may read: these, and what is below them.
const PUBLIC: [&[u8]; 2] = [b"$stats", b"$SYS"];

impl Access {
    /// For whom a browser acts that shows a token, or none; nobody is for one that is not accepted. Until there are
    /// users, any is.
    #[must_use]
    pub fn principal_of(&self, _token: Option<&str>) -> Option<PrincipalId> {
        Some(PrincipalId::default())
    }

    /// Whether `principal` may do `action` on `topic`.
    #[inline]
    #[must_use]
    pub fn allowed(&self, principal: PrincipalId, action: Action, topic: &[u8]) -> bool {
        match principal {
            PrincipalId::NODE => true,
            _ if is_reserved(topic) => {
                let is_read = action == Action::Subscribe && is_public(topic);
                is_read && principal == PrincipalId::default()
            }
            _ => principal == PrincipalId::default(),
        }
    }

    /// Whether `principal` may subscribe to a glob as a client wrote it: to all that it matches.
    #[must_use]
    pub fn allowed_glob(&self, principal: PrincipalId, glob: &[u8]) -> bool {
        let (prefix, is_all) = Glob::prefix_of(glob);
        self.allowed_prefix(principal, &prefix, is_all)
    }

    /// Likewise, to an MQTT filter.
    #[must_use]
    pub fn allowed_filter(&self, principal: PrincipalId, filter: &[u8]) -> bool {
        let (prefix, is_all) = Filter::prefix_of(filter);
        self.allowed_prefix(principal, prefix, is_all)
    }

    /// Whether `principal` may subscribe to all topics that begin so and that a pattern may match; to the one of that
    /// name, if there are no others. A pattern that begins with a wildcard, and one whose prefix is not reserved, matches
    /// no reserved topic (`pattern_prefix_min`).
    fn allowed_prefix(&self, principal: PrincipalId, prefix: &[u8], is_all: bool) -> bool {
        if is_all || !is_reserved(prefix) {
            return self.allowed(principal, Action::Subscribe, prefix);
        }
        let is_below = PUBLIC.iter().any(|public| is_below(prefix, public)) && !has_reserved_tag(prefix);
        principal == PrincipalId::NODE || (is_below && principal == PrincipalId::default())
    }
}

/// Whether a reserved name is one that anyone may read. By a tag it would be of a room that nobody may.
fn is_public(name: &[u8]) -> bool {
    PUBLIC.iter().any(|public| name == *public || is_below(name, public)) && !has_reserved_tag(name)
}

fn is_below(name: &[u8], parent: &[u8]) -> bool {
    name.strip_prefix(parent).is_some_and(|rest| rest.starts_with(b"/"))
}

#[cfg(test)]
mod tests;
