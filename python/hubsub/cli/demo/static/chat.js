// The chat: gets the lists of rooms and nodes from its own server, then connects to the nodes only.
//
// `?room=`, `?name=` and `?node=` set the initial values; the browser stores the name.
import { Line } from "./line.js";
import { View } from "./view.js";

const KEY = "hubsub-chat-name";

const asked = new URLSearchParams(location.search);
const view = new View();

function named() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // The browser blocks storage.
  }
}

function remember(name) {
  try {
    localStorage.setItem(KEY, name);
  } catch {
    // Without storage the name applies to this page only.
  }
}

/** A unique random text. */
function token() {
  const numbers = crypto.getRandomValues(new Uint32Array(3));
  return Array.from(numbers, (number) => number.toString(36)).join("");
}

const me = token();
let count = 0;

async function begin() {
  const { rooms, nodes } = await (await fetch("/demo.json")).json();
  const room = asked.get("room") || rooms[0];
  view.name.value = (asked.get("name") ?? named() ?? `guest ${1 + Math.floor(Math.random() * 99)}`).slice(0, 32);
  view.showRooms(rooms.includes(room) ? rooms : [...rooms, room], room);
  const wanted = nodes.findIndex((node) => node.name === asked.get("node"));
  const first = wanted >= 0 ? wanted : Math.floor(Math.random() * nodes.length);
  const line = new Line(nodes, first, `chat:${room}`, { key: me, meta: { name: view.name.value } }, {
    state: (word, node, before) => view.showState(word, node, before),
    said: (payload) => view.showSaid(payload, typeof payload.id === "string" && payload.id.startsWith(`${me}-`)),
    note: (kind, text) => view.showNote(kind, text),
    here: (metas, others) => view.showHere(metas, others),
    unheard: (messages) => view.showUnheard(messages.map(({ payload }) => payload)),
    refused: (payload, reason) => view.showNote("bad", `“${payload.text}” was refused: ${reason}`),
  });
  view.name.addEventListener("change", () => {
    remember(view.name.value);
    line.rename({ name: view.name.value });
  });
  view.onSay = (name, text) => {
    count += 1;
    return line.say({ id: `${me}-${count}`, name, kind: "message", text, at: Date.now() });
  };
}

begin().catch((error) => view.showNote("bad", `The page cannot begin: ${error.message}`));
