"""Checks that files of a Rust crate do not use each other in large circles, and the floors of crates that have them:
a file uses files of its own folder and of folders on lower floors only.

    floors.py [--write | --figures | --picture] [FILE]

The largest circle of files in any crate is at most 10. `scripts/floors.toml` has a table per crate, under its path:
`circle`, the number of files in its largest circle of uses; and, if its folders are on floors: `floors` from the lowest
up, each a list of folders, where `*/NAME` is that part of each folder (`FOLDER/NAME.rs`, `FOLDER/NAME/…`); and the
exceptions: `uses`, `FROM -> TO` for a use of a file on the same floor or above; `impls`, `FILE: TYPE` for methods of a
type that another folder defines. `circle` and the exceptions only ever shrink: an entry that is no longer needed fails
the check too, and `--write` only removes.

Uses are paths in `use` trees and in code, by `crate::`, `super::` or an imported module; a re-export counts as a use
of the file that it leads to. Code of tests is left out. Needs Python 3.11 and no package.
"""

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

Module = tuple[str, ...]
"""A path below `crate`."""

CIRCLE_MAX = 10
"""Files in the largest circle of any crate, at most."""

_USE = re.compile(r"^\s*(pub(?:\([^)]*\))? )?use ([^;]+);", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*")
_TESTS = re.compile(r"^#\[cfg\(test\)\]\s*\n(?:pub(?:\([^)]*\))? )?mod \w+ \{", re.MULTILINE)
_TYPE = re.compile(r"^(?:pub(?:\([^)]*\))? )?(?:struct|enum|union) (\w+)", re.MULTILINE)
_IMPL = re.compile(r"^impl(?:<[^{]*?>)? (\w+)(?:<[^{]*?>)?\s*(?:where[^{]*)?\{", re.MULTILINE)


class Use(NamedTuple):
    """A path that a file names."""

    path: Module
    name: str
    """The name under which the file knows it."""
    is_export: bool


def expanded(tree: str) -> Iterator[str]:
    """The paths of a `use` tree.

    >>> list(expanded("a::{self, b::{C, D as E}}"))
    ['a::self', 'a::b::C', 'a::b::D as E']
    """
    prefix, brace, rest = tree.partition("{")
    if not brace:
        yield tree.strip()
        return
    depth, part = 0, ""
    for char in rest[: rest.rindex("}")] + ",":
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            if part.strip():
                yield from expanded(prefix.strip() + part.strip())
            part = ""
        else:
            part += char


def is_test(file: str) -> bool:
    return "tests" in file.split("/") or file.endswith("tests.rs") or file == "lone.rs"


def module_of(file: str) -> Module:
    """The module that a file is, by its path below `src`.

    >>> module_of("mqtt/mod.rs"), module_of("lib.rs")
    (('mqtt',), ())
    """
    parts = file.removesuffix(".rs").split("/")
    return () if parts == ["lib"] else tuple(parts[:-1] if parts[-1] == "mod" else parts)


@dataclass
class Crate:
    """The sources of a crate, by their path below `src`, without tests and comments."""

    sources: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> "Crate":
        sources = {}
        for file in sorted((path / "src").rglob("*.rs")):
            name = file.relative_to(path / "src").as_posix()
            if not is_test(name):
                text = _COMMENT.sub("", file.read_text())
                tests = _TESTS.search(text)
                sources[name] = text[: tests.start()] if tests else text
        return cls(sources)

    @cached_property
    def modules(self) -> dict[Module, str]:
        return {module_of(file): file for file in self.sources}

    @cached_property
    def imports(self) -> dict[str, list[Use]]:
        """The paths of each file's `use` trees that lead into this crate."""
        return {file: list(self._imports(file)) for file in self.sources}

    def _imports(self, file: str) -> Iterator[Use]:
        here = module_of(file)
        for export, tree in _USE.findall(self.sources[file]):
            for one in expanded(re.sub(r"\s+", " ", tree)):
                written, _, alias = one.partition(" as ")
                path = self._absolute(here, written.split("::"))
                if path and path[-1] == "self":
                    path = path[:-1]
                if path:
                    yield Use(path, alias or path[-1], bool(export))

    def _absolute(self, here: Module, path: list[str]) -> Module | None:
        """A path below `crate`; None for one of another crate."""
        if path[0] == "crate":
            return tuple(path[1:])
        if path[0] == "self":
            return here + tuple(path[1:])
        if path[0] == "super":
            ups = next((n for n, part in enumerate(path) if part != "super"), len(path))
            return here[: len(here) - ups] + tuple(path[ups:])
        return here + tuple(path) if (*here, path[0]) in self.modules else None

    @cached_property
    def exports(self) -> dict[Module, dict[str, Module]]:
        """By module and name: the path that a `pub use` leads to."""
        return {
            module_of(file): {use.name: use.path for use in uses if use.is_export}
            for file, uses in self.imports.items()
        }

    def file_of(self, path: Module, hops: int = 8) -> str | None:
        """The file that a path leads to, through at most `hops` re-exports."""
        for length in range(len(path), -1, -1):
            module, rest = path[:length], path[length:]
            if module not in self.modules:
                continue
            target = self.exports.get(module, {}).get(rest[0]) if rest else None
            if target is not None and hops:
                return self.file_of(target + rest[1:], hops - 1)
            return self.modules[module]
        return None

    @cached_property
    def uses(self) -> dict[str, set[str]]:
        """The files that each file uses."""
        return {file: set(self._uses(file)) for file in self.sources}

    def _uses(self, file: str) -> Iterator[str]:
        here = module_of(file)
        body = _USE.sub("", self.sources[file])
        paths = [tuple(found.split("::")[1:]) for found in re.findall(r"\bcrate(?:::\w+)+", body)]
        paths += [
            path
            for found in re.findall(r"\bsuper(?:::\w+)+", body)
            if (path := self._absolute(here, found.split("::"))) is not None
        ]
        known = {module[-1]: module for module in self.modules if module and module[:-1] == here}
        for use in self.imports[file]:
            if use.path in self.modules:
                known[use.name] = use.path  # A module counts where something of it is named.
            elif not (use.is_export and use.path[: len(here)] == here):
                paths.append(use.path)
        for name, module in known.items():
            paths += [(*module, item) for item in re.findall(rf"(?<![\w:]){name}::(\w+)", body)]
        for path in paths:
            target = self.file_of(path)
            if target is not None and target != file:
                yield target

    @cached_property
    def impls(self) -> set[tuple[str, str]]:
        """Files and types of which they have methods, outside of `impl TRAIT for`."""
        return {(file, name) for file, text in self.sources.items() for name in _IMPL.findall(text)}

    @cached_property
    def types(self) -> dict[str, set[str]]:
        """The files that define each type."""
        found: dict[str, set[str]] = {}
        for file, text in self.sources.items():
            for name in _TYPE.findall(text):
                found.setdefault(name, set()).add(file)
        return found


def circles(uses: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Circles of uses, the largest first: strongly connected parts (Tarjan 1972)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(file: str) -> None:
        number[file] = lowest[file] = len(number)
        stack.append(file)
        for target in uses[file]:
            if target not in number:
                visit(target)
                lowest[file] = min(lowest[file], lowest[target])
            elif target in stack:
                lowest[file] = min(lowest[file], number[target])
        if lowest[file] == number[file]:
            at = stack.index(file)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for file in sorted(uses):
        if file not in number:
            visit(file)
    return sorted((circle for circle in found if len(circle) > 1), key=len, reverse=True)


@dataclass
class House:
    """A crate, its floors if it has any, and how it differs from them."""

    crate: Crate
    floors: list[list[str]] = field(default_factory=list)

    def folder(self, file: str) -> str:
        """The folder of a file; `FOLDER/PART` if that part has a floor of its own."""
        top, *rest = file.removesuffix(".rs").split("/")
        return f"{top}/{rest[0]}" if rest and self._has(f"*/{rest[0]}") else top

    def _has(self, folder: str) -> bool:
        return any(folder in folders for folders in self.floors)

    def floor(self, folder: str) -> int:
        """Raises StopIteration for a folder on no floor."""
        entry = re.sub(r".*/", "*/", folder)
        return next(level for level, folders in enumerate(self.floors) if entry in folders)

    def homeless(self) -> list[str]:
        """Files in folders that are on no floor."""
        return sorted(
            file for file in self.crate.sources if not self._has(re.sub(r".*/", "*/", self.folder(file)))
        )

    def uses_up(self) -> set[str]:
        """Uses of files in other folders of the same floor or above."""
        return {
            f"{file} -> {target}"
            for file, targets in self.crate.uses.items()
            for target in targets
            if self.folder(file) != self.folder(target)
            and self.floor(self.folder(file)) <= self.floor(self.folder(target))
        }

    def impls_elsewhere(self) -> set[str]:
        """Methods of types that another folder defines."""
        return {
            f"{file}: {name}"
            for file, name in self.crate.impls
            if name in self.crate.types
            and self._top(file) not in {self._top(home) for home in self.crate.types[name]}
        }

    def _top(self, file: str) -> str:
        return self.folder(file).split("/")[0]

    def largest_circle(self) -> int:
        return max((len(circle) for circle in circles(self.crate.uses)), default=1)


def problems(house: House, table: Mapping[str, Any]) -> Iterator[str]:
    """Differences from the lists of a crate's table, in either direction."""
    if house.floors:
        if homeless := house.homeless():
            yield from (f"{file}: its folder is on no floor" for file in homeless)
            return
        for name, found in (("uses", house.uses_up()), ("impls", house.impls_elsewhere())):
            listed = set(table.get(name, ()))
            yield from (f"{one}: not allowed" for one in sorted(found - listed))
            yield from (f"{one}: no longer needed in `{name}`" for one in sorted(listed - found))
    size, limit = house.largest_circle(), min(table.get("circle", CIRCLE_MAX), CIRCLE_MAX)
    if size > limit or (size < limit and "circle" in table):
        hint = "" if size > limit else "; lower the limit"
        yield f"files in the largest circle: {size}, limit `circle`: {limit}{hint}"


def shown(path: str, house: House, table: Mapping[str, Any]) -> str:
    """A crate's table as TOML, with the entries that are still needed."""
    circle = f"circle = {min(house.largest_circle(), table.get('circle', CIRCLE_MAX))}"
    if not house.floors:
        return f'["{path}"]\n{circle}\n'
    lines = [f'["{path}"]', "floors = ["]
    lines += [f"    {json.dumps(floor)}," for floor in house.floors]
    lines += ["]", circle]
    for name, found in (("uses", house.uses_up()), ("impls", house.impls_elsewhere())):
        lines += [f"{name} = [", *(f'    "{one}",' for one in sorted(found & set(table.get(name, ())))), "]"]
    return "\n".join(lines) + "\n"


def figures(house: House) -> str:
    crate = house.crate
    found = circles(crate.uses)
    lines = sum(text.count("\n") for text in crate.sources.values())
    of_floors = (
        f"{len(house.uses_up())} of them not down, {len(house.impls_elsewhere())} impls elsewhere, "
        if house.floors
        else ""
    )
    return (
        f"{len(crate.sources)} files, {lines} lines, {sum(map(len, crate.uses.values()))} uses, {of_floors}"
        f"circles of {', '.join(str(len(circle)) for circle in found) or 'none'}"
    )


def picture(floors: Iterable[Iterable[str]]) -> str:
    """The floors from the highest down, a line each, as `ARCHITECTURE.md` has them."""
    return "\n".join("  ".join(floor) for floor in reversed(list(floors)))


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, default=Path(__file__).with_suffix(".toml"))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--figures", action="store_true")
    parser.add_argument("--picture", action="store_true")
    given = parser.parse_args(args)
    root = Path(__file__).parent.parent
    listed = tomllib.loads(given.file.read_text())
    found = sorted(source.parent.relative_to(root).as_posix() for source in root.glob("crates/*/src"))
    tables: dict[str, dict[str, Any]] = {path: {} for path in found} | listed
    houses = {path: House(Crate.read(root / path), table.get("floors", [])) for path, table in tables.items()}
    if given.write:
        given.file.write_text("\n".join(shown(path, houses[path], listed[path]) for path in listed))
    if given.picture:
        print("\n\n".join(picture(house.floors) for house in houses.values() if house.floors))
        return 0
    if given.figures:
        for path, house in houses.items():
            print(f"{path}: {figures(house)}")
        return 0
    failed = [f"{path}: {one}" for path in tables for one in problems(houses[path], tables[path])]
    for line in failed:
        print(line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
