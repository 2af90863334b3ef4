"""SIGKILL ends drivers, process and JVM, next to a commit; the next driver completes their work with each row
once.

`dying.py` was killed in its second batch of 500 rows. `make test` kills it before the commits; after them, it kills
the driver of a replay (`test_replay.py`), and ends sink and archive by exceptions (`test_sink.py`, `test_archive.py`).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from hubsub.pipeline.archive import Archive, open_table, read
from pipeline import dying
from pipeline.programs import NUMBERS, Ends, Left

ALL = Counter(str(n) for n in range(NUMBERS))
POINTS = [("before", 500), pytest.param("behind", 1_000, marks=pytest.mark.soak)]
"""Where the driver died, and the number of rows that it left."""


def go_on(spark: Any, driver: Left, kind: str, prefix: str = "", take: Archive | None = None) -> None:
    """Runs the next driver to the end.

    Args:
        spark: The session.
        driver: The output of the killed program.
        kind: `sink` or `archive`.
        prefix: Prefix of the rooms to write to (sink only).
        take: The archive (archive only).
    """
    query = dying.query(spark, kind, driver.node.http_url, driver.directory, prefix, "hubsub", take)
    assert query.awaitTermination(60)


@pytest.mark.parametrize(("where", "left"), POINTS)
def test_a_sinks_driver_that_is_killed_publishes_each_row_once(
    spark: Any, drivers: Ends, where: str, left: int
) -> None:
    driver = drivers()[where]
    rooms = [f"{where}:{n}" for n in range(3)]
    assert len(driver.published(*rooms)) == left
    go_on(spark, driver, "sink", f"{where}:")
    assert Counter(driver.published(*rooms)) == ALL


@pytest.mark.parametrize(("where", "left"), POINTS)
def test_an_archives_driver_that_is_killed_archives_each_record_once(
    spark: Any, drivers: Ends, where: str, left: int
) -> None:
    driver = drivers()[where]
    target = dying.archive(driver.directory)

    def archived() -> Counter[str]:
        rows = read(spark, open_table(target)).select("payload").collect()
        return Counter(bytes(row.payload).decode() for row in rows)

    assert sum(archived().values()) == left
    go_on(spark, driver, "archive", take=Archive(target))
    assert archived() == ALL
