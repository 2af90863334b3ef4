// The serializer of the real phoenix client. Takes the file of vectors that the codec's tests read
// (crates/hubsub-wire/tests/phoenix/vectors.json) and prints it as the client encodes and decodes it: the
// encoded messages of "client", and the decoded wires of "server". test_phoenix_client.py checks that nothing
// changes.
import { readFileSync } from "node:fs";
import { Serializer } from "phoenix";

const { client, server } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const hex = (buffer) => Buffer.from(buffer).toString("hex");
const bytes = (text) => Uint8Array.from(Buffer.from(text, "hex")).buffer;

/** A vector writes bytes as {"hex": …}. */
const shown = (value) => (value instanceof ArrayBuffer ? { hex: hex(value) } : value);
const meant = (value) => (typeof value?.hex === "string" ? bytes(value.hex) : value);

const encode = ({ message }) => {
  let wire;
  Serializer.encode({ ...message, payload: meant(message.payload) }, (done) => (wire = done));
  return { message, wire: typeof wire === "string" ? wire : `hex ${hex(wire)}` };
};

const decode = ({ wire }) => {
  let message;
  Serializer.decode(wire.startsWith("hex ") ? bytes(wire.slice(4)) : wire, (done) => (message = done));
  if (message.payload instanceof ArrayBuffer) message.payload = shown(message.payload);
  else if (message.event === "phx_reply") message.payload.response = shown(message.payload.response);
  return { wire, message };
};

console.log(JSON.stringify({ client: client.map(encode), server: server.map(decode) }));
