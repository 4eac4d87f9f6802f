//! What the drafters' state means to others: to routing, and in words to operators.

use paceline_proto::v1::ProcessState;
use paceline_vocabulary::Millis;

use super::lifetime::Rest;
use super::{Drafters, Wanted};
use crate::core::route::Drafter;
use crate::core::worker::{Doubt, EndWhy, Phase};

impl Drafters {
    /// The drafter as routing sees it.
    pub fn state(&self) -> Drafter {
        match self.wanted {
            _ if self.model.is_empty() => return Drafter::Absent,
            Wanted::Nobody(_) | Wanted::AtFirstUse => return Drafter::Stopped,
            Wanted::Somebody if self.misfit.is_some() => return Drafter::Incompatible,
            Wanted::Somebody if self.lifetime.rest().is_some() => return Drafter::Stopped,
            Wanted::Somebody => {}
        }
        let link = &self.links[self.current.idx()];
        let worker = self.current();
        let info = worker.life().and_then(|life| life.described.as_ref()?.drafter());
        let max_draft = info.map_or(0, |info| info.block_size.saturating_sub(1));
        match worker.phase() {
            Phase::Ready { .. } if link.is_suspect() => Drafter::Late { max_draft },
            Phase::Ready { .. } if link.is_up() => Drafter::Ready { max_draft },
            Phase::Suspect { doubt: Doubt::Silent }
            | Phase::Ending { why: EndWhy::Hung(_) | EndWhy::Condemned, .. } => Drafter::Suspect,
            Phase::Ready { .. }
            | Phase::Starting { .. }
            | Phase::Loading { .. }
            | Phase::Stopped => Drafter::Loading,
            // One of an earlier supervisor is in its place.
            Phase::Ending { .. } => Drafter::Loading,
            Phase::Suspect { doubt: Doubt::Leaving }
            | Phase::BackingOff { .. }
            | Phase::Failed { .. } => Drafter::Stopped,
        }
    }

    /// Whether drafts can come now: it has loaded, is linked to the target, and its drafts are in
    /// time.
    pub fn serves(&self) -> bool {
        matches!(self.state(), Drafter::Ready { .. })
    }

    /// Whether it drafts behind pictures, by what it says of itself. One that has said nothing yet
    /// is not denied for that: what it lacks is said of it by its state.
    pub fn serves_images(&self) -> bool {
        let info = self.current().life().and_then(|life| life.described.as_ref()?.drafter());
        info.is_none_or(|info| info.images)
    }

    /// The drafter's state as `paceline status` names it.
    pub fn process_state(&self) -> ProcessState {
        let worker = self.current();
        match self.state() {
            Drafter::Absent if worker.life().is_none() => ProcessState::Absent,
            Drafter::Incompatible if worker.life().is_none() => ProcessState::Failed,
            Drafter::Suspect | Drafter::Late { .. } => ProcessState::Suspect,
            _ => worker.state(),
        }
    }

    /// Whether one is to run now.
    pub fn is_wanted(&self) -> bool {
        self.wanted == Wanted::Somebody && self.lifetime.rest().is_none()
    }

    /// Directory of the current one, or of the one that would be; empty is none.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Starts nobody asked for, in both places.
    pub fn restarts(&self) -> u32 {
        self.seats.iter().map(|worker| worker.restarts()).sum()
    }

    /// Why it is in this state, for operators.
    pub fn reason(&self, now: Millis) -> String {
        let worker = self.current();
        let link = &self.links[self.current.idx()];
        let state = match (self.wanted, &self.misfit) {
            (Wanted::Nobody(why), _) => why.to_owned(),
            (Wanted::AtFirstUse, _) => {
                "it is started by the first request that would use it (drafter.start)".to_owned()
            }
            (Wanted::Somebody, Some(misfit)) => {
                format!(
                    "incompatible with the target: {}; start or swap it when that is mended",
                    misfit.reason
                )
            }
            // While it is being ended the worker says the same.
            (Wanted::Somebody, None)
                if self.lifetime.rest().is_some() && worker.life().is_some() =>
            {
                String::new()
            }
            (Wanted::Somebody, None) if self.lifetime.rest().is_some() => {
                self.lifetime.rest().map_or("", Rest::why).to_owned()
            }
            (Wanted::Somebody, None) if link.is_suspect() => {
                "its drafts come too late again and again".to_owned()
            }
            (Wanted::Somebody, None) => match worker.phase() {
                Phase::Ready { .. } if !link.is_up() && self.trouble.is_empty() => {
                    "the link is being made".to_owned()
                }
                Phase::Ready { .. } if !link.is_up() => {
                    format!("the link is being made again: {}", self.trouble)
                }
                _ => String::new(),
            },
        };
        let swap =
            self.incoming.as_ref().map(|incoming| format!("{} is to take over", incoming.model));
        let all = [state, swap.unwrap_or_default(), worker.reason(now)];
        all.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
    }
}
