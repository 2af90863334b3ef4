//! Access control. It is checked before each publish, subscribe and admin command of a client, and before
//! each request of the control plane. Users and roles will be added here without changes to the callers.

use hubsub_types::PrincipalId;
use hubsub_types::names::{Filter, Glob, has_reserved_tag, is_reserved};

/// An operation on a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Publish,
    /// Subscribe, or read the history.
    Subscribe,
    /// Administer the room of this name, or the node if the topic is empty.
    Admin,
}

/// The permissions on this node. Until there are users, the default user is the only one and may do
/// everything, with one exception: names that begin with `$` belong to the node, and users may only read the
/// node's own statistics among them.
///
/// Invariant: a principal that may subscribe to a pattern may subscribe to every topic that matches it.
#[derive(Clone, Debug, Default)]
pub struct Access;

/// Reserved names that anyone may read, with all names below them.
const PUBLIC: [&[u8]; 2] = [b"$stats", b"$SYS"];

impl Access {
    /// The principal for a browser's token, or for none; `None` if the token is rejected. Until there are
    /// users, every token is accepted.
    pub fn principal_of(&self, _token: Option<&str>) -> Option<PrincipalId> {
        Some(PrincipalId::default())
    }

    /// Whether `principal` may do `action` on `topic`.
    #[inline]
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

    /// Whether `principal` may subscribe to every topic that a client's glob matches.
    pub fn allowed_glob(&self, principal: PrincipalId, glob: &[u8]) -> bool {
        let (prefix, is_all) = Glob::prefix_of(glob);
        self.allowed_prefix(principal, &prefix, is_all)
    }

    /// Whether `principal` may subscribe to every topic that an MQTT filter matches.
    pub fn allowed_filter(&self, principal: PrincipalId, filter: &[u8]) -> bool {
        let (prefix, is_all) = Filter::prefix_of(filter);
        self.allowed_prefix(principal, prefix, is_all)
    }

    /// Whether `principal` may subscribe to all topics with this prefix that a pattern may match, or, unless
    /// `is_all`, to the topic of exactly that name. A pattern that begins with a wildcard, or whose prefix is
    /// not reserved, matches no reserved topic (`pattern_prefix_min`).
    fn allowed_prefix(&self, principal: PrincipalId, prefix: &[u8], is_all: bool) -> bool {
        if is_all || !is_reserved(prefix) {
            return self.allowed(principal, Action::Subscribe, prefix);
        }
        let is_below = PUBLIC.iter().any(|public| is_below(prefix, public)) && !has_reserved_tag(prefix);
        principal == PrincipalId::NODE || (is_below && principal == PrincipalId::default())
    }
}

/// Whether anyone may read a reserved name. With a reserved hash tag, it would belong to a room that nobody
/// may read.
fn is_public(name: &[u8]) -> bool {
    PUBLIC.iter().any(|public| name == *public || is_below(name, public)) && !has_reserved_tag(name)
}

fn is_below(name: &[u8], parent: &[u8]) -> bool {
    name.strip_prefix(parent).is_some_and(|rest| rest.starts_with(b"/"))
}

#[cfg(test)]
mod tests;
