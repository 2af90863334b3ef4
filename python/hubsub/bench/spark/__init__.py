"""The rows of the data pipeline: what Spark gets out of a node, beside the same rows from elsewhere.

Spark runs in a process of its own (`program`, which does what `asks` says), on
cores of its own; `engine` starts it, talks to it and counts its CPU. `sources`
are the peers that need no server, `kafka` the one that does. `drain` reads a
log as fast as it comes. `rows` says what is measured and what it must reach,
`runner` runs it.
"""
