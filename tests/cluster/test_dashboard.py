"""Every metric and label in deploy/grafana exists on the nodes of a cluster with links, a log and a query."""

from __future__ import annotations

import inspect
import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.cluster import Cluster
from hubsub.api import metrics

pytestmark = pytest.mark.needs("hubsub-core")

ONLY_SOMETIMES = {"hubsub_query_blocked"}
"""Metrics that exist only while a batch is held; tests/node/test_stages_held.py produces them."""


def expressions(repository: Path) -> dict[str, str]:
    """Expressions, by the title of their panel or the name of their alert."""
    folder = repository / "deploy/grafana"
    board = json.loads((folder / "dashboard.json").read_text())
    rules = yaml.safe_load((folder / "alerts.yaml").read_text())["groups"][0]["rules"]
    found = {
        f"{panel['title']} {t['refId']}": t["expr"] for panel in board["panels"] for t in panel["targets"]
    }
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    return found | {rule["alert"]: rule["expr"] for rule in rules}


def samples(page: str) -> dict[str, list[set[str]]]:
    """Label sets by metric name; a set has `key` and `key=value` of each label."""
    found: dict[str, list[set[str]]] = {}
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", page, re.MULTILINE):
        pairs = re.findall(r'(\w+)="([^"]*)"', labels)
        found.setdefault(name, []).append({*(k for k, _ in pairs), *(f"{k}={v}" for k, v in pairs)})
    return found


def test_every_metric_and_label_that_the_dashboard_or_an_alert_names_is_there(
    cluster: Cluster, repository: Path
) -> None:
    with cluster.connect("a") as client:
        room = cluster.room_led_by("a", "log:")
        client.ask("PUBLISH", room, "x")
    (hub,) = [hub for hub in cluster.get("a", "/v1/hubs?scope=node")[1]["hubs"] if hub["latest"]]
    body = json.dumps({"offsets": {hub["id"]: 1}}).encode()
    url = cluster.nodes["a"].http_url
    urllib.request.urlopen(urllib.request.Request(f"{url}/v1/queries/q", body, method="PUT")).close()
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        there = samples(answer.read().decode())
    for where, expression in expressions(repository).items():
        check(where, expression, there)


def check(where: str, expression: str, there: dict[str, list[set[str]]]) -> None:
    selectors: list[tuple[str, str]] = re.findall(r"\b((?:hubsub|process)_\w+)(?:\{([^}]*)\})?", expression)
    assert selectors or expression == 'up{job="hubsub"} == 0', where
    labels: set[str] = set()
    for name, matchers in selectors:
        if name in ONLY_SOMETIMES:
            assert f'"{name}"' in inspect.getsource(metrics), f"{where}: no node tells {name}"
            continue
        assert name in there, f"{where}: there is no {name}"
        labels |= {label for sets in there[name] for label in sets if "=" not in label}
        for label, operator, value in re.findall(r'(\w+)(=~|=)"([^"]*)"', matchers):
            wanted = {f"{label}={one}" for one in (value.split("|") if operator == "=~" else [value])}
            assert all(any(one in sets for sets in there[name]) for one in wanted), (
                f"{where}: {name}{{{matchers}}}"
            )
    groups = re.findall(r"(?:by|on) \(([^)]*)\)", expression)
    grouped = {label.strip() for group in groups for label in group.split(",")}
    assert grouped <= labels | {"instance"}, where


@pytest.mark.parametrize(
    "expression",
    [
        "rate(hubsub_no_such_total[1m])",
        'hubsub_log_state{state="odd"}',
        "sum by (x) (hubsub_log_state)",
    ],
)
def test_what_is_not_there_is_found(expression: str) -> None:
    there: dict[str, Any] = {"hubsub_log_state": [{"state", "state=open"}]}
    with pytest.raises(AssertionError):
        check("somewhere", expression, there)
