// The real phoenix client against a node. Reads commands from stdin and prints their results and received
// messages, each a line of JSON; test_phoenix_live.py sends the commands and checks the output.
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
    // Every event by any name, except lifecycle events and replies, which are printed in their own form.
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
  // Changes the address of the next connection, as a load balancer would.
  move({ url }) {
    socket.endPoint = `${url}/websocket`; // a long poll derives its own from it
  },
  // Prints the library's list of members whenever it changes.
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
