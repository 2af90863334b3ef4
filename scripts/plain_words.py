"""Counts phrases in comments, docstrings and pages that a reader from the field would stumble over.

    plain_words.py [--check] [--list NAME] [PATH …]

Without a flag it prints a count per phrase. `--list` prints each place of one phrase. `--check` exits with 1 where a
count is above its limit in `LIMITS`; a limit is only ever lowered.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

PHRASES: Final = {
    "headless": re.compile(
        r"(?:^|(?<=[.:;] ))(?:Who|What|Whom|Whoever|Which|Whatever) [^?]*?(?:[.:;](?: |$)|$)"
    ),
    "told": re.compile(r"\b(?:told|tells?|telling|said|says?|saying)\b", re.IGNORECASE),
    "behind": re.compile(r"\bbehind\b", re.IGNORECASE),
    "under way": re.compile(r"\bunder way\b", re.IGNORECASE),
    "stands": re.compile(r"\b(?:stands?|stood|standing)\b(?! (?:alone|by)\b)", re.IGNORECASE),
}
"""Patterns of phrases in prose."""

SHORT: Final = "short comment"
"""A doc comment of `SHORT_WORDS` words or fewer."""

SHORT_WORDS: Final = 3

LIMITS: Final[dict[str, int]] = {
    "headless": 1,
    "told": 3,
    "behind": 3,
    "under way": 0,
    "stands": 2,
    SHORT: 0,
}
"""The highest allowed count per phrase: what is left is a name in code, quoted output, or the right word."""

GENERATED: Final = ("docs/reference/", "vendor/", "benches/results/")


class Text(NamedTuple):
    """A run of prose."""

    line: int
    text: str
    is_doc: bool
    """Whether it documents an item; else it is a plain comment or a page."""


def rust_texts(source: str) -> Iterator[Text]:
    """Comments of a Rust or JavaScript file; neighbouring lines of one kind are one text."""
    first, kind, parts = 0, "", list[str]()
    for number, line in enumerate([*source.splitlines(), ""], 1):
        found = re.match(r"\s*(///?|//!)(?!/)\s?(.*)", line)
        if found and found[1] == kind and found[2].strip():
            parts.append(found[2].strip())
            continue
        if parts:
            yield Text(first, " ".join(parts), kind != "//")
        first, kind, parts = (number, found[1], [found[2].strip()]) if found else (0, "", [])
        if not found:
            trailing = re.search(r"\s// (.*)$", line)
            if trailing and '"' not in trailing[1]:
                yield Text(number, trailing[1], False)


def python_texts(source: str) -> Iterator[Text]:
    """Comments and docstrings (those of attributes, too) of a Python file."""
    for node in ast.walk(ast.parse(source)):
        for statement in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                value = statement.value.value
                if isinstance(value, str):
                    for part in re.split(r"\n\s*\n", value):
                        yield Text(statement.lineno, " ".join(part.split()), part == value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(token.start[0], token.string.lstrip("#! "), False)


def page_texts(source: str) -> Iterator[Text]:
    """Paragraphs, list items and table cells of a Markdown page, without its blocks of code."""
    is_code, first, parts = False, 0, list[str]()
    for number, line in enumerate([*source.splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        begins = not line.strip() or is_code or re.match(r"\s*([-*|#>]|\d+\.)\s?", line)
        if begins and parts:
            yield Text(first, " ".join(parts), False)
            parts = []
        if is_code or not line.strip() or line.lstrip().startswith("```"):
            continue
        if line.lstrip().startswith("|"):
            for cell in line.strip().strip("|").split("|"):
                yield Text(number, cell.strip(), False)
            continue
        first = first if parts else number
        parts.append(re.sub(r"^\s*([-*#>]+|\d+\.)\s*", "", line).strip())


READERS: Final = {
    ".rs": rust_texts,
    ".js": rust_texts,
    ".py": python_texts,
    ".pyi": python_texts,
    ".md": page_texts,
}


def found_in(path: Path) -> Iterator[tuple[str, int, str]]:
    """Phrase, line and text of each find in a file."""
    for text in READERS[path.suffix](path.read_text(encoding="utf-8")):
        prose = re.sub(r"`[^`]*`", "`x`", text.text)
        for name, pattern in PHRASES.items():
            for _ in pattern.finditer(prose):
                yield name, text.line, text.text
        if text.is_doc and len(text.text.split()) <= SHORT_WORDS:
            yield SHORT, text.line, text.text


def files(paths: list[str]) -> list[Path]:
    """Files under version control that hold prose, without generated ones."""
    listed = subprocess.run(
        ["git", "ls-files", "--", *paths], capture_output=True, text=True, check=True
    ).stdout
    return [
        Path(name)
        for name in listed.splitlines()
        if Path(name).suffix in READERS
        and not any(part in name for part in GENERATED)
        and Path(name).exists()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--list", metavar="NAME", choices=[*PHRASES, SHORT])
    parser.add_argument("paths", nargs="*")
    options = parser.parse_args()
    counts = dict.fromkeys([*PHRASES, SHORT], 0)
    for path in files(options.paths):
        for name, line, text in found_in(path):
            counts[name] += 1
            if name == options.list:
                print(f"{path}:{line}: {text}")
    if options.list:
        return 0
    above = {name for name, count in counts.items() if options.check and count > LIMITS.get(name, count)}
    for name, count in counts.items():
        if not options.check or name in above:
            hint = f"  limit {LIMITS[name]}; hint: --list '{name}' shows the places" if name in above else ""
            print(f"{name:<14} {count:>6}{hint}")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
