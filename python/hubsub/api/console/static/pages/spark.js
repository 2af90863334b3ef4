// Queries of data pipelines: how far each has read, what is held, and the latest windows of the job `activity`.

import { ask, Repeat } from "../ask.js";
import { h } from "../dom.js";
import { clock, count, NONE, rate, roomHref, roomPath, seconds } from "../format.js";
import { Table } from "../table.js";

const PAUSE_MS = 5000;
const STATS = "$stats/room/";
const ROOMS = 20;

export function sparkPage(store) {
  const queries = new Table("Queries", QUERIES, "No query has told how far it is in the last hour.");
  const hubs = new Table("Lag by hub, the largest first", HUBS, "No query reads a hub of this cluster.");
  const held = new Table("Batches that are held", HELD, "None.");
  const windows = new Table(`Activity of rooms: the latest window of each (${STATS}…)`, WINDOWS, "No job has told any.");
  const repeat = new Repeat(async () => {
    const page = await ask(`/v1/rooms?${new URLSearchParams({ match: `${STATS}*`, limit: ROOMS })}`);
    const rooms = page?.rooms ?? [];
    const pages = await Promise.all(rooms.map((room) => ask(`${roomPath(room.name)}/history?count=1`)));
    const rows = pages.map((found, i) => ({ room: rooms[i].name.slice(STATS.length), ...window(found) }));
    windows.update(rows.filter((row) => row.at !== undefined), (row) => row.room);
  }, PAUSE_MS);
  const element = h(
    "div",
    {},
    h("h1", {}, "Spark"),
    h(
      "div",
      { class: "grid" },
      h("section", { class: "card" }, queries.element),
      h("section", { class: "card" }, held.element),
      h("section", { class: "card half" }, hubs.element),
      h(
        "section",
        { class: "card half" },
        windows.element,
        h("p", { class: "quiet" }, "Other jobs write their tables where they were told to, and not to a node."),
      ),
    ),
  );
  return {
    title: "Spark",
    element,
    update(part) {
      if (part !== "queries") return;
      const found = store.parts.queries.queries ?? [];
      queries.update(found, (row) => row.query);
      const rows = found.flatMap((query) => query.hubs.map((hub) => ({ ...hub, query: query.query })));
      hubs.update(rows.sort((a, b) => b.lag - a.lag).slice(0, 64), (row) => `${row.query}\n${row.hub}`);
      held.update(store.parts.queries.held ?? [], (row) => `${row.query}\n${row.batch}`);
    },
    close: () => repeat.stop(),
  };
}

const QUERIES = [
  { head: "query", class: "name", cell: (row) => ({ text: row.query, title: row.query }) },
  { head: "records behind", class: "number", cell: (row) => count(row.lag) },
  { head: "rows/s", class: "number", cell: (row) => rate(row.rows_per_second) },
  { head: "batch", class: "number", cell: (row) => count(row.batch) },
  { head: "told", class: "number", cell: (row) => `${seconds(row.silence_s)} ago` },
];

const HUBS = [
  { head: "hub", cell: (row) => row.name },
  { head: "query", class: "name", cell: (row) => row.query },
  { head: "read up to", class: "number", cell: (row) => count(row.offset) },
  { head: "records behind", class: "number", cell: (row) => count(row.lag) },
];

const HELD = [
  { head: "query", class: "name", cell: (row) => row.query },
  { head: "batch", class: "number", cell: (row) => count(row.batch) },
  { head: "rows", class: "number", cell: (row) => count(row.rows) },
  { head: "for", class: "number", cell: (row) => seconds(row.held_s) },
  { head: "tries", class: "number", cell: (row) => count(row.tries) },
  { head: "why", class: "wide", cell: (row) => [row.reason, row.hint].filter(Boolean).join("; ") },
];

const WINDOWS = [
  { head: "room", class: "name", cell: (row) => ({ text: row.room, href: roomHref(row.room), title: row.room }) },
  { head: "told at", cell: (row) => clock(row.at) },
  { head: "window", class: "wide", cell: (row) => row.text ?? NONE },
];

/** The record of a window, as its job wrote it. */
function window(page) {
  const record = page?.records?.at(-1);
  if (!record) return {};
  let text = record.payload;
  try {
    text = Object.entries(JSON.parse(record.payload)).map(([key, value]) => `${key}: ${JSON.stringify(value)}`).join(", ");
  } catch {
    // Another program's: as it is.
  }
  return { at: record.timestamp_us / 1000, text };
}
