// The real phoenix client against a node. Reads commands from stdin, a line of JSON each, and prints what comes of them
// and what it sees, a line of JSON each; test_phoenix_live.py says what to do and judges it.
import { createInterface } from "node:readline";
import { LongPoll, Presence, Socket } from "phoenix";
import WebSocket from "ws";

const print = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const plain = (payload) => (payload instanceof ArrayBuffer ? { hex: Buffer.from(payload).toString("hex") } : payload);
const channels = {};
const last = {};
let socket;

const commands = {
  connect({ url, params, polls }) {
    socket = new Socket(url, { transport: polls ? LongPoll : WebSocket, params, reconnectAfterMs: () => 20, rejoinAfterMs: () => 20 });
    socket.onOpen(() => print({ open: true }));
    socket.connect();
  },
  join({ topic, params, resume, watches }) {
    const channel = socket.channel(topic, () => (resume && last[topic] ? { after: last[topic] } : params ?? {}));
    channels[topic] = channel;
    // Each event, whatever its name; lifecycle events and replies are told in their own words.
    const onMessage = channel.onMessage.bind(channel);
    channel.onMessage = (event, payload, ref, joinRef) => {
      if (!event.startsWith("chan_reply") && !["phx_reply", "phx_close", "phx_error"].includes(event)) {
        if (ref) last[topic] = ref;
        print({ topic, event, payload: plain(payload) });
      }
      return onMessage(event, payload, ref, joinRef);
    };
    if (watches) commands.watch({ topic });
    channel.onError((reason) => print({ topic, error: reason ?? null }));
    channel.onClose(() => print({ topic, closed: true }));
    const push = channel.join();
    for (const status of ["ok", "error", "timeout"]) push.receive(status, (response) => print({ topic, joined: status, response }));
  },
  push({ topic, event, payload, hex }) {
    const body = hex === undefined ? payload : Uint8Array.from(Buffer.from(hex, "hex")).buffer;
    const push = channels[topic].push(event, body);
    for (const status of ["ok", "error", "timeout"]) push.receive(status, (response) => print({ topic, answer: status, response }));
  },
  // As a load balancer would: where it connects next.
  move({ url }) {
    socket.endPoint = `${url}/websocket`; // by which a long poll finds its own
  },
  // Who the library says is there, each time that it says so.
  watch({ topic }) {
    const presence = new Presence(channels[topic]);
    presence.onSync(() => print({ topic, there: presence.list((key, { metas }) => [key, metas.map(({ phx_ref, phx_ref_prev, ...meta }) => meta)]) }));
    presence.onJoin((key, before) => print({ topic, came: key, isNew: !before }));
    presence.onLeave((key, { metas }) => print({ topic, went: key, isLast: metas.length === 0 }));
  },
  leave({ topic }) {
    channels[topic].leave();
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { does, ...how } = JSON.parse(line);
  commands[does](how);
}
process.exit(0);
