//! The dispatch of the internal client: input that the broker's callbacks queued goes to its folder.

use crate::context::Ctx;
use crate::context::internal_client::Event;
use crate::context::work::{Asked, Work};
use crate::{consumers, mqtt, presence};
use hubsub_route::Answer;
use hubsub_types::ErrorCode;

/// Handles the internal client's queued input, and the input that this causes.
pub fn take(ctx: &mut Ctx) {
    while ctx.io.own.has_work() {
        for event in ctx.io.own.take() {
            match event {
                Event::Record(topic, payload) => match presence::room_of(&topic) {
                    Some(room) => presence::heard(ctx, room, &payload),
                    None => mqtt::heard(ctx, &topic, &payload),
                },
                Event::Gap(topic) => match presence::room_of(&topic) {
                    Some(room) => presence::missed(ctx, room),
                    None => mqtt::missed(ctx, &topic),
                },
                Event::Acknowledged(group, position) => {
                    ctx.broker.acknowledge(&group, position, ctx.io.now, &mut ctx.io);
                }
                Event::Joined(key, seat, true) => presence::joined(ctx, key, seat),
                Event::Joined(key, seat, false) => presence::refused(ctx, key, seat),
                Event::Work(Work::Mqtt(work)) => mqtt::work(ctx, work),
                Event::Work(Work::Consumers(wanted)) => consumers::act(ctx, wanted),
                Event::Answer(number, answer) => {
                    let Some(asked) = ctx.io.own.answered(number) else { continue };
                    answered(ctx, asked, outcome_of(&answer));
                }
            }
        }
    }
}

fn answered(ctx: &mut Ctx, asked: Asked, outcome: Result<u64, ErrorCode>) {
    match asked {
        Asked::Presence(asked) => presence::answered(ctx, asked, outcome),
        Asked::Claims(asked) => mqtt::answered(ctx, asked, outcome),
        Asked::Session(what) => mqtt::written(ctx, what, outcome),
        Asked::Consumers(asked) => consumers::answered(ctx, asked, outcome),
        Asked::Nobody => {}
    }
}

/// Number of receivers of a publish, or success of another request.
fn outcome_of(answer: &Answer) -> Result<u64, ErrorCode> {
    match answer {
        Answer::Published(outcome) => outcome.map(|published| published.receivers),
        Answer::Attached(outcome) => outcome.map(|_| 0),
        Answer::PatternHeld | Answer::Settled => Ok(0),
        Answer::Counted(count) => *count,
        Answer::HubEnds(ends) => ends.as_ref().map(|ends| ends.len() as u64).map_err(|code| *code),
        Answer::Rows(page) => page.as_ref().map(|page| page.rows.len() as u64).map_err(|refused| *refused),
    }
}
