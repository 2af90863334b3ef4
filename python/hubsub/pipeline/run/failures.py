"""Converts Spark's exceptions to ours: one sentence and a hint, without the traces of three languages. Pure.

An error of ours that was raised in a Python worker or in Spark's planner comes back as text, within Spark's
message; here it becomes an error of its class again.
"""

import re

from hubsub import errors
from hubsub.errors import HubSubError, PipelineError

_OURS = re.compile(r"hubsub\.errors\.(?:\w+\.)?(\w+): ([^\n]*)(?:\nhint: ([^\n]*))?")
_NOISE = re.compile(r"^(\[[A-Z0-9_.]+\]\s*|[\w.$]*(Exception|Error)?:\s+)+")
_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t][^\n]*\n)+(\S[^\n]*[^\n:])\n")

_LATE = "Timed out while waiting for the Python worker"

WORDS_MAX = 500
"""Most characters of a sentence of Spark's."""


def failure(error: BaseException) -> HubSubError:
    """Converts an exception of Spark.

    >>> print(failure(RuntimeError("[X] … hubsub.errors.http.OtherLogError: another\\nhint: go\\n at java")))
    another
    hint: go
    """
    if isinstance(error, HubSubError):
        return error
    text = str(error)
    found = list(_OURS.finditer(text))
    if found:
        name, what, hint = found[-1].groups()
        cls = getattr(errors, name, PipelineError)
        made: HubSubError = cls.__new__(cls)
        HubSubError.__init__(made, what, None, hint)
        return made
    if is_late_worker(error):
        hint = (
            "a server of Spark Connect needs the extra `connect` in its own Python, too; else it is very busy"
        )
        return PipelineError("Spark's Python worker does not answer", None, hint)
    return PipelineError(
        "Spark failed", _sentence(text) or type(error).__name__, "--verbose shows all it says"
    )


def is_late_worker(error: BaseException) -> bool:
    """Whether Spark has waited in vain for a Python process that it started."""
    return _LATE in str(error)


def _sentence(text: str) -> str:
    """The first meaningful line, without the names of classes; if it has Python traces, the last of their messages."""
    workers = _PYTHON.findall(f"{text}\n")
    if workers:
        return _NOISE.sub("", workers[-1])[:WORDS_MAX].strip()
    reasons = [line.strip() for line in text.splitlines() if "Exception: " in line or "Error: " in line]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    best = (reasons or lines or [""])[0]
    return _NOISE.sub("", best)[:WORDS_MAX].strip()
