"""Generates the whole page `docs/capacity.md` from the figures of `capacity`."""

from collections.abc import Sequence
from math import log

from hubsub_bench.capacity import (
    BUFFERED_BYTES,
    BUFFERED_SHARE,
    PORTS_PER_ADDRESS,
    SIZES,
    SPARE_DESCRIPTORS,
    WORKLOADS,
    Costs,
    Need,
    reckon,
)

PAGE = """\
# Capacity

What one node holds, from measured costs by plain arithmetic. `hubsub bench capacity --out docs/capacity.md` measures
again and writes this page; figures of another machine differ, so measure on yours.

{measured}

## One core

CPU time of the server per delivery, turned round: what one shard delivers when it does nothing else. Payloads have
128 bytes. How much a delivery costs depends on how many of them go out in one write, so look for the row that is
like your traffic; shards add up as long as there are cores.

{rates}

## Memory

Three runs of {connections:,} idle connections, the growth of the process divided by their number: connections that
only sent a `PING`; the same, all subscribed to one room; the same, each subscribed to a room of its own. The kernel's
part is what its slab caches and TCP buffers gained; loopback has both ends of a connection, so it is half of that.

{memory}

## 100,000 to 1,000,000 connections

Each with one subscription to a room of its own. The kernel's column adds buffers: {share:.0%} of the connections hold
{buffered} at a time. Slow readers hold more: up to `net.ipv4.tcp_wmem`'s maximum in the kernel and
`output_bytes_max` in the node, which `output_shard_bytes_max` bounds for a shard. Traffic needs cores, not memory:
deliveries a second = publishes a second × subscribers of a room, divided by the rate of a core above.

{totals}

## Settings

Lowest values; leave what is higher already. `hubsub doctor` shows what this machine has.

{settings}

- `ulimit -n`, `fs.nr_open`, `fs.file-max`: a descriptor a connection, {spare:,} to spare; a process, then the machine.
- `net.core.somaxconn`, `net.ipv4.tcp_max_syn_backlog`: connections that wait to be accepted when all come back at once.
- `net.ipv4.tcp_mem`: pages for the buffers of all connections: the low mark is twice what is reckoned with above.
- `net.ipv4.tcp_rmem`, `net.ipv4.tcp_wmem`: small defaults, since most connections are idle; large maxima for links.
- `net.netfilter.nf_conntrack_max`: only where connection tracking is loaded; better keep it off the node's ports.
- Client addresses: one address has {ports:,} local ports by default (`net.ipv4.ip_local_port_range`) for one server
  address and port. It limits a load test or a proxy in front, never the node.
"""


def page(costs: Costs) -> str:
    machine = costs.machine
    needs = [reckon(costs, size) for size in SIZES]
    rates = [(f"{name}: {WORKLOADS[name][0]}", f"{rate:,.0f}") for name, rate in costs.per_core.items()]
    memory = [
        ("the process before the first connection", size_text(costs.base_bytes)),
        ("a connection", size_text(costs.connection_bytes)),
        ("a subscription to a room that is there", size_text(costs.subscription_bytes)),
        ("a room with one subscriber", size_text(costs.room_bytes)),
        ("together: a connection with a room of its own", size_text(costs.idle_bytes)),
        ("the kernel, for the node's end of a connection", size_text(costs.kernel_bytes)),
    ]
    return PAGE.format(
        measured=(
            f"Measured with {costs.version} ({machine.commit}, {machine.time[:10]}) on {machine.cpu},"
            f" {machine.cores} cores, {machine.kernel}."
        ),
        rates=_table(("workload", "deliveries a second"), rates),
        connections=costs.connections,
        memory=_table(("what", "bytes"), memory),
        share=BUFFERED_SHARE,
        buffered=size_text(BUFFERED_BYTES),
        totals=_table(("connections", "process", "kernel", "together"), [_total(need) for need in needs]),
        settings=_table(("", *(f"{size:,}" for size in SIZES)), _settings(needs)),
        spare=SPARE_DESCRIPTORS,
        ports=PORTS_PER_ADDRESS,
    )


def size_text(value: float) -> str:
    if value < 10_000:
        return f"{value:,.0f} B"
    step = min(3, int(log(value, 1024)))
    return f"{value / 1024**step:.3g} {('KiB', 'MiB', 'GiB')[step - 1]}"


def _total(need: Need) -> tuple[str, ...]:
    together = need.process_bytes + need.kernel_bytes
    sizes = (need.process_bytes, need.kernel_bytes, together)
    return (f"{need.connections:,}", *(size_text(size) for size in sizes))


def _settings(needs: Sequence[Need]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("`ulimit -n`", *(f"`{need.connections + SPARE_DESCRIPTORS}`" for need in needs))
    ]
    rows += [(f"`{name}`", *(f"`{need.sysctls[name]}`" for need in needs)) for name in needs[0].sysctls]
    addresses = (f"{-(-need.connections // PORTS_PER_ADDRESS)}" for need in needs)
    return [*rows, ("client addresses", *addresses)]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
