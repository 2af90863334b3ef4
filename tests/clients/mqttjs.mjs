// mqtt.js: every QoS both ways, order, a long payload, a will, properties of 5.0, retained messages, a
// session. Prints its observations as one JSON object, which test_mqtt_libraries.py checks.
import mqtt from "mqtt";

const [url, level] = process.argv.slice(2);
const version = Number(level);
const seen = {};

/** A connected client and the messages that it received. */
const connect = async (clientId, more = {}) => {
  const options = { clientId, protocolVersion: version, protocolId: version === 3 ? "MQIsdp" : "MQTT", reconnectPeriod: 0 };
  const client = mqtt.connect(url, { ...options, ...more });
  const got = [];
  const waits = [];
  let session;
  client.on("message", (topic, payload, packet) => {
    got.push([topic, payload, packet]);
    waits.splice(0).forEach((wake) => wake());
  });
  await new Promise((resolve, reject) => {
    client.on("error", reject);
    client.on("connect", (connack) => resolve((session = connack.sessionPresent)));
  });
  client.removeAllListeners("error");
  client.on("error", () => {});
  const take = async (count) => {
    while (got.length < count) await new Promise((resolve) => waits.push(resolve));
    return got.splice(0, count);
  };
  return { client, take, session };
};

const said = ([topic, payload, packet]) => [topic, payload.toString(), packet.qos];

const subscriber = await connect("subscriber");
const publisher = await connect("publisher");
const filters = { "low/+": { qos: 0 }, "mid/#": { qos: 1 }, high: { qos: 2 } };
seen.granted = (await subscriber.client.subscribeAsync(filters)).map((grant) => grant.qos);
seen.messages = [];
for (const topic of ["low/a", "mid/a/b", "high"]) {
  for (const qos of [0, 1, 2]) {
    await publisher.client.publishAsync(topic, `${topic} ${qos}`, { qos });
    seen.messages.push(...(await subscriber.take(1)).map(said));
  }
}

await subscriber.client.unsubscribeAsync("low/+");
await publisher.client.publishAsync("low/a", "nobody", { qos: 1 });
await publisher.client.publishAsync("high", "left", { qos: 2 });
seen.left = (await subscriber.take(1)).map(said);

const sent = [...Array(500).keys()].map((i) => `${i} of 500`);
await Promise.all(sent.map((text, i) => publisher.client.publishAsync("mid/order", text, { qos: i % 2 })));
const came = (await subscriber.take(500)).map(([, payload]) => payload.toString());
// A client that sends QoS 1 messages as its window allows only keeps the order within each QoS.
seen.ordered = [0, 1].every((odd) => {
  const [a, b] = [sent, came].map((all) => all.filter((text) => parseInt(text) % 2 === odd));
  return a.join() === b.join();
});

const long = Buffer.from(Array.from({ length: 300_000 }, (_, i) => i % 251));
await publisher.client.publishAsync("high", long, { qos: 1 });
seen.long = (await subscriber.take(1))[0][1].equals(long);

if (version === 5) {
  const properties = { contentType: "text/plain", responseTopic: "answers", correlationData: Buffer.from([0, 255]), userProperties: { k: ["1", "2"] } };
  await publisher.client.publishAsync("high", "asked", { qos: 1, properties });
  const told = (await subscriber.take(1))[0][2].properties;
  seen.properties = [told.contentType, told.responseTopic, told.correlationData.toString("hex"), told.userProperties.k];
}

await subscriber.client.subscribeAsync("wills/#", { qos: 1 });
const lost = await connect("lost", { will: { topic: "wills/lost", payload: "gone", qos: 1, retain: false } });
lost.client.stream.destroy();
seen.will = (await subscriber.take(1)).map(said);

await publisher.client.publishAsync("kept/a", "now", { qos: 1, retain: true });
const late = await connect("late");
await late.client.subscribeAsync("kept/+", { qos: 1 });
seen.retained = (await late.take(1)).map((message) => [...said(message), message[2].retain]);
await publisher.client.publishAsync("kept/a", "", { qos: 1, retain: true });
await late.client.endAsync();

const lasting = { clean: false, ...(version === 5 && { properties: { sessionExpiryInterval: 600 } }) };
const first = await connect("away", lasting);
await first.client.subscribeAsync("away", { qos: 2 });
await first.client.endAsync();
for (const qos of [1, 2]) await publisher.client.publishAsync("away", `${qos}`, { qos });
const again = await connect("away", lasting);
seen.present = [first.session, again.session];
seen.away = (await again.take(2)).map(said);
await again.client.endAsync();
await (await connect("away")).client.endAsync();

await Promise.all([subscriber, publisher].map(({ client }) => client.endAsync()));
console.log(JSON.stringify(seen));
process.exit(0);
