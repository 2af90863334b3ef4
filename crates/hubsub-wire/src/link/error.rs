//! Reasons to refuse a peer.

macro_rules! refusals {
    ($($number:literal $name:ident $code:literal $words:literal $lasts:literal;)+) => {
        /// Why a peer is refused. Numbers never change; each has a stable code.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Refusal { $(#[doc = $words] $name = $number,)+ }

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
    1 Stranger "stranger" "this is not a node of the cluster" true;
    2 OtherCluster "other_cluster" "the peer belongs to another cluster" true;
    3 NoCommonVersion "no_common_version" "no protocol version that both speak" true;
    4 WrongSecret "wrong_secret" "the cluster's secret is another one here" true;
    5 DuplicateNode "duplicate_node" "another process has this node's name" false;
    6 SameNode "same_node" "the node dialed itself" true;
    7 Late "late" "the handshake took too long" false;
    8 OtherNode "other_node" "another node has this address" false;
    9 WrongSide "wrong_side" "of two nodes the one whose name is less dials" true;
    10 NoSuchLink "no_such_link" "there are fewer links between these nodes" false;
    11 Stopping "stopping" "the node is stopping" false;
}
