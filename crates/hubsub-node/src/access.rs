//! Who may do what. One call before each publish, subscribe and admin command
//! of a client, and before each request of the control plane; users and roles
//! fill it, the callers stay.

use hubsub_types::PrincipalId;

/// What a principal wants to do with a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Publish to it.
    Publish,
    /// Subscribe to it, or read its history.
    Subscribe,
    /// Administer the node; the topic is empty.
    Admin,
}

/// What is allowed on this node. Until there are users, the default user may
/// do everything and there is no other.
#[derive(Clone, Debug, Default)]
pub struct Access;

impl Access {
    /// Whether `principal` may do `action` on `topic`.
    #[inline]
    #[must_use]
    pub fn allowed(&self, principal: PrincipalId, action: Action, topic: &[u8]) -> bool {
        let _ = (action, topic);
        principal == PrincipalId::default()
    }
}

#[cfg(test)]
mod tests;
