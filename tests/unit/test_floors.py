"""scripts/floors.py: which files of a crate may use which."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLOORS = [["io"], ["redis", "mqtt"], ["shard"]]


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("floors", ROOT / "scripts" / "floors.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["floors"] = module  # Its dataclasses look for it there.
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def house(script: Any, tmp_path: Path) -> Any:
    """`house({"io.rs": "…"})`: a crate of these files below `src`."""

    def build(files: dict[str, str]) -> Any:
        for name, text in files.items():
            file = tmp_path / "src" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return script.House(script.Crate.read(tmp_path), FLOORS)

    return build


def test_a_use_of_a_lower_floor_and_of_the_own_folder_is_allowed(house: Any) -> None:
    built = house({"io.rs": "", "redis/mod.rs": "use crate::io::A;", "redis/table.rs": "use super::B;"})
    assert built.crate.uses["redis/mod.rs"] == {"io.rs"}
    assert built.crate.uses["redis/table.rs"] == {"redis/mod.rs"}
    assert built.uses_up() == set()


@pytest.mark.parametrize(
    "text",
    [
        "use crate::shard::Turn;",
        "use crate::{shard::{Turn as T}};",
        "use super::shard::Turn;",
        "fn a() { crate::shard::turn(); }",
        "fn a() { super::shard::turn(); }",
        "use crate::shard;\nfn a() { shard::turn(); }",
        "use crate::shard as s;\nfn a() { s::turn(); }",
    ],
)
def test_a_use_of_a_higher_floor_is_found_however_it_is_written(house: Any, text: str) -> None:
    assert house({"io.rs": text, "shard.rs": ""}).uses_up() == {"io.rs -> shard.rs"}


def test_folders_of_one_floor_use_each_other_only_by_permission(script: Any, house: Any) -> None:
    built = house({"redis.rs": "use crate::mqtt::A;", "mqtt.rs": ""})
    assert list(script.problems(built, {"circle": 1})) == ["redis.rs -> mqtt.rs: not allowed"]
    assert list(script.problems(built, {"circle": 1, "uses": ["redis.rs -> mqtt.rs"]})) == []


def test_a_re_export_is_a_use_of_the_file_that_it_leads_to(house: Any) -> None:
    files = {"io.rs": "use crate::Turn;", "lib.rs": "pub use shard::Turn;", "shard.rs": "pub struct Turn;"}
    assert house(files).crate.uses["io.rs"] == {"shard.rs"}


def test_comments_and_tests_use_what_they_want(house: Any) -> None:
    text = "// crate::shard::a()\n#[cfg(test)]\nmod tests {\n    use crate::shard::B;\n}\n"
    assert house({"io.rs": text, "io/tests.rs": "use crate::shard::C;", "shard.rs": ""}).uses_up() == set()


def test_methods_of_a_type_stay_in_its_folder(script: Any, house: Any) -> None:
    files = {
        "io.rs": "pub struct Io<T> {}\nimpl<T> Io<T> {\n}\n",
        "redis.rs": "impl<T> Io<T> {\n}\nimpl Show for Io {\n}\nimpl<'a> Show<'a> for Io<'a> {\n}\n",
    }
    assert list(script.problems(house(files), {})) == ["redis.rs: Io: not allowed"]


def test_an_entry_that_is_no_longer_needed_fails_and_is_removed(script: Any, house: Any) -> None:
    built = house({"io.rs": "", "shard.rs": "use crate::io::A;"})
    table = {"circle": 3, "uses": ["io.rs -> shard.rs"], "impls": ["shard.rs: Io"]}
    assert list(script.problems(built, table)) == [
        "io.rs -> shard.rs: no longer needed in `uses`",
        "shard.rs: Io: no longer needed in `impls`",
        "files in the largest circle: 1, limit `circle`: 3; lower the limit",
    ]
    written = script.tomllib.loads(script.shown("crate", built, table))["crate"]
    assert (written["circle"], written["uses"], written["impls"]) == (1, [], [])
    assert list(script.problems(built, written)) == []


def test_a_circle_may_not_grow(script: Any, house: Any) -> None:
    files = {"io/a.rs": "use super::b::B;", "io/b.rs": "use super::c::C;", "io/c.rs": "use super::a::A;"}
    assert list(script.problems(house(files | {"io/mod.rs": ""}), {"circle": 2})) == [
        "files in the largest circle: 3, limit `circle`: 2"
    ]


def test_a_crate_without_floors_has_a_limit_for_its_circle_alone(script: Any, house: Any) -> None:
    files = {f"{n}.rs": f"use crate::f{(n + 1) % 11}::A;" for n in range(11)}
    crate = house({f"f{name}": text for name, text in files.items()} | {"lib.rs": ""}).crate
    built = script.House(crate)
    found = "files in the largest circle: 11, limit `circle`: {}"
    assert list(script.problems(built, {})) == [found.format(10)]
    assert list(script.problems(built, {"circle": 11})) == [found.format(10)]
    assert list(script.problems(built, {"circle": 2})) == [found.format(2)]
    small = script.House(script.Crate({"a.rs": "use crate::b::B;", "b.rs": "use crate::a::A;"}))
    assert list(script.problems(small, {})) == []
    assert script.shown("crate", small, {"circle": 3}) == '["crate"]\ncircle = 2\n'


def test_a_file_in_no_folder_is_reported(script: Any, house: Any) -> None:
    assert list(script.problems(house({"attic.rs": ""}), {})) == ["attic.rs: its folder is on no floor"]


def test_the_crates_keep_their_floors(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main([]) == 0, capsys.readouterr().out


def test_the_page_has_the_floors_of_today(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--picture"]) == 0
    assert capsys.readouterr().out in (ROOT / "ARCHITECTURE.md").read_text()
