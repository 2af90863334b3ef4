"""Rows of a cluster: the work of each node for rooms of other nodes, and losses when a node is killed.

`subject` defines the interface of a measured cluster: nodes that are started, killed, and asked for the
location of a room; `hubsub` and `redis` implement it. `sockets` counts the bytes of their connections by the
system's own counters, and `resp` is a client. `rows` defines the rows and their bounds; `places`,
`isolation`, `scaling`, `forward` and `failover` measure; `runner` alternates between the clusters. `cli` has
the command.
"""
