"""The members of a room as a page knows them from `presence` events, like the library's `Presence`."""

from __future__ import annotations

from typing import Any

from clients.phoenix import GAP, Page

STATE, DIFF, COUNT, UPDATE = "presence_state", "presence_diff", "presence_count", "presence_update"

Metas = dict[str, list[dict[str, Any]]]


class Roster:
    """A topic that a page has joined, and its members by their references, as reported to the page."""

    def __init__(self, page: Page, topic: str, presence: Any = True) -> None:
        self.page, self.topic = page, topic
        page.join(topic, {"presence": presence})
        event, payload = page.said(topic)
        assert event == STATE, (event, payload)
        self.members = dict(refs_of(payload))
        self.count: int | None = None

    def hear(self) -> tuple[Metas, Metas]:
        """Applies the next change of presence. Skips gaps. Checks that each leaving member was present and no
        joining one was."""
        while (said := self.page.said(self.topic))[0] == GAP:
            pass
        event, payload = said
        if event == COUNT:
            self.count = payload["count"]
            return {}, {}
        assert event == DIFF, (event, payload)
        joins: Metas = {key: of["metas"] for key, of in payload["joins"].items()}
        leaves: Metas = {key: of["metas"] for key, of in payload["leaves"].items()}
        for ref, _ in refs_of(payload["leaves"]):
            del self.members[ref]
        for ref, member in refs_of(payload["joins"]):
            assert ref not in self.members
            self.members[ref] = member
        return joins, leaves

    def keys(self) -> list[str]:
        """The present members' keys, sorted."""
        return sorted(key for key, _ in self.members.values())

    def until(self, *keys: str) -> None:
        """Applies changes until exactly these members are present."""
        while self.keys() != sorted(keys):
            self.hear()

    def until_count(self, count: int) -> None:
        """Applies changes until the reported count is `count`."""
        while self.count != count:
            self.hear()


def refs_of(payload: dict[str, Any]) -> list[tuple[str, tuple[str, dict[str, Any]]]]:
    """References, with key and meta."""
    return [(meta["phx_ref"], (key, meta)) for key, of in payload.items() for meta in of["metas"]]


def member(key: str, **meta: Any) -> dict[str, Any]:
    """A page's own member data, for the join."""
    return {"key": key, "meta": meta}
