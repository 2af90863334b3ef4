"""docs/mqtt-conformance.md has a row for each normative statement of MQTT 5.0 and of 3.1.1, and for nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

STATEMENTS = {
    "5.0": """
    1.5.4:3 1.5.5:1 1.5.7:1 2.1.3:1 2.2.1:2-6 2.2.2:1 3.1.0:2 3.1.2:30 3.1.3:12 3.1.4:6 3.2.0:2
    3.2.2:22 3.3.1:13 3.3.2:20 3.3.4:10 3.4.2:3 3.5.2:3 3.6.1:1 3.6.2:3 3.7.2:3 3.8.1:1 3.8.3:5
    3.8.4:8 3.9.2:2 3.9.3:2 3.10.1:1 3.10.3:2 3.10.4:6 3.11.2:2 3.11.3:2 3.12.4:1 3.14.0:1
    3.14.1:1 3.14.2:4 3.14.4:3 3.15.1:1 3.15.2:3 4.1.0:2 4.2.0:1 4.3.1:1 4.3.2:5 4.3.3:13
    4.4.0:2 4.5.0:2 4.6.0:6 4.7.0:1 4.7.1:2 4.7.2:1 4.7.3:4 4.8.2:6 4.9.0:3 4.12.0:7 4.12.1:2
    4.13.1:1 4.13.2:1 6.0.0:4
    """,
    "3.1.1": """
    1.5.3:3 2.2.2:2 2.3.1:7 3.1.0:2 3.1.2:24 3.1.3:11 3.1.4:5 3.2.0:1 3.2.2:6 3.3.1:12 3.3.2:3
    3.3.4:1 3.3.5:2 3.6.1:1 3.8.1:1 3.8.3:4 3.8.4:6 3.9.3:2 3.10.1:1 3.10.3:2 3.10.4:6 3.12.4:1
    3.14.1:1 3.14.4:3 4.1.0:2 4.3.1:1 4.3.2:2 4.3.3:2 4.4.0:1 4.5.0:2 4.6.0:6 4.7.1:3 4.7.2:1
    4.7.3:4 4.8.0:2 6.0.0:4 7.0.0:2 7.1.1:1 7.1.2:1
    """,
}
"""Number of statements per section, as `section:count`, or `section:first-last` if they do not start at 1."""

COUNTS = {"5.0": 251, "3.1.1": 141}
"""Totals in appendix B of each standard."""

NUMBER = re.compile(r"\[MQTT[.-]([\d.-]+)-(\d+)\](?: to \[MQTT-([\d.]+)-(\d+)\])?")


def statements(version: str) -> set[str]:
    """The numbers of all normative statements, as `section-number`."""
    all_of_it = set()
    for part in STATEMENTS[version].split():
        section, _, range_of = part.partition(":")
        first, _, last = range_of.rpartition("-")
        all_of_it |= {f"{section}-{number}" for number in range(int(first or 1), int(last) + 1)}
    return all_of_it


OPEN = "Not held yet"
"""Heading of the table of statements that are not fulfilled yet."""


def rows(page: str, version: str, *, is_open: bool) -> set[str]:
    """The numbers in the first column of a version's tables: of open statements if `is_open`, else of all
    others."""
    named = set()
    for section in re.split(r"^## ", page, flags=re.M)[1:]:
        title, _, rest = section.partition("\n")
        if (title == OPEN) != is_open:
            continue
        for line in rest.splitlines():
            cell = line.split(" | ")[0] if line.startswith("| ") else ""
            if "5.0" not in title and "3.1.1" not in title:
                # An entry for both versions: "of 5.0: …; of 3.1.1: …".
                cell = "".join(part for part in cell.split(";") if f"of {version}:" in part)
            elif version not in title:
                continue
            for section_of, first, _, last in NUMBER.findall(cell):
                named |= {f"{section_of}-{number}" for number in range(int(first), int(last or first) + 1)}
    return named


@pytest.mark.parametrize("version", STATEMENTS)
def test_every_normative_statement_has_a_row(repository: Path, version: str) -> None:
    page = (repository / "docs/mqtt-conformance.md").read_text()
    assert len(statements(version)) == COUNTS[version]
    settled, to_come = (rows(page, version, is_open=is_open) for is_open in (False, True))
    # The standard numbers one of them in another form.
    settled = {name.replace("3-8.3-4", "3.8.3-4") for name in settled}
    assert sorted(statements(version) - settled - to_come) == []
    assert sorted((settled | to_come) - statements(version)) == []
    assert sorted(settled & to_come) == []
