//! Requests that a shard makes through its internal client.

use super::Ctx;
use super::io::Io;
use super::work::Asked;
use hubsub_route::{Answer, Asker, Draft, Headers, Namespace, Outcome, Publisher, Start, Ticket, Wish};
use hubsub_types::{ConnKey, Qos};

impl Io {
    /// Registers a request of the internal client.
    fn ask_itself(&mut self, key: ConnKey, asked: impl Into<Asked>) -> Ticket {
        let slot = self.own.number(asked);
        Ticket { shard: self.shard, asker: Asker::Client { conn: key, slot } }
    }
}

impl Ctx {
    pub(crate) fn own_key(&mut self) -> ConnKey {
        if let Some(key) = self.io.own.key {
            return key;
        }
        let key = self.io.conns.reserve();
        self.broker.connected_itself(key);
        self.io.own.key = Some(key);
        key
    }

    /// Subscribes to an internal topic; the outcome is queued as a reply.
    pub(crate) fn watch(&mut self, topic: &[u8], asked: impl Into<Asked>) {
        let key = self.own_key();
        let ticket = self.io.ask_itself(key, asked);
        let wish = Wish { topic, namespace: Namespace::Global, start: Start::Live };
        let outcome = self.broker.subscribe(ticket, key, wish, self.io.now, &mut self.io);
        if let Outcome::Now(attached) = outcome {
            self.io.answer_own(ticket, Answer::Attached(attached));
        }
    }

    /// Ends a subscription of `watch`.
    pub(crate) fn unwatch(&mut self, topic: &[u8]) {
        let key = self.own_key();
        self.broker.unsubscribe(key, Namespace::Global, topic, self.io.now, &mut self.io);
    }

    /// Publishes to an internal topic.
    pub(crate) fn say_in(&mut self, topic: &[u8], payload: &[u8], asked: impl Into<Asked>) {
        self.say_with(topic, payload, None, asked);
    }

    /// Publishes to any topic, with headers.
    pub(crate) fn say_with(
        &mut self,
        topic: &[u8],
        payload: &[u8],
        headers: Headers,
        asked: impl Into<Asked>,
    ) {
        let key = self.own_key();
        let ticket = self.io.ask_itself(key, asked);
        let draft = Draft {
            namespace: Namespace::Global,
            topic,
            payload,
            headers,
            publisher: Publisher::Name(""),
            producer: None,
            qos: Qos::ExactlyOnce,
            retain: false,
        };
        if let Outcome::Now(outcome) = self.broker.publish(ticket, draft, self.io.now, &mut self.io) {
            self.io.answer_own(ticket, Answer::Published(outcome));
        }
    }
}

impl Io {
    fn answer_own(&mut self, ticket: Ticket, answer: Answer) {
        if let Asker::Client { slot, .. } = ticket.asker {
            self.own.answer(slot, answer);
        }
    }
}
