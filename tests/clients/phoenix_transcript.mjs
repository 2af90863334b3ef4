// The real phoenix client over a transport that is a transcript
// (crates/hubsub-wire/tests/phoenix/transcript.json), which holds the client's messages, step by step, and
// the server's. Prints the client's messages and observations as one JSON object, which
// test_phoenix_client.py checks; the codec's tests play the same transcript to the server's side.
import { readFileSync } from "node:fs";
import { Socket } from "phoenix";

const { steps } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const seen = { sent: [], messages: [], errors: [], closed: [] };
const hex = (buffer) => Buffer.from(buffer).toString("hex");

let transport;
/** Delivers the server's messages up to the client's next step. */
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
    // As in a network: after the sender has returned.
    setImmediate(answer);
  }
  close() {
    this.readyState = 3;
    this.onclose({ code: 1000, reason: "", wasClean: true });
  }
}

/** The reply to a push. */
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
// The client leaves an unjoined channel at once; the server's reply comes after that.
await new Promise(setImmediate);

// After this, the server loses the room; the client rejoins by itself, and then sends the pushes made
// meanwhile.
seen.last = await reply(matrix.push("last", {}));
seen.again = await reply(matrix.push("again", { n: 2 }));

seen.left = await reply(matrix.leave());
await new Promise(setImmediate);
seen.channels = socket.channels.length;
seen.stepsLeft = steps;
console.log(JSON.stringify(seen));
process.exit(0);
