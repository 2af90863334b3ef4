"""Errors of a cluster: shared records, joining, locations of rooms."""

from collections.abc import Sequence

from hubsub.errors.base import HubSubError
from hubsub.errors.start import StartError


class RecordFormatError(HubSubError, code="record_format"):
    """The coordinator's data was written by a newer version."""

    words = "a newer version wrote a value of the coordinator"
    advice = "start this node with the version that the rest of the cluster has"


class RecordDamagedError(HubSubError, code="record_damaged"):
    words = "a value of the coordinator cannot be read"


class DuplicateNodeError(StartError, code="duplicate_node", status=409):
    words = "another process has the name of this node"
    advice = "give each node its own; one that is gone frees its name after some seconds"


class OtherClusterError(StartError, code="other_cluster", status=409):
    words = "this node is of another cluster than the one it is to join"
    advice = "give it an empty data directory, or the addresses of its own cluster"


class ClusterDiffersError(StartError, code="cluster_differs", status=409):
    """The node's configuration differs from the cluster's; lists all differences."""

    words = "the configuration of this node differs from the cluster's"

    def __init__(self, differences: Sequence[str]) -> None:
        super().__init__()
        self.differences = tuple(differences)

    def __str__(self) -> str:
        return "\n".join([f"{self.what}, in {len(self.differences)}:", *self.differences])


class ClassChangeError(HubSubError, code="class_change", status=409):
    """A class of the cluster cannot be changed in this way."""

    words = "the class cannot become that"


class NoControllerError(HubSubError, code="no_controller", status=503, retryable=True):
    """The controller did not answer in time."""

    words = "no controller gave the room a place in time"
    advice = "rooms that have a place go on; new ones get theirs when the coordinator is back"


class NoPlaceError(HubSubError, code="no_place", status=503, retryable=True):
    words = "no node takes the room now"


class TooManyWaitingError(HubSubError, code="too_many_waiting", status=503, retryable=True):
    words = "too many requests wait for the place of a room"


class MoveError(HubSubError, code="room_move", status=409):
    """The room cannot be moved there, or at all."""

    words = "the room cannot be moved"


class NoClusterError(HubSubError, code="no_cluster", status=404):
    words = "this node is in no cluster"


class PeerError(HubSubError, code="peer", status=503, retryable=True):
    words = "the other node gave no answer"


class JoinError(StartError, code="join", status=503, retryable=True):
    """The value lists each address with its reason."""

    words = "no node let this one into its cluster"
    advice = "`join` names the `raft` listeners of nodes that run"


class WrongSecretError(StartError, code="wrong_secret", status=403):
    words = "the cluster's secret is another one there"
    advice = "cluster_secret is the same on all nodes"


class CoordinatorFilesError(StartError, code="coordinator_files"):
    words = "the coordinator's files cannot be used"
