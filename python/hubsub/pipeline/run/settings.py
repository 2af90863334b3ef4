"""Options of a run's command line as one frozen value; all have defaults."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from hubsub.errors import OptionError
from hubsub.pipeline.options import ACCESS, SERVER_DEFAULT, SourceOptions

BASE = "hubsub-pipeline"
"""Directory below the working directory for everything without an explicit location."""

JOBS = ("archive", "activity", "devices", "sessions", "replay", "compact")

_UNITS = {"ms": 0.001, "s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60}
_UNITS |= {"h": 3_600, "hour": 3_600, "d": 86_400, "day": 86_400}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Settings:
    job: str
    servers: str = SERVER_DEFAULT
    subscribe: str | None = None
    """Rooms; None: all, or those of `pattern`."""
    pattern: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    """More options of the source."""
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    once: bool = False
    trigger: timedelta = timedelta(seconds=10)
    checkpoint: str = ""
    out: str = ""
    verbose: bool = False

    def __post_init__(self) -> None:
        if not self.checkpoint:
            object.__setattr__(self, "checkpoint", str(Path(BASE, self.job, "checkpoint")))
        if not self.out:
            object.__setattr__(self, "out", str(Path(BASE, self.job, "out")))
        SourceOptions.parse(self.source())  # Reports errors before Spark starts.

    def source(self) -> dict[str, str]:
        """Options of the source. By default a run begins with the oldest records."""
        chosen = {"servers": self.servers}
        if self.subscribe is not None:
            chosen["subscribe"] = self.subscribe
        if self.pattern is not None:
            chosen["subscribePattern"] = self.pattern
        given = {name.lower() for name in self.options}
        if not given & {"startingoffsets", "startingtimestamp"}:
            chosen["startingOffsets"] = "earliest"
        return chosen | dict(self.options)

    def access(self) -> dict[str, str]:
        """Options of the sink: servers, token and TLS."""
        access = {name.lower() for name in ACCESS}
        return {"servers": self.servers} | {k: v for k, v in self.options.items() if k.lower() in access}


def beside(table: str, name: str) -> Path:
    """A local file next to a table; if the table is remote, in `BASE`.

    >>> str(beside("by-ts/out", "activity.png")), str(beside("s3a://bucket/out", "activity.png"))
    ('by-ts/activity.png', 'hubsub-pipeline/activity.png')
    """
    scheme, colon, rest = table.partition(":")
    if not colon or len(scheme) < 2 or "/" in scheme:
        return Path(table).parent / name
    return Path(rest.removeprefix("//")).parent / name if scheme == "file" else Path(BASE, name)


def span(text: str) -> timedelta:
    """Parses a length of time as people and Spark write it.

    >>> span("10 minutes"), span("1.5s")
    (datetime.timedelta(seconds=600), datetime.timedelta(seconds=1, microseconds=500000))

    Raises:
        OptionError: it is none, or not above 0.
    """
    match = _SPAN.fullmatch(text.strip())
    word = match[2].lower() if match else ""
    unit = _UNITS.get(word) or _UNITS.get(word.removesuffix("s"))
    if match is None or unit is None or float(match[1]) * unit < 0.001:
        raise OptionError("this is no length of time", repr(text), "such as 30s, '10 minutes', 1h")
    return timedelta(milliseconds=round(float(match[1]) * unit * 1_000))


def interval(length: timedelta) -> str:
    """A length of time in Spark's form: whole milliseconds.

    >>> interval(timedelta(minutes=1))
    '60000 milliseconds'
    """
    return f"{length // timedelta(milliseconds=1)} milliseconds"
