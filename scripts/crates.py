"""Checks the crates of Cargo.lock against deny.toml: licences, who may use which crate, and where crates come from.

python scripts/crates.py    exit code 1 where a crate breaks a rule

It reads the part of deny.toml that the project uses, from `cargo metadata`, so that `make check-rs` needs no
`cargo deny`; whoever has that runs it with the same file.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "deny.toml"

WORDS = re.compile(r"\(|\)|[^\s()]+")


def is_allowed(expression: str, licences: set[str]) -> bool:
    """Whether an SPDX expression can be met with these licences: one of an OR, all of an AND.

    Args:
        expression: As Cargo.toml has it; an old one has `/` in place of OR.
        licences: Identifiers, with their exception if they have one: `Apache-2.0 WITH LLVM-exception`.

    Raises:
        ValueError: The text is no such expression.
    """
    words = WORDS.findall(expression.replace("/", " OR "))[::-1]

    def one() -> bool:
        word = words.pop()
        if word == "(":
            found = choice()
            if words.pop() != ")":
                raise ValueError(expression)
            return found
        if word in ("OR", "AND", "WITH", ")"):
            raise ValueError(expression)
        if words and words[-1] == "WITH":
            words.pop()
            word = f"{word} WITH {words.pop()}"
        return word in licences

    def both() -> bool:
        found = one()
        while words and words[-1] == "AND":
            words.pop()
            found &= one()
        return found

    def choice() -> bool:
        found = both()
        while words and words[-1] == "OR":
            words.pop()
            found |= both()
        return found

    try:
        found = choice()
    except IndexError:
        words.append("")
    if words:
        raise ValueError(expression)
    return found


def breaches(metadata: dict[str, Any], table: dict[str, Any]) -> list[str]:
    """Returns a line for each breach of a rule.

    Args:
        metadata: Of `cargo metadata --format-version 1`.
        table: Of deny.toml.
    """
    crates = {crate["id"]: crate for crate in metadata["packages"]}
    allowed = set(table["licenses"]["allow"])
    exceptions = {row["crate"]: set(row["allow"]) for row in table["licenses"].get("exceptions", [])}
    registries = {f"registry+{address}" for address in table["sources"]["allow-registry"]}
    found = []
    for crate in crates.values():
        name = f"{crate['name']} {crate['version']}"
        if crate["source"] is not None and crate["source"] not in registries:
            found.append(f"{name}: comes from {crate['source']}")
        licence = crate["license"] or "no licence"
        try:
            is_fine = is_allowed(licence, allowed | exceptions.get(crate["name"], set()))
        except ValueError:
            is_fine = False
        if not is_fine:
            found.append(f"{name}: its licence is not in deny.toml: {licence}")
    users = defaultdict(set)
    for node in metadata["resolve"]["nodes"]:
        for dependency in node["deps"]:
            users[crates[dependency["pkg"]]["name"]].add(crates[node["id"]]["name"])
    for row in table["bans"]["deny"]:
        others = users[row["crate"]] - set(row["wrappers"])
        found += [f"{user}: may not use {row['crate']}: {row['reason']}" for user in sorted(others)]
    return found


def duplicates(metadata: dict[str, Any]) -> list[str]:
    """Crates of which there are several versions; they cost disk and time, and break no rule."""
    versions = defaultdict(set)
    for crate in metadata["packages"]:
        versions[crate["name"]].add(crate["version"])
    return [f"{name} {', '.join(sorted(of))}" for name, of in sorted(versions.items()) if len(of) > 1]


def main() -> int:
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--all-features"]
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if run.returncode != 0:
        return run.returncode
    metadata = json.loads(run.stdout)
    if twice := duplicates(metadata):
        print(f"in several versions, which is no failure: {'; '.join(twice)}")
    found = breaches(metadata, tomllib.loads(TABLE.read_text()))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
