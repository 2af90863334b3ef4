"""/metrics in the Prometheus text format 0.0.4.

Label sets are bounded: `shard`, `route` with `status` (the table of routes),
`limit` names. Rooms and clients are never labels; `/v1/busiest` and
`/v1/clients` have them.
"""

import resource
from collections.abc import Iterable, Mapping
from pathlib import Path

from hubsub.api.state import State
from hubsub.node import BUILD_PROFILE
from hubsub.version import VERSION

Labels = Mapping[str, object]


class Page:
    """Collects samples by family, so that each family stands together under one TYPE line."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[str, str, list[str]]] = {}

    def add(self, name: str, value: float, labels: Labels | None = None, doc: str = "") -> None:
        """One sample; names that end in `_total` are counters, all others gauges."""
        kind = "counter" if name.endswith("_total") else "gauge"
        family = self._families.setdefault(name, (kind, doc, []))
        text = ",".join(f'{k}="{_escape(str(v))}"' for k, v in (labels or {}).items())
        family[2].append(f"{name}{{{text}}} {value}" if text else f"{name} {value}")

    def text(self) -> str:
        out: list[str] = []
        for name, (kind, doc, samples) in self._families.items():
            if doc:
                out.append(f"# HELP {name} {doc}")
            out += [f"# TYPE {name} {kind}", *samples]
        return "\n".join(out) + "\n"


def prometheus(state: State) -> str:
    """All metrics of the node now."""
    page = Page()
    page.add("hubsub_info", 1, {"version": VERSION, "profile": BUILD_PROFILE, "node": state.node.name})
    page.add("hubsub_uptime_seconds", round(state.node.uptime_s, 3))
    metrics = state.node.metrics()
    for name, value in metrics["node"].items():
        _core_sample(page, f"hubsub_{name}", value, {})
    for shard, counters in enumerate(metrics["shards"]):
        for name, value in counters.items():
            _core_sample(page, f"hubsub_shard_{name}", value, {"shard": shard})
    _http(page, state)
    _process(page)
    return page.text()


def _core_sample(page: Page, name: str, value: float, labels: Labels) -> None:
    """Time comes from the core in ns and goes out in seconds."""
    for suffix in ("_ns_total", "_ns"):
        if name.endswith(suffix):
            page.add(name.removesuffix(suffix) + "_seconds_total", value / 1e9, labels)
            return
    page.add(name, value, labels)


def _http(page: Page, state: State) -> None:
    for (route, status), count in sorted(state.requests.items()):
        page.add("hubsub_http_requests_total", count, {"route": route, "status": status})
    window = state.window
    page.add("hubsub_idempotency_keys", len(window))
    page.add("hubsub_idempotency_bytes", window.bytes)
    page.add("hubsub_idempotency_repeated_total", window.repeated)
    refused: Iterable[tuple[str, int]] = (
        ("http_body_bytes_max", state.bodies_refused),
        ("idempotency_keys_max", window.refused),
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
    usage = resource.getrusage(resource.RUSAGE_SELF)
    page.add("process_cpu_seconds_total", round(usage.ru_utime + usage.ru_stime, 6))
    try:
        with open("/proc/self/statm") as file:
            page.add("process_resident_memory_bytes", int(file.read().split()[1]) * resource.getpagesize())
        page.add("process_open_fds", sum(1 for _ in Path("/proc/self/fd").iterdir()))
    except OSError:  # Not Linux.
        pass
    page.add("process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
