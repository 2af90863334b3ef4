"""The console: static pages at `/`, and the event stream that they render (docs/guides/console.md).

`files` serves the pages. `now` reports the activity of a node. `watch` polls the cluster while someone
listens, and `tail` polls a room. `events` writes both to a listener. `table` has the routes.
"""
