"""Cluster control plane: the state that nodes share, and the decisions of the controller.

**Decisions** are functions of values, without sockets and without a clock: (view, now) → decision.

- `failover` replaces leaders and moves hubs; `hub_ring` selects the nodes of a hub, `voters` defines the
  majority that a controller needs before it replaces a leader
- `placement` chooses the hub of a new room, within `room_limits`
- `view` is all that the controller knows at one moment
- `records`, `buckets` and `bucket_values` are the values in the coordinator, `commits` the writes to it

**Runtime**, in one event loop; `node` ties it together, and `context` is what all parts share.

- `membership` registers the process; `identity` is what its data directory stores, `classes` what all nodes
  must have in common, `bootstrap` the hubs of the node that founds the cluster
- `watch_cache` merges all watches into one state, `forgotten` has the rooms that were removed lately
- `controller` is elected and takes turns: it begins from `initial_state`, commits by `controller_writes`, logs
  by `step_log`; `assigner` places rooms while its node is the controller, `room_moves` pins them, `forget`
  removes unused ones, all by `room_writer`
- `directory` looks rooms up, `log_owners` the nodes that have logs, `partition` the acting leaders while there
  is no controller
- `rpc` defines the requests between nodes, `hub_member` answers those of the controller, `reports` sends loads
  and claims, `status` shows the cluster

**Integration into a process**: `core_plane` implements `plane` over a running node, with `peer_addresses` (host
names of peers), `logged_hubs` (hubs with logs) and `lookup` (answers to the data plane's lookups); `process`
starts and ends all of it in order.

Invariants: decisions take the time as an argument, in seconds of the monotonic clock of the controller's
node. The same view and the same time give the same decision. Each commit of the controller expects the
revision of the key `controller` that its own election wrote.
"""
