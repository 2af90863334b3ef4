//! All limits of a link, by name, with reasons.

/// Longest frame before both sides have proved the secret, in bytes; a Hello has at most 379.
pub const HANDSHAKE_FRAME_BYTES_MAX: usize = 1_024;

/// The limits of a link; times in ms.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkLimits {
    /// Longest frame in bytes: the largest record that a client may publish, with names and headers.
    pub frame_bytes_max: usize,
    pub handshake_ms: u64,
    pub heartbeat_ms: u64,
    /// Silence after which a peer is suspected: four pings were lost or late.
    pub suspect_ms: u64,
    /// Silence after which the link is closed.
    pub silence_ms: u64,
    /// Live bytes that a peer may send before they are handled.
    pub live_window_bytes: u64,
    /// Bytes of range reads that a peer may send before they are handled.
    pub reads_window_bytes: u64,
    /// Bytes of urgent frames queued for output; separately for those of control planes and the others.
    pub urgent_queue_bytes_max: usize,
    /// Bytes of live frames queued for credit or output.
    pub live_queue_bytes_max: usize,
    /// Bytes of range reads queued for credit or output.
    pub reads_queue_bytes_max: usize,
    /// Output that waits for the socket; above it frames stay in their queues.
    pub output_bytes_max: usize,
    /// Wait before the second attempt to dial; it doubles from there.
    pub redial_ms_min: u64,
    pub redial_ms_max: u64,
    /// Uptime of a link after which the next wait is the shortest again.
    pub stable_ms: u64,
}

impl Default for LinkLimits {
    fn default() -> Self {
        const KIB: usize = 1_024;
        const MIB: usize = 1_024 * KIB;
        LinkLimits {
            frame_bytes_max: 65 * MIB,
            handshake_ms: 3_000,
            heartbeat_ms: 100,
            suspect_ms: 500,
            silence_ms: 5_000,
            live_window_bytes: 8 * MIB as u64,
            reads_window_bytes: 4 * MIB as u64,
            urgent_queue_bytes_max: MIB,
            live_queue_bytes_max: 8 * MIB,
            reads_queue_bytes_max: 8 * MIB,
            output_bytes_max: 256 * KIB,
            redial_ms_min: 100,
            redial_ms_max: 5_000,
            stable_ms: 10_000,
        }
    }
}

impl LinkLimits {
    /// Why its limits are inconsistent, if they are.
    pub fn flaw(&self) -> Option<&'static str> {
        let redial_fits = 0 < self.redial_ms_min && self.redial_ms_min <= self.redial_ms_max;
        let rules = [
            (self.frame_bytes_max >= HANDSHAKE_FRAME_BYTES_MAX, "frames shorter than a hello"),
            (self.frame_bytes_max < u32::MAX as usize, "frames longer than their length can say"),
            (self.handshake_ms > 0, "no time for a handshake"),
            (self.heartbeat_ms > 0, "no time between pings"),
            (2 * self.heartbeat_ms <= self.suspect_ms, "suspicion before a second ping can come"),
            (self.suspect_ms < self.silence_ms, "given up before it is suspected"),
            (self.live_window_bytes > 0 && self.reads_window_bytes > 0, "a lane that never opens"),
            (self.output_bytes_max > 0, "no output"),
            (redial_fits, "waits out of order"),
        ];
        rules.into_iter().find(|(holds, _)| !holds).map(|(_, flaw)| flaw)
    }

    /// Returns itself if its limits are consistent.
    ///
    /// # Panics
    /// They are not; the configuration must be corrected.
    #[must_use]
    pub fn checked(self) -> LinkLimits {
        match self.flaw() {
            None => self,
            Some(flaw) => panic!("limits of links: {flaw}"),
        }
    }
}
