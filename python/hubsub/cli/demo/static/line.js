// A connection to one room through any node, based on the real phoenix client. It owns the last received position and
// the user's unconfirmed messages. It reports events by callbacks; it draws nothing.
//
// - Each attempt to connect uses the next node. A join requests the records after the last received position.
// - No gap is silent: the reply to a join, the order of positions and `phx_gap` each reveal it.
// - An unconfirmed message is sent again after a lost connection; its id removes duplicates at the receivers.
import { Presence, Socket } from "./vendor/phoenix.mjs";

const REWIND = 50; // Messages shown at the start.
const CONNECT_MS = 5_000; // Connection timeout; then the next node is tried.
const HEARTBEAT_MS = 5_000; // A hanging node is detected after at most two of these.
const SEEN_MAX = 5_000; // Limit of stored ids.
const UNHEARD_MAX = 100; // Limit of unconfirmed messages.
const POSITION = /^\d+-\d+$/;

export class Line {
  /**
   * @param {{name: string, address: string}[]} nodes `address` as `ws://HOST:PORT`.
   * @param {number} first Index of the first node to try.
   * @param {string} topic
   * @param {{key: string, meta: object}} me This member's presence key and metadata.
   * @param {object} hears Callbacks: `state(word, node, before)`, `said(payload)`, `note(kind, text)`,
   *   `unheard(messages)`, `refused(message, reason)`, `here(metas, others)`: metadata of one member per key, and the
   *   number of members that are not listed.
   */
  constructor(nodes, first, topic, me, hears) {
    Object.assign(this, { nodes, topic, me, hears });
    this.turn = first - 1;
    this.last = undefined; // Position of the last received record.
    this.left = undefined; // The lost node.
    this.isJoined = false;
    this.refusal = undefined; // Reason of the last refused join, until a join succeeds.
    this.awaits = undefined; // The seq up to which missed records are still to come.
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

  /** Advances to the node of the next attempt. */
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
    // Each event of the room, whatever its name: its ref is its position. A payload may be null.
    channel.onMessage = (event, payload, ref) => {
      if (isThis() && this.isJoined && POSITION.test(ref)) this.hear(event, payload ?? {}, ref);
      return payload;
    };
    // In a room with more members than are listed, their number follows each change.
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

  /** A refused join is retried and reported once per reason. */
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
      // Request the records of the new epoch.
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

  /** Reports a lost node, followed by the state of the gap. */
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

  /** Whether the message was received before. Confirms the user's own messages. */
  isKnown(id) {
    if (typeof id !== "string") return false;
    if (this.unheard.delete(id)) this.hears.unheard([...this.unheard.values()]);
    if (this.seen.has(id)) return true;
    this.seen.add(id);
    if (this.seen.size > SEEN_MAX) this.seen.delete(this.seen.values().next().value);
    return false;
  }

  /** Lost records: all from one position to the other, or to the end of the room's epoch. */
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
   * Sends a message, now or when connected.
   * @param {object} message The payload, with a unique `id`.
   * @returns {boolean} false: too many messages wait.
   */
  say(message) {
    if (this.unheard.size >= UNHEARD_MAX) return false;
    this.unheard.set(message.id, { payload: message, isPushed: false });
    this.hears.unheard([...this.unheard.values()]);
    this.flush();
    return true;
  }

  /** Changes this member's metadata. */
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

/** Splits a position into epoch, as text, and seq. */
function parts(position) {
  const [epoch, seq] = position.split("-");
  return [epoch, Number(seq)];
}

function messages(count) {
  return count === 1 ? "1 message was said" : `${count} messages were said`;
}
