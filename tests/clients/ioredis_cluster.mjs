// ioredis Cluster: shard channels of every node, classic channels, commands across slots. Prints its
// observations as one JSON object, which test_redis_cluster_clients.py checks.
import { Cluster } from "ioredis";

const [host, port, protocol, ...channels] = process.argv.slice(2);
const options = { redisOptions: { protocol: Number(protocol) }, shardedSubscribers: true };
const seen = {};

const connect = () =>
  new Promise((resolve, reject) => {
    const cluster = new Cluster([{ host, port: Number(port) }], options);
    cluster.once("ready", () => resolve(cluster));
    cluster.once("error", reject);
  });

const client = await connect();
const subscriber = await connect();

seen.nodes = client.nodes("master").length;
seen.state = (await client.cluster("INFO")).includes("cluster_state:ok");

const heard = [];
const all = new Promise((resolve) =>
  subscriber.on("smessage", (channel, data) => {
    heard.push([channel, data]);
    if (heard.length === channels.length) resolve();
  }));
for (const channel of channels) await subscriber.ssubscribe(channel);
seen.receivers = [];
for (const channel of channels) seen.receivers.push(await client.spublish(channel, `to ${channel}`));
await all;
seen.heard = heard.sort();

// Without links between the nodes, a publish reaches only the node's own subscribers, so publish on all
// nodes.
const classic = new Promise((resolve) => subscriber.once("message", (...args) => resolve(args)));
await subscriber.subscribe("c0");
for (const node of client.nodes("master")) await node.publish("c0", "hello");
seen.classic = await classic;

seen.crossed = await client.nodes("master")[0].ssubscribe("a", "b").catch((error) => error.message);

client.disconnect();
subscriber.disconnect();
console.log(JSON.stringify(seen));
