"""Rows of a cluster: what each node does for rooms of others, and what is lost when one is killed.

`subject` says what can be measured: nodes that are started, killed, and asked where a room lives; `hubsub` and
`redis` are such. `sockets` counts what their connections carry, by the system's own counters, and `resp` speaks to
them. `rows` says what is measured and what it must reach, `places`, `isolation`, `scaling`, `forward` and `failover`
measure; `runner` takes turns between the clusters. `cli` is the door.
"""
