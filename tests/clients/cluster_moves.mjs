// Shard channels of a cluster client whose slots move to other nodes: it subscribes, reports that, waits for
// a line, and publishes until it has received on all channels again. test_redis_cluster_clients.py moves the
// slots.
import { once } from "node:events";
import { createCluster } from "redis";
import { Cluster } from "ioredis";

const [library, host, port, protocol, ...channels] = process.argv.slice(2);

const nodeRedis = async () => {
  const root = { socket: { host, port: Number(port) } };
  const cluster = createCluster({ rootNodes: [root], defaults: { RESP: Number(protocol) } });
  cluster.on("error", (error) => console.error(error));
  const listeners = new Map();
  const subscribe = (channel) => cluster.sSubscribe(channel, (data) => listeners.get(channel)(channel, data));
  // The node that the client asks may not know of the move yet and redirect it back. The client then drops
  // the channel and emits this error. Until it unsubscribes there, it considers itself subscribed.
  cluster.on("sharded-channel-moved-error", async (error, channel) => {
    console.error(error);
    await cluster.sUnsubscribe(channel);
    await subscribe(channel);
  });
  await cluster.connect();
  return {
    subscribe: (channel, listener) => {
      listeners.set(channel, listener);
      return subscribe(channel);
    },
    publish: (channel, data) => cluster.sPublish(channel, data),
    close: () => cluster.destroy(),
  };
};

const ioredis = async () => {
  const options = { redisOptions: { protocol: Number(protocol) }, shardedSubscribers: true };
  const cluster = new Cluster([{ host, port: Number(port) }], options);
  cluster.on("error", (error) => console.error(error));
  await once(cluster, "ready");
  return {
    subscribe: (channel, listener) => {
      cluster.on("smessage", (name, data) => name === channel && listener(name, data));
      return cluster.ssubscribe(channel);
    },
    publish: (channel, data) => cluster.spublish(channel, data),
    close: () => cluster.disconnect(),
  };
};

const client = await (library === "ioredis" ? ioredis() : nodeRedis());
const heard = { before: new Set(), after: new Set() };
for (const channel of channels) await client.subscribe(channel, (name, data) => heard[data].add(name));

/** Publishes to each channel until a message arrives on it. */
const publish = async (data) => {
  for (const channel of channels) {
    while (!heard[data].has(channel)) await client.publish(channel, data);
  }
};

await publish("before");
console.log("subscribed");
await once(process.stdin, "data");
await publish("after");
client.close();
console.log([...heard.after].sort().join(" "));
process.exit(0);
