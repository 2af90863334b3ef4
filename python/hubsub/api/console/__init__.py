"""The console: static pages at `/`, and the stream of events that they are drawn from (docs/guides/console.md).

`files` serves the pages, `now` says what a node does, `watch` looks at the cluster while somebody listens, `tail` at a
room, `events` writes both to a listener, `table` has the routes.
"""
