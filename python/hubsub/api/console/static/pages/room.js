// A room: its nodes, history, members, and latest records.

import { ask, Repeat } from "../ask.js";
import { card, Figures, h, setText } from "../dom.js";
import { bytes, clock, count, NONE, payload, rate, roomPath, visible } from "../format.js";
import { Table } from "../table.js";

const ROWS = 200;
const HERE = 50; // Limit of listed members.
const PAUSE_MS = 3000;
const FIGURES = ["class", "hub", "leader", "nodes of its hub", "epoch", "seq", "records/s", "topics", "records in memory", "bytes in memory"];
// Counts of a room, and of its subscribers by protocol; unknown protocols are appended when they appear.
const OCCUPANCY = ["subscribers", "publishers", "members"];
const PROTOCOLS = { redis: "Redis", mqtt: "MQTT", phoenix: "Phoenix", events: "events" };
const BY = "by ";

export function roomPage(store, name) {
  const figures = new Figures(FIGURES, "small");
  const occupancy = new Figures([...OCCUPANCY, ...Object.values(PROTOCOLS).map((name) => BY + name)]);
  const problem = h("p", { class: "note line", role: "status" });
  const rows = [];
  let before = null;
  let isPaused = false;
  const tail = new Table("The end of its history, the latest first", COLUMNS, "Nothing yet.");
  const here = new Table("Members", MEMBERS, "No members.");
  const more = h("p", { class: "quiet", role: "status" });
  const repeat = new Repeat(async () => {
    const [page, found] = await Promise.all([ask(`${roomPath(name)}/presence?limit=${HERE}`), ask(`${roomPath(name)}/occupancy`)]);
    if (page?.members) {
      here.update(page.members, (member) => member.ref);
      setText(more, page.count > page.members.length ? `${count(page.members.length)} of ${count(page.count)}.` : "");
    }
    if (found && found.code === undefined) showOccupancy(occupancy, found);
  }, PAUSE_MS);
  const pause = h("button", { type: "button", "aria-pressed": "false", onclick: toggle }, "Pause");
  const draw = () => {
    if (!isPaused) tail.update(rows, (row) => row.position);
  };

  function toggle() {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    setText(pause, isPaused ? "Go on" : "Pause");
    draw();
  }

  function update(part) {
    if (part !== "tail") return;
    const { room, records, kept } = store.parts.tail;
    setText(problem, room.code === undefined ? "" : visible(room.message));
    if (room.code === undefined) {
      before = showRoom(figures, room, before);
    }
    if (!kept) tail.say("Its class keeps no history: records are delivered and forgotten.");
    for (const record of records) {
      const missing = between(rows[0], record);
      if (missing > 0) rows.unshift({ position: `before ${record.position}`, missing });
      rows.unshift(record);
    }
    rows.length = Math.min(rows.length, ROWS);
    draw();
  }

  const element = h(
    "div",
    {},
    h("h1", {}, visible(name)),
    h("div", { class: "grid" }, card("The room", "", problem, figures.element), card("Occupancy", "", occupancy.element), h("section", { class: "card" }, here.element, more), h("section", { class: "card tail" }, pause, tail.element)),
  );
  return { title: visible(name), element, update, close: () => repeat.stop() };
}

const COLUMNS = [
  { head: "seq", class: "number", cell: (row) => (row.missing ? "…" : { text: row.position.split("-")[1], title: row.position }) },
  { head: "at", cell: (row) => (row.missing ? "" : clock(row.timestamp_us / 1000)) },
  { head: "topic", class: "name topic", cell: (row) => (row.missing ? "" : { text: row.topic, title: row.topic }) },
  { head: "from", class: "name", cell: (row) => (row.missing ? "" : row.publisher) },
  {
    head: "payload",
    class: "wide payload",
    cell: (row) => (row.missing ? { text: `${count(row.missing)} more, not shown here`, class: "note" } : payload(row)),
  },
  { head: "headers", class: "headers", cell: (row) => Object.entries(row.headers ?? {}).map(([key, value]) => `${key}: ${value}`).join("\n") },
];

const MEMBERS = [
  { head: "who", class: "name", cell: (row) => ({ text: nameOf(row), title: nameOf(row) }) },
  { head: "key", class: "name spare", cell: (row) => ({ text: row.key, title: row.key, class: "quiet" }) },
  { head: "what it says of itself", class: "wide payload", cell: (row) => JSON.stringify(row.meta) },
];

/** Display name of a member from its metadata; else its key. */
function nameOf({ key, meta }) {
  return typeof meta?.name === "string" && meta.name.trim() ? meta.name : key;
}

/** Number of records between two received ones; 0 if the room began a new epoch. */
function between(last, record) {
  if (last === undefined || last.missing) return 0;
  const [epoch, seq] = record.position.split("-");
  const [lastEpoch, lastSeq] = last.position.split("-");
  return epoch === lastEpoch ? Number(seq) - Number(lastSeq) - 1 : 0;
}

function showRoom(figures, room, before) {
  const now = { at: Date.now(), epoch: room.epoch, seq: room.seq, rate: before?.rate ?? null };
  if (before !== null && before.epoch === room.epoch && now.at > before.at) {
    now.rate = ((room.seq - before.seq) * 1000) / (now.at - before.at);
  }
  figures.set("class", room.class);
  figures.set("hub", room.hub ?? NONE);
  figures.set("leader", room.nodes[0]?.name ?? NONE);
  figures.set("nodes of its hub", room.nodes.map((node) => node.name).join(", ") || NONE);
  figures.set("epoch", room.epoch);
  figures.set("seq", count(room.seq));
  figures.set("records/s", rate(now.rate));
  figures.set("topics", count(room.topics));
  figures.set("records in memory", count(room.history));
  figures.set("bytes in memory", bytes(room.history_bytes));
  return now;
}

/** Shows a dash for values that a node does not report. */
function showOccupancy(figures, found) {
  for (const name of OCCUPANCY) figures.set(name, count(found[name]));
  const told = new Map(Object.entries(found.by_protocol ?? {}).map(([name, many]) => [BY + (PROTOCOLS[name] ?? name), many]));
  const shown = [...figures.cells.keys()].filter((name) => name.startsWith(BY));
  for (const name of new Set([...shown, ...told.keys()])) figures.set(name, found.by_protocol ? count(told.get(name) ?? 0) : NONE);
}
