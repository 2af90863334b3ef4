// The cluster: problems, figures, nodes, hubs, rooms, links, and moves.

import { Chart } from "../chart.js";
import { card, Figures, h } from "../dom.js";
import { bytes, clock, count, NONE, percent, rate, roomHref, seconds, visible } from "../format.js";
import { HubMap } from "../map.js";
import { MOVE_COLUMNS, moveRows } from "../moves.js";
import { Table } from "../table.js";

const FIGURES = ["nodes up", "connections", "rooms in memory", "rooms with a log", "published/s", "delivered/s", "in/s", "out/s", "waits for clients", "dropped/s"];
const ROOMS = 15;

export function clusterPage(store) {
  const figures = new Figures(FIGURES);
  const wrong = h("section", { class: "card", "aria-live": "polite" }, h("p", { class: "quiet" }, "…"));
  const messages = new Chart("Messages a second", rate, 5, "half");
  const cpu = new Chart("Processor by node", percent, 0.05, "half");
  const map = new HubMap(store);
  const nodes = nodeTable(store);
  const rooms = new Table("Busiest rooms", ROOM_COLUMNS, "No room is busy now.", true);
  const links = new Table("Links", LINK_COLUMNS, "This node is alone.");
  const moves = new Table("Failovers and moves, the latest first", MOVE_COLUMNS, "Nothing was moved of late.");
  const updates = {
    nodes() {
      sums(figures, store);
      messages.update(store.times, new Map(Object.entries(store.series)));
      // In the order of the map, so that the colours match.
      cpu.update(store.times, new Map([...store.cpu].sort(([a], [b]) => (a < b ? -1 : 1))));
      nodes.update(store.all(), (row) => row.name);
      rooms.update(busiest(store), (row) => row.name);
      links.update(linkRows(store), (row) => row.key);
      map.update();
      troubles(wrong, store);
    },
    cluster() {
      nodes.update(store.all(), (row) => row.name);
      troubles(wrong, store);
    },
    hubs() {
      map.update();
    },
    stale() {
      troubles(wrong, store);
    },
    moves() {
      moves.update(moveRows(store.parts.moves.moves ?? []), (row) => row.i);
      moves.say(store.parts.moves.code === undefined ? "Nothing was moved of late." : store.parts.moves.message);
    },
  };
  const element = h(
    "div",
    {},
    h("h1", {}, "Cluster"),
    h(
      "div",
      { class: "grid" },
      wrong,
      card("Now", "", figures.element),
      h("section", { class: "card" }, nodes.element),
      messages.element,
      cpu.element,
      map.element,
      h("section", { class: "card half" }, rooms.element),
      h("section", { class: "card half" }, links.element),
      h("section", { class: "card" }, moves.element),
    ),
  );
  return {
    title: "Cluster",
    element,
    update: (part) => updates[part]?.(),
    close() {
      messages.close();
      cpu.close();
    },
  };
}

function nodeTable(store) {
  const now = (shown) => (row) => (row.node?.answers ? shown(row.node.now) : NONE);
  const rates = (shown) => (row) => (row.node?.answers && row.node.rates ? shown(row.node.rates) : NONE);
  const column = (head, cell, className = "number") => ({ head, cell, class: className });
  return new Table(
    "Nodes",
    [
      { head: "node", cell: (row) => (row.node?.now.http ? { text: row.name, href: `http://${row.node.now.http}/`, title: "its own console" } : row.name) },
      { head: "state", class: "state", cell: (row) => ({ text: stateOf(row), class: row.mark }) },
      { head: "role", cell: (row) => (row.member?.roles ?? row.node?.now.role ?? []).join(", ") },
      column("hubs led", (row) => count(store.led(row.name))),
      column("connections", now((node) => count(node.counts.connections))),
      column("rooms in memory", now((node) => count(node.counts.rooms))),
      column("published/s", rates((found) => rate(found.published))),
      column("delivered/s", rates((found) => rate(found.delivered))),
      column("in/s", rates((found) => bytes(found.in))),
      column("out/s", rates((found) => bytes(found.out))),
      column("processor", rates((found) => percent(found.cpu))),
      column("memory", now((node) => bytes(node.resident_bytes))),
      column("up for", now((node) => seconds(node.uptime_s))),
      { head: "version", cell: (row) => row.node?.now.version ?? row.member?.version ?? NONE },
    ],
    "No node has answered yet.",
  );
}

/** State of a node; if it does not answer, with the time of its last answer. */
function stateOf({ state, node }) {
  return node && !node.answers ? `${state}, heard last at ${clock(node.at)}` : state;
}

const ROOM_COLUMNS = [
  { head: "room", class: "name", cell: (row) => ({ text: row.name, href: roomHref(row.name), title: row.name }) },
  { head: "messages/s", class: "number", cell: (row) => rate(row.messages_per_second) },
];

const LINK_COLUMNS = [
  { head: "from", cell: (row) => row.from },
  { head: "to", cell: (row) => row.node },
  { head: "up", class: "number", cell: (row) => ({ text: `${row.up} of ${row.links}`, class: row.up === row.links ? "good" : "bad" }) },
  { head: "round trip", class: "number", cell: (row) => (row.round_trip_us === null ? NONE : `${count(row.round_trip_us)} µs`) },
  { head: "heard", class: "number", cell: (row) => (row.heard_ms === null ? "never" : `${count(row.heard_ms)} ms ago`) },
  { head: "why not up", class: "wide", cell: (row) => row.reason ?? "" },
];

function sums(figures, store) {
  const rows = store.rows();
  const all = store.all();
  const total = (pick) => rows.reduce((sum, node) => sum + pick(node), 0);
  const gauge = (name) => total((node) => node.now.counts[name]);
  const second = (name) => total((node) => node.rates?.[name] ?? 0);
  figures.set("nodes up", `${all.filter((node) => node.mark === "good").length} of ${all.length}`);
  figures.set("connections", count(gauge("connections")));
  figures.set("rooms in memory", count(gauge("rooms")));
  figures.set("rooms with a log", count(gauge("rooms_logged")));
  figures.set("published/s", rate(second("published")));
  figures.set("delivered/s", rate(second("delivered")));
  figures.set("in/s", bytes(second("in")));
  figures.set("out/s", bytes(second("out")));
  figures.set("waits for clients", bytes(gauge("output_bytes")));
  figures.set("dropped/s", rate(second("dropped")));
}

function busiest(store) {
  const rates = new Map();
  for (const node of store.rows()) {
    for (const room of node.now.busiest) rates.set(room.name, (rates.get(room.name) ?? 0) + room.messages_per_second);
  }
  const rows = [...rates].map(([name, messages_per_second]) => ({ name, messages_per_second }));
  return rows.sort((a, b) => b.messages_per_second - a.messages_per_second || (a.name < b.name ? -1 : 1)).slice(0, ROOMS);
}

function linkRows(store) {
  return store
    .rows()
    .sort((a, b) => (a.now.name < b.now.name ? -1 : 1))
    .flatMap(({ now }) => now.peers.map((peer) => ({ ...peer, from: now.name, key: `${now.name}\n${peer.node}` })));
}

function troubles(box, store) {
  const said = store.parts.cluster?.wrong ?? [];
  const isSaid = (node) => said.some((line) => line.startsWith(`node ${node.name}: `));
  const found = [
    ...said,
    ...store.all().filter((node) => node.mark === "bad" && !isSaid(node)).map((node) => `node ${node.name}: ${stateOf(node)}`),
    ...store.rows().flatMap((node) => node.now.reasons.map((reason) => `node ${node.now.name}: ${reason}`)),
  ];
  const [title, quiet] = store.isStale
    ? ["Not known now", "This page hears nothing from its node. What stands below is what it heard last."]
    : ["All is well", "No node, hub or link needs to be seen to."];
  const text = [title, ...found].join("\n");
  if (box.dataset.text === text) return;
  box.dataset.text = text;
  box.classList.toggle("wrong", store.isStale || found.length > 0);
  box.replaceChildren(
    h("h2", {}, found.length && !store.isStale ? "What is wrong" : title),
    ...(store.isStale || !found.length ? [h("p", { class: "quiet" }, quiet)] : []),
    ...(found.length ? [h("ul", {}, ...found.map((line) => h("li", {}, visible(line))))] : []),
  );
}
