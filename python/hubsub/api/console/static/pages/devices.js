// Devices: their connections, and the rooms of their states.

import { ask, Repeat } from "../ask.js";
import { h } from "../dom.js";
import { ago, count, NONE, roomHref, seconds } from "../format.js";
import { Table } from "../table.js";

const LIMIT = 100;
const PAUSE_MS = 3000;

export function devicesPage() {
  const prefix = h("input", { type: "search", name: "prefix", autocomplete: "off" });
  const devices = new Table("Devices in order of name", COLUMNS, "No device has sent its state.");
  const more = h("p", { class: "quiet", role: "status" });
  const repeat = new Repeat(async () => {
    // Without a class that defines devices there is nothing to request.
    const known = await ask("/v1/classes");
    if (known?.classes && !known.classes.some((one) => one.device !== null)) {
      devices.say("No class has devices: give one a template, such as device = \"devices/{device}/#\".");
      return;
    }
    const query = new URLSearchParams({ limit: LIMIT, times: true, ...(prefix.value ? { prefix: prefix.value } : {}) });
    const page = await ask(`/v1/devices?${query}`);
    if (page?.devices) {
      devices.update(page.devices, (device) => device.room);
      more.textContent = page.next === null ? "" : `The first ${count(page.devices.length)}; narrow it down for others.`;
    } else if (page) devices.say([page.message, page.hint].filter(Boolean).join("; "));
  }, PAUSE_MS);
  const search = (event) => {
    event.preventDefault();
    repeat.again();
  };
  const element = h(
    "div",
    {},
    h("h1", {}, "Devices"),
    h("form", { onsubmit: search }, h("label", {}, "Names that begin with", prefix), h("button", {}, "Search")),
    h("section", { class: "card" }, devices.element, more),
  );
  return { title: "Devices", element, close: () => repeat.stop() };
}

const COLUMNS = [
  { head: "device", class: "name", cell: (row) => ({ text: row.id, title: row.id }) },
  {
    head: "connected",
    cell: (row) =>
      row.connection === null
        ? { text: "no", class: "note" }
        : { text: `to ${row.connection.node}, for ${seconds(row.connection.connected_s)}`, class: "good" },
  },
  { head: "by", cell: (row) => row.connection?.protocol ?? "" },
  { head: "state", class: "name", cell: (row) => ({ text: row.room, href: roomHref(row.room), title: row.room }) },
  { head: "last sent", cell: (row) => (row.sent_us === null ? NONE : { text: ago(row.sent_us / 1000), title: row.position }) },
];
