//! Messages of the client and their outcomes, and the second half of QoS 2 in both directions.

use super::held::Answer;
use super::intents::Taken;
use super::window::Acknowledged;
use super::{Fault, Incoming, Machine, Step};
use hubsub_wire::mqtt::{Ack, Packet, PacketId, Publish, Qos, Reason, Version};

impl Machine {
    #[inline]
    pub(super) fn publish<'a>(
        &mut self,
        publish: &Publish<'a>,
        out: &mut Vec<u8>,
    ) -> Result<Step<'a>, Fault> {
        if publish.retain && !self.retains {
            let what = "retained messages are not supported";
            return Err(Fault { reason: Reason::RetainNotSupported, what });
        }
        let topic = self.aliases.topic(publish)?;
        let Publish { qos, retain, id, properties, payload, .. } = *publish;
        let mut intent = None;
        match (qos, id) {
            (Qos::AtLeastOnce, _) => self.check_receive_max()?,
            (Qos::ExactlyOnce, Some(id)) => {
                if !self.intents.as_ref().is_some_and(|intents| intents.has(id)) {
                    self.check_receive_max()?;
                }
                match self.intents.get_or_insert_default().take(id) {
                    Taken::New(number) => intent = Some(number),
                    Taken::Published => {
                        let number = self.requests.publish(Some(id), Qos::ExactlyOnce);
                        self.requests.published(number, Reason::Success);
                        self.pump(out);
                        return Ok(Step::Done);
                    }
                    // The reply to the first copy follows.
                    Taken::Waits => return Ok(Step::Done),
                }
            }
            _ => {
                let number = self.requests.number();
                let incoming = Incoming { number, topic, qos, retain, id, intent, properties, payload };
                return Ok(Step::Publish(incoming));
            }
        }
        let number = self.requests.publish(id, qos);
        Ok(Step::Publish(Incoming { number, topic, qos, retain, id, intent, properties, payload }))
    }

    /// The outcome of a QoS 0 message is awaited under its number. Called before the next packet is taken.
    pub fn awaits(&mut self, incoming: u32) {
        let number = self.requests.publish(None, Qos::AtMostOnce);
        debug_assert_eq!(number, incoming, "nothing was taken since");
    }

    fn check_receive_max(&mut self) -> Result<(), Fault> {
        let unreleased = self.intents.as_ref().map_or(0, |intents| intents.counted());
        let unanswered = self.requests.acknowledged_once as usize + unreleased;
        if unanswered < usize::from(self.receive_max) || self.version < Version::V5 {
            return Ok(());
        }
        if self.is_strict {
            return Err(Fault::of(Reason::ReceiveMaximumExceeded));
        }
        self.exceeded += 1;
        Ok(())
    }

    /// The outcome of a message: success, no subscribers, or a failure.
    ///
    /// MQTT before 5.0 cannot report a failure. A publish without permission is acknowledged there as if it
    /// had succeeded, since a retry would fail in the same way.
    ///
    /// # Errors
    /// A message of QoS 1 or 2 failed for another reason, which its MQTT version cannot report: the
    /// connection must be closed.
    #[inline]
    pub fn published(&mut self, number: u32, reason: Reason, out: &mut Vec<u8>) -> Result<(), Fault> {
        let Some((id, qos)) = self.requests.published(number, reason) else { return Ok(()) };
        let is_untold = reason.is_failure() && self.version < Version::V5 && id.is_some();
        if is_untold && reason != Reason::NotAuthorized {
            return Err(Fault::of(reason));
        }
        if let (Some(id), Qos::ExactlyOnce, Some(intents)) = (id, qos, &mut self.intents) {
            if reason.is_failure() && !is_untold {
                intents.refused(id);
            } else {
                intents.published(id);
            }
        }
        self.pump(out);
        Ok(())
    }

    pub(super) fn received<'a>(&mut self, ack: Ack<'_>, out: &mut Vec<u8>) -> Result<Step<'a>, Fault> {
        let Ack { id, reason, .. } = ack;
        let is_news = match self.window.pubrec(id, reason.is_failure()) {
            Acknowledged::Received(is_news) => is_news,
            Acknowledged::Unknown if !reason.is_failure() => {
                self.write(&Packet::Pubrel(self.ack(id, Reason::PacketIdNotFound)), out);
                return Ok(Step::Done);
            }
            other => return acknowledged(id, other),
        };
        Ok(match self.answer(Answer::Pubrel, id, is_news, out) {
            Some(number) if is_news => Step::Received { id, number },
            _ => Step::Done,
        })
    }

    pub(super) fn released<'a>(&mut self, id: PacketId, out: &mut Vec<u8>) -> Step<'a> {
        if !self.intents.as_mut().is_some_and(|intents| intents.release(id)) {
            self.write(&Packet::Pubcomp(self.ack(id, Reason::PacketIdNotFound)), out);
            return Step::Done;
        }
        match self.answer(Answer::Pubcomp, id, true, out) {
            Some(number) => Step::Released { id, number },
            None => Step::Done,
        }
    }
}

/// The step for an acknowledgement without a reply. The message of an unused id may have been given up.
#[inline]
pub(super) fn acknowledged<'a>(id: PacketId, acknowledged: Acknowledged) -> Result<Step<'a>, Fault> {
    match acknowledged {
        Acknowledged::Ended(qos, key) => Ok(Step::Acknowledged { id, qos, key }),
        Acknowledged::Received(_) | Acknowledged::Unknown => Ok(Step::Done),
        Acknowledged::OtherQos => {
            let what = "an acknowledgement of another QoS than the message's";
            Err(Fault { reason: Reason::ProtocolError, what })
        }
    }
}
