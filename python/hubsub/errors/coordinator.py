"""Errors of the coordinator. Only `CoordinatorUnknownError` leaves open whether something was written."""

from hubsub.errors.base import HubSubError


class CoordinatorError(HubSubError, code="coordinator", status=503):
    """An error of the cluster's store; unless it is `CoordinatorUnknownError`, nothing was written."""

    words = "the coordinator failed"


class CoordinatorRefusedError(CoordinatorError, code="coordinator_refused"):
    """A permanent refusal: wrong password, no space, damage."""

    words = "the coordinator refused the request"


class ExpectationError(CoordinatorRefusedError, code="expectation_failed", status=409):
    """A key had another revision than the commit expected.

    Args:
        key: The first such key, in the order of the expectations.
        expected: The expected revision.
        found: The actual revision; 0 if the key does not exist.
    """

    words = "a key has another revision than expected"

    def __init__(self, key: str, expected: int, found: int) -> None:
        super().__init__(value=f"{key} has {found}, not {expected}")
        self.key = key
        self.expected = expected
        self.found = found


class LeaseLostError(CoordinatorRefusedError, code="lease_lost", status=409):
    words = "the lease is over"


class CoordinatorTooLargeError(CoordinatorRefusedError, code="coordinator_too_large", status=413):
    words = "more than the coordinator takes at once"


class CoordinatorUnreachableError(CoordinatorError, code="coordinator_unreachable", retryable=True):
    words = "the coordinator cannot be reached"


class CoordinatorFailedError(CoordinatorError, code="coordinator_failed"):
    """The embedded one has failed for good: its files or its thread in this process."""

    words = "the coordinator's part in this node has failed"


class CoordinatorUnknownError(CoordinatorError, code="coordinator_unknown", status=504, retryable=True):
    """The reply was lost: the write may have been made, and may still be. Read again before deciding."""

    words = "the coordinator gave no answer, the outcome is unknown"
