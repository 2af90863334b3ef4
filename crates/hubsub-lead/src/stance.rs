//! What a node does for an ephemeral hub, by its lead and by the class's `on_partition`. It mirrors `leads.stance` of
//! the control plane.

use crate::Process;
use hubsub_types::NodeId;

/// What a class wants of a leader that has no lead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnPartition {
    /// It waits until it has one again.
    #[default]
    Pause,
    /// It goes on by itself, in an epoch of its own.
    Serve,
}

/// What a node does for a hub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stance {
    /// It leads.
    Leads,
    /// Another node does.
    Follows,
    /// It is the leader, without a lead: it takes nothing until it has one again.
    Pauses,
    /// It acts as leader beside another one, in an epoch of its own, until it has a lead or hears the leader again.
    Serves,
}

/// What this node's watch says of a hub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HubView<'a> {
    /// Of its class.
    pub on_partition: OnPartition,
    /// Who leads it.
    pub leader: Process,
    /// Nodes, the leader first.
    pub members: &'a [NodeId],
}

/// What a node has of leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Held {
    /// A lead that covers the hub in its term.
    Hub,
    /// A lead, without the hub.
    Lead,
    /// No lead: it is cut off, or nobody grants any.
    Nothing,
}

/// What the process `me` does for a hub. `heard`: whether a node is heard of late.
pub fn stance(hub: HubView<'_>, me: Process, held: Held, heard: impl Fn(NodeId) -> bool) -> Stance {
    let serves = hub.on_partition == OnPartition::Serve && held == Held::Nothing;
    if me == hub.leader {
        return match held {
            Held::Hub => Stance::Leads,
            _ if serves => Stance::Serves,
            _ => Stance::Pauses,
        };
    }
    // Where the leader is not heard, the first of the other members that is goes on.
    let first = || hub.members.iter().skip(1).copied().find(|&node| node == me.node || heard(node));
    if serves && !heard(hub.leader.node) && first() == Some(me.node) {
        Stance::Serves
    } else {
        Stance::Follows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Process = Process { node: NodeId(1), incarnation: 7 };
    const B: Process = Process { node: NodeId(2), incarnation: 8 };
    const C: Process = Process { node: NodeId(3), incarnation: 9 };

    fn hub(on_partition: OnPartition) -> HubView<'static> {
        HubView { on_partition, leader: A, members: &[NodeId(1), NodeId(2), NodeId(3)] }
    }

    #[test]
    fn a_leader_without_a_lead_pauses_or_serves_as_its_class_says() {
        for on_partition in [OnPartition::Pause, OnPartition::Serve] {
            assert_eq!(stance(hub(on_partition), A, Held::Hub, |_| true), Stance::Leads);
            assert_eq!(stance(hub(on_partition), A, Held::Lead, |_| true), Stance::Pauses);
        }
        assert_eq!(stance(hub(OnPartition::Pause), A, Held::Nothing, |_| false), Stance::Pauses);
        assert_eq!(stance(hub(OnPartition::Serve), A, Held::Nothing, |_| false), Stance::Serves);
    }

    #[test]
    fn an_earlier_process_of_the_leader_is_not_the_leader() {
        let before = Process { incarnation: 6, ..A };
        assert_eq!(stance(hub(OnPartition::Serve), before, Held::Lead, |_| true), Stance::Follows);
    }

    #[test]
    fn where_the_leader_is_not_heard_the_first_member_that_is_serves() {
        let serve = hub(OnPartition::Serve);
        assert_eq!(stance(serve, B, Held::Nothing, |node| node == C.node), Stance::Serves);
        assert_eq!(stance(serve, C, Held::Nothing, |node| node == B.node), Stance::Follows);
        assert_eq!(stance(serve, C, Held::Nothing, |_| false), Stance::Serves);
        assert_eq!(stance(serve, B, Held::Nothing, |node| node == A.node), Stance::Follows);
        assert_eq!(
            stance(serve, B, Held::Lead, |_| false),
            Stance::Follows,
            "the others go on without the leader"
        );
        let stranger = Process { node: NodeId(9), incarnation: 1 };
        assert_eq!(stance(serve, stranger, Held::Nothing, |_| false), Stance::Follows, "it is no member");
        assert_eq!(stance(hub(OnPartition::Pause), B, Held::Nothing, |_| false), Stance::Follows);
    }
}
