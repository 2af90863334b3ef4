// The map of hubs: a cell per hub, in the colour and with the mark of its leader. Hover and focus show its details
// below. Each class is one tab stop; arrow keys move between hubs.

import { card, h, setText } from "./dom.js";

export class HubMap {
  constructor(store) {
    this.store = store;
    this.legend = h("ul", { class: "legend" });
    this.classes = h("div");
    this.own = h("input", { type: "checkbox", onchange: () => this.update() });
    const own = h("label", { class: "switch" }, this.own, "also those of the cluster's own classes ($…)");
    this.told = h("p", { class: "told", role: "status" }, "Point at a hub, or go to one, for its leader and term.");
    this.element = card("Hubs and their leaders", "", this.legend, this.classes, this.told, own);
    this.cells = new Map();
    this.key = "";
  }

  update() {
    const all = this.store.parts.hubs?.hubs ?? [];
    this.element.hidden = all.length === 0;
    const hubs = this.own.checked ? all : all.filter((hub) => !hub.class.startsWith("$"));
    const names = this.store.all().map((node) => node.name);
    const marks = marksOf(names);
    const key = hubs.map((hub) => `${hub.class}-${hub.index}`).join("\n");
    if (key !== this.key) this.make(hubs);
    this.key = key;
    const led = new Map();
    for (const hub of all) led.set(hub.leader, (led.get(hub.leader) ?? 0) + 1);
    for (const hub of hubs) this.show(hub, names, marks);
    this.count(names, marks, led);
  }

  make(hubs) {
    const groups = Map.groupBy(hubs, (hub) => hub.class);
    this.cells.clear();
    const parts = [...groups].map(([name, group]) => {
      const cells = group
        .toSorted((a, b) => a.index - b.index)
        .map((hub, i) => {
          const cell = h("button", { type: "button", class: "hub", tabindex: i === 0 ? "0" : "-1" });
          this.cells.set(hub.hub, cell);
          return cell;
        });
      const box = h("div", { class: "map", role: "group", "aria-label": `Hubs of class ${name}`, onkeydown: walk }, ...cells);
      return [h("h3", { class: "map-title" }, `${name}, ${cells.length}`), box];
    });
    this.classes.replaceChildren(...parts.flat());
  }

  show(hub, names, marks) {
    const cell = this.cells.get(hub.hub);
    const place = names.indexOf(hub.leader);
    const leader = this.store.nodes.get(hub.leader);
    const isAway = leader !== undefined && !leader.answers;
    const moving = hub.proposed === null ? "" : `, is to go to ${hub.proposed}`;
    const away = isAway ? ", which does not answer" : "";
    const term = hub.term === null ? "" : `, term ${hub.term}`;
    const text = `${hub.class}-${hub.index} (hub ${hub.hub}): leader ${hub.leader}${away}${term}, members ${hub.members.join(", ")}${moving}`;
    const className = `hub series-${(place < 0 ? 0 : place) % 8}${isAway ? " away" : ""}`;
    if (cell.className !== className) cell.className = className;
    setText(cell, marks[place] ?? "?");
    if (cell.getAttribute("aria-label") === text) return;
    cell.setAttribute("aria-label", text);
    cell.onmouseenter = cell.onfocus = () => setText(this.told, text);
    if (document.activeElement === cell) setText(this.told, text);
  }

  count(names, marks, led) {
    const items = names.map((name, i) => {
      return h("li", { class: `series-${i % 8}` }, h("i", { class: "mark" }, marks[i]), `${name} `, h("b", {}, `leads ${led.get(name) ?? 0}`));
    });
    if (items.map((item) => item.textContent).join() !== this.legend.dataset.text) {
      this.legend.dataset.text = items.map((item) => item.textContent).join();
      this.legend.replaceChildren(...items);
    }
  }
}

/** One distinguishing character per node: the first in which their names differ, else the last, else numbers. */
function marksOf(names) {
  const all = names.map((name) => [...name.toUpperCase()]);
  const isShared = (i) => all.length > 1 && all.every((one) => one[i] !== undefined && one[i] === all[0][i]);
  let first = 0;
  while (isShared(first)) first += 1;
  const found = [all.map((one) => one[first]), all.map((one) => one.at(-1))];
  const areOwn = (marks) => !marks.includes(undefined) && new Set(marks).size === marks.length;
  return found.find(areOwn) ?? names.map((_, i) => String(i + 1));
}

function walk(event) {
  const cells = [...event.currentTarget.children];
  const here = cells.indexOf(document.activeElement);
  const columns = cells.filter((cell) => cell.offsetTop === cells[0].offsetTop).length;
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -here, End: cells.length - 1 - here };
  const next = cells[here + steps[event.key]];
  if (here < 0 || !next) return;
  event.preventDefault();
  cells[here].tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
