// socket.io's Redis adapter, unmodified: two servers, each with a browser's client, joined by Redis or a
// Redis cluster. Prints its observations as one JSON object, which test_node_clients.py and
// cluster/test_redis_cluster.py check.
import { createServer } from "node:http";
import { createAdapter, createShardedAdapter } from "@socket.io/redis-adapter";
import Redis, { Cluster } from "ioredis";
import { createClient, createCluster } from "redis";
import { Server } from "socket.io";
import { io } from "socket.io-client";

const [host, port, library, sharded] = process.argv.slice(2);
const seen = {};
const closers = [];

async function connect() {
  if (library === "ioredis") {
    const client = new Redis({ host, port: Number(port) });
    closers.push(() => client.disconnect());
    return client;
  }
  if (library === "ioredis-cluster") {
    const client = new Cluster([{ host, port: Number(port) }], { shardedSubscribers: sharded === "sharded" });
    closers.push(() => client.disconnect());
    await new Promise((resolve) => client.once("ready", resolve));
    return client;
  }
  if (library === "node-redis-cluster") {
    const client = await createCluster({ rootNodes: [{ url: `redis://${host}:${port}` }] }).connect();
    closers.push(() => client.destroy());
    return client;
  }
  const client = await createClient({ socket: { host, port: Number(port) } }).connect();
  closers.push(() => client.destroy());
  return client;
}

async function startServer() {
  const http = createServer();
  const make = sharded === "sharded" ? createShardedAdapter : createAdapter;
  const server = new Server(http, { adapter: make(await connect(), await connect()) });
  server.on("connection", (socket) => socket.on("join", (room, done) => Promise.resolve(socket.join(room)).then(() => done())));
  await new Promise((resolve) => http.listen(0, "127.0.0.1", resolve));
  closers.push(() => server.close());
  const browser = io(`http://127.0.0.1:${http.address().port}`, { transports: ["websocket"] });
  closers.push(() => browser.close());
  await new Promise((resolve) => browser.once("connect", resolve));
  return { server, browser };
}

const a = await startServer();
const b = await startServer();

/** The next `event` that a browser gets. */
const next = (side, event) => new Promise((resolve) => side.browser.once(event, (...args) => resolve(args)));
/** Resolves when server `side` sees `count` servers, so that later requests reach all. */
const allServers = async (side, count) => {
  while ((await side.server.of("/").adapter.serverCount()) !== count);
};
await allServers(a, 2);
await allServers(b, 2);
seen.servers = await a.server.of("/").adapter.serverCount();

const everyone = Promise.all([next(a, "hello"), next(b, "hello")]);
a.server.emit("hello", "all", { deep: [1, 2] }, Buffer.from([0, 255]).toString("hex"));
seen.everyone = await everyone;

await b.browser.emitWithAck("join", "room");
while ((await a.server.in("room").fetchSockets()).length !== 1);
const roomOnly = next(b, "news");
let wrong = false;
a.browser.on("news", () => (wrong = true));
a.server.to("room").emit("news", "for the room");
seen.room = await roomOnly;
seen.sockets = (await a.server.fetchSockets()).length;
seen.socketsInRoom = (await a.server.in("room").fetchSockets()).map((s) => s.id === b.browser.id);

b.server.on("whoami", (argument, answer) => answer(`b heard ${argument}`));
seen.serverSide = await new Promise((resolve, reject) =>
  a.server.serverSideEmit("whoami", "a", (error, answers) => (error ? reject(error) : resolve(answers))));

a.server.in("room").socketsJoin("second");
while ((await b.server.in("second").fetchSockets()).length !== 1);
const acked = a.server.timeout(10000).to("second").emitWithAck("question", 1);
b.browser.on("question", (n, answer) => answer(n + 1));
seen.acked = await acked;

const gone = new Promise((resolve) => b.browser.once("disconnect", resolve));
a.server.in("second").disconnectSockets(true);
seen.disconnected = await gone;
seen.wrong = wrong;

console.log(JSON.stringify(seen));
for (const close of closers.reverse()) close();
process.exit(0);
