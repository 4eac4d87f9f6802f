//! The link between the target and one drafter, as the supervisor sees it: when to hand one over,
//! and what the target's reports of it mean. One of these stands for each drafter's place.
//!
//! ```text
//!  Apart ── hand ──▶ Handing ── connected ──▶ Greeting ── UP ──▶ Up ⇄ suspect
//!    ▲                  │ failed, or time        │ LOST, time     │ LOST
//!    └── Pausing ◀──────┴────────────────────────┴────────────────┘
//!                                    REFUSED, EJECTED from any ──▶ Over, until one of the two is another life
//! ```
//! A link belongs to one life of the target and one of the drafter; with another life of either
//! everything starts over.

use paceline_proto::internal::v1::{LinkPhase, LinkReport};
use paceline_vocabulary::Epoch;
use paceline_vocabulary::Millis;

/// For the descriptors to reach both workers, and for the handshake behind it. The shell's own
/// bounds are shorter; this one holds if its answer is lost.
const PATIENCE_MS: u64 = 10_000;
/// Pauses before the first tries after a loss; the first one is long enough to hear that a process
/// has ended.
const PAUSES_MS: [u64; 3] = [100, 250, 500];
/// Later pauses double from here ...
const LONG_PAUSE_MS: u64 = 1_000;
/// ... to here.
const LONGEST_PAUSE_MS: u64 = 60_000;
/// A link that was up so long has earned quick tries again.
const LASTING_MS: u64 = 60_000;

/// Both ends of a link: lives of the target and of a drafter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Life of the target.
    pub target: Epoch,
    /// Life of the drafter.
    pub drafter: Epoch,
}

/// What a report, or its failing to come, says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Drafts can come over it.
    Up {
        /// They come too late from the start.
        late: bool,
    },
    /// They come too late again and again.
    Late(String),
    /// They no longer do.
    InTime,
    /// The two do not go together.
    Refused(String),
    /// The drafter broke the protocol.
    Ejected(String),
    /// It is gone, or could not be made; tried again after a pause.
    Lost(String),
}

impl News {
    /// Why, for logs.
    pub fn cause(&self) -> &str {
        match self {
            News::Up { late: false } => "greeted",
            News::Up { late: true } => "greeted, and drafts come too late",
            News::InTime => "drafts come in time again",
            News::Late(reason)
            | News::Refused(reason)
            | News::Ejected(reason)
            | News::Lost(reason) => reason,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
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
    ends: Option<Ends>,
    stage: Stage,
    /// Number of the newest one handed over between these two.
    generation: u64,
    losses: u32,
}

impl Default for Link {
    fn default() -> Self {
        Self { ends: None, stage: Stage::Apart, generation: 0, losses: 0 }
    }
}

impl Link {
    /// Says which lives could be linked now; `None`: one of the two is not there.
    pub fn between(&mut self, ends: Option<Ends>) {
        if self.ends != ends {
            *self = Self { ends, ..Self::default() };
        }
    }

    /// The lives to make a new link between, if one is due.
    pub fn due(&self) -> Option<Ends> {
        self.ends.filter(|_| self.stage == Stage::Apart)
    }

    /// A link with this number is being handed over.
    pub fn hand(&mut self, generation: u64, now: Millis) {
        self.generation = generation;
        self.stage = Stage::Handing { until: now + PATIENCE_MS };
    }

    /// The lives it is between, as far as they are there.
    pub fn ends(&self) -> Option<Ends> {
        self.ends
    }

    /// Whether one is being made.
    pub fn is_being_made(&self) -> bool {
        matches!(self.stage, Stage::Handing { .. } | Stage::Greeting { .. })
    }

    /// Whether drafts can come over it.
    pub fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up { .. })
    }

    /// Whether drafts come too late over it.
    pub fn is_suspect(&self) -> bool {
        matches!(self.stage, Stage::Up { suspect: true, .. })
    }

    /// Losses between these two lives since a link of theirs last lasted.
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
    ) -> Option<News> {
        if generation != self.generation {
            return None;
        }
        match (self.stage, failure) {
            (Stage::Handing { .. }, None) => {
                self.stage = Stage::Greeting { until: now + PATIENCE_MS };
                None
            }
            (Stage::Handing { .. }, Some(cause)) => self.lose(cause, now),
            // The target's report was faster.
            _ => None,
        }
    }

    /// The target's heartbeat came with this report.
    pub fn reported(&mut self, report: &LinkReport, now: Millis) -> Option<News> {
        if self.generation == 0 || self.stage == Stage::Over {
            return None;
        }
        if report.generation != self.generation {
            // Before the target has this one it speaks of an older; behind it, of a newer, and this
            // one lives as long as drafts still come from it.
            let over = self.is_up() && report.serving != self.generation;
            return if over { self.lose("the target let it go".to_owned(), now) } else { None };
        }
        let said = |otherwise: &str| match report.reason.is_empty() {
            true => otherwise.to_owned(),
            false => report.reason.clone(),
        };
        match (report.phase(), self.stage) {
            (
                phase @ (LinkPhase::Up | LinkPhase::Suspect),
                Stage::Up { since, suspect: before },
            ) => {
                let late = phase == LinkPhase::Suspect;
                self.stage = Stage::Up { since, suspect: late };
                let news = if late {
                    News::Late(said("drafts come too late again and again"))
                } else {
                    News::InTime
                };
                (late != before).then_some(news)
            }
            (phase @ (LinkPhase::Up | LinkPhase::Suspect), _) => {
                let late = phase == LinkPhase::Suspect;
                self.stage = Stage::Up { since: now, suspect: late };
                Some(News::Up { late })
            }
            (LinkPhase::Refused, _) => {
                self.stage = Stage::Over;
                Some(News::Refused(said("the target gives no reason")))
            }
            (LinkPhase::Ejected, _) => {
                self.stage = Stage::Over;
                Some(News::Ejected(said("the target does not say how")))
            }
            // Given up already; only an end of the matter, or that it is up after all, counts any
            // more.
            (_, Stage::Pausing { .. } | Stage::Apart) => None,
            (LinkPhase::Lost, _) => self.lose(said("the other side went away"), now),
            (
                LinkPhase::Absent | LinkPhase::Greeting | LinkPhase::Unspecified,
                Stage::Up { .. },
            ) => self.lose("the target has it no more".to_owned(), now),
            (LinkPhase::Absent | LinkPhase::Greeting | LinkPhase::Unspecified, _) => None,
        }
    }

    fn lose(&mut self, cause: String, now: Millis) -> Option<News> {
        if let Stage::Up { since, .. } = self.stage
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
        self.stage = Stage::Pausing { until: now + pause };
        Some(News::Lost(cause))
    }

    /// Time has passed: does what is due.
    pub fn on_time(&mut self, now: Millis) -> Option<News> {
        match self.stage {
            Stage::Handing { until } if until <= now => {
                self.lose("the workers did not take it".to_owned(), now)
            }
            Stage::Greeting { until } if until <= now => {
                self.lose("the handshake took too long".to_owned(), now)
            }
            Stage::Pausing { until } if until <= now => {
                self.stage = Stage::Apart;
                None
            }
            _ => None,
        }
    }

    /// When [`Link::on_time`] has something to do.
    pub fn next_deadline(&self) -> Option<Millis> {
        match self.stage {
            Stage::Handing { until } | Stage::Greeting { until } | Stage::Pausing { until } => {
                Some(until)
            }
            Stage::Apart | Stage::Up { .. } | Stage::Over => None,
        }
    }

    /// We were not awake to listen: what is being made gets its time from now on.
    pub fn forgive(&mut self, now: Millis) {
        if let Stage::Handing { until } | Stage::Greeting { until } = &mut self.stage {
            *until = now + PATIENCE_MS;
        }
    }

    /// Its word in logs.
    pub fn name(&self) -> &'static str {
        match self.stage {
            Stage::Apart => "apart",
            Stage::Handing { .. } => "handing",
            Stage::Greeting { .. } => "greeting",
            Stage::Up { suspect: false, .. } => "up",
            Stage::Up { suspect: true, .. } => "suspect",
            Stage::Pausing { .. } => "pausing",
            Stage::Over => "over",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(generation: u64, phase: LinkPhase, serving: u64) -> LinkReport {
        LinkReport { generation, phase: phase.into(), reason: String::new(), serving }
    }

    fn greeting(generation: u64) -> Link {
        let mut link = Link::default();
        link.between(Some(Ends { target: Epoch(1), drafter: Epoch(2) }));
        link.hand(generation, Millis(0));
        assert_eq!(link.connected(generation, None, Millis(0)), None);
        link
    }

    #[test]
    fn a_link_goes_up_is_doubted_and_is_lost() {
        let mut link = greeting(7);
        let late = News::Late("drafts come too late again and again".to_owned());
        assert_eq!(link.reported(&report(6, LinkPhase::Up, 6), Millis(1)), None, "an older one");
        assert_eq!(link.reported(&report(7, LinkPhase::Greeting, 6), Millis(1)), None);
        assert_eq!(
            link.reported(&report(7, LinkPhase::Up, 7), Millis(2)),
            Some(News::Up { late: false })
        );
        assert_eq!(link.reported(&report(7, LinkPhase::Suspect, 7), Millis(3)), Some(late));
        assert!(link.is_suspect());
        assert_eq!(link.reported(&report(7, LinkPhase::Suspect, 7), Millis(3)), None, "said once");
        assert_eq!(link.reported(&report(7, LinkPhase::Up, 7), Millis(3)), Some(News::InTime));
        // A newer one greets; this one still serves, then it does not.
        assert_eq!(link.reported(&report(8, LinkPhase::Greeting, 7), Millis(4)), None);
        assert!(matches!(
            link.reported(&report(8, LinkPhase::Refused, 0), Millis(5)),
            Some(News::Lost(_))
        ));
        assert_eq!((link.due(), link.next_deadline()), (None, Some(Millis(105))));
        assert_eq!(link.on_time(Millis(105)), None);
        assert!(link.due().is_some());
    }

    #[test]
    fn tries_are_quick_at_first_and_rare_later_until_a_link_lasts() {
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
    fn what_was_refused_is_over_until_another_life() {
        let mut link = greeting(3);
        assert!(matches!(
            link.reported(&report(3, LinkPhase::Refused, 0), Millis(1)),
            Some(News::Refused(_))
        ));
        assert_eq!((link.due(), link.next_deadline()), (None, None));
        link.between(Some(Ends { target: Epoch(1), drafter: Epoch(2) }));
        assert_eq!(link.due(), None);
        link.between(Some(Ends { target: Epoch(2), drafter: Epoch(2) }));
        assert!(link.due().is_some());
    }

    #[test]
    fn a_handshake_is_bounded() {
        let mut link = greeting(3);
        assert!(matches!(link.on_time(Millis(10_000)), Some(News::Lost(_))));
        assert_eq!(link.losses(), 1);
        // Its report comes late, and before another is handed over: it is up after all.
        assert_eq!(link.reported(&report(3, LinkPhase::Greeting, 0), Millis(10_001)), None);
        assert_eq!(
            link.reported(&report(3, LinkPhase::Up, 3), Millis(10_002)),
            Some(News::Up { late: false })
        );
        // As late as this, it is another link's turn.
        link.reported(&report(3, LinkPhase::Lost, 0), Millis(10_003));
        link.on_time(Millis(10_253));
        link.hand(4, Millis(10_253));
        assert_eq!(link.reported(&report(3, LinkPhase::Up, 3), Millis(10_254)), None);
        assert!(!link.is_up());
    }
}
