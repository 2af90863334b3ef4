"""A cluster: what its nodes keep and agree on, and what its controller decides.

**Decisions** are functions of values, without sockets and without a clock. `records` are the coordinator's values,
`commits` what is asked of it, `view` all that the controller knows at one moment. `ring` and `busy` place, `rooms`
packs the records of rooms that were placed, `census` says whom a controller must hear before it replaces anybody,
`leads` brings all together: (view, now) → decision.

**What runs**, in one event loop: `node` ties it together. `membership` registers the process (`identity` is what its
data directory knows, `classes` what must be alike), `follow` is one view from all watches, `controller` is elected and
takes turns, `assign` writes room records while it is, `directory` finds rooms, `asks` is what nodes ask each other,
`status` says how it all is, `start` is what a new controller begins from. `plane` is what the data plane does for it.

**What joins it to a process**: `rim` is the `plane` over a running node, as `dataplane` asks it, with `roster` (names
of peers) and `logged` (hubs with logs); `process` starts and ends all of it in order.

Invariants: to decisions time is an argument, in seconds of the monotonic clock of the controller's node. The same view
and the same time give the same decision. Each commit of the controller expects the revision of `controller` that made
its writer one.
"""
