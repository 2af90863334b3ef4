"""Lists where the core may panic, each with the reason why it does not: docs/reference/panics.md.

python scripts/panics.py            prints the page
python scripts/panics.py --check    exit code 1 if the page differs from the output
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reference/panics.md"

SITE = re.compile(
    r"(?<!debug_)\b(?:assert|assert_eq|assert_ne|panic|unreachable|todo|unimplemented)!\(|\.(?:unwrap|expect)\((?!b['\"])"
)
"""A reader of JSON has an `expect` of a byte, which returns an error."""
TESTS = re.compile(r"\s*#\[cfg\((?:test|any\(test)|\s*#!\[cfg\(test")
HELPERS = {"hubsub-load", "hubsub-sim"}
"""Crates that are not part of a node."""

HEAD = """# Where the core may panic

Made by `scripts/panics.py` from the sources of the crates that a node has, without their tests. No byte of a socket, a
link or a disk may reach one of these: each states what makes it so. A panic ends the node, and systemd or Kubernetes
starts it anew.

What is not listed is indexing and arithmetic: those are held by the fuzz targets (`fuzz/`, and as properties in
`hubsub-wire/tests`), by the machines under seeds, and by `tests/cluster/test_extremes.py`: with a debug core an
overflow ends a node there, too.
"""


def statement(text: str, at: int) -> str:
    """The source from a place to the parenthesis that ends it, on one line."""
    start = text.rfind("\n", 0, at) + 1
    opened, depth = text.index("(", at), 0
    in_text = False
    for end in range(opened, len(text)):
        letter = text[end]
        if in_text:
            in_text = letter != '"' or text[end - 1] == "\\"
        elif letter == '"':
            in_text = True
        elif letter == "(":
            depth += 1
        elif letter == ")":
            depth -= 1
            if depth == 0:
                line = re.sub(r"\s+", " ", text[start : end + 1]).strip()
                return line if len(line) <= 160 else "… " + re.sub(r"\s+", " ", text[at : end + 1])
    raise ValueError("no end")


def sites(text: str) -> Iterator[str]:
    """Statements that may panic, without those of tests."""
    text = re.sub(r"(?m)^\s*//.*$", "", text)
    lines, kept, skip = text.split("\n"), [], None
    for line in lines:
        if skip is None and TESTS.match(line):
            skip = 0
            opened = False
            continue
        if skip is not None:
            skip += line.count("{") - line.count("}")
            opened = opened or "{" in line
            if (opened and skip <= 0) or (not opened and line.rstrip().endswith(";")):
                skip = None
            continue
        kept.append(line)
    text = "\n".join(kept)
    for found in SITE.finditer(text):
        yield statement(text, found.start())


def page() -> str:
    """The complete Markdown page."""
    out = [HEAD]
    for crate in sorted(path.parent for path in ROOT.glob("crates/*/src")):
        if crate.name in HELPERS:
            continue
        rows: list[str] = []
        for path in sorted((crate / "src").rglob("*.rs")):
            if path.stem in ("tests", "seeds", "simulation", "lone") or "tests" in path.parts:
                continue
            for what, count in Counter(sites(path.read_text())).items():
                times = f" ({count} times)" if count > 1 else ""
                rows.append(
                    f"| `{path.relative_to(crate / 'src')}` | ``{what.replace('|', chr(92) + '|')}``{times} |"
                )
        if rows:
            out += [f"\n## {crate.name}\n", "| file of `src` | statement |", "|---|---|", *rows]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    made = page()
    if "--check" in sys.argv[1:]:
        if made != PAGE.read_text():
            sys.exit(
                "docs/reference/panics.md is not up to date: python scripts/panics.py > docs/reference/panics.md"
            )
    else:
        sys.stdout.write(made)
