"""Spark in a process of its own: requests and replies are JSON lines.

`{"ask": NAME, …}` calls the method of `Measurements` with that name; the reply is `{"answer": …}`, or
`{"error": …}` with the error. The process ends with its input.
"""

import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

from hubsub.pipeline.session import connect
from hubsub_bench.spark.measurements import Measurements


def main() -> None:
    """Answers requests until the end of the input. The first line has `cores`, and `conf` besides every job's."""
    # Spark and its workers print to stdout: replies have a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    given = json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory(prefix="hubsub-bench-spark-") as directory:
        conf = {
            "spark.log.level": "ERROR",
            "spark.sql.warehouse.dir": f"{directory}/warehouse",
            "spark.sql.streaming.numRecentProgressUpdates": "100000",
        }
        spark = connect(f"local[{given['cores']}]", conf | given["conf"], app="hubsub bench")
        measurements = Measurements(spark, Path(directory))
        try:
            for line in sys.stdin:
                print(json.dumps(_answer(measurements, json.loads(line))), file=answers, flush=True)
        finally:
            spark.stop()


def _answer(measurements: Measurements, asked: dict[str, object]) -> dict[str, object]:
    try:
        return {"answer": getattr(measurements, str(asked.pop("ask")))(**asked)}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
