"""Cluster control plane: the state that nodes share, and the decisions of the controller.

**Decisions** are functions of values, without sockets and without a clock. `records` defines the
coordinator's values, `commits` the writes sent to it, `view` all that the controller knows at one moment.
`ring` places hubs, `busy` places rooms, `rooms` packs the records of placed rooms, `census` defines the
voters whose majority a controller needs before it replaces a leader, and `leads` combines all of it: (view,
now) → decision.

**Runtime**, in one event loop: `node` ties it together. `membership` registers the process (`identity` is
what its data directory stores, `classes` what all nodes must have in common), `follow` merges all watches
into one view, `controller` is elected and takes turns, `assign` writes room records while its node is the
controller, `directory` looks rooms up, `asks` defines the requests between nodes, `status` reports the state
of the cluster, `start` is the state that a new controller begins from. `plane` is the interface to the data
plane.

**Integration into a process**: `rim` implements `plane` over a running node, through the interface in
`dataplane`, with `roster` (host names of peers) and `logged` (hubs with logs); `process` starts and ends all
of it in order.

Invariants: decisions take the time as an argument, in seconds of the monotonic clock of the controller's
node. The same view and the same time give the same decision. Each commit of the controller expects the
revision of the key `controller` that its own election wrote.
"""
