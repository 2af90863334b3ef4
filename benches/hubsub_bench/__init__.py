"""Load scenarios and reports against HubSub and its peers.

`scenarios` defines the rows and their bounds. `servers` starts and pins the measured servers, and `load` runs
the generator (`hubsub-load`). `runner` alternates between the two servers. `stats` computes figures from the
runs, `report` and `plot` show them, `capacity` estimates the capacity of a machine. `cluster` has the rows of
several nodes. `cli` has the commands.
"""

from hubsub.errors import HubSubError


class BenchError(HubSubError, code="bench"):
    """A benchmark that cannot be run, or whose figures would mean nothing."""

    words = "the benchmark cannot be run"
