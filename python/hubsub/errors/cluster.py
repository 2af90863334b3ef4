"""A cluster: what is kept for all its nodes, who may join it, where its rooms are."""

from collections.abc import Sequence

from hubsub.errors.base import HubSubError
from hubsub.errors.start import StartError


class RecordFormatError(HubSubError):
    """A newer version wrote what the coordinator keeps."""

    code = "record_format"
    words = "a newer version wrote a value of the coordinator"
    advice = "start this node with the version that the rest of the cluster has"


class RecordDamagedError(HubSubError):
    code = "record_damaged"
    words = "a value of the coordinator cannot be read"


class DuplicateNodeError(StartError):
    """Another process has the node's name."""

    code = "duplicate_node"
    status = 409
    words = "another process has the name of this node"
    advice = "give each node its own; one that is gone frees its name after some seconds"


class OtherClusterError(StartError):
    code = "other_cluster"
    status = 409
    words = "this node is of another cluster than the one it is to join"
    advice = "give it an empty data directory, or the addresses of its own cluster"


class ClusterDiffersError(StartError):
    """The node's configuration is not the cluster's; all that differs, at once."""

    code = "cluster_differs"
    status = 409
    words = "the configuration of this node differs from the cluster's"

    def __init__(self, differences: Sequence[str]) -> None:
        super().__init__()
        self.differences = tuple(differences)

    def __str__(self) -> str:
        return "\n".join([f"{self.what}, in {len(self.differences)}:", *self.differences])


class ClassChangeError(HubSubError):
    """A class that the cluster has cannot become what was given."""

    code = "class_change"
    status = 409
    words = "the class cannot become that"


class NoControllerError(HubSubError):
    """What only the controller can say was not said in time."""

    code = "no_controller"
    status = 503
    retryable = True
    words = "no controller gave the room a place in time"
    advice = "rooms that have a place go on; new ones get theirs when the coordinator is back"


class NoPlaceError(HubSubError):
    code = "no_place"
    status = 503
    retryable = True
    words = "no node takes the room now"


class TooManyWaitingError(HubSubError):
    code = "too_many_waiting"
    status = 503
    retryable = True
    words = "too many requests wait for the place of a room"


class MoveError(HubSubError):
    """A room that cannot be moved there, or at all."""

    code = "room_move"
    status = 409
    words = "the room cannot be moved"


class NoClusterError(HubSubError):
    """What only a node of a cluster can say."""

    code = "no_cluster"
    status = 404
    words = "this node is in no cluster"


class PeerError(HubSubError):
    """Another node did not answer its control plane's question."""

    code = "peer"
    status = 503
    retryable = True
    words = "the other node gave no answer"


class JoinError(StartError):
    """Each address with its reason is the value."""

    code = "join"
    status = 503
    retryable = True
    words = "no node let this one into its cluster"
    advice = "`join` names the `raft` listeners of nodes that run"


class WrongSecretError(StartError):
    code = "wrong_secret"
    status = 403
    words = "the cluster's secret is another one there"
    advice = "cluster_secret is the same on all nodes"


class CoordinatorFilesError(StartError):
    code = "coordinator_files"
    words = "the coordinator's files cannot be used"
