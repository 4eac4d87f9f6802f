//! The link between the target and one drafter, as the supervisor knows it: when to hand over a new
//! one, and what the target's reports of it mean. Each drafter slot has one.
//!
//! ```text
//!  Apart ── hand ──▶ Handing ── connected ──▶ Greeting ── UP ──▶ Up ⇄ suspect
//!    ▲                  │ failed, or time        │ LOST, time     │ LOST
//!    └── Pausing ◀──────┴────────────────────────┴────────────────┘
//!                                    REFUSED, EJECTED from any ──▶ Over, until another epoch of either
//! ```
//! A link belongs to one epoch of the target and one of the drafter. With another epoch of either
//! everything starts over.

use paceline_vocabulary::report::LinkReport;
use paceline_vocabulary::state::LinkPhase;
use paceline_vocabulary::{Epoch, Millis};

/// For the descriptors to reach both workers, and again for the handshake after it. The shell's own
/// timeouts are shorter; this one applies if the shell's answer is lost.
const HANDSHAKE_TIMEOUT_MS: u64 = 10_000;
/// Pauses before the first tries after a loss. The first is long enough for the event that a
/// process has ended.
const PAUSES_MS: [u64; 3] = [100, 250, 500];
/// Later pauses double from here ...
const LONG_PAUSE_MS: u64 = 1_000;
/// ... to here.
const LONGEST_PAUSE_MS: u64 = 60_000;
/// After a link that was up for this time the pauses start over.
const LASTING_MS: u64 = 60_000;

/// Both ends of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkEnds {
    /// Epoch of the target.
    pub target: Epoch,
    /// Epoch of the drafter.
    pub drafter: Epoch,
}

/// Change of a link, by a report or by its absence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// Drafts can arrive over it.
    Up {
        /// They arrive too late from the start.
        late: bool,
    },
    /// Drafts arrive too late again and again.
    Late(String),
    /// Drafts arrive in time again.
    InTime,
    /// Target and drafter do not go together.
    Refused(String),
    /// The drafter broke the protocol.
    Ejected(String),
    /// The link is gone, or could not be made; another is tried after a pause.
    Lost(String),
}

impl LinkEvent {
    /// Why, for logs.
    pub fn cause(&self) -> &str {
        match self {
            LinkEvent::Up { late: false } => "greeted",
            LinkEvent::Up { late: true } => "greeted, and drafts come too late",
            LinkEvent::InTime => "drafts come in time again",
            LinkEvent::Late(reason)
            | LinkEvent::Refused(reason)
            | LinkEvent::Ejected(reason)
            | LinkEvent::Lost(reason) => reason,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkStage {
    Apart,
    Handing { until: Millis },
    Greeting { until: Millis },
    Up { since: Millis, suspect: bool },
    Pausing { until: Millis },
    Over,
}

/// The link of one drafter.
#[derive(Debug)]
pub struct Link {
    ends: Option<LinkEnds>,
    stage: LinkStage,
    /// Number of the newest one handed over between these two.
    generation: u64,
    losses: u32,
}

impl Default for Link {
    fn default() -> Self {
        Self { ends: None, stage: LinkStage::Apart, generation: 0, losses: 0 }
    }
}

impl Link {
    /// Sets the epochs that could be linked now; `None`: one of the two workers is not there.
    pub fn between(&mut self, ends: Option<LinkEnds>) {
        if self.ends != ends {
            *self = Self { ends, ..Self::default() };
        }
    }

    /// The ends of a new link, if one is due.
    pub fn due(&self) -> Option<LinkEnds> {
        self.ends.filter(|_| self.stage == LinkStage::Apart)
    }

    /// A link with this number is being handed over.
    pub fn hand(&mut self, generation: u64, now: Millis) {
        self.generation = generation;
        self.stage = LinkStage::Handing { until: now + HANDSHAKE_TIMEOUT_MS };
    }

    /// Ends of the link, if both workers are there.
    pub fn ends(&self) -> Option<LinkEnds> {
        self.ends
    }

    /// Whether one is being made.
    pub fn is_being_made(&self) -> bool {
        matches!(self.stage, LinkStage::Handing { .. } | LinkStage::Greeting { .. })
    }

    /// Whether drafts can come over it.
    pub fn is_up(&self) -> bool {
        matches!(self.stage, LinkStage::Up { .. })
    }

    /// Whether drafts come too late over it.
    pub fn is_suspect(&self) -> bool {
        matches!(self.stage, LinkStage::Up { suspect: true, .. })
    }

    /// Losses between these ends since a link last lasted.
    pub fn losses(&self) -> u32 {
        self.losses
    }

    /// Number of the newest link between these two; 0 before the first.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Both workers have their ends, or why not.
    pub fn connected(
        &mut self,
        generation: u64,
        failure: Option<String>,
        now: Millis,
    ) -> Option<LinkEvent> {
        if generation != self.generation {
            return None;
        }
        match (self.stage, failure) {
            (LinkStage::Handing { .. }, None) => {
                self.stage = LinkStage::Greeting { until: now + HANDSHAKE_TIMEOUT_MS };
                None
            }
            (LinkStage::Handing { .. }, Some(cause)) => self.lose(cause, now),
            // The target's report was faster.
            _ => None,
        }
    }

    /// The target's heartbeat came with this report.
    pub fn reported(&mut self, report: &LinkReport, now: Millis) -> Option<LinkEvent> {
        if self.generation == 0 || self.stage == LinkStage::Over {
            return None;
        }
        if report.generation != self.generation {
            // Before the target has this link it reports an older one. After it, it reports a newer
            // one, and this link lives as long as drafts still arrive over it.
            let over = self.is_up() && report.serving != self.generation;
            return if over { self.lose("the target let it go".to_owned(), now) } else { None };
        }
        let reason_or = |otherwise: &str| match report.reason.is_empty() {
            true => otherwise.to_owned(),
            false => report.reason.clone(),
        };
        match (report.phase, self.stage) {
            (
                phase @ (LinkPhase::Up | LinkPhase::Suspect),
                LinkStage::Up { since, suspect: before },
            ) => {
                let late = phase == LinkPhase::Suspect;
                self.stage = LinkStage::Up { since, suspect: late };
                let event = if late {
                    LinkEvent::Late(reason_or("drafts come too late again and again"))
                } else {
                    LinkEvent::InTime
                };
                (late != before).then_some(event)
            }
            (phase @ (LinkPhase::Up | LinkPhase::Suspect), _) => {
                let late = phase == LinkPhase::Suspect;
                self.stage = LinkStage::Up { since: now, suspect: late };
                Some(LinkEvent::Up { late })
            }
            (LinkPhase::Refused, _) => {
                self.stage = LinkStage::Over;
                Some(LinkEvent::Refused(reason_or("the target gives no reason")))
            }
            (LinkPhase::Ejected, _) => {
                self.stage = LinkStage::Over;
                Some(LinkEvent::Ejected(reason_or("the target does not say how")))
            }
            // Given up already. Only `Up`, `Refused` and `Ejected` still count, above.
            (_, LinkStage::Pausing { .. } | LinkStage::Apart) => None,
            (LinkPhase::Lost, _) => self.lose(reason_or("the other side went away"), now),
            (LinkPhase::Absent | LinkPhase::Greeting, LinkStage::Up { .. }) => {
                self.lose("the target has it no more".to_owned(), now)
            }
            (LinkPhase::Absent | LinkPhase::Greeting, _) => None,
        }
    }

    fn lose(&mut self, cause: String, now: Millis) -> Option<LinkEvent> {
        if let LinkStage::Up { since, .. } = self.stage
            && now.since(since) >= LASTING_MS
        {
            self.losses = 0;
        }
        let pause = match PAUSES_MS.get(self.losses as usize) {
            Some(pause) => *pause,
            None => (LONG_PAUSE_MS << (self.losses as usize - PAUSES_MS.len()).min(10))
                .min(LONGEST_PAUSE_MS),
        };
        self.losses = self.losses.saturating_add(1);
        self.stage = LinkStage::Pausing { until: now + pause };
        Some(LinkEvent::Lost(cause))
    }

    /// Time has passed: does what is due.
    pub fn on_time(&mut self, now: Millis) -> Option<LinkEvent> {
        match self.stage {
            LinkStage::Handing { until } if until <= now => {
                self.lose("the workers did not take it".to_owned(), now)
            }
            LinkStage::Greeting { until } if until <= now => {
                self.lose("the handshake took too long".to_owned(), now)
            }
            LinkStage::Pausing { until } if until <= now => {
                self.stage = LinkStage::Apart;
                None
            }
            _ => None,
        }
    }

    /// When [`Link::on_time`] has something to do.
    pub fn next_deadline(&self) -> Option<Millis> {
        match self.stage {
            LinkStage::Handing { until }
            | LinkStage::Greeting { until }
            | LinkStage::Pausing { until } => Some(until),
            LinkStage::Apart | LinkStage::Up { .. } | LinkStage::Over => None,
        }
    }

    /// The supervisor was not running: a link that is being made gets its whole time from now.
    pub fn discount_lost_time(&mut self, now: Millis) {
        if let LinkStage::Handing { until } | LinkStage::Greeting { until } = &mut self.stage {
            *until = now + HANDSHAKE_TIMEOUT_MS;
        }
    }

    /// Name of the stage in logs.
    pub fn name(&self) -> &'static str {
        match self.stage {
            LinkStage::Apart => "apart",
            LinkStage::Handing { .. } => "handing",
            LinkStage::Greeting { .. } => "greeting",
            LinkStage::Up { suspect: false, .. } => "up",
            LinkStage::Up { suspect: true, .. } => "suspect",
            LinkStage::Pausing { .. } => "pausing",
            LinkStage::Over => "over",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(generation: u64, phase: LinkPhase, serving: u64) -> LinkReport {
        LinkReport { generation, phase, reason: String::new(), serving }
    }

    fn greeting(generation: u64) -> Link {
        let mut link = Link::default();
        link.between(Some(LinkEnds { target: Epoch(1), drafter: Epoch(2) }));
        link.hand(generation, Millis(0));
        assert_eq!(link.connected(generation, None, Millis(0)), None);
        link
    }

    #[test]
    fn a_link_goes_up_becomes_suspect_and_is_lost() {
        let mut link = greeting(7);
        let late = LinkEvent::Late("drafts come too late again and again".to_owned());
        assert_eq!(link.reported(&report(6, LinkPhase::Up, 6), Millis(1)), None, "an older one");
        assert_eq!(link.reported(&report(7, LinkPhase::Greeting, 6), Millis(1)), None);
        assert_eq!(
            link.reported(&report(7, LinkPhase::Up, 7), Millis(2)),
            Some(LinkEvent::Up { late: false })
        );
        assert_eq!(link.reported(&report(7, LinkPhase::Suspect, 7), Millis(3)), Some(late));
        assert!(link.is_suspect());
        assert_eq!(
            link.reported(&report(7, LinkPhase::Suspect, 7), Millis(3)),
            None,
            "reported once"
        );
        assert_eq!(link.reported(&report(7, LinkPhase::Up, 7), Millis(3)), Some(LinkEvent::InTime));
        // A newer one greets; this one still serves, then it does not.
        assert_eq!(link.reported(&report(8, LinkPhase::Greeting, 7), Millis(4)), None);
        assert!(matches!(
            link.reported(&report(8, LinkPhase::Refused, 0), Millis(5)),
            Some(LinkEvent::Lost(_))
        ));
        assert_eq!((link.due(), link.next_deadline()), (None, Some(Millis(105))));
        assert_eq!(link.on_time(Millis(105)), None);
        assert!(link.due().is_some());
    }

    #[test]
    fn pauses_between_tries_grow_until_a_link_lasts() {
        let mut link = greeting(1);
        let mut now = Millis(0);
        let mut pauses = Vec::new();
        for generation in 2..14 {
            link.connected(generation - 1, Some("no such socket".into()), now);
            if link.is_being_made() {
                link.reported(&report(generation - 1, LinkPhase::Lost, 0), now);
            }
            let due = link.next_deadline().expect("tried again");
            pauses.push(due.since(now));
            now = due;
            link.on_time(now);
            link.hand(generation, now);
        }
        assert_eq!(
            pauses,
            [100, 250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]
        );
        link.reported(&report(13, LinkPhase::Up, 13), now);
        link.reported(&report(13, LinkPhase::Lost, 0), now + LASTING_MS);
        assert_eq!(link.next_deadline(), Some(now + LASTING_MS + 100));
    }

    #[test]
    fn a_refused_pair_is_not_linked_again_before_another_epoch() {
        let mut link = greeting(3);
        assert!(matches!(
            link.reported(&report(3, LinkPhase::Refused, 0), Millis(1)),
            Some(LinkEvent::Refused(_))
        ));
        assert_eq!((link.due(), link.next_deadline()), (None, None));
        link.between(Some(LinkEnds { target: Epoch(1), drafter: Epoch(2) }));
        assert_eq!(link.due(), None);
        link.between(Some(LinkEnds { target: Epoch(2), drafter: Epoch(2) }));
        assert!(link.due().is_some());
    }

    #[test]
    fn a_handshake_times_out() {
        let mut link = greeting(3);
        assert!(matches!(link.on_time(Millis(10_000)), Some(LinkEvent::Lost(_))));
        assert_eq!(link.losses(), 1);
        // Its report comes late, and before another is handed over: it is up after all.
        assert_eq!(link.reported(&report(3, LinkPhase::Greeting, 0), Millis(10_001)), None);
        assert_eq!(
            link.reported(&report(3, LinkPhase::Up, 3), Millis(10_002)),
            Some(LinkEvent::Up { late: false })
        );
        // As late as this, it is another link's turn.
        link.reported(&report(3, LinkPhase::Lost, 0), Millis(10_003));
        link.on_time(Millis(10_253));
        link.hand(4, Millis(10_253));
        assert_eq!(link.reported(&report(3, LinkPhase::Up, 3), Millis(10_254)), None);
        assert!(!link.is_up());
    }
}
