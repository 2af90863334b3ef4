"""The REST API and metrics.

`table` names every route once; `app` routes and turns errors into answers;
`schema` holds the bodies; `server` listens. Handlers are grouped by what they
are about: `rooms`, `publish`, `clients`, `nodes`.
"""

from hubsub.api.server import HttpServer
from hubsub.api.state import State

__all__ = ["HttpServer", "State"]
