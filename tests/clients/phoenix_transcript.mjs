// The real phoenix client over a transport that is a transcript (crates/hubsub-wire/tests/phoenix/transcript.json):
// what the client sends, step by step, and what a server says to it. Prints one JSON object of what the client sent and
// saw; test_phoenix_client.py judges it, and the codec's tests play the same transcript to the server's side.
import { readFileSync } from "node:fs";
import { Socket } from "phoenix";

const { steps } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const seen = { sent: [], messages: [], errors: [], closed: [] };
const hex = (buffer) => Buffer.from(buffer).toString("hex");

let transport;
/** What a client's step makes a server say, up to the client's next. */
const answer = () => {
  for (let step = steps[0]; step && !("client" in step); step = steps[0]) {
    steps.shift();
    const line = step.server;
    if (line === undefined) continue;
    const data = line.startsWith("hex ") ? Uint8Array.from(Buffer.from(line.slice(4), "hex")).buffer : line;
    transport.onmessage({ data });
  }
};

class Transcript {
  constructor(url, protocols) {
    Object.assign(seen, { url, protocols });
    this.readyState = 0;
    this.bufferedAmount = 0;
    transport = this;
    queueMicrotask(() => {
      this.readyState = 1;
      this.onopen();
    });
  }
  send(data) {
    const line = typeof data === "string" ? data : `hex ${hex(data)}`;
    seen.sent.push(line);
    if (steps.shift()?.client !== line) throw new Error(`not in the transcript: ${line}`);
    // As a network would: behind what sends it.
    setImmediate(answer);
  }
  close() {
    this.readyState = 3;
    this.onclose({ code: 1000, reason: "", wasClean: true });
  }
}

/** How a push is answered. */
const reply = (push) =>
  new Promise((resolve) => {
    for (const status of ["ok", "error", "timeout"]) push.receive(status, (response) => resolve([status, response]));
  });
const plain = (payload) => (payload instanceof ArrayBuffer ? { hex: hex(payload) } : payload);

const socket = new Socket("ws://localhost:4000/socket", {
  transport: Transcript,
  params: { room: "a b" },
  authToken: "secret",
  rejoinAfterMs: () => 1,
});
await new Promise((resolve) => {
  socket.onOpen(resolve);
  socket.connect();
});

const matrix = socket.channel("topics:matrix");
for (const event of ["event", "typing", "bytes", "again", "ünï \"quoted\""]) matrix.on(event, (payload) => seen.messages.push([event, plain(payload)]));
matrix.onError((reason) => seen.errors.push(reason));
matrix.onClose(() => seen.closed.push("topics:matrix"));
seen.joined = await reply(matrix.join());
seen.published = await reply(matrix.push("publish", ["event", { message: "Hi" }]));
seen.typed = await reply(matrix.push("typing", { who: "neo", deep: [1, null, { "😀": "\u2028\n" }] }));
seen.quoted = await reply(matrix.push("ünï \"quoted\"", {}));
seen.bytes = await reply(matrix.push("bytes", Uint8Array.from([0, 255, 34]).buffer));
seen.reserved = await reply(matrix.push("phx_close", {}));
socket.sendHeartbeat();
await new Promise((resolve) => {
  const wait = () => (socket.pendingHeartbeatRef === null ? resolve() : setImmediate(wait));
  wait();
});

const other = socket.channel("other:room", { token: "x" });
seen.unmatched = await reply(other.join());
await reply(other.leave());
// A channel that has not joined counts as left at once; the server's answer comes behind that.
await new Promise(setImmediate);

// The server loses the room behind this; the client joins again by itself, and then sends what was pushed meanwhile.
seen.last = await reply(matrix.push("last", {}));
seen.again = await reply(matrix.push("again", { n: 2 }));

seen.left = await reply(matrix.leave());
await new Promise(setImmediate);
seen.channels = socket.channels.length;
seen.stepsLeft = steps;
console.log(JSON.stringify(seen));
process.exit(0);
