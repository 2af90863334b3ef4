// Asks the API again and again while a page is shown.

/** The answer of a path: its JSON, also where it is an error; null where there is none. */
export async function ask(path) {
  try {
    const answer = await fetch(path, { headers: { accept: "application/json" } });
    return await answer.json();
  } catch {
    return null; // That this node is not heard is said above all pages.
  }
}

export class Repeat {
  /** Does work now and then after each pause, until `stop`. */
  constructor(work, pauseMs) {
    this.work = work;
    this.pauseMs = pauseMs;
    this.again();
  }

  async again() {
    clearTimeout(this.timer);
    const turn = (this.turn = {});
    try {
      await this.work();
    } finally {
      if (this.turn === turn && !this.isStopped) this.timer = setTimeout(() => this.again(), this.pauseMs);
    }
  }

  stop() {
    this.isStopped = true;
    clearTimeout(this.timer);
  }
}
