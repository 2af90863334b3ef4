// Polls the API while a page is shown.

/** The JSON response of a path, also for an error; null without a response. */
export async function ask(path) {
  try {
    const answer = await fetch(path, { headers: { accept: "application/json" } });
    return await answer.json();
  } catch {
    return null; // The page header shows that the node does not answer.
  }
}

export class Repeat {
  /** Runs `work` now and again after each pause, until `stop`. */
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
