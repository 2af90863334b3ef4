"""Writes the Rust that is defined in Python: limits, error codes and the columns of records.

    tables.py [--check]

`python/hubsub/tables/limits.toml` defines the limits, `hubsub.errors.refused` the errors of the data plane,
`hubsub.columns` the columns. Python reads them when it runs; Rust has them as files that this script writes. With
`--check` it writes nothing, and exits with 1 if a file differs.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hubsub.columns import RECORD
from hubsub.config.limits import LIMITS
from hubsub.errors.refused import Refused

ROOT: Final = Path(__file__).parents[1]


def limits_and_errors() -> Iterator[str]:
    """The lines of `crates/hubsub-types/src/tables.rs`."""
    yield "//! The limits and the error codes of the data plane. Written by `scripts/tables.py` from"
    yield "//! `python/hubsub/tables/limits.toml` and `python/hubsub/errors/refused.py`; `make fix` writes it again."
    yield ""
    yield "crate::limits::limits! {"
    for limit in LIMITS:
        if limit.owner == "core":
            yield f"    {limit.name} = {limit.default:_};"
    yield "}"
    yield ""
    yield "crate::error::errors! {"
    for error in Refused.__subclasses__():
        name = error.__name__.removesuffix("Error")
        settings = "None" if error.settings is None else f"Some({json.dumps(error.settings)})"
        row = f"{json.dumps(error.code)}, {json.dumps(error.resp)}, {settings}, {error.mqtt_reason:#x}"
        yield f"    {name} = ({row}, {json.dumps(error.retryable)});"
    yield "}"


def columns() -> Iterator[str]:
    """The lines of `crates/hubsub-log/src/arrow/columns.rs`."""
    yield "// Written by `scripts/tables.py` from `python/hubsub/columns.py`; `make fix` writes it again."
    yield ""
    yield "columns! {"
    for name, kind in RECORD.items():
        yield f"    {name.capitalize()} = ({json.dumps(name)}, {kind.partition('<')[0]});"
    yield "}"


FILES: Final = {
    "crates/hubsub-types/src/tables.rs": limits_and_errors,
    "crates/hubsub-log/src/arrow/columns.rs": columns,
}


def main() -> int:
    differs = False
    for name, lines in FILES.items():
        file, text = ROOT / name, "\n".join(lines()) + "\n"
        if sys.argv[1:] != ["--check"]:
            file.write_text(text, "utf-8")
        elif not file.exists() or file.read_text("utf-8") != text:
            print(f"{name} differs from its table\nhint: python scripts/tables.py writes it")
            differs = True
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
