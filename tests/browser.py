"""A headless Chromium, Debian's own, that tests drive through Playwright; each test has a fresh profile.

A `Tab` records the errors of its page and the hosts to which the page sent requests. `check` asserts that there were
no errors, and no host but the node.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from clients.raw import TIMEOUT_S
from playwright.sync_api import Browser, Page, expect, sync_playwright

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()

WIDTH, HEIGHT = 1280, 900


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, for as long as the block; needs the program `chromium`."""
    program = shutil.which("chromium")
    assert program is not None, "the marker `needs` asks for it"
    expect.set_options(timeout=TIMEOUT_S * 1_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A page of a node's console.

    Args:
        page: Of a fresh context.
        url: Of the node.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.troubles: list[str] = []
        """Errors of scripts, errors in the browser's console, and dialogs."""
        self.asked: set[str] = set()
        """Hosts of the requests, with their ports."""
        page.set_default_timeout(TIMEOUT_S * 1_000)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("console", lambda said: self.troubles.append(said.text) if said.type == "error" else None)
        page.on("dialog", self._dialog)
        page.on("request", lambda request: self.asked.add(urlsplit(request.url).netloc))

    def open(self, place: str = "") -> Page:
        """Goes to a place of the console, such as `rooms`, and waits until it is live."""
        self.page.goto(f"{self.url}/#/{place}")
        expect(self.page.locator("#heard")).to_have_text("live")
        return self.page

    def row(self, table: str, name: str) -> Any:
        """A row of a table, by the table's caption and what the row's first cell is."""
        tables = self.page.get_by_role("table", name=table)
        return tables.get_by_role("row").filter(has=self.page.get_by_role("rowheader", name=name, exact=True))

    def check(self) -> None:
        """Asserts that there were no errors, and that the page sent requests only to its node."""
        assert self.troubles == []
        assert self.asked == {urlsplit(self.url).netloc}

    def _dialog(self, dialog: Any) -> None:
        self.troubles.append(f"a dialog: {dialog.message}")
        dialog.dismiss()


@contextmanager
def tab(browser: Browser, url: str, **context: Any) -> Iterator[Tab]:
    """A tab with a profile of its own; `context` as Playwright's `new_context` takes it."""
    options: dict[str, Any] = {"viewport": {"width": WIDTH, "height": HEIGHT}, **context}
    with browser.new_context(**options) as profile:
        yield Tab(profile.new_page(), url)
