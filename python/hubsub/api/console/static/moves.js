// Failovers and moves: hubs that changed for the same reason at the same time are one row.

import { clock, NONE, roomHref } from "./format.js";

const ROWS = 20;
const TOGETHER_S = 1;

// How the controller names its steps.
const WHY = {
  dead: "its leader is dead",
  "lead ended": "its leader was not heard for as long as it may lead",
  "gave up": "handed over by its leader",
  members: "the same leader, other members",
  new: "a new hub",
  "started again": "its node started again",
};

// Steps on the way, after which a hub's leader is the one that it was.
const ON_THE_WAY = new Set(["propose", "withdraw", "has records"]);

/** Rows of the notes of GET /v1/moves, the latest first. */
export function moveRows(notes) {
  const rows = [];
  for (const note of notes.toReversed()) {
    if (note.room === null && ON_THE_WAY.has(note.why)) continue;
    const last = rows.at(-1);
    const isSame = last?.room === null && note.room === null && ["class", "why", "result"].every((key) => last[key] === note[key]);
    if (isSame && note.ago_s - last.ago_s <= TOGETHER_S) {
      last.hubs.unshift(note.hub);
      last.leaders.add(note.leader ?? NONE);
    } else rows.push({ ...note, hubs: [note.hub], leaders: new Set([note.leader ?? NONE]) });
  }
  const now = Date.now();
  return rows.slice(0, ROWS).map((row, i) => ({ ...row, i, at: now - row.ago_s * 1000 }));
}

export const MOVE_COLUMNS = [
  { head: "at", cell: (row) => clock(row.at) },
  { head: "what", class: "name", cell: what },
  { head: "to", cell: (row) => (row.room === null ? [...row.leaders].sort().join(", ") : `hub ${row.hub ?? "of the ring"}`) },
  { head: "why", class: "wide", cell: (row) => WHY[row.why] ?? row.why },
  { head: "result", class: "wide", cell: (row) => (row.result === "moved" ? "moved" : { text: `refused: ${row.reason}`, class: "note" }) },
];

function what(row) {
  if (row.room !== null) return { text: row.room, href: roomHref(row.room), title: row.room };
  const hubs = row.hubs.length === 1 ? `hub ${row.hubs[0]}` : `${row.hubs.length} hubs`;
  return { text: `${hubs} of ${row.class}`, title: row.hubs.join(", ") };
}
