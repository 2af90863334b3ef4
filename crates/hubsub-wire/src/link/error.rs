//! Reasons to refuse a peer.

macro_rules! refusals {
    ($($(#[doc = $doc:literal])+ $number:literal $name:ident $code:literal $words:literal $lasts:literal;)+) => {
        /// Why a peer is refused. Numbers never change; each has a stable code.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Refusal { $($(#[doc = $doc])+ $name = $number,)+ }

        impl Refusal {
            /// All refusals, for tables and the tests that iterate over them.
            pub const ALL: &'static [Refusal] = &[$(Refusal::$name,)+];

            /// The stable code, for logs and replies.
            #[must_use]
            pub fn code(self) -> &'static str {
                match self { $(Refusal::$name => $code,)+ }
            }

            /// Explanation for logs and people.
            #[must_use]
            pub fn words(self) -> &'static str {
                match self { $(Refusal::$name => $words,)+ }
            }

            /// Whether only an operator can fix it, so that fast retries are useless.
            #[must_use]
            pub fn lasts(self) -> bool {
                match self { $(Refusal::$name => $lasts,)+ }
            }

            /// `None` for a number that only a newer version knows.
            #[must_use]
            pub fn from_number(number: u8) -> Option<Refusal> {
                match number { $($number => Some(Refusal::$name),)+ _ => None }
            }
        }
    };
}

refusals! {
    /// It did not send a link's handshake, or is no node of this cluster.
    1 Stranger "stranger" "this is not a node of the cluster" true;
    /// It belongs to another cluster.
    2 OtherCluster "other_cluster" "the peer belongs to another cluster" true;
    /// The version ranges do not overlap.
    3 NoCommonVersion "no_common_version" "no protocol version that both speak" true;
    /// It does not know the cluster's secret.
    4 WrongSecret "wrong_secret" "the cluster's secret is another one here" true;
    /// Another process has its name.
    5 DuplicateNode "duplicate_node" "another process has this node's name" false;
    /// It is this very process.
    6 SameNode "same_node" "the node dialed itself" true;
    /// The handshake took too long.
    7 Late "late" "the handshake took too long" false;
    /// The answering node is not the one that was dialed.
    8 OtherNode "other_node" "another node has this address" false;
    /// Of two nodes the one with the lesser name dials, but this is the other.
    9 WrongSide "wrong_side" "of two nodes the one whose name is less dials" true;
    /// There are fewer links between these two.
    10 NoSuchLink "no_such_link" "there are fewer links between these nodes" false;
    /// The node is stopping.
    11 Stopping "stopping" "the node is stopping" false;
}
