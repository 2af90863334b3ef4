"""Failures of a run of pytest, for `scripts/unsteady.py`: JSON in the file that `HUBSUB_FAILURES` names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

_failures: list[dict[str, Any]] = []


def note(report: Any) -> None:
    """Records the report of a test, or of the collection, if it failed."""
    if report.failed:
        is_test = hasattr(report, "when")
        _failures.append({"test": report.nodeid, "is_test": is_test, "error": report.longreprtext})


def write() -> None:
    """Writes the failures at the end of the run; does nothing without `HUBSUB_FAILURES`."""
    if where := os.environ.get("HUBSUB_FAILURES"):
        Path(where).write_text(json.dumps(_failures), encoding="utf-8")
