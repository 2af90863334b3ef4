// The view. Messages become text, never markup: no code here sets HTML.
const SAID_MAX = 500; // Limit of displayed rows.
const NEAR_PX = 48; // The view follows new rows within this distance of the end.
const HERE_MAX = 100; // Limit of listed names.
const HUES = 8;
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });

/** Creates an element with a class and children. */
function h(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

/** Converts any received value to text of a bounded length. */
function text(value, most, otherwise) {
  const found = typeof value === "string" ? value : value === undefined ? otherwise : JSON.stringify(value);
  return found.length > most ? `${found.slice(0, most)}…` : found;
}

/** A colour that depends only on the name. */
function hue(name) {
  let sum = 0;
  for (const unit of name) sum = (sum * 31 + unit.codePointAt(0)) % 9_973;
  return `hue-${sum % HUES}`;
}

/** The first character of a name, as a whole code point. */
function initial(name) {
  return [...name.trim()][0]?.toUpperCase() ?? "?";
}

export class View {
  constructor() {
    const by = (id) => document.getElementById(id);
    this.name = by("name");
    this.text = by("text");
    this.log = by("log");
    this.said = by("said");
    this.unheard = by("unheard");
    this.newer = by("newer");
    this.state = by("state");
    this.rooms = by("rooms");
    this.here = by("here");
    this.crowd = by("crowd");
    this.missed = 0;
    this.onSay = () => false;
    by("say").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.newer.addEventListener("click", () => this.toEnd());
    this.crowd.addEventListener("click", () => this.openHere(this.crowd.ariaExpanded !== "true"));
    document.addEventListener("keydown", ({ key }) => key === "Escape" && this.openHere(false));
    this.log.addEventListener("scroll", () => this.isAtEnd() && this.countNewer(0));
    // The keyboard of a phone takes half of the page: keep the end visible.
    new ResizeObserver(() => this.missed === 0 && this.toEnd()).observe(this.log);
  }

  send() {
    const said = this.text.value.trim();
    const name = this.name.value.trim() || "somebody";
    if (!said) return;
    if (this.onSay(name, said)) {
      this.text.value = "";
      this.toEnd();
    } else {
      this.showNote("bad", "Too much is not said yet: wait until there is a connection.");
    }
    this.text.focus();
  }

  showRooms(rooms, room) {
    document.title = `${room} – HubSub chat`;
    const links = rooms.map((name) => {
      const link = h("a", "", name);
      const query = new URLSearchParams(location.search);
      query.set("room", name);
      link.href = `/?${query}`;
      if (name === room) link.setAttribute("aria-current", "page");
      return link;
    });
    this.rooms.replaceChildren(...links);
  }

  showState(word, node, before) {
    const words = {
      connecting: `connecting to ${node.name}`,
      on: `on ${node.name}`,
      lost: `lost ${before?.name}, trying ${node.name}`,
    };
    this.state.dataset.state = word;
    this.state.dataset.node = node.name;
    const shown = this.state.querySelector("span");
    if (shown.textContent !== words[word]) shown.textContent = words[word];
  }

  showSaid(payload, isMine) {
    const name = text(payload.name, 32, "somebody");
    const said = text(payload.text ?? payload.data, 2_000, JSON.stringify(payload));
    const about = new Map([["join", "came in"], ["leave", "left"], ["action", said]]).get(payload.kind);
    if (about !== undefined) {
      this.add(h("li", "about", h("bdi", "", name), ` ${about}`));
      return;
    }
    const at = new Date(Number.isFinite(payload.at) ? payload.at : Date.now());
    const time = h("time", "", Number.isNaN(at.getTime()) ? "" : CLOCK.format(at));
    const head = h("p", "head", h("bdi", "", name), time);
    const body = h("p", "text", said);
    body.dir = "auto";
    const row = h("li", isMine ? "said mine" : "said", h("span", `face ${hue(name)}`, initial(name)), h("div", "bubble", head, body));
    row.firstChild.setAttribute("aria-hidden", "true");
    const before = this.said.lastElementChild;
    if (before?.dataset.name === name && before.classList.contains("mine") === isMine) row.classList.add("again");
    row.dataset.name = name;
    this.add(row);
  }

  /** On a narrow page the member list replaces the messages while it is open. */
  openHere(isOpen) {
    this.crowd.ariaExpanded = String(isOpen);
    document.body.classList.toggle("crowded", isOpen);
  }

  /** Shows the members by name, and the number of others. */
  showHere(metas, others) {
    const names = metas.map((meta) => text(meta?.name, 32, "somebody")).sort((a, b) => a.localeCompare(b));
    const rows = names.slice(0, HERE_MAX).map((name) => h("li", "", h("bdi", "", name)));
    const more = names.length - Math.min(names.length, HERE_MAX) + others;
    if (more > 0) rows.push(h("li", "", `and ${more} more`));
    this.crowd.textContent = `${names.length + others} here`;
    this.here.querySelector("ul").replaceChildren(...rows);
  }

  showNote(kind, words) {
    this.add(h("li", `note ${kind}`, words));
  }

  showUnheard(payloads) {
    const rows = payloads.map((payload) => h("li", "said mine", h("div", "bubble", h("p", "text", payload.text))));
    this.unheard.replaceChildren(...rows);
    if (this.missed === 0) this.toEnd();
  }

  /** Adds a row, and scrolls to it if the end is visible. */
  add(row) {
    const follows = this.isAtEnd() && this.missed === 0;
    this.said.append(row);
    while (this.said.childElementCount > SAID_MAX) this.said.firstElementChild.remove();
    if (follows) this.toEnd();
    else this.countNewer(this.missed + 1);
  }

  isAtEnd() {
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < NEAR_PX;
  }

  toEnd() {
    this.log.scrollTop = this.log.scrollHeight;
    this.countNewer(0);
  }

  countNewer(count) {
    this.missed = count;
    this.newer.hidden = count === 0;
    this.newer.textContent = `${count} newer ↓`;
  }
}
