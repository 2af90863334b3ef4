"""Spark in a process of its own: questions come as JSON lines, answers go as JSON lines.

`{"ask": NAME, …}` is answered by the method of `asks.Asks` with that name; the answer is `{"answer": …}`, or
`{"error": …}` with what it failed with. The process ends with its input.
"""

import json
import os
import sys
import traceback

from hubsub.bench.spark.asks import Asks


def main() -> None:
    """Answers until nobody asks any more."""
    # Spark and its workers print what they like: the answers have a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with Asks(json.loads(sys.stdin.readline())) as asks:
        for line in sys.stdin:
            given = json.loads(line)
            try:
                answer = {"answer": getattr(asks, given.pop("ask"))(**given)}
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
