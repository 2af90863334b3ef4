// The latest rows of data pipeline jobs, a table per job, from their reports in `$stats/job/JOB`.

import { ask } from "../ask.js";
import { h, setText } from "../dom.js";
import { ago, clock, count, NONE, rate, roomHref, roomPath } from "../format.js";
import { Table } from "../table.js";

const JOBS = "$stats/job/";
const RECORDS = 10; // A batch may report only a row or two: earlier reports fill the table.
const ROWS = 20;
const TITLES = {
  sessions: ["Sessions that are over", "card"],
  devices: ["Devices: the latest values", "card"],
  archive: ["Archived, by hub", "card half"],
  replay: ["Replayed", "card half"],
};

export class Jobs {
  constructor() {
    this.parts = Object.entries(TITLES).map(([job, [title, place]]) => new Job(job, title, place));
    this.elements = this.parts.map((part) => part.element);
  }

  /** Fetches new reports. */
  async update() {
    const page = await ask(`/v1/rooms?${new URLSearchParams({ match: `${JOBS}*` })}`);
    const told = new Set((page?.rooms ?? []).map((room) => room.name));
    await Promise.all(this.parts.map((part) => told.has(JOBS + part.job) && part.update()));
  }
}

class Job {
  constructor(job, title, place) {
    [this.job, this.title] = [job, title];
    this.said = h("p", { class: "quiet" });
    this.said.hidden = true;
    this.holder = h("div");
    this.element = h("section", { class: place }, this.holder, this.said);
    this.shape([]);
  }

  /** Recreates the table for other columns. */
  shape(columns) {
    this.columns = JSON.stringify(columns);
    const cells = columns.map(({ name, isNumber }, i) => ({
      head: name.replaceAll("_", " "),
      class: isNumber ? "number" : undefined,
      cell: (row) => cell(name, row.values[i]),
    }));
    this.table = new Table(this.title, cells, `No job ${this.job} has told any.`);
    this.table.update([], () => "");
    this.holder.replaceChildren(this.table.element);
  }

  async update() {
    const page = await ask(`${roomPath(JOBS + this.job)}/history?count=${RECORDS}`);
    const tables = (page?.records ?? []).map(tableOf).filter(Boolean).reverse();
    if (tables.length === 0) return;
    const [last] = tables;
    const columns = last.columns.map((name, i) => ({ name, isNumber: typeof last.rows[0]?.[i] === "number" }));
    if (this.columns !== JSON.stringify(columns)) this.shape(columns);
    const rows = new Map();
    for (const { query, columns: names, keys, rows: found, at } of tables) {
      if (query !== last.query || names.join() !== last.columns.join()) continue;
      for (const [place, values] of found.entries()) {
        const key = keys ? JSON.stringify(values.slice(0, keys)) : `${at} ${place}`;
        if (!rows.has(key)) rows.set(key, { key, values });
      }
    }
    this.table.update([...rows.values()].slice(0, ROWS), (row) => row.key);
    const more = last.more ? `; ${count(last.more)} more rows are not shown` : "";
    setText(this.said, `Reported ${ago(last.at)} by ${last.query}${more}.`);
    this.said.hidden = false;
  }
}

/** Table of a job's report; null for records of other programs. */
function tableOf(record) {
  try {
    const { query, columns, keys, rows, more } = JSON.parse(record.payload);
    const fits = Array.isArray(columns) && rows.every((row) => row.length === columns.length);
    return fits ? { query: String(query), columns: columns.map(String), keys, rows, more, at: record.timestamp_us / 1000 } : null;
  } catch {
    return null;
  }
}

const TIME = /^\d{4}-\d\d-\d\dT[\d:.]+Z$/;

function cell(name, value) {
  if (value === null || value === undefined) return NONE;
  if (typeof value === "number") return Number.isInteger(value) ? count(value) : rate(value);
  const text = String(value);
  if (TIME.test(text)) return { text: moment(text), title: text };
  return name === "room" ? { text, href: roomHref(text), title: text, class: "name" } : { text, title: text, class: "name" };
}

/** A time; with its date, unless it is today. */
function moment(text) {
  const at = Date.parse(text);
  const is = new Date(at);
  if (is.toDateString() === new Date().toDateString()) return clock(at);
  const date = [is.getFullYear(), is.getMonth() + 1, is.getDate()].map((part) => String(part).padStart(2, "0"));
  return `${date.join("-")} ${clock(at)}`;
}
