//! State of the drafters, for routing and in words for operators.

use paceline_vocabulary::Millis;
use paceline_vocabulary::state::ProcessState;

use super::suspension::SuspendReason;
use super::{Drafters, RefusedDrafter, Wanted};
use crate::routing::DrafterState;
use crate::worker::{Phase, StopReason, SuspectReason};

impl Drafters {
    /// The drafter as routing sees it.
    pub fn state(&self) -> DrafterState {
        match self.wanted {
            _ if self.model.is_empty() => return DrafterState::Absent,
            Wanted::No(_) | Wanted::AtFirstUse => return DrafterState::Stopped,
            Wanted::Yes if self.incompatibility.is_some() => return DrafterState::Incompatible,
            Wanted::Yes if self.suspension.reason().is_some() => return DrafterState::Stopped,
            Wanted::Yes => {}
        }
        let link = &self.links[self.current.idx()];
        let worker = self.current();
        let info = worker.life().and_then(|life| life.described.as_ref()?.drafter());
        let max_draft = info.map_or(0, |info| info.block_size.saturating_sub(1));
        match worker.phase() {
            Phase::Ready { .. } if link.is_suspect() => DrafterState::Late { max_draft },
            Phase::Ready { .. } if link.is_up() => DrafterState::Ready { max_draft },
            Phase::Suspect { reason: SuspectReason::Silent }
            | Phase::Ending { why: StopReason::Hung(_) | StopReason::Condemned, .. } => {
                DrafterState::Suspect
            }
            Phase::Ready { .. }
            | Phase::Starting { .. }
            | Phase::Loading { .. }
            | Phase::Stopped => DrafterState::Loading,
            // One of an earlier supervisor is in its place.
            Phase::Ending { .. } => DrafterState::Loading,
            Phase::Suspect { reason: SuspectReason::Leaving }
            | Phase::BackingOff { .. }
            | Phase::Failed { .. } => DrafterState::Stopped,
        }
    }

    /// Whether drafts can come now: it has loaded, is linked to the target, and its drafts are in
    /// time.
    pub fn serves(&self) -> bool {
        matches!(self.state(), DrafterState::Ready { .. })
    }

    /// Whether it drafts for requests with images, by its description. Before its description the
    /// answer is yes: its state denies drafts anyway.
    pub fn serves_images(&self) -> bool {
        let info = self.current().life().and_then(|life| life.described.as_ref()?.drafter());
        info.is_none_or(|info| info.images)
    }

    /// The drafter's state as `paceline status` names it.
    pub fn process_state(&self) -> ProcessState {
        let worker = self.current();
        match self.state() {
            DrafterState::Absent if worker.life().is_none() => ProcessState::Absent,
            DrafterState::Incompatible if worker.life().is_none() => ProcessState::Failed,
            DrafterState::Suspect | DrafterState::Late { .. } => ProcessState::Suspect,
            _ => worker.state(),
        }
    }

    /// Whether one is to run now.
    pub fn is_wanted(&self) -> bool {
        self.wanted == Wanted::Yes && self.suspension.reason().is_none()
    }

    /// Directory of the current one, or of the one that would be; empty is none.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The drafters of the list that were refused, in their order. If no other drafter took its
    /// place, the current one is the last of them.
    pub fn refused(&self) -> Vec<RefusedDrafter> {
        let incompatibility = self.incompatibility.as_ref();
        let reason = incompatibility
            .map(|incompatibility| incompatibility.reason.as_str())
            .or_else(|| self.load_failure());
        let current = reason
            .map(|reason| RefusedDrafter { model: self.model.clone(), reason: reason.to_owned() });
        self.candidates.refused().iter().cloned().chain(current).collect()
    }

    /// Starts nobody asked for, in both places.
    pub fn restarts(&self) -> u32 {
        self.slots.iter().map(|worker| worker.restarts()).sum()
    }

    /// Why it is in this state, for operators.
    pub fn reason(&self, now: Millis) -> String {
        let worker = self.current();
        let link = &self.links[self.current.idx()];
        let state = match (self.wanted, &self.incompatibility) {
            (Wanted::No(why), _) => why.to_owned(),
            (Wanted::AtFirstUse, _) => {
                "it is started by the first request that would use it (drafter.start)".to_owned()
            }
            (Wanted::Yes, Some(incompatibility)) => {
                format!(
                    "incompatible with the target: {}; start or swap it when that is mended",
                    incompatibility.reason
                )
            }
            // While it is being ended the worker says the same.
            (Wanted::Yes, None)
                if self.suspension.reason().is_some() && worker.life().is_some() =>
            {
                String::new()
            }
            (Wanted::Yes, None) if self.suspension.reason().is_some() => {
                self.suspension.reason().map_or("", SuspendReason::why).to_owned()
            }
            (Wanted::Yes, None) if link.is_suspect() => {
                "its drafts come too late again and again".to_owned()
            }
            (Wanted::Yes, None) => match worker.phase() {
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
            self.successor.as_ref().map(|successor| format!("{} is to take over", successor.model));
        let all = [state, swap.unwrap_or_default(), worker.reason(now)];
        all.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
    }
}
