//! Subscriptions of the client: requests, results, and how a matching message is sent.

use super::{Machine, Step};
use hubsub_wire::mqtt::{Pair, Property, Reason, RetainHandling, Subscribe, Unsubscribe, rewind, shared};

/// User property of SUBSCRIBE that requests positions of messages, with the value 1.
const POSITIONS: &str = "hubsub-positions";

/// The filter of a subscription without its start position.
fn without_rewind(filter: &str) -> &str {
    rewind(filter).map_or(filter, |(_, filter)| filter)
}

impl Machine {
    /// Whether a subscription has No Local, or had: then its messages must name it as publisher.
    #[inline]
    pub fn has_no_local(&self) -> bool {
        self.has_no_local
    }

    /// Confirms a subscription; [`Machine::granted`] replies once the session is recorded with it.
    pub fn confirm(&mut self, number: u32) {
        if let Some(filter) = self.requests.filter(number) {
            self.filters.confirm(filter, number);
        }
    }

    /// The session is recorded without the subscriptions of an UNSUBSCRIBE, so its reply may be sent.
    pub fn unsubscribed(&mut self, number: u32, out: &mut Vec<u8>) {
        self.requests.unsubscribed(number);
        self.pump(out);
    }

    /// Some retained messages of a subscription cannot be read now. Its SUBACK reports that, if it includes
    /// retained messages; returns whether it does.
    pub fn retained_comes_later(&mut self, number: u32) -> bool {
        self.requests.retained_comes_later(number)
    }

    /// Whether a subscription of this connection waits for its result.
    pub fn waits_for(&mut self, number: u32) -> bool {
        self.requests.filter(number).is_some()
    }

    /// The result of a subscription. Returns its filter, if its retained messages must be sent.
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

    pub(super) fn subscribe<'a>(&mut self, subscribe: Subscribe<'a>) -> Step<'a> {
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
            // A start position reads history instead, and groups share live messages only.
            let reads_row = rewind(filter).is_none() && shared(filter).is_none();
            self.requests.set_retained(number, is_due && reads_row);
        }
        Step::Subscribe { filters, first, wants_positions }
    }

    pub(super) fn unsubscribe<'a>(&mut self, unsubscribe: Unsubscribe<'a>, out: &mut Vec<u8>) -> Step<'a> {
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
