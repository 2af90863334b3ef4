"""Writes the Rust that is defined in Python: limits and error codes.

    tables.py [--check]

`python/hubsub/tables/limits.toml` defines the limits, `hubsub.errors.refused` the errors of the data plane. Python
reads both when it runs; Rust has them as `crates/hubsub-types/src/tables.rs`, which this script writes. With `--check`
it writes nothing, and exits with 1 if the file differs.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hubsub.config.limits import LIMITS
from hubsub.errors.refused import Refused

ROOT: Final = Path(__file__).parents[1]
FILE: Final = ROOT / "crates/hubsub-types/src/tables.rs"


def rust() -> Iterator[str]:
    """The lines of the file."""
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


def main() -> int:
    text = "\n".join(rust()) + "\n"
    if sys.argv[1:] != ["--check"]:
        FILE.write_text(text, "utf-8")
    elif not FILE.exists() or FILE.read_text("utf-8") != text:
        print(f"{FILE.relative_to(ROOT)} differs from its tables\nhint: python scripts/tables.py writes it")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
