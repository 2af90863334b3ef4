//! Listings that a shard produces in parts between its other work: pages of its rooms (`GET /v1/rooms` and
//! its users: the console, `hubsub rooms`, the node itself), and topics with subscribers (`PUBSUB CHANNELS`).
//!
//! A shard has one thread, so a long listing would delay publishers. A turn therefore scans at most
//! `listing_turn_names_max` rooms and topics for all listings together, and the next turn continues there.
//! Rooms are scanned in order of name, so a page begins at its cursor or at its pattern's prefix
//! ([`hubsub_route::rooms::Page`]); topics are scanned in order of index. A short listing is answered in the
//! turn of its request. Of the waiting listings [`AT_ONCE`] take turns: so a long one does not block a short
//! one, and the memory for their results is bounded.

use super::state::listings::Listing;
use crate::context::Ctx;
use crate::io::access::Action;
use crate::io::questions::{Listed, Part};
use hubsub_route::Ask;
use hubsub_types::{HubId, PrincipalId};
use std::sync::Arc;

/// Number of listings that take turns; others wait until one of them ends.
const AT_ONCE: usize = 8;

/// Begins a listing. Returns the response if this turn completes it; else it is sent later.
pub(crate) fn list(ctx: &mut Ctx, mut listing: Listing, ask: Ask) -> Option<Part> {
    if ctx.io.states.listings.waiting.is_empty() && passes(ctx, &mut listing) {
        return listed(ctx, listing, ask);
    }
    ctx.io.states.listings.waiting.push_back((listing, ask));
    None
}

/// Continues waiting listings within this turn's limit.
pub(crate) fn list_on(ctx: &mut Ctx) {
    while listing_places(ctx) > 0
        && let Some((mut listing, ask)) = ctx.io.states.listings.waiting.pop_front()
    {
        if !passes(ctx, &mut listing) {
            let waiting = &mut ctx.io.states.listings.waiting;
            waiting.insert(waiting.len().min(AT_ONCE - 1), (listing, ask));
        } else if let Some(part) = listed(ctx, listing, ask) {
            ctx.io.answer_part(ask, part);
        }
    }
    let passed = std::mem::take(&mut ctx.io.states.listings.passed);
    if passed > 0 {
        ctx.io.metrics.listing_names_total.add(passed as u64);
        ctx.io.metrics.listing_turns_total.add(1);
    }
}

/// How many names this turn may still scan.
fn listing_places(ctx: &Ctx) -> usize {
    (ctx.io.limits.listing_turn_names_max as usize).saturating_sub(ctx.io.states.listings.passed)
}

/// Continues a listing. Returns whether it is complete.
fn passes(ctx: &mut Ctx, listing: &mut Listing) -> bool {
    let places = listing_places(ctx);
    let (passed, is_whole) = match listing {
        Listing::Rooms(_, page) => {
            (ctx.broker.rooms.fill(page, places, ctx.io.shard, ctx.io.now), page.is_whole)
        }
        Listing::Topics { namespace, glob, place, found, bytes_left } => {
            let (passed, topics) = ctx.broker.topics.subscribed_from(*place, places);
            let topics = topics.filter(|topic| topic.namespace == *namespace);
            // Topics to which only the node subscribes are not shown.
            let principal = PrincipalId::default();
            let may_see = |name: &[u8]| ctx.io.access.allowed(principal, Action::Subscribe, name);
            let topics = topics.filter(|topic| may_see(&topic.name));
            let topics = topics.filter(|t| glob.as_ref().is_none_or(|glob| glob.matches(&t.name)));
            for topic in topics {
                *bytes_left = bytes_left.and_then(|left| left.checked_sub(topic.name.len() as u64));
                if bytes_left.is_none() {
                    *found = Vec::new();
                    break;
                }
                found.push(Arc::clone(&topic.name));
            }
            *place += passed;
            (passed, passed < places || bytes_left.is_none())
        }
    };
    ctx.io.states.listings.passed += passed;
    is_whole
}

/// This shard's response; `None` while its log's part is pending.
fn listed(ctx: &Ctx, listing: Listing, ask: Ask) -> Option<Part> {
    let (wanted, here) = match listing {
        Listing::Topics { bytes_left: None, .. } => return Some(Part::TooLong),
        Listing::Topics { found, .. } => return Some(Part::Topics(found)),
        Listing::Rooms(wanted, page) => (wanted, page.found),
    };
    let hubs: Vec<(HubId, u64)> = ctx.hub_logs().map(|hub| (hub.id, hub.committed())).collect();
    match &ctx.io.states.log {
        Some(log) if !hubs.is_empty() => log.listing.page(hubs, wanted, here, ask),
        _ => Some(Part::Rooms(Ok(here.into_iter().map(Listed::Here).collect()))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::turn::has_more;
    use super::*;
    use crate::context::scatter_gather::{Then, To};
    use crate::control::{Event, ShardEvent};
    use crate::io::questions::Question;
    use crate::lone::Lone;
    use hubsub_route::Namespace;
    use hubsub_types::Limits;

    const TURN: usize = 8;

    fn lone(rooms: usize) -> Lone {
        let limits = Limits { listing_turn_names_max: TURN as u64, ..Limits::default() };
        let mut lone = Lone::new(limits);
        let now = lone.ctx.io.now;
        for n in 0..rooms {
            lone.ctx.broker.rooms.open(format!("room:{n:03}").as_bytes(), now, |_| None).unwrap();
        }
        lone
    }

    fn ask(lone: &mut Lone, ticket: u64, glob: Option<&str>, after: Option<&str>, limit: usize) {
        let bytes = |text: &str| text.as_bytes().to_vec();
        let question = Question::Rooms(glob.map(bytes), after.map(bytes), limit);
        lone.ctx.ask(To::All, question, Then::Control(ticket));
    }

    /// Ends a turn. Returns the answered tickets, each with its number of names.
    fn end_turn(lone: &mut Lone) -> Vec<(u64, usize)> {
        let before = lone.ctx.io.metrics.listing_names_total.get();
        list_on(&mut lone.ctx);
        let passed = lone.ctx.io.metrics.listing_names_total.get() - before;
        assert!(passed <= TURN as u64, "a turn passed {passed}");
        let count = |part: &Part| match part {
            Part::Rooms(Ok(rooms)) => rooms.len(),
            part => panic!("a page is rooms: {part:?}"),
        };
        let answered = lone.control.drain(64).into_iter().filter_map(|event| match event {
            Event::Shard(ShardEvent::Parts(ticket, parts)) => Some((ticket, parts.iter().map(count).sum())),
            _ => None,
        });
        answered.collect()
    }

    #[test]
    fn a_page_is_answered_in_the_turn_in_which_it_is_asked_for_if_it_passes_few() {
        let mut lone = lone(1_000);
        ask(&mut lone, 1, None, None, 1);
        ask(&mut lone, 2, Some("room:5*"), Some("room:512"), 3);
        ask(&mut lone, 3, Some("room:999"), None, 1);
        assert_eq!(end_turn(&mut lone), [(1, 1), (2, 3), (3, 1)]);
        assert!(!has_more(&lone.ctx));
        assert_eq!(lone.ctx.io.metrics.listing_names_total.get(), 5);
    }

    #[test]
    fn a_page_of_as_many_rooms_as_a_turn_passes_is_answered_in_it_and_one_more_is_not() {
        for (limit, turns) in [(TURN - 1, 1), (TURN, 1), (TURN + 1, 2)] {
            let mut lone = lone(100);
            ask(&mut lone, 1, None, None, limit);
            let answers: Vec<_> = (0..turns).map(|_| end_turn(&mut lone)).collect();
            assert!(answers[..turns - 1].iter().all(Vec::is_empty));
            assert_eq!(answers[turns - 1], [(1, limit)]);
        }
    }

    #[test]
    fn many_listings_that_match_little_pass_no_more_a_turn_than_one_and_keep_no_short_one_waiting() {
        let mut lone = lone(100);
        (1..=20).for_each(|ticket| ask(&mut lone, ticket, Some("*:099"), None, 1));
        assert!(has_more(&lone.ctx), "the shard does not sleep");
        let mut answers = Vec::new();
        for _ in 0..10 {
            answers.extend(end_turn(&mut lone));
        }
        ask(&mut lone, 99, None, None, 1);
        let mut turns = 10;
        while has_more(&lone.ctx) {
            answers.extend(end_turn(&mut lone));
            turns += 1;
        }
        assert!(answers.iter().all(|&(_, rooms)| rooms == 1));
        let mut tickets: Vec<u64> = answers.iter().map(|&(ticket, _)| ticket).collect();
        tickets.sort_unstable();
        assert_eq!(tickets, (1..=20).chain([99]).collect::<Vec<_>>());
        assert!(turns >= 20 * 100 / TURN);
        assert_eq!(lone.ctx.io.metrics.listing_turns_total.get(), turns as u64);
    }

    #[test]
    fn topics_with_subscribers_are_listed_by_and_by_each_once() {
        let mut lone = lone(0);
        for n in 0..50 {
            let topics = &mut lone.ctx.broker.topics;
            let id = topics.intern(Namespace::Global, format!("topic:{n}").as_bytes());
            topics.get_mut(id).subs.insert(0);
        }
        let question = Question::Topics(Namespace::Global, Some(b"topic:*".to_vec()), 1_000);
        lone.ctx.ask(To::All, question, Then::Control(1));
        let mut turns = 0;
        let mut topics = loop {
            turns += 1;
            list_on(&mut lone.ctx);
            if let Some(Event::Shard(ShardEvent::Parts(_, mut parts))) = lone.control.drain(64).pop()
                && let Some(Part::Topics(topics)) = parts.pop()
            {
                break topics;
            }
        };
        topics.sort_unstable();
        topics.dedup();
        assert_eq!(topics.len(), 50);
        assert!(turns >= 50 / TURN, "{turns}");
    }
}
