// Data of the cluster: the latest version of each part, rates between two samples, and earlier values.

const KEPT = 300; // Samples in the charts: about five minutes.

const RATES = {
  published: "published_total",
  delivered: "delivered_total",
  in: "bytes_in_total",
  out: "bytes_out_total",
  dropped: "dropped_total",
  slow: "slow_closed_total",
};

export class Store {
  constructor() {
    this.parts = {};
    /** No event arrived for so long that the data may be outdated. */
    this.isStale = false;
    /** Nodes by name: their last report, its time, and their rates. */
    this.nodes = new Map();
    /** Seconds since 1970 of the samples; `series` has their values. */
    this.times = [];
    this.series = { published: [], delivered: [] };
    /** CPU share by node, as long as `times`. */
    this.cpu = new Map();
    /** Lag of queries in records, by name, at these times. */
    this.lags = { times: [], of: new Map() };
  }

  take(part, body) {
    this.parts[part] = body;
    if (part === "nodes") this.look(body);
    if (part === "queries") this.follow(body.queries ?? []);
  }

  look(body) {
    for (const now of body.nodes) {
      const before = this.nodes.get(now.name);
      this.nodes.set(now.name, { now, rates: rates(now, before), at: body.at_ms, answers: true });
    }
    const answered = new Set(body.nodes.map((node) => node.name));
    for (const [name, node] of this.nodes) if (!answered.has(name)) node.answers = false;
    const known = this.rows().filter((node) => node.rates !== null);
    const sum = (rate) => (known.length ? known.reduce((all, node) => all + node.rates[rate], 0) : null);
    this.times.push(body.at_ms / 1000);
    for (const [name, values] of Object.entries(this.series)) values.push(sum(name));
    for (const name of this.nodes.keys()) {
      if (!this.cpu.has(name)) this.cpu.set(name, new Array(this.times.length - 1).fill(null));
    }
    for (const [name, values] of this.cpu) values.push(answered.has(name) ? (this.nodes.get(name).rates?.cpu ?? null) : null);
    if (this.times.length > KEPT) {
      for (const values of [this.times, ...Object.values(this.series), ...this.cpu.values()]) values.shift();
    }
  }

  follow(queries) {
    const { times, of } = this.lags;
    times.push(Date.now() / 1000);
    for (const { query } of queries) if (!of.has(query)) of.set(query, new Array(times.length - 1).fill(null));
    for (const [name, values] of of) values.push(queries.find((one) => one.query === name)?.lag ?? null);
    if (times.length > KEPT) for (const values of [times, ...of.values()]) values.shift();
    for (const [name, values] of of) if (values.every((lag) => lag === null)) of.delete(name);
  }

  /** Nodes that currently answer. */
  rows() {
    return [...this.nodes.values()].filter((node) => node.answers);
  }

  /** Number of hubs that a node leads; null if unknown. */
  led(name) {
    const hubs = this.parts.hubs?.hubs;
    return hubs === undefined ? null : hubs.filter((hub) => hub.leader === name).length;
  }

  /** All nodes seen since this page was opened, by name, each with its current state. */
  all() {
    const cluster = this.parts.cluster?.nodes ?? [];
    const members = new Map(cluster.map((member) => [member.name, member]));
    const names = new Set([...this.nodes.keys(), ...members.keys()]);
    return [...names].sort().map((name) => {
      const node = this.nodes.get(name);
      const member = members.get(name);
      return { name, node, member, ...state(node, member) };
    });
  }
}

/** State of a node, and its mark. */
function state(node, member) {
  if (node?.answers) {
    const said = member && member.state !== "up" ? member.state : node.now.state;
    return { state: said, mark: said === "up" ? "good" : "note" };
  }
  if (member) return { state: member.state === "up" ? "no answer" : member.state, mark: "bad" };
  return { state: "gone", mark: "bad" };
}

/** Rates per second between two samples of the same incarnation; null without two. */
function rates(now, before) {
  if (!before || before.now.incarnation !== now.incarnation) return null;
  const elapsed = now.uptime_s - before.now.uptime_s;
  if (elapsed <= 0) return before.rates;
  const found = { cpu: (now.cpu_s - before.now.cpu_s) / elapsed };
  for (const [name, counter] of Object.entries(RATES)) {
    found[name] = Math.max(0, now.counts[counter] - before.now.counts[counter]) / elapsed;
  }
  return found;
}
