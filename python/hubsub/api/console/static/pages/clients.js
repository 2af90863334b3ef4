// Connections, the largest first, and MQTT sessions that outlive theirs.

import { ask, Repeat } from "../ask.js";
import { h } from "../dom.js";
import { bytes, count, NONE, rate, seconds } from "../format.js";
import { Table } from "../table.js";

const LIMIT = 100;
const PAUSE_MS = 2000;
const SORTS = {
  messages_out_1s: "messages out, last second",
  messages_in_1s: "messages in, last second",
  messages_out_60s: "messages out, last minute",
  messages_in_60s: "messages in, last minute",
  bytes_out_1s: "bytes out, last second",
  pending_bytes: "bytes that wait",
  dropped: "records dropped",
  subscriptions: "subscriptions",
  age_s: "age",
};

export function clientsPage() {
  const options = Object.entries(SORTS).map(([value, text]) => h("option", { value }, text));
  const sort = h("select", { name: "sort", onchange: () => repeat.again() }, ...options);
  const clients = new Table("Connections, the largest first", COLUMNS, "No connections.", true);
  const sessions = new Table("MQTT sessions that outlive their connections", SESSIONS, "There is none.");
  const more = h("p", { class: "quiet", role: "status" });
  const repeat = new Repeat(async () => {
    const [list, page] = await Promise.all([
      ask(`/v1/clients?limit=${LIMIT}&sort=${sort.value}`),
      ask(`/v1/sessions?limit=${LIMIT}`),
    ]);
    if (list?.clients) clients.update(list.clients, (client) => `${client.node}\n${client.id}`);
    if (page?.sessions) {
      sessions.update(page.sessions, (session) => session.client_id);
      more.textContent = page.next === null ? "" : `The first ${count(page.sessions.length)}; \`hubsub session ls\` has all.`;
    }
  }, PAUSE_MS);
  const element = h(
    "div",
    {},
    h("h1", {}, "Clients"),
    h("form", { onsubmit: (event) => event.preventDefault() }, h("label", {}, "The largest by", sort)),
    h("div", { class: "grid" }, h("section", { class: "card" }, clients.element), h("section", { class: "card" }, sessions.element, more)),
  );
  return { title: "Clients", element, close: () => repeat.stop() };
}

const COLUMNS = [
  { head: "client", cell: (row) => `${row.node} ${row.id}` },
  { head: "name", class: "name", cell: (row) => ({ text: row.name || NONE, title: row.name }) },
  { head: "address", cell: (row) => row.addr },
  { head: "protocol", cell: (row) => row.protocol },
  { head: "in/s", class: "number", cell: (row) => rate(row.messages_in_1s) },
  { head: "out/s", class: "number", cell: (row) => rate(row.messages_out_1s) },
  { head: "bytes out/s", class: "number", cell: (row) => bytes(row.bytes_out_1s) },
  { head: "waits", class: "number", cell: (row) => bytes(row.pending_bytes) },
  { head: "dropped", class: "number", cell: (row) => ({ text: count(row.dropped), class: row.dropped ? "note" : "" }) },
  { head: "subscriptions", class: "number", cell: (row) => count(row.subscriptions + row.patterns) },
  { head: "for", class: "number", cell: (row) => seconds(row.age_s) },
  { head: "library", class: "name", cell: (row) => `${row.lib_name} ${row.lib_ver}`.trim() || NONE },
];

const SESSIONS = [
  { head: "client id", class: "name", cell: (row) => ({ text: row.client_id, title: row.client_id }) },
  { head: "node", cell: (row) => row.node },
  { head: "connected", cell: (row) => (row.client === null ? { text: "no", class: "note" } : `as ${row.client}`) },
  { head: "ends", class: "number", cell: (row) => (row.ends_in_s === null ? NONE : `in ${seconds(row.ends_in_s)}`) },
  { head: "subscriptions", class: "number", cell: (row) => count(row.subscriptions) },
  { head: "unacknowledged", class: "number", cell: (row) => count(row.unacknowledged) },
  { head: "waiting", class: "number", cell: (row) => count(row.queued) },
  { head: "bytes", class: "number", cell: (row) => bytes(row.queued_bytes) },
  { head: "dropped", class: "number", cell: (row) => count(row.dropped) },
];
