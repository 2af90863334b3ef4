"""Prefetch: produces the next values in a thread while the last one is used, a bounded number in advance.

Invariants: values come in order, each once; an error comes after the values before it; when the consumer
stops, the source is closed in the thread that it ran in.
"""

import queue
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

T = TypeVar("T")

PREFETCH = 2
"""Values that may wait; one more is being produced."""


def prefetched(source: Generator[T, None, None], count: int = PREFETCH) -> Iterator[T]:
    """The values of `source`, produced in a separate thread.

    Args:
        source: Runs in that thread alone, from its first line to its end.
        count: Values that may wait.
    """
    waiting: queue.Queue[tuple[T] | BaseException | None] = queue.Queue(maxsize=count)
    over = threading.Event()

    def run() -> None:
        end: BaseException | None = None
        try:
            for value in source:
                waiting.put((value,))
                if over.is_set():
                    break
        except BaseException as error:  # Raised in the consumer.
            end = error
        finally:
            source.close()
        if not over.is_set():
            waiting.put(end)

    threading.Thread(target=run, name="hubsub-ahead", daemon=True).start()
    try:
        while (item := waiting.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item[0]
    finally:
        over.set()
        while not waiting.empty():  # One `put` may wait for room; it is the last.
            waiting.get_nowait()
