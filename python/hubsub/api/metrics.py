"""/metrics in the Prometheus text format 0.0.4.

Label sets are bounded: `shard`, `route` with `status` (the table of routes), `limit` and `pool` names,
`class` (of rooms that have a record), `hub` with `class` (hubs that have a log: per class as many as there
were shards when the class was first created), `query` (up to `http_queries_max` reading queries, and as many
with a blocked batch), `peer` (nodes of the cluster) with `state` or `lane`. Rooms and clients are never
labels; `/v1/busiest` and `/v1/clients` list them.
"""

import resource
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hubsub.api.cluster import best_clock
from hubsub.api.state import State
from hubsub.control.cluster.room_limits import BYTES_LIMIT, CLASS_LIMIT, RoomRecords
from hubsub.control.resource_usage import cpu_s, resident_bytes
from hubsub.node import BUILD_PROFILE
from hubsub.node.status import Log, Store
from hubsub.version import VERSION

Labels = Mapping[str, object]


class Page:
    """Collects samples by family, so that each family is contiguous under one TYPE line."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[str, str, list[str]]] = {}

    def add(self, name: str, value: float, labels: Labels | None = None, doc: str = "") -> None:
        """Adds one sample.

        Args:
            name: Name of the family; names that end in `_total` are counters, all others gauges.
            value: The value.
            labels: Labels of the sample; default none.
            doc: Help text of the family.
        """
        kind = "counter" if name.endswith("_total") else "gauge"
        self._sample(self._family(name, kind, doc), name, value, labels or {})

    def add_histogram(
        self, name: str, times: Iterable[tuple[int | None, int]], sum_us: int, doc: str
    ) -> None:
        """Adds a histogram; the exported unit is seconds.

        Args:
            name: Name of the family.
            times: (upper bound in µs, count) in ascending order, counts not cumulative; the bound None means
                +Inf.
            sum_us: Sum of all times in µs.
            doc: Help text.
        """
        samples, count = self._family(name, "histogram", doc), 0
        for bound, some in times:
            count += some
            le = "+Inf" if bound is None else f"{bound / 1e6:g}"
            self._sample(samples, f"{name}_bucket", count, {"le": le})
        self._sample(samples, f"{name}_sum", sum_us / 1e6, {})
        self._sample(samples, f"{name}_count", count, {})

    def _family(self, name: str, kind: str, doc: str) -> list[str]:
        return self._families.setdefault(name, (kind, doc, []))[2]

    @staticmethod
    def _sample(samples: list[str], name: str, value: float, labels: Labels) -> None:
        text = ",".join(f'{k}="{_escape(str(v))}"' for k, v in labels.items())
        samples.append(f"{name}{{{text}}} {value}" if text else f"{name} {value}")

    def text(self) -> str:
        out: list[str] = []
        for name, (kind, doc, samples) in self._families.items():
            if doc:
                out.append(f"# HELP {name} {doc}")
            out += [f"# TYPE {name} {kind}", *samples]
        return "\n".join(out) + "\n"


def prometheus(state: State) -> str:
    page = Page()
    page.add("hubsub_info", 1, {"version": VERSION, "profile": BUILD_PROFILE, "node": state.node.name})
    page.add("hubsub_uptime_seconds", round(state.node.uptime_s, 3))
    metrics = state.node.metrics()
    for name, value in metrics["node"].items():
        _core_sample(page, f"hubsub_{name}", value, {})
    for shard, counters in enumerate(metrics["shards"]):
        for name, value in counters.items():
            _core_sample(page, f"hubsub_shard_{name}", value, {"shard": shard})
    _links(page, state)
    store = state.node.inflight_store()
    if store is not None:
        _store(page, store)
    log = state.node.log()
    if log is not None:
        _log(page, log)
        _queries(page, state, log)
        _stages(page, state)
    if state.cluster is not None:
        _room_records(page, state.cluster.room_records)
    _http(page, state)
    _process(page)
    _memory(page, state)
    return page.text()


def _core_sample(page: Page, name: str, value: float, labels: Labels) -> None:
    """Adds a sample of the core. Times are ns in the core and exported in seconds."""
    for suffix in ("_ns_total", "_ns"):
        if name.endswith(suffix):
            page.add(name.removesuffix(suffix) + "_seconds_total", value / 1e9, labels)
            return
    page.add(name, value, labels)


STORE_FIGURES = {
    "requests_total": "Requests that were carried out.",
    "errors_total": "Those that the store refused, or could not carry out.",
    "refused_total": "Requests that were refused because inflight_store_bytes_max waited.",
    "batches_total": "Batches of requests: syncs of a file, round trips to a server.",
    "batch_ns_total": "Time of batches.",
    "waiting": "Requests that wait.",
    "waiting_bytes": "Bytes of these.",
}


def _store(page: Page, store: Store) -> None:
    """Metrics of the session store, if it is a file or a server."""
    page.add("hubsub_inflight_store_up", int(store.state == "open"), doc="1: it answered the last time.")
    for name, value in store.figures.items():
        seconds = name.removesuffix("_ns_total")
        if seconds != name:
            page.add(f"hubsub_inflight_store_{seconds}_seconds_total", value / 1e9, doc=STORE_FIGURES[name])
        else:
            page.add(f"hubsub_inflight_store_{name}", value, doc=STORE_FIGURES[name])


def _room_records(page: Page, records: RoomRecords) -> None:
    for name, count in sorted(records.counts.items()):
        page.add(
            "hubsub_room_records", count, {"class": name}, "Rooms that have a record in the coordinator."
        )
    page.add("hubsub_room_records_bytes", records.size, doc="Bytes of these records, of all classes.")
    page.add(
        "hubsub_room_records_bytes_max", records.limits.bytes_max, doc="Beyond it no room gets a record."
    )
    doc = "Records of rooms that nobody used, which this node removed as the controller."
    page.add("hubsub_room_records_forgotten_total", records.forgotten, doc=doc)
    doc = "New rooms that this node refused as the controller, by the limit that did."
    for limit in ROOM_LIMITS:
        page.add("hubsub_room_records_refused_total", records.refused[limit], {"limit": limit}, doc)


ROOM_LIMITS = ("rooms_max", "room_creations_per_second_max", CLASS_LIMIT, BYTES_LIMIT)

LINK_STATES = ("waiting", "dialing", "up", "suspected", "refused")
LANES = ("urgent", "live", "reads")


def _links(page: Page, state: State) -> None:
    """Metrics of the links, summed per peer."""
    for peer in state.node.link_peers():
        labels, links = {"peer": peer["node"]}, peer["links"]
        rows: Sequence[Mapping[str, Any]] = links

        def total(name: str, links: Sequence[Mapping[str, Any]] = rows) -> int:
            return sum(link[name] for link in links)

        def known(name: str, links: Sequence[Mapping[str, Any]] = rows) -> list[float]:
            return [link[name] for link in links if link[name] is not None]

        page.add("hubsub_peer_links", len(links), labels, "Links that there are with the peer when it is up.")
        for name in LINK_STATES:
            count = sum(link["state"] == name for link in links)
            page.add("hubsub_peer_links_now", count, {**labels, "state": name}, "Links by what they are now.")
        for name, doc in (
            ("frames_in", "Frames that came from the peer."),
            ("bytes_in", "Bytes of these."),
            ("bytes_out", "Bytes that the sockets of its links took."),
            ("dropped_bytes", "Bytes that waited when a link ended."),
            ("suspicions", "Times that a link was not heard for link_suspect_ms."),
        ):
            page.add(f"hubsub_peer_{name}_total", total(name), labels, doc)
        for name, doc in (
            ("sent", "Frames for the peer, by lane."),
            ("sent_bytes", "Bytes of these."),
            ("refused", "Frames for which there was no room."),
        ):
            for lane in LANES:
                count = sum(link[name][lane] for link in rows)
                page.add(f"hubsub_peer_{name}_total", count, {**labels, "lane": lane}, doc)
        if heard := known("heard_ms"):
            page.add("hubsub_peer_silence_seconds", max(heard) / 1e3, labels, "Of its most silent link.")
        if trips := known("round_trip_us"):
            page.add("hubsub_peer_round_trip_seconds", min(trips) / 1e6, labels, "Of its fastest link.")
            doc = "How far its clock is ahead, by the link that knows best."
            page.add("hubsub_peer_clock_offset_seconds", best_clock(links)["offset_us"] / 1e6, labels, doc)


STATES = ("open", "full", "failed")
"""States of a log."""

HUB_GAUGES = (
    ("bytes", "Bytes of its segments."),
    ("segments", "How many there are."),
    ("archived", "First offset that is not archived; 0 where no archive has told."),
    ("archive_waiting_bytes", "Bytes that stay for the archive alone."),
    ("rooms", "Rooms that have records."),
    ("index_bytes", "Memory that finds its rooms and records."),
    ("earliest", "Offset of the oldest record kept, or of the next one."),
    ("latest", "Last offset given out."),
    ("committed", "Last offset that is acknowledged and delivered."),
    ("synced", "Last offset that is on disk."),
)


def _log(page: Page, log: Log) -> None:
    """Metrics of the log and of each of its hubs."""
    for state in STATES:
        page.add("hubsub_log_state", int(state == log.state), {"state": state}, "1 for the present one.")
    figures = dict(log.figures)
    sync_us = figures.pop("sync_us_total")
    for name, value in figures.items():
        page.add(f"hubsub_log_{name}", value)
    doc = "Time of syncs of the journal that carried records."
    page.add_histogram("hubsub_log_sync_seconds", log.syncs, sync_us, doc)
    for hub in log.hubs:
        labels = {"hub": hub.name, "class": hub.room_class}
        for name, doc in HUB_GAUGES:
            page.add(f"hubsub_hub_{name}", getattr(hub, name) or 0, labels, doc)
        doc = "Records removed since the start that were not archived, for want of disk."
        page.add("hubsub_hub_unarchived_lost_total", hub.archive_lost, labels, doc)
        is_lost = int(hub.state == "quarantined")
        page.add("hubsub_hub_quarantined", is_lost, labels, "1: neither written nor read, files are kept.")
        is_damaged = int(hub.damaged is not None)
        page.add(
            "hubsub_hub_damaged", is_damaged, labels, "1: a part of it cannot be read, the rest is served."
        )


def _queries(page: Page, state: State, log: Log) -> None:
    doc = "Committed records that a query has not read, as it reported last."
    for query, told in state.queries.all().items():
        for hub in log.hubs:
            lag = told.lag(hub.id, hub.committed + 1)
            if lag is not None:
                labels = {"query": query, "hub": hub.name}
                page.add("hubsub_query_lag_records", lag, labels, doc)


def _stages(page: Page, state: State) -> None:
    staging, batches = state.staging, state.batches
    page.add("hubsub_stages", len(staging), doc="Stages that wait for their commit.")
    page.add("hubsub_stage_bytes", staging.waiting_bytes, doc="What they take in the log.")
    for name, doc in (
        ("batches_published", "Committed batches that are published."),
        ("rows_published", "Rows of these."),
        ("batches_repeated", "Commits of a batch that was published before."),
        ("batches_given_up", "Blocked batches that an operator gave up."),
        ("rows_given_up", "Rows of these that were not published."),
    ):
        page.add(f"hubsub_{name}_total", batches.counts[name], doc=doc)
    held = batches.blocked.all()
    page.add("hubsub_batches_blocked", len(held), doc="Committed batches that their rooms do not take now.")
    for query in [*held][: state.limits["http_queries_max"]]:
        page.add("hubsub_query_blocked", 1, {"query": query}, "1: the query's last batch is blocked.")


def _http(page: Page, state: State) -> None:
    for (route, status), count in sorted(state.requests.items()):
        page.add("hubsub_http_requests_total", count, {"route": route, "status": status})
    page.add(
        "hubsub_http_body_bytes",
        state.request_bytes,
        doc="Bytes of bodies and long heads that come or are at work.",
    )
    window, console = state.window, state.console
    page.add("hubsub_console_listeners", 0 if console is None else len(console))
    doc = "Listeners that took longer than console_slow_ms."
    page.add("hubsub_console_slow_closed_total", 0 if console is None else console.slow_closed, doc=doc)
    page.add("hubsub_idempotency_keys", len(window))
    page.add("hubsub_idempotency_bytes", window.bytes)
    page.add("hubsub_idempotency_repeated_total", window.repeated)
    refused: Iterable[tuple[str, int]] = (
        ("http_body_bytes_max", state.bodies_refused),
        ("http_bodies_bytes_max", state.requests_turned_away),
        ("idempotency_keys_max", window.refused),
        ("http_queries_max", state.queries.refused),
        ("console_listeners_max", 0 if console is None else console.refused),
        ("control_requests_max", state.node.refused_requests),
    )
    for limit, count in refused:
        page.add(
            "hubsub_control_refused_total",
            count,
            {"limit": limit},
            "What the control plane's limits refused.",
        )


def _process(page: Page) -> None:
    page.add("process_cpu_seconds_total", cpu_s())
    resident = resident_bytes()
    if resident is not None:
        page.add("process_resident_memory_bytes", resident)
        page.add("process_open_fds", sum(1 for _ in Path("/proc/self/fd").iterdir()))
    page.add("process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _memory(page: Page, state: State) -> None:
    page.add("hubsub_memory_allowed_bytes", state.config.memory, doc="The setting `memory`.")
    for pool, size in state.memory.pools().items():
        page.add("hubsub_memory_bytes", size, {"pool": pool}, "The resident size, by what it is used for.")


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
