// ioredis: subscribe, patterns, shard channels, pipelines, transactions, introspection. Prints its
// observations as one JSON object, which test_node_clients.py checks.
import Redis from "ioredis";

const [host, port, protocol] = process.argv.slice(2);
const options = { host, port: Number(port), protocol: Number(protocol), maxRetriesPerRequest: 0 };
const seen = {};

/** Collects `count` emissions of `event`. */
const collect = (emitter, event, count) =>
  new Promise((resolve) => {
    const got = [];
    const listener = (...args) => {
      got.push(args.map(String));
      if (got.length === count) {
        emitter.off(event, listener);
        resolve([...got]);
      }
    };
    emitter.on(event, listener);
  });

const client = new Redis(options);
const subscriber = new Redis(options);

seen.subscribed = await subscriber.subscribe("one", "two");
seen.psubscribed = await subscriber.psubscribe("on?");
const messages = collect(subscriber, "message", 3);
const patterns = collect(subscriber, "pmessage", 2);
seen.counts = [await client.publish("one", "hello"), await client.publish("two", "ünï"), await client.publish("three", "x")];
seen.counts.push(await client.publish("one", "again"));
seen.messages = await messages;
seen.patterns = await patterns;
seen.ping = String(await subscriber.ping());
seen.numsub = await client.pubsub("NUMSUB", "one", "none");
seen.unsubscribed = await subscriber.unsubscribe("one");

const shard = new Redis(options);
seen.ssubscribed = await shard.ssubscribe("{s}one");
const smessages = collect(shard, "smessage", 1);
seen.spublished = await client.spublish("{s}one", "hi");
seen.smessages = await smessages;

const binary = collect(subscriber, "messageBuffer", 1);
await client.publish("two", Buffer.from([0, 255, 13, 10]));
await binary;

const ordered = collect(subscriber, "message", 500);
const pipeline = client.pipeline();
for (let i = 0; i < 500; i++) pipeline.publish("two", i);
seen.pipelined = (await pipeline.exec()).every(([error, n]) => error === null && n === 1);
seen.ordered = (await ordered).every(([, data], i) => data === String(i));

seen.transaction = await client.multi().publish("two", "a").publish("nobody", "b").exec();
seen.error = await client.call("NOSUCH", "a").catch((error) => error.message);
seen.name = await client.client("SETNAME", "me").then(() => client.client("GETNAME"));

// A killed subscriber reconnects and subscribes again by itself.
const back = collect(subscriber, "message", 1);
const id = await client.client("LIST").then((list) =>
  list.split("\n").find((line) => / sub=1 /.test(line)).match(/id=(\d+)/)[1]);
const subscribedAgain = new Promise((resolve) => subscriber.once("ready", resolve));
seen.killed = await client.client("KILL", "ID", id);
await subscribedAgain;
while ((await client.publish("two", "back")) === 0);
seen.back = await back;

await Promise.all([client.quit(), subscriber.quit(), shard.quit()]);
console.log(JSON.stringify(seen));
