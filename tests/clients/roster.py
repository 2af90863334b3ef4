"""Who is in a room, as a page is told it: what the library's `Presence` keeps."""

from __future__ import annotations

from typing import Any

from clients.phoenix import GAP, Page

STATE, DIFF, COUNT, UPDATE = "presence_state", "presence_diff", "presence_count", "presence_update"

Metas = dict[str, list[dict[str, Any]]]


class Roster:
    """A topic that a page has joined, and the members that it was told of, by their references."""

    def __init__(self, page: Page, topic: str, presence: Any = True) -> None:
        self.page, self.topic = page, topic
        page.join(topic, {"presence": presence})
        event, payload = page.said(topic)
        assert event == STATE, (event, payload)
        self.members = dict(refs_of(payload))
        self.count: int | None = None

    def hear(self) -> tuple[Metas, Metas]:
        """The next change; who goes was there, and who comes was not. What else is told of the topic is passed over."""
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
        """Of all who are there."""
        return sorted(key for key, _ in self.members.values())

    def until(self, *keys: str) -> None:
        """Hears until exactly these are there."""
        while self.keys() != sorted(keys):
            self.hear()

    def until_count(self, count: int) -> None:
        """Hears until so many are said to be there."""
        while self.count != count:
            self.hear()


def refs_of(payload: dict[str, Any]) -> list[tuple[str, tuple[str, dict[str, Any]]]]:
    """References, with key and meta."""
    return [(meta["phx_ref"], (key, meta)) for key, of in payload.items() for meta in of["metas"]]


def member(key: str, **meta: Any) -> dict[str, Any]:
    """What a page says of itself as it joins."""
    return {"key": key, "meta": meta}
