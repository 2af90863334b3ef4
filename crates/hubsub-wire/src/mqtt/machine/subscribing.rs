//! What the client subscribes to: what it asks for, what came of that, and how a message is sent that matches.

use super::super::field::{Pair, SubscriptionId};
use super::super::packet::Qos;
use super::super::property::Property;
use super::super::reason::Reason;
use super::super::subscribe::{Options, RetainHandling, Subscribe, Unsubscribe};
use super::super::topic::{rewind, shared};
use super::{Grant, Key, Machine, Match, Step};

/// The user property of SUBSCRIBE that asks for positions of messages, where its value is 1.
const POSITIONS: &str = "hubsub-positions";

/// The subscription that a filter is, wherever that begins.
fn without_rewind(filter: &str) -> &str {
    rewind(filter).map_or(filter, |(_, filter)| filter)
}

impl<K: Key> Machine<K> {
    /// How a message that comes by this subscription is sent; none if it comes by another one, or not at all.
    /// `is_own`: this client published it.
    #[must_use]
    #[inline]
    pub fn grant(&self, by: Match<'_>, topic: &[u8], is_own: bool) -> Option<Grant> {
        self.filters.grant(by, topic, is_own)
    }

    /// The highest QoS of its subscriptions, if these are few topics and no options change what comes by them.
    #[must_use]
    pub fn plain_qos(&self) -> Option<Qos> {
        self.filters.plain_qos()
    }

    /// How a message is sent that came for this client by a shared subscription; none if it has none such.
    /// `filter` begins with `$share/`.
    #[must_use]
    pub fn grant_shared(&self, filter: &[u8]) -> Option<Grant> {
        self.filters.grant_shared(filter)
    }

    /// Whether its own messages stay away from one of its subscriptions, or did: they are to bear its name.
    #[must_use]
    pub fn has_no_local(&self) -> bool {
        self.has_no_local
    }

    /// Its subscriptions.
    #[must_use]
    pub fn subscriptions(&self) -> usize {
        self.filters.len()
    }

    /// A subscription holds; its answer follows with [`Machine::granted`], once the session is recorded with it.
    pub fn confirm(&mut self, number: u32) {
        if let Some(filter) = self.requests.filter(number) {
            self.filters.confirm(filter, number);
        }
    }

    /// The session is recorded without the subscriptions that a client ended: it is told so.
    pub fn unsubscribed(&mut self, number: u32, out: &mut Vec<u8>) {
        self.requests.unsubscribed(number);
        self.pump(out);
    }

    /// Some of what the topics of a subscription keep cannot be read now: the client is told so when it is granted, if any of
    /// that is due to it; whether it is.
    pub fn retained_comes_later(&mut self, number: u32) -> bool {
        self.requests.retained_comes_later(number)
    }

    /// Whether a subscription of this connection waits for what came of it.
    pub fn waits_for(&mut self, number: u32) -> bool {
        self.requests.filter(number).is_some()
    }

    /// What came of a subscription: its filter, if the client is due what topics that match keep.
    pub fn granted(
        &mut self,
        number: u32,
        granted: Result<(), Reason>,
        out: &mut Vec<u8>,
    ) -> Option<Box<[u8]>> {
        let is_due = granted.is_ok() && self.requests.is_due_retained(number);
        let filter = self.requests.filter(number)?;
        let due = is_due.then(|| filter.into());
        match granted {
            Ok(()) => self.filters.confirm(filter, number),
            Err(_) => self.filters.refuse(filter, number),
        }
        self.requests.granted(number, granted);
        self.pump(out);
        due
    }

    /// What it subscribes to: filters that are not shared, then those that are with `$share/` and their group in front.
    pub fn filters(&self) -> impl Iterator<Item = (&str, Options, Option<SubscriptionId>)> {
        self.filters.iter()
    }

    /// The QoS of a subscription, if there is one.
    #[must_use]
    pub fn qos_of(&self, filter: &str) -> Option<Qos> {
        self.filters.qos_of(filter.as_bytes())
    }

    /// How a message that its topic kept is sent by a subscription, if it stands. `is_own`: this client published it.
    #[must_use]
    pub fn grant_kept(&self, filter: &[u8], is_own: bool) -> Option<Grant> {
        self.filters.grant_kept(filter, is_own)
    }

    pub(super) fn subscribe<'a>(&mut self, subscribe: Subscribe<'a>) -> Step<'a, K> {
        let Subscribe { id, properties, filters } = subscribe;
        let by_id = properties.iter().find_map(|property| match property {
            Property::SubscriptionId(id) => Some(id),
            _ => None,
        });
        let wants_positions = properties
            .iter()
            .any(|property| property == Property::User(Pair { name: POSITIONS, value: "1" }));
        let asked = filters.iter().map(|(filter, options)| (without_rewind(filter), options.qos));
        let first = self.requests.subscribe(id, asked);
        for (number, (filter, options)) in (0..).map(|i| first.wrapping_add(i)).zip(filters.iter()) {
            self.has_no_local |= options.no_local;
            let is_new = self.filters.ask(without_rewind(filter), options, by_id, number);
            let is_due = match options.retain_handling {
                RetainHandling::Send => true,
                RetainHandling::SendIfNew => is_new,
                RetainHandling::DoNotSend => false,
            };
            // Who begins in the past is sent what there was, and groups share what comes.
            let reads_row = rewind(filter).is_none() && shared(filter).is_none();
            self.requests.set_retained(number, is_due && reads_row);
        }
        Step::Subscribe { filters, first, wants_positions }
    }

    pub(super) fn unsubscribe<'a>(&mut self, unsubscribe: Unsubscribe<'a>, out: &mut Vec<u8>) -> Step<'a, K> {
        let Unsubscribe { id, filters, .. } = unsubscribe;
        let reason = |was_there| if was_there { Reason::Success } else { Reason::NoSubscriptionExisted };
        let reasons: Vec<u8> = filters
            .iter()
            .map(|filter| reason(self.filters.remove(without_rewind(filter))).number())
            .collect();
        let number = self.requests.unsubscribe(id, reasons, self.held.is_some());
        self.pump(out);
        Step::Unsubscribe { filters, number }
    }
}
