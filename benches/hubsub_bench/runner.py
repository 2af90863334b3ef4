"""Alternates between two servers: A B, B A, A B …, each run on a server started for it."""

import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hubsub_bench import BenchError, load
from hubsub_bench.load import Report, run
from hubsub_bench.machine import Cores, Others, crowded, process_seconds, share_cores, spent_s
from hubsub_bench.scenarios import BaseScenario, Params, Scenario
from hubsub_bench.servers import Running, Target
from hubsub_bench.stats import Summary, summarize

T = TypeVar("T")


@dataclass(slots=True)
class Row:
    scenario: str
    pair: int
    target: str
    version: str
    build_profile: str
    figures: Mapping[str, float | None]
    complaints: Sequence[str]
    """Why its figures are unreliable; empty if they are reliable."""
    others_busy: float
    """Cores that other processes kept busy meanwhile: noise."""
    reports: Sequence[Mapping[str, Any]]
    """The generator's raw reports."""


@dataclass(slots=True)
class Result:
    scenario: BaseScenario
    ours: str
    peer: str | None
    rows: list[Row] = field(default_factory=list)

    def summary(self, figure: str) -> Summary:
        """One figure over all pairs."""
        wanted = next(f for f in self.scenario.figures if f.name == figure)
        by_pair = sorted(self.rows, key=lambda row: row.pair)
        ours = [row.figures.get(figure) for row in by_pair if row.target == self.ours]
        peer = [row.figures.get(figure) for row in by_pair if row.target == self.peer]
        return summarize(ours, peer, wanted.bound, wanted.lower_is_better)

    def complaints(self) -> list[str]:
        return list(dict.fromkeys(f"{row.target}: {text}" for row in self.rows for text in row.complaints))


def run_scenario(
    scenario: Scenario,
    ours: Target,
    peer: Target | None,
    *,
    pairs: int = 3,
    seconds: float = 5.0,
    shards: int | None = None,
    spin: bool = False,
    on_row: Callable[[Row], None] = lambda row: None,
) -> Result:
    """Runs a scenario in pairs.

    Args:
        scenario: The row.
        ours: HubSub.
        peer: Left out if it lacks a protocol that the scenario needs.
        pairs: Runs of each server.
        seconds: Length of each measured window.
        shards: Cores and shards of HubSub; default: the scenario's.
        spin: The generator polls without sleeping.
        on_row: Called after every run.

    Raises:
        BenchError: a server or the generator could not be run, or is a debug build.
    """
    shards = shards or scenario.shards
    cores = share_cores(shards)
    if peer is not None and not scenario.protocols <= peer.protocols:
        peer = None
    targets = [ours] if peer is None else [ours, peer]
    common: Params = {"seconds": seconds, **({"spin": True} if spin else {})}
    rates = _rates(scenario, targets, cores, shards, common)
    result = Result(scenario, ours.name, None if peer is None else peer.name)
    for pair, target in in_turn(targets, pairs):
        with target.running(cores, shards) as server:
            meter = _Meter(server, cores, common)
            figures = scenario.measure(meter, rates.get(target.name))
            row = Row(
                scenario=scenario.name,
                pair=pair,
                target=target.name,
                version=server.version,
                build_profile=server.build_profile,
                figures=figures,
                complaints=meter.complaints(),
                others_busy=round(meter.others_busy(), 2),
                reports=[report.raw for report in meter.reports],
            )
        result.rows.append(row)
        on_row(row)
    return result


def in_turn(targets: Sequence[T], pairs: int) -> Iterator[tuple[int, T]]:
    """Number of the pair and target of each run, as A B, B A, A B."""
    for pair in range(pairs):
        for target in targets if pair % 2 == 0 else reversed(targets):
            yield pair, target


def _rates(
    scenario: Scenario, targets: Sequence[Target], cores: Cores, shards: int, common: Params
) -> dict[str, float]:
    """Publishes a second for each target: half of what the closed loop reaches."""
    if scenario.half_of is None:
        return {}
    measured = targets if scenario.rate_of == "own" else targets[-1:]
    rates = {}
    for target in measured:
        with target.running(cores, shards) as server:
            meter = _Meter(server, cores, common)
            rates[target.name] = meter(scenario.half_of).published_per_second / 2
    return {target.name: rates.get(target.name, rates[targets[-1].name]) for target in targets}


class _Meter:
    """Runs the generator against one server and collects the reports."""

    def __init__(self, server: Running, cores: Cores, common: Params) -> None:
        self._server, self._cores, self._common = server, cores, common
        self.reports: list[Report] = []
        self._others = Others(lambda: spent_s(resource.RUSAGE_CHILDREN) + process_seconds(server.pid))

    def __call__(self, params: Params, /, *, leaves_a_core: bool = False) -> Report:
        address = self._address(params)
        cores = self._cores.two_loads()[0] if leaves_a_core else self._cores
        # Redis clients publish for the pages.
        said: Params = {"publish_target": self._server.address} if params.get("protocol") == "phoenix" else {}
        report = run(address, self._server.pid, cores, {**self._common, **said, **params})
        self.reports.append(report)
        return report

    def measure(self, what: str, params: Params) -> Mapping[str, Any]:
        """One of the generator's smaller measurements; of MQTT, unless its `protocol` is another."""
        options = {name: value for name, value in params.items() if name != "protocol"}
        target = self._address({"protocol": "mqtt", **params})
        return load.measure(what, self._cores.two_loads()[1], {**options, "target": target})

    def beside(self, what: str, params: Params) -> AbstractContextManager[Callable[[], Mapping[str, Any]]]:
        """A smaller measurement of MQTT in the background, on a core of its own."""
        return load.beside(
            what, self._cores.two_loads()[1], {**params, "target": self._address({"protocol": "mqtt"})}
        )

    @property
    def pid(self) -> int | None:
        return self._server.pid

    def _address(self, params: Params) -> str:
        """The server's address for the protocol of the generator."""
        match params.get("protocol"):
            case "mqtt":
                address, named = self._server.mqtt, "MQTT"
            case "phoenix":
                address, named = self._server.ws, "WebSockets"
            case _:
                return self._server.address
        if address is None:
            raise BenchError(f"the server has no listener for {named}", self._server.version)
        return address

    def complaints(self) -> list[str]:
        found = [text for report in self.reports for text in report.complaints()]
        return [*found, *crowded(self.others_busy())]

    def others_busy(self) -> float:
        """Cores kept busy by neither the server nor the generator since the start."""
        return self._others.busy()
