// The event stream of the node that serves this page. It reconnects by itself, and shows when it was last received.

import { clock } from "./format.js";
import { setText } from "./dom.js";

const STALE_MS = 3000;
const AGAIN_MS = 2000;
const PARTS = ["nodes", "cluster", "hubs", "moves", "queries", "tail"];

export class Source {
  /**
   * @param {function(string, *): void} onPart Called with each received part.
   * @param {function(): void} onStale Called when `isStale` changes.
   */
  constructor(onPart, onStale) {
    this.onPart = onPart;
    this.onStale = onStale;
    this.isStale = false;
    this.room = null;
    this.heard = document.getElementById("heard");
    this.heardAt = null;
    this.openedAt = Date.now();
    setInterval(() => this.look(), 500);
  }

  /** Subscribes to the cluster, and to a room if one is named. */
  open(room = null) {
    this.room = room;
    this.close();
    const query = room === null ? "" : `?room=${encodeURIComponent(room)}`;
    const stream = new EventSource(`/v1/console/events${query}`);
    this.stream = stream;
    for (const part of PARTS) {
      stream.addEventListener(part, (event) => {
        if (this.stream !== stream) return;
        this.heardAt = Date.now();
        this.onPart(part, JSON.parse(event.data));
        this.look();
      });
    }
    // The browser retries a broken stream, but not a refused one.
    stream.addEventListener("error", () => {
      if (this.stream === stream && stream.readyState === EventSource.CLOSED) {
        this.again = setTimeout(() => this.open(this.room), AGAIN_MS);
      }
    });
  }

  close() {
    clearTimeout(this.again);
    this.stream?.close();
  }

  /** Updates whether the displayed data is stale. */
  look() {
    const wasStale = this.isStale;
    this.isStale = Date.now() - (this.heardAt ?? this.openedAt) > STALE_MS;
    document.body.classList.toggle("stale", this.isStale);
    if (this.isStale !== wasStale) this.onStale();
    if (this.isStale) setText(this.heard, this.heardAt === null ? "not heard yet" : `stale since ${clock(this.heardAt)}`);
    else setText(this.heard, this.heardAt === null ? "connecting" : "live");
  }
}
