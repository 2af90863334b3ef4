// Failovers and moves: hubs that changed for the same reason at the same time share a row, across classes.

import { clock, NONE, roomHref } from "./format.js";

const ROWS = 20;
const TOGETHER_S = 1;
const OWN = "the cluster's own classes";

/** Rows of the notes of GET /v1/moves, the latest first. */
export function moveRows(notes) {
  const rows = [];
  for (const note of notes.toReversed()) {
    const isSame = (row) => row.room === null && ["why", "result", "reason"].every((key) => row[key] === note[key]);
    const row = note.room === null ? rows.findLast((one) => isSame(one) && note.ago_s - one.since_s <= TOGETHER_S) : undefined;
    if (row) {
      row.since_s = note.ago_s;
      row.hubs.unshift(note);
    } else rows.push({ ...note, since_s: note.ago_s, hubs: [note] });
  }
  const now = Date.now();
  return rows.slice(0, ROWS).map((row, i) => ({ ...row, i, at: now - row.ago_s * 1000 }));
}

export const MOVE_COLUMNS = [
  { head: "at", cell: (row) => clock(row.at) },
  { head: "what", class: "wide", cell: what },
  { head: "to", cell: (row) => (row.room === null ? leaders(row.hubs).join(", ") : `hub ${row.hub ?? "of the ring"}`) },
  { head: "why", class: "wide", cell: (row) => row.words },
  { head: "result", class: "wide", cell: (row) => (row.result === "moved" ? "moved" : { text: `refused: ${row.reason}`, class: "note" }) },
];

function what(row) {
  if (row.room !== null) return { text: row.room, href: roomHref(row.room), title: row.room };
  const title = row.hubs.map(({ hub }) => hub).join(", ");
  if (row.hubs.length === 1) return { text: `hub ${row.hub} of ${row.class}`, title };
  // Internal classes ($…) are combined and come last.
  const classes = Map.groupBy(row.hubs, (one) => (one.class.startsWith("$") ? OWN : one.class));
  const own = classes.get(OWN);
  classes.delete(OWN);
  if (own) classes.set(OWN, own);
  if (classes.size === 1) return { text: `${row.hubs.length} hubs of ${[...classes.keys()][0]}`, title };
  const parts = [...classes].map(([name, hubs]) => `${hubs.length} of ${name}`);
  return { text: `${row.hubs.length} hubs: ${parts.join(", ")}`, title };
}

function leaders(hubs) {
  return [...new Set(hubs.map((one) => one.leader ?? NONE))].sort();
}
