// Queries of data pipelines: state, progress, blocked batches, and the latest rows of the jobs.

import { ask, Repeat } from "../ask.js";
import { Chart } from "../chart.js";
import { Figures, card, h } from "../dom.js";
import { bytes, clock, count, NONE, rate, roomHref, roomPath, seconds } from "../format.js";
import { Table } from "../table.js";
import { Jobs } from "./jobs.js";

const PAUSE_MS = 5000;
const STATS = "$stats/room/";
const OCCUPANCY = "/occupancy"; // Reports of nodes there are not windows.
const ROOMS = 20;
const HUBS_SHOWN = 12;
const SILENT_S = 150; // A query without a report for this long may have ended: even an idle one reports every 60 s.

export function sparkPage(store) {
  const figures = new Figures(["queries", "records behind", "rows/s", "batches blocked"]);
  const lag = new Chart("Records behind by query", count, 5, "half");
  const queries = new Table("Queries", QUERIES, "No query has reported its progress in the last hour.");
  const hubs = new Table("Lag by hub, the largest first", HUBS, "No query reads a hub of this cluster.", true);
  const held = new Table("Blocked batches", HELD, "None.");
  const windows = new Table(`Activity of rooms: the latest window of each (${STATS}…)`, WINDOWS, "No job has told any.");
  const jobs = new Jobs();
  const repeat = new Repeat(async () => {
    await jobs.update();
    const page = await ask(`/v1/rooms?${new URLSearchParams({ match: `${STATS}*`, limit: 2 * ROOMS })}`);
    const rooms = (page?.rooms ?? []).filter((room) => !room.name.endsWith(OCCUPANCY)).slice(0, ROOMS);
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
      card("Now", "", figures.element),
      h("section", { class: "card half" }, queries.element),
      lag.element,
      h("section", { class: "card half" }, held.element),
      h("section", { class: "card half" }, hubs.element),
      h("section", { class: "card" }, windows.element),
      ...jobs.elements,
    ),
  );
  return {
    title: "Spark",
    element,
    update(part) {
      if (part !== "queries") return;
      const found = store.parts.queries.queries ?? [];
      const waits = store.parts.queries.blocked ?? [];
      const sum = (field) => found.reduce((all, query) => all + (query[field] ?? 0), 0);
      figures.set("queries", count(found.length));
      figures.set("records behind", count(sum("lag")));
      figures.set("rows/s", rate(sum("rows_per_second")));
      figures.set("batches blocked", count(waits.length));
      queries.update(found.map((query) => ({ ...query, ...stateOf(query, waits) })), (row) => row.query);
      lag.element.hidden = found.length === 0;
      lag.update(store.lags.times, store.lags.of);
      const rows = found.flatMap((query) => query.hubs.map((hub) => ({ ...hub, query: query.query })));
      hubs.update(rows.sort((a, b) => b.lag - a.lag).slice(0, HUBS_SHOWN), (row) => `${row.query}\n${row.hub}`);
      held.update(waits, (row) => `${row.query}\n${row.batch}`);
    },
    close() {
      repeat.stop();
      lag.close();
    },
  };
}

const QUERIES = [
  { head: "query", class: "name", cell: (row) => ({ text: row.query, title: row.query }) },
  { head: "state", class: "state", cell: (row) => ({ text: row.state, class: row.mark }) },
  { head: "records behind", class: "number", cell: (row) => count(row.lag) },
  { head: "rows/s", class: "number", cell: (row) => rate(row.rows_per_second) },
  { head: "batch", class: "number", cell: (row) => count(row.batch) },
  { head: "reported", class: "number", cell: (row) => `${seconds(row.silence_s)} ago` },
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
  { head: "for", class: "number", cell: (row) => seconds(row.blocked_s) },
  { head: "tries", class: "number", cell: (row) => count(row.tries) },
  { head: "why", class: "wide", cell: (row) => [row.reason, row.hint].filter(Boolean).join("; ") },
];

/** A numeric column of the job's report; a dash for any other value. */
function number(head, name, shown) {
  return { head, class: "number", cell: ({ told }) => (Number.isFinite(told[name]) ? shown(told[name]) : NONE) };
}

const WINDOWS = [
  { head: "room", class: "name", cell: ({ told, room }) => named(typeof told.room === "string" ? told.room : room) },
  { head: "window", cell: ({ told }) => `${time(told.window_start)} – ${time(told.window_end)}` },
  { head: "state", cell: ({ told }) => (told.final === true ? "over" : told.final === false ? "goes on" : NONE) },
  number("messages", "messages", count),
  number("bytes", "bytes", bytes),
  number("publishers", "publishers", count),
  number("missing", "missing", count),
  number("delay, median", "delay_ms_p50", (ms) => `${rate(ms)} ms`),
  number("late", "late", count),
  { head: "reported at", cell: (row) => clock(row.at) },
];

const named = (room) => ({ text: room, href: roomHref(room), title: room });

function time(text) {
  const at = typeof text === "string" ? Date.parse(text) : NaN;
  return Number.isNaN(at) ? NONE : clock(at);
}

/** State of a query, and its mark. */
function stateOf(query, waits) {
  if (waits.some((batch) => batch.query === query.query)) return { state: "a batch is blocked", mark: "bad" };
  if (query.ended) return { state: query.lag > 0 ? "ended" : "ended, had all", mark: "" };
  if (query.silence_s > SILENT_S) return { state: "silent", mark: "note" };
  return query.lag > 0 ? { state: "reads", mark: "good" } : { state: "has all", mark: "good" };
}

/** The record of a window; empty for records of other programs. */
function window(page) {
  const record = page?.records?.at(-1);
  try {
    const told = JSON.parse(record.payload);
    return typeof told?.window_start === "string" ? { at: record.timestamp_us / 1000, told } : {};
  } catch {
    return {};
  }
}
