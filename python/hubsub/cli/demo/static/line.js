// A line to one room over whichever node answers, the real phoenix client below. It owns what was heard last, and what
// of one's own nobody has heard yet. What it learns it tells; it draws nothing.
//
// - Each attempt to connect is to the next node. A join asks for what is behind the last position that was heard.
// - Nothing is missing in silence: the answer to a join, the order of positions and `phx_gap` each say it.
// - What was said is said again after a connection that died with it, unless it was heard; by its id all hear it once.
import { Presence, Socket } from "./vendor/phoenix.mjs";

const REWIND = 50; // Messages that a page begins with.
const CONNECT_MS = 5_000; // After so long without an answer the next node is tried.
const HEARTBEAT_MS = 5_000; // A node that hangs is noticed after at most two of these.
const SEEN_MAX = 5_000; // Ids that are remembered.
const UNHEARD_MAX = 100; // Messages that wait for a connection.
const POSITION = /^\d+-\d+$/;

export class Line {
  /**
   * @param {{name: string, address: string}[]} nodes `address` as `ws://HOST:PORT`.
   * @param {number} first Index of the node to begin with.
   * @param {string} topic
   * @param {{key: string, meta: object}} me Who this is to the others, and what is told of it.
   * @param {object} hears What is told: `state(word, node, before)`, `said(payload)`, `note(kind, text)`,
   *   `unheard(messages)`, `refused(message, reason)`, `here(metas, others)`: of one member of each key, and how many more
   *   there are that are not listed.
   */
  constructor(nodes, first, topic, me, hears) {
    Object.assign(this, { nodes, topic, me, hears });
    this.turn = first - 1;
    this.last = undefined; // Where what was heard last stands.
    this.left = undefined; // The node that was lost.
    this.isJoined = false;
    this.refusal = undefined; // Why a join was refused, until one is not.
    this.awaits = undefined; // The seq up to which what was missed is on its way.
    this.unheard = new Map();
    this.seen = new Set();
    const line = this;
    class Anywhere extends WebSocket {
      constructor(url, protocols) {
        const { pathname, search } = new URL(url);
        super(`${line.next().address}${pathname}${search}`, protocols);
        const late = setTimeout(() => this.close(), CONNECT_MS);
        this.addEventListener("open", () => clearTimeout(late));
        this.addEventListener("close", () => clearTimeout(late));
      }
    }
    this.socket = new Socket("/socket", {
      transport: Anywhere,
      params: { positions: true },
      heartbeatIntervalMs: HEARTBEAT_MS,
      reconnectAfterMs: (tries) => (tries <= nodes.length ? 20 : 1_000),
      rejoinAfterMs: () => 500,
    });
    this.socket.connect();
    this.open();
  }

  get node() {
    return this.nodes[this.turn % this.nodes.length];
  }

  /** The node of the next attempt. */
  next() {
    this.turn += 1;
    this.hears.state(this.left ? "lost" : "connecting", this.node, this.left);
    return this.node;
  }

  open() {
    const from = () => (this.last ? { after: this.last } : { rewind: REWIND });
    const channel = this.socket.channel(this.topic, () => ({ ...from(), presence: this.me }));
    this.channel = channel;
    const isThis = () => channel === this.channel;
    // Each event of the room, whatever its name: its position is its ref. Anybody may say null.
    channel.onMessage = (event, payload, ref) => {
      if (isThis() && this.isJoined && POSITION.test(ref)) this.hear(event, payload ?? {}, ref);
      return payload;
    };
    // In a room with more members than are listed their number comes behind what changed.
    let others = 0;
    channel.on("presence_state", () => (others = 0));
    const presence = new Presence(channel);
    const tell = () => isThis() && this.hears.here(presence.list((_, { metas }) => metas[0]), others);
    presence.onSync(tell);
    channel.on("presence_count", ({ count }) => {
      const listed = presence.list((_, { metas }) => metas.length).reduce((sum, of) => sum + of, 0);
      others = Math.max(0, count - listed);
      tell();
    });
    channel.on("phx_gap", ({ from, to }) => isThis() && this.lack(from, to));
    channel.onError(() => isThis() && this.lose());
    channel
      .join()
      .receive("ok", (reply) => isThis() && this.joined(reply))
      .receive("error", ({ reason }) => isThis() && this.refused(reason));
  }

  lose() {
    if (this.isJoined) this.left = this.node;
    this.isJoined = false;
  }

  /** The join is refused, and tried again: that is told once. */
  refused(reason) {
    if (reason !== this.refusal) this.hears.note("bad", `The room refuses: ${reason}`);
    this.refusal = reason;
  }

  joined({ position, recovered }) {
    this.refusal = undefined;
    const [epoch, seq] = parts(position);
    const [lastEpoch, lastSeq] = this.last ? parts(this.last) : [];
    this.awaits = undefined;
    if (this.last && !recovered && epoch !== lastEpoch) {
      this.note("bad", "The room lost its memory with the node that had it. What was said last there, if anything, is gone.");
      // What was said in the new life is asked for anew.
      this.last = undefined;
      this.channel.leave();
      this.open();
      return;
    }
    if (this.last && recovered) {
      const missed = seq - lastSeq;
      this.note("good", missed ? `${messages(missed)} meanwhile, and all of them are here.` : "Nothing was said meanwhile.");
      if (missed) this.awaits = seq;
    } else if (this.last) {
      this.note("bad", "The room's history does not reach back so far.");
    }
    this.isJoined = true;
    this.left = undefined;
    this.hears.state("on", this.node);
    for (const message of this.unheard.values()) message.isPushed = false;
    this.flush();
  }

  /** Says what came of a lost node, before what is known of the gap. */
  note(kind, text) {
    this.hears.note(kind, this.left ? `Lost ${this.left.name}, on ${this.node.name} now. ${text}` : text);
  }

  hear(event, payload, position) {
    const [epoch, seq] = parts(position);
    const [lastEpoch, lastSeq] = this.last ? parts(this.last) : [];
    if (epoch === lastEpoch) {
      if (seq <= lastSeq) return;
      if (seq > lastSeq + 1) this.hears.note("bad", `${messages(seq - lastSeq - 1)} here that you will not get.`);
    } else if (this.last) {
      this.hears.note("bad", "The room began anew. What was said before, if anything, is gone.");
    }
    this.last = position;
    if (event === "message" && !this.isKnown(payload.id)) this.hears.said(payload);
    if (this.awaits !== undefined && seq >= this.awaits) {
      this.awaits = undefined;
      this.flush();
    }
  }

  /** Whether it was heard before. One's own is not unheard any more. */
  isKnown(id) {
    if (typeof id !== "string") return false;
    if (this.unheard.delete(id)) this.hears.unheard([...this.unheard.values()]);
    if (this.seen.has(id)) return true;
    this.seen.add(id);
    if (this.seen.size > SEEN_MAX) this.seen.delete(this.seen.values().next().value);
    return false;
  }

  /** Records that will not come: all from one position to the other, or to the end of the room's life. */
  lack(from, to) {
    const [, first] = parts(from);
    const [, last] = parts(to);
    if (last) {
      this.hears.note("bad", `${messages(last - first + 1)} here that you will not get.`);
      this.last = to;
    } else {
      this.hears.note("bad", "The room's node died, and its memory with it. What was said last there, if anything, is gone.");
      this.last = undefined;
    }
  }

  /**
   * Says something, now or when there is a connection.
   * @param {object} message `id`, a text that nobody else uses, and what else the payload is to have.
   * @returns {boolean} false: too much waits already.
   */
  say(message) {
    if (this.unheard.size >= UNHEARD_MAX) return false;
    this.unheard.set(message.id, { payload: message, isPushed: false });
    this.hears.unheard([...this.unheard.values()]);
    this.flush();
    return true;
  }

  /** What is told of this one from now on. */
  rename(meta) {
    this.me.meta = meta;
    if (this.isJoined) this.channel.push("presence_update", meta);
  }

  flush() {
    if (!this.isJoined || this.awaits !== undefined) return;
    for (const message of this.unheard.values()) {
      if (message.isPushed) continue;
      message.isPushed = true;
      this.channel.push("message", message.payload).receive("error", ({ reason }) => {
        if (!this.unheard.delete(message.payload.id)) return;
        this.hears.unheard([...this.unheard.values()]);
        this.hears.refused(message.payload, reason);
      });
    }
  }
}

/** Epoch, as text, and seq of a position. */
function parts(position) {
  const [epoch, seq] = position.split("-");
  return [epoch, Number(seq)];
}

function messages(count) {
  return count === 1 ? "1 message was said" : `${count} messages were said`;
}
