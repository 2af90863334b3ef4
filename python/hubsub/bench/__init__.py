"""Load scenarios and reports against HubSub and its peers.

`scenarios` says what is run and what it must reach, `servers` starts and pins
what is measured, `load` runs the generator (`hubsub-load`), `runner` takes
turns between the two servers, `stats` makes figures of the runs, `report` and
`plot` show them, `capacity` reckons what a machine holds. `cluster` has the rows of several nodes. `cli` is the door.
"""

from hubsub.errors import HubSubError


class BenchError(HubSubError):
    """A benchmark that cannot be run, or whose figures would mean nothing."""

    code = "bench"
    words = "the benchmark cannot be run"
