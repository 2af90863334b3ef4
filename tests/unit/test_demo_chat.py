"""`hubsub demo chat` without nodes: its page's files, their content security policy, and the messages."""

from __future__ import annotations

import hashlib
import json
import re
import urllib.error
import urllib.request
from asyncio import to_thread
from itertools import islice
from pathlib import Path

import pytest

from hubsub.cli.demo.page import PAGES, STATIC, Page
from hubsub.cli.demo.talk import PAUSE_S_MAX, ROOMS, lines

VENDORED = {
    "phoenix.mjs": "36e6f701a40a47988a4810a308cf54f9b441e5c4b68b83797fec4f69becb1627",
    "phoenix.LICENSE": "41a686069f0199ff369d7e5277d5267385cc54d9199f1efc960bacbe2e799255",
}
"""SHA-256 of the vendored files, as in `vendor/README.md`."""

OWN_SCRIPTS = sorted(STATIC.glob("*.js"))


def test_what_is_vendored_is_what_was_published() -> None:
    folder = STATIC / "vendor"
    assert {path.name for path in folder.iterdir()} == {*VENDORED, "README.md"}
    text = (folder / "README.md").read_text()
    for name, digest in VENDORED.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
        assert digest in text


@pytest.mark.parametrize("script", OWN_SCRIPTS, ids=lambda path: path.name)
def test_each_script_imports_what_is_there_and_sets_no_markup(script: Path) -> None:
    source = script.read_text()
    for target in re.findall(r'from "([^"]+)"', source):
        assert str((script.parent / target).resolve().relative_to(STATIC)) in PAGES.files
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert name not in source


async def test_the_page_is_served_with_a_policy_that_lets_it_ask_nodes_of_this_machine_alone() -> None:
    def get(path: str) -> tuple[int, str, str]:
        try:
            with urllib.request.urlopen(page.url + path) as answer:
                return answer.status, answer.read().decode(), answer.headers["content-security-policy"]
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), ""

    async with Page(lambda: {"rooms": ["lobby"], "nodes": []}) as page:
        status, html, policy = await to_thread(get, "/")
        assert status == 200 and policy.startswith("default-src 'self';")
        assert policy.endswith("; connect-src 'self' ws://127.0.0.1:*")
        assert " style=" not in html and "<style" not in html
        for named in re.findall(r'(?:src|href)="(/[^"]+)"', html):
            assert (await to_thread(get, named))[0] == 200, named
        assert json.loads((await to_thread(get, "/demo.json"))[1]) == {"rooms": ["lobby"], "nodes": []}
        for path in ("/no.js", "/vendor/README.md", "/..%2Fpage.py", "/%2e%2e/page.py"):
            assert (await to_thread(get, path))[0] == 404, path


def test_the_same_people_say_the_same_things_again_in_rooms_that_there_are() -> None:
    said = list(islice(lines(), 2_000))
    assert said == list(islice(lines(), 2_000)) != list(islice(lines(seed=2), 2_000))
    assert {line.room for line in said} == set(ROOMS)
    assert {line.kind for line in said} == {"message", "action", "join", "leave"}
    assert all(bool(line.text) == (line.kind in ("message", "action")) for line in said)
    assert max(line.pause_s for line in said) == PAUSE_S_MAX and min(line.pause_s for line in said) >= 0
