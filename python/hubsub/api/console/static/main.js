// The console: one page, whose part behind # names what is shown. `source` brings what it shows, `store` keeps it.

import { Source } from "./source.js";
import { Store } from "./store.js";
import { clusterPage } from "./pages/cluster.js";
import { clientsPage } from "./pages/clients.js";
import { devicesPage } from "./pages/devices.js";
import { roomPage } from "./pages/room.js";
import { roomsPage } from "./pages/rooms.js";
import { sparkPage } from "./pages/spark.js";

// Each makes {title, element, update(part), close()} of the store; the room's gets its name.
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
  // Who came by a link hears and reads on from the top of the new page; who opened it, from its beginning.
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

// The place behind # is the page's, so this one goes to the content by hand.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", show);
show();
