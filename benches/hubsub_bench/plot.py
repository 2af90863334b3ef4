"""Plots of results, as SVG; needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hubsub_bench.runner import Result
from hubsub_bench.stats import Verdict

RATIOS_FILE = "ratios.svg"
COLORS = {
    Verdict.GOAL: "#2a9d5c",
    Verdict.FLOOR: "#3a7ca5",
    Verdict.BELOW: "#c8553d",
    Verdict.NONE: "#8d99ae",
}


def plot(results: Sequence[Result], path: Path) -> list[Path]:
    """Writes a plot of the ratios, and one of each latency scenario's distribution.

    Returns:
        The files written; none without matplotlib or without ratios.
    """
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("svg")
    # Otherwise ids in the file would be random, and differ in every run.
    matplotlib.rcParams["svg.hashsalt"] = "hubsub"
    drawn = [_ratios(results, path / RATIOS_FILE)]
    drawn += [_latency(r, path / f"{r.scenario.name}.svg") for r in results if _is_latency(r)]
    return [file for file in drawn if file is not None]


def _ratios(results: Sequence[Result], file: Path) -> Path | None:
    bars = []
    for result in results:
        figure = next((f for f in result.scenario.figures if f.bound.of == "ratio" and f.bound.floor), None)
        summary = None if figure is None else result.summary(figure.name)
        if figure is not None and summary is not None and summary.ratio is not None:
            bars.append((f"{result.scenario.name}: {figure.name}", summary, figure.bound))
    if not bars:
        return None
    plt = _pyplot()
    fig, ax = plt.subplots(figsize=(8, 0.6 + 0.45 * len(bars)), layout="constrained")
    for y, (_, summary, bound) in enumerate(bars):
        ax.barh(y, summary.ratio, color=COLORS[summary.verdict], height=0.6)
        ax.plot([summary.ratio_min, summary.ratio_max], [y, y], color="black", linewidth=1)
        for limit, style in ((bound.floor, "-"), (bound.goal, ":")):
            if limit is not None:
                ax.plot([limit, limit], [y - 0.4, y + 0.4], color="black", linestyle=style)
    ax.axvline(1, color="#888888", linewidth=0.8)
    ax.set_yticks(range(len(bars)), [label for label, _, _ in bars])
    ax.invert_yaxis()
    ax.set_xlabel(f"times as good as {results[0].peer} (bar: median, line: range, ticks: floor, goal dotted)")
    fig.savefig(file, metadata={"Date": None})
    plt.close(fig)
    return file


def _is_latency(result: Result) -> bool:
    return any(figure.name == "p999" for figure in result.scenario.figures)


def _latency(result: Result, file: Path) -> Path | None:
    plt = _pyplot()
    fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    for row in result.rows:
        curve = row.reports[-1]["latency"]["curve"]
        # Nines on the x axis: 0.9 is 1, 0.99 is 2; the last step has no distance to 1.
        points = [(1 / (1 - quantile), value / 1000) for quantile, value, _ in curve if quantile < 1]
        color = "#2a9d5c" if row.target == result.ours else "#8d99ae"
        label = row.target if row.pair == 0 else None
        ax.plot([x for x, _ in points], [y for _, y in points], color=color, label=label, linewidth=1)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks([2, 10, 100, 1_000, 10_000], ["50 %", "90 %", "99 %", "99.9 %", "99.99 %"])
    ax.set_xlabel("of deliveries arrive within")
    ax.set_ylabel("latency, µs")
    ax.set_title(result.scenario.title, fontsize=10)
    ax.legend()
    fig.savefig(file, metadata={"Date": None})
    plt.close(fig)
    return file


def _pyplot() -> Any:
    import matplotlib.pyplot as plt

    return plt
