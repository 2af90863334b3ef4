// The console: one page, whose URL fragment selects the view. `source` receives the data, `store` holds it.

import { Source } from "./source.js";
import { Store } from "./store.js";
import { clusterPage } from "./pages/cluster.js";
import { clientsPage } from "./pages/clients.js";
import { devicesPage } from "./pages/devices.js";
import { roomPage } from "./pages/room.js";
import { roomsPage } from "./pages/rooms.js";
import { sparkPage } from "./pages/spark.js";

// Each creates {title, element, update(part), close()} from the store; the room's also gets its name.
const PAGES = { "": clusterPage, rooms: roomsPage, room: roomPage, clients: clientsPage, devices: devicesPage, spark: sparkPage };

const main = document.getElementById("main");
const store = new Store();
let page = null;
const source = new Source(
  (part, body) => {
    store.take(part, body);
    page?.update?.(part);
  },
  () => {
    store.isStale = source.isStale;
    page?.update?.("stale");
  },
);

function show(event) {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const isRoom = name === "room" || (name === "rooms" && rest.length > 0);
  const argument = isRoom ? decoded(rest.join("/")) : null;
  const kind = isRoom ? "room" : Object.hasOwn(PAGES, name) ? name : "";
  page?.close?.();
  page = PAGES[kind](store, argument);
  document.title = `${page.title} · HubSub`;
  main.replaceChildren(page.element);
  mark(kind === "room" ? "rooms" : kind);
  if (kind === "room" || source.room !== null || !source.stream) source.open(argument);
  for (const part of Object.keys(store.parts)) if (part !== "tail") page.update?.(part);
  // After a link, screen readers continue at the top of the new view; after loading, at the start of the page.
  if (event) main.focus();
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function mark(name) {
  for (const link of document.querySelectorAll("#pages a")) {
    if (link.getAttribute("href") === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

// The URL fragment selects the view, so the skip link moves the focus by script.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", show);
show();
