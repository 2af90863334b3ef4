// node-redis: subscribe, patterns, shard channels, transactions, ping interval, introspection. Prints its
// observations as one JSON object, which test_node_clients.py checks.
import { createClient } from "redis";

const [host, port, protocol] = process.argv.slice(2);
const options = { socket: { host, port: Number(port) }, RESP: Number(protocol), name: "me", pingInterval: 5 };
const seen = {};

/** A listener, and a promise of the arguments of its first `count` calls. */
const collector = (count) => {
  const got = [];
  let resolve;
  const done = new Promise((r) => (resolve = r));
  const listener = (...args) => {
    got.push(args.map(String));
    if (got.length === count) resolve([...got]);
  };
  return [listener, done];
};

const fail = (error) => {
  console.error(error);
  process.exit(1);
};
const client = await createClient(options).on("error", fail).connect();
const subscriber = await client.duplicate().on("error", fail).connect();

const [onMessage, messages] = collector(3);
const [onPattern, patterns] = collector(2);
const [onShard, smessages] = collector(1);
await subscriber.subscribe(["one", "two"], onMessage);
await subscriber.pSubscribe("on?", onPattern);
await subscriber.sSubscribe("{s}one", onShard);
seen.counts = [await client.publish("one", "hello"), await client.publish("two", "ünï"), await client.publish("three", "x")];
seen.counts.push(await client.publish("one", "again"));
seen.spublished = await client.sPublish("{s}one", "hi");
seen.messages = await messages;
seen.patterns = await patterns;
seen.smessages = await smessages;
seen.numsub = await client.pubSubNumSub(["one", "none"]);
seen.channels = (await client.pubSubChannels("*")).sort();
await subscriber.unsubscribe("one");
seen.afterUnsubscribe = await client.publish("one", "x");

// A subscribed client sends its interval's PINGs; wait for five replies.
const pings = collector(5);
subscriber.on("ping-interval", pings[0]);
await pings[1];

const [onOrdered, ordered] = collector(500);
await subscriber.subscribe("ordered", onOrdered);
const published = await Promise.all(Array.from({ length: 500 }, (_, i) => client.publish("ordered", String(i))));
seen.pipelined = published.every((n) => n === 1);
seen.ordered = (await ordered).every(([data], i) => data === String(i));

seen.transaction = await client.multi().publish("two", "a").publish("nobody", "b").exec();
seen.error = await client.sendCommand(["NOSUCH", "a"]).catch((error) => error.message);
seen.name = await client.clientGetName();
seen.echo = await client.echo("x");

await subscriber.unsubscribe();
await subscriber.pUnsubscribe();
await subscriber.sUnsubscribe();
seen.afterAll = String(await subscriber.ping());
await Promise.all([client.close(), subscriber.close()]);
console.log(JSON.stringify(seen));
