// Rooms by name: those that match, or the busiest.

import { ask, Repeat } from "../ask.js";
import { h } from "../dom.js";
import { bytes, count, NONE, rate, roomHref } from "../format.js";
import { Table } from "../table.js";

const LIMIT = 100;
const PAUSE_MS = 3000;

export function roomsPage() {
  const match = h("input", { type: "search", name: "match", placeholder: "chat:*", autocomplete: "off" });
  const exact = h("input", { type: "text", name: "room", autocomplete: "off" });
  const rooms = new Table("Rooms in order of name", COLUMNS, "No room matches.");
  const busy = new Table("Busiest rooms", BUSY, "No room is busy now.", true);
  const more = h("p", { class: "quiet", role: "status" });
  const repeat = new Repeat(async () => {
    const query = new URLSearchParams({ limit: LIMIT, ...(match.value ? { match: match.value } : {}) });
    const [page, busiest] = await Promise.all([ask(`/v1/rooms?${query}`), ask("/v1/busiest?limit=20")]);
    if (page?.rooms) {
      rooms.update(page.rooms, (room) => room.name);
      more.textContent = page.next === null ? "" : `The first ${count(page.rooms.length)}; narrow it down for others.`;
    } else if (page) rooms.say(page.message);
    if (busiest?.rooms) busy.update(busiest.rooms, (room) => room.name);
  }, PAUSE_MS);
  const search = (event) => {
    event.preventDefault();
    repeat.again();
  };
  const go = (event) => {
    event.preventDefault();
    if (exact.value) location.hash = roomHref(exact.value);
  };
  const element = h(
    "div",
    {},
    h("h1", {}, "Rooms"),
    h("form", { onsubmit: go }, h("label", {}, "Go to the room", exact), h("button", {}, "Show")),
    h(
      "div",
      { class: "grid" },
      h(
        "section",
        { class: "card rest" },
        h("form", { onsubmit: search }, h("label", {}, "Names that match the glob", match), h("button", {}, "Search")),
        rooms.element,
        more,
      ),
      h("section", { class: "card third" }, busy.element),
    ),
  );
  return { title: "Rooms", element, close: () => repeat.stop() };
}

const link = (room) => ({ text: room.name, href: roomHref(room.name), title: room.name });

const BUSY = [
  { head: "room", class: "name", cell: link },
  { head: "messages/s", class: "number", cell: (room) => rate(room.messages_per_second) },
];

const COLUMNS = [
  { head: "room", class: "name", cell: link },
  { head: "class", cell: (room) => room.class },
  { head: "hub", cell: (room) => room.hub ?? NONE },
  { head: "leader", cell: (room) => room.nodes[0]?.name ?? NONE },
  { head: "seq", class: "number", cell: (room) => count(room.seq) },
  { head: "subscribers", class: "number", cell: (room) => count(room.subscribers) },
  { head: "in memory", class: "number", cell: (room) => bytes(room.history_bytes) },
];
