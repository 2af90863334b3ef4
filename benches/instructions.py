"""Counts the instructions of a server per delivery, under callgrind: other work on the machine does not change them.

    python benches/instructions.py [--row ROW …] LOAD SERVER [SERVER …]

LOAD is the program `hubsub-load`; a SERVER is a build of the example `serve` of `hubsub-node`. Each row runs twice
with different numbers of publishes, and the difference is divided by the deliveries, so start, connections and end
cancel out. The last column is the ratio of the last server to the first one. Needs valgrind.
"""

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from hubsub_bench.scenarios import W1, W1B, W3, W4, Params

START_S: Final = 120.0
"""Time limit of a server's start under callgrind."""
RUN_S: Final = 900.0
"""Time limit of a run of the generator."""
PATIENCE_S: Final = 60.0
"""Time without a delivery after which the generator gives up."""


class Row(NamedTuple):
    """A load, and its two numbers of publishes."""

    params: Params
    few: int
    many: int
    port: str = "redis"

    @property
    def deliveries(self) -> int:
        return int(str(self.params["subscribers"]))


ROWS: Final[Mapping[str, Row]] = {
    "w1": Row(W1, 100, 600),
    "w1b": Row(W1B, 100, 600),
    "w2": Row({"rooms": 100, "subscribers": 10, "publishers": 20, "in_flight": 4}, 2_000, 12_000),
    "w3": Row({**W3, "rooms": 50, "publishers": 50}, 10_000, 60_000),
    "w4": Row(W4, 10_000, 60_000),
    "mqtt-0": Row({**W1, "protocol": "mqtt"}, 100, 600, "mqtt"),
    "mqtt-1": Row({**W1, "protocol": "mqtt", "qos": 1}, 50, 250, "mqtt"),
}


def instructions(server: Path, load: Path, row: Row, publishes: int) -> int:
    """Instructions of a server that handles this many publishes, from its start to its end."""
    with tempfile.TemporaryDirectory(prefix="hubsub-instructions-") as directory:
        out = Path(directory, "callgrind.out")
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", str(server)]
        command += ["--redis", "127.0.0.1:0", "--mqtt", "127.0.0.1:0"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None and process.stdin is not None
            try:
                address = json.loads(process.stdout.readline())[row.port]
                options = {"threads": 1, "patience": PATIENCE_S, **row.params}
                options |= {"publisher_threads": 0, "messages": publishes, "target": address}
                flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
                done = subprocess.run(
                    [load, *flags], timeout=RUN_S, check=True, capture_output=True, text=True
                )
                report = json.loads(done.stdout)
                assert report["total"]["delivered"] == publishes * row.deliveries, done.stdout
                process.stdin.close()
                process.wait(START_S)
            finally:
                process.kill()
        found = re.search(r"^(?:summary|totals): (\d+)", out.read_text(), re.MULTILINE)
        assert found is not None, "callgrind wrote no total"
        return int(found[1])


def per_delivery(server: Path, load: Path, row: Row) -> float:
    """Instructions of one delivery, without those of start and end."""
    few, many = (instructions(server, load, row, publishes) for publishes in (row.few, row.many))
    return (many - few) / ((row.many - row.few) * row.deliveries)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("load", type=Path)
    parser.add_argument("servers", type=Path, nargs="+", metavar="SERVER")
    parser.add_argument("--row", choices=ROWS, action="append")
    given = parser.parse_args()
    for name in given.row or ROWS:
        found = [per_delivery(server, given.load, ROWS[name]) for server in given.servers]
        figures = "".join(f"{figure:>12.1f}" for figure in found)
        print(f"{name:<8}{figures}{found[-1] / found[0]:>9.3f}", flush=True)


if __name__ == "__main__":
    main()
