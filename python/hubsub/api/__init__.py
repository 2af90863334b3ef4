"""The REST API and metrics.

`table` lists every route once; `app` routes requests and turns errors into responses; `schema` defines the
bodies; `server` listens. Handlers are grouped by subject: `rooms`, `publish`, `clients`, `nodes`.
"""

from hubsub.api.server import HttpServer
from hubsub.api.state import State

__all__ = ["HttpServer", "State"]
