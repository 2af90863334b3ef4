//! Who may do what. One call before each publish, subscribe and admin command
//! of a client, and before each request of the control plane; users and roles
//! fill it, the callers stay.

use hubsub_types::PrincipalId;
use hubsub_types::names::is_reserved;

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
#[derive(Clone, Debug, Default)]
pub struct Access;

/// What of the reserved names anyone may read.
const PUBLIC: [&[u8]; 2] = [b"$stats/", b"$SYS/"];

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
                let is_public = PUBLIC.iter().any(|public| topic.starts_with(public));
                let is_read = action == Action::Subscribe && is_public;
                is_read && principal == PrincipalId::default()
            }
            _ => principal == PrincipalId::default(),
        }
    }
}

#[cfg(test)]
mod tests;
