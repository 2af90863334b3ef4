"""The rows of the data pipeline: throughput of Spark from a node, beside the same rows from elsewhere.

Spark runs in a process of its own (`program`, which carries out `measurements`), on cores of its own; `engine` starts
it, sends it requests and counts its CPU. `sources` are the peers that need no server, `kafka` the one that
does. `drain` reads a log as fast as possible. `rows` defines the rows and their bounds, `runner` runs them.
"""
