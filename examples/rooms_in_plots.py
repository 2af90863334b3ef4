"""Four plots of a node's rooms, made with Spark and matplotlib.

With a running node (`make run`), and records in its rooms:

    hubsub demo generate --events 20000 | hubsub pub --from -
    hubsub demo generate --events 10000 --devices 20 | hubsub pub --from -
    python examples/rooms_in_plots.py

The functions that end in `_of` use Spark: a frame of records in, a small table out. The others draw. An event
is a record of a chat room, whatever its kind; the job `activity`, which knows no kinds, calls each a message.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.dates
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from hubsub.pipeline import events
from hubsub.pipeline.activity import activity
from hubsub.pipeline.events import Field
from hubsub.pipeline.session import connect
from hubsub.pipeline.sessions import FIELDS, moves, sessions

# Colours that colour-blind people can distinguish.
BLUE, ORANGE, GREEN, GREY, RED = "#0072B2", "#E69F00", "#009E73", "#BBBBBB", "#D55E00"
STYLE = {
    "figure.constrained_layout.use": True,
    "figure.titlesize": 14,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#EEEEEE",
    "legend.frameon": False,
}
STATES = {"idle": GREY, "heating": ORANGE, "fault": RED}
ENDINGS = {"leave": ("left", BLUE), "join": ("came in again", GREEN), "timeout": ("fell silent", ORANGE)}


def records(spark: SparkSession, servers: str, pattern: str) -> DataFrame:
    """All records of the rooms that match a pattern.

    Args:
        spark: The session.
        servers: HTTP listeners of nodes.
        pattern: Glob or MQTT filter.
    """
    reader = spark.read.format("hubsub").option("servers", servers)
    return reader.option("subscribePattern", pattern).load()


# -- Spark --


def minutes_of(chat: DataFrame) -> pd.DataFrame:
    """Events of each room and minute, by their own time: `room, at, events`."""
    said = events.good(events.parsed(chat, {}, event_time="$.ts"))
    windows = activity(said, "1 minute").withColumnRenamed("window_start", "at")
    return windows.groupBy("room", "at").agg(sf.sum("messages").alias("events")).toPandas()


def rooms_of(chat: DataFrame, limit: int = 15) -> pd.DataFrame:
    """The busiest rooms: `room, events, people`."""
    said = events.good(events.parsed(chat, {"user": Field("$.user")}))
    rooms = said.groupBy("room").agg(
        sf.count("*").alias("events"), sf.countDistinct("event.user").alias("people")
    )
    return rooms.orderBy(sf.desc("events"), "room").limit(limit).toPandas()


def sessions_of(chat: DataFrame) -> pd.DataFrame:
    """Length of each session, up to its last event: `closed_by, minutes`."""
    found = sessions(moves(events.good(events.parsed(chat, FIELDS, event_time="$.ts"))))
    seconds = (sf.unix_micros("last_seen") - sf.unix_micros("start")) / sf.lit(60e6)
    return found.select("closed_by", seconds.alias("minutes")).toPandas()


def reports_of(devices: DataFrame) -> pd.DataFrame:
    """Reports of devices, in the order of time: `device, at, state, temperature, target`."""
    fields = {
        "device": Field("$.device"),
        "state": Field("$.state"),
        "temperature": Field("$.temperature", "double"),
        "target": Field("$.target", "double"),
    }
    reports = events.good(events.parsed(devices, fields, event_time="$.ts"))
    return reports.select(sf.col("event_time").alias("at"), "event.*").orderBy("device", "at").toPandas()


# -- plots --


def draw_minutes(minutes: pd.DataFrame, rooms: int = 6) -> Figure:
    """Events a minute, by room: a small plot for each of the busiest, all with the same axes."""
    busiest = minutes.groupby("room").events.sum().sort_values(ascending=False).index[:rooms]
    every = pd.date_range(minutes["at"].min(), minutes["at"].max(), freq="1min")
    figure, grid = plt.subplots(
        rooms // 2, 2, figsize=(11, 7), sharex=True, sharey=True, gridspec_kw={"wspace": 0.08}
    )
    for room, axes in zip(busiest, grid.flat, strict=False):
        counts = minutes[minutes.room == room].set_index("at").events.reindex(every, fill_value=0)
        axes.bar(
            every, counts, width=pd.Timedelta(minutes=1), align="edge", color=BLUE, alpha=0.3, linewidth=0
        )
        mean = counts.rolling(10, center=True, min_periods=1).mean()
        axes.plot(every, mean, color=BLUE, linewidth=2)
        axes.set_title(f"{room}: {counts.sum():,} events")
        axes.set_xlim(every[0], every[-1])
        time_axis(axes)
    for axes in grid.flat[len(busiest) :]:
        axes.set_visible(False)
    figure.suptitle("Events a minute in the busiest rooms (line: mean of 10 minutes)", x=0.01, ha="left")
    figure.supylabel("events a minute", fontsize=10)
    figure.supxlabel("time of the event (UTC)", fontsize=10)
    return figure


def draw_rooms(rooms: pd.DataFrame) -> Figure:
    """The busiest rooms: events, and number of people."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 5.5), sharey=True, gridspec_kw={"width_ratios": [3, 1]}
    )
    for axes, column, colour in ((left, "events", BLUE), (right, "people", GREEN)):
        bars = axes.barh(rooms.room, rooms[column], color=colour)
        axes.bar_label(bars, labels=[f"{count:,}" for count in rooms[column]], padding=4, fontsize=9)
        axes.set_xlabel(column)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.12)
    left.invert_yaxis()
    figure.suptitle("The busiest rooms, and how many people are there", x=0.01, ha="left")
    return figure


def draw_sessions(found: pd.DataFrame) -> Figure:
    """How long people stay, by how their sessions ended."""
    figure, axes = plt.subplots(figsize=(11, 5))
    longest = found.minutes.quantile(0.99)
    step = next(step for step in (1, 2, 5, 10, 30, 60, 240) if longest / step < 40 or step == 240)
    edges = [n * step for n in range(int(longest // step) + 2)]
    kinds = [kind for kind in ENDINGS if (found.closed_by == kind).any()]
    axes.hist(
        [found.minutes[found.closed_by == kind].clip(upper=edges[-1]) for kind in kinds],
        bins=edges,
        stacked=True,
        color=[ENDINGS[kind][1] for kind in kinds],
        label=[f"{ENDINGS[kind][0]} ({(found.closed_by == kind).sum():,})" for kind in kinds],
        edgecolor="white",
        linewidth=0.5,
    )
    median = found.minutes.median()
    axes.axvline(median, color="black", linewidth=1, linestyle="--")
    axes.text(
        median, 0.97 * axes.get_ylim()[1], f" median {median:.0f} minutes", va="top", backgroundcolor="white"
    )
    axes.set_xlim(0, edges[-1])
    axes.set_xlabel(f"minutes from the first to the last sign of life (the last bar: {edges[-2]} and more)")
    axes.set_ylabel("sessions")
    axes.legend(title="how it ended", alignment="left")
    figure.suptitle(f"How long people stay: {len(found):,} sessions", x=0.01, ha="left")
    return figure


def draw_device(reports: pd.DataFrame, device: str) -> Figure:
    """Temperature and state of one device, and below the states of all devices."""
    figure, (top, below) = plt.subplots(
        2, 1, figsize=(11, 8), sharex=True, gridspec_kw={"height_ratios": [3, 4]}
    )
    one = reports[reports.device == device]
    for state, begin, end in spans(one):
        if state != "idle":
            top.axvspan(begin, end, color=STATES[state], alpha=0.25, linewidth=0)
    (measured,) = top.plot(one["at"], one.temperature, color=BLUE, linewidth=1.8, label="temperature")
    (wanted,) = top.step(one["at"], one.target, where="post", color="black", linestyle="--", label="target")
    shades = [Patch(color=STATES[state], alpha=0.25, label=state) for state in ("heating", "fault")]
    top.legend(handles=[measured, wanted, *shades], loc="upper left", bbox_to_anchor=(1, 1))
    top.set_ylabel("°C")
    top.set_title(f"{device}: temperature and what it was set to")

    names = sorted(reports.device.unique())
    for place, name in enumerate(names):
        for state, begin, end in spans(reports[reports.device == name]):
            left, right = matplotlib.dates.date2num([begin, end])
            below.broken_barh([(left, right - left)], (place - 0.4, 0.8), color=STATES[state], linewidth=0)
    below.set_yticks(range(len(names)), names, fontsize=8)
    below.tick_params(axis="y", length=0)
    below.grid(visible=False)
    below.invert_yaxis()
    below.set_title("State of all devices")
    below.set_xlabel("time of the report (UTC)")
    handles = [Patch(color=colour, label=state) for state, colour in STATES.items()]
    below.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1))
    below.set_xlim(reports["at"].min(), reports["at"].max())
    time_axis(below)
    figure.suptitle("Devices over time", x=0.01, ha="left")
    return figure


def spans(reports: pd.DataFrame) -> list[tuple[str, Any, Any]]:
    """State, begin and end of each period of one device, whose reports are in order."""
    runs = (reports.state != reports.state.shift()).cumsum()
    begins = reports.groupby(runs).agg(state=("state", "first"), at=("at", "first"))
    ends = [*begins["at"].iloc[1:], reports["at"].iloc[-1]]
    return list(zip(begins.state, begins["at"], ends, strict=True))


def most_broken(reports: pd.DataFrame) -> str:
    """The device with the most faults; the first one if there are none."""
    faults = (reports.state == "fault").groupby(reports.device).sum()
    return str(faults.idxmax())


def time_axis(axes: Axes) -> None:
    locator = matplotlib.dates.AutoDateLocator(minticks=3, maxticks=8)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(matplotlib.dates.ConciseDateFormatter(locator))


# -- all of it --


def figures(
    spark: SparkSession,
    servers: str,
    device: str | None = None,
    chat: str = "chat:*",
    devices: str = "devices/#",
) -> Mapping[str, Figure]:
    """File name to plot; plots without data are left out.

    Args:
        spark: The session.
        servers: HTTP listeners of nodes.
        device: Device to plot; None: the one with the most faults.
        chat: Pattern of the chat rooms.
        devices: Pattern of the device topics.
    """
    plt.rcParams.update(STYLE)
    drawn = {}
    said = records(spark, servers, chat)
    minutes = minutes_of(said)
    if len(minutes):
        drawn["events-a-minute"] = draw_minutes(minutes)
        drawn["busiest-rooms"] = draw_rooms(rooms_of(said))
        drawn["session-lengths"] = draw_sessions(sessions_of(said))
    reports = reports_of(records(spark, servers, devices))
    if len(reports):
        drawn["devices"] = draw_device(reports, device or most_broken(reports))
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws what rooms have said.")
    parser.add_argument("--servers", default="127.0.0.1:3220", help="HTTP listeners of nodes")
    parser.add_argument("--out", type=Path, default=Path("rooms-in-plots"), help="directory of the pictures")
    parser.add_argument("--device", help="which to show; the one with most faults")
    asked = parser.parse_args()
    matplotlib.use("Agg")
    spark = connect()
    drawn = figures(spark, asked.servers, asked.device)
    if not drawn:
        raise SystemExit(
            "nothing to draw: no room of chat:* or devices/# has said anything\nhint: see --help"
        )
    asked.out.mkdir(parents=True, exist_ok=True)
    for name, figure in drawn.items():
        figure.savefig(asked.out / f"{name}.png", dpi=120)
        print(asked.out / f"{name}.png")
    spark.stop()


if __name__ == "__main__":
    main()
