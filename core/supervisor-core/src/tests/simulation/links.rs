//! Links as the target has them, and how the world moves them.

use std::collections::BTreeMap;

use super::World;
use crate::tests::testing::*;

/// Fate of a link, which decides whether another between the same two workers may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Open,
    Lost,
    Over,
}

/// The target's side.
#[derive(Debug)]
pub(super) struct Links {
    last: u64,
    /// Links up to this one are an earlier supervisor's.
    earlier: u64,
    handing: Option<(u64, WorkerSlot, LinkEnds)>,
    newest: Option<(u64, WorkerSlot, LinkEnds)>,
    phase: LinkPhase,
    serving: Option<(u64, WorkerSlot, LinkEnds)>,
    pairs: BTreeMap<(Epoch, Epoch), (Fate, Millis)>,
    /// The link that the last heartbeat reported as up.
    reported: Option<(WorkerSlot, Epoch)>,
}

impl Links {
    pub(super) fn new(last: u64) -> Self {
        Self {
            last,
            earlier: 0,
            handing: None,
            newest: None,
            phase: LinkPhase::Absent,
            serving: None,
            pairs: BTreeMap::new(),
            reported: None,
        }
    }

    pub(super) fn hand(
        &mut self,
        generation: u64,
        slot: WorkerSlot,
        ends: LinkEnds,
        now: Millis,
    ) -> Result<(), &'static str> {
        if generation <= self.last {
            return Err("generations increase");
        }
        self.last = generation;
        let before = self.pairs.insert((ends.target, ends.drafter), (Fate::Open, now));
        self.handing = Some((generation, slot, ends));
        match before {
            None | Some((Fate::Lost, _)) => Ok(()),
            // Its outcome was not reported in time.
            Some((Fate::Open, since))
                if now.since(since) >= 10_000 && self.reported != Some((slot, ends.drafter)) =>
            {
                Ok(())
            }
            Some((Fate::Open, _)) => Err("a second link between two that have one"),
            Some((Fate::Over, _)) => Err("a link between two that do not go together"),
        }
    }

    /// Another supervisor runs: links are numbered after `last`, and what was being handed over
    /// is lost. Between two that were linked, or did not go together, it may try again.
    pub(super) fn orphaned(&mut self, last: u64) {
        self.pairs.values_mut().for_each(|(fate, _)| *fate = Fate::Lost);
        (self.last, self.earlier, self.handing, self.reported) = (last, last, None, None);
    }

    pub(super) fn reported_up(&self) -> Option<(WorkerSlot, Epoch)> {
        self.reported
    }

    /// A worker is gone, and its ends with it.
    pub(super) fn died(&mut self, worker: WorkerId, epoch: Epoch) {
        match worker {
            WorkerId::Target => {
                *self = Self {
                    pairs: std::mem::take(&mut self.pairs),
                    earlier: self.earlier,
                    ..Self::new(self.last)
                }
            }
            WorkerId::Drafter(_) => {
                if self.newest.is_some_and(|(_, _, ends)| ends.drafter == epoch)
                    && self.phase != LinkPhase::Absent
                {
                    self.phase = LinkPhase::Lost;
                }
                self.serving = self.serving.filter(|(_, _, ends)| ends.drafter != epoch);
            }
        }
    }

    fn mark(&mut self, ends: LinkEnds, fate: Fate) {
        self.pairs.entry((ends.target, ends.drafter)).and_modify(|(was, _)| *was = fate);
    }

    pub(super) fn report(&mut self) -> LinkReport {
        let up = matches!(self.phase, LinkPhase::Up | LinkPhase::Suspect);
        let place = |link: Option<(u64, WorkerSlot, LinkEnds)>| {
            link.map(|(_, slot, ends)| (slot, ends.drafter))
        };
        self.reported = if up { place(self.newest) } else { place(self.serving) };
        // After this report the core may make another link between the same two.
        match (self.newest.filter(|(generation, ..)| *generation > self.earlier), self.phase) {
            (Some((_, _, ends)), LinkPhase::Lost) => self.mark(ends, Fate::Lost),
            (Some((_, _, ends)), LinkPhase::Refused | LinkPhase::Ejected) => {
                self.mark(ends, Fate::Over)
            }
            _ => {}
        }
        // So it may where one was replaced by one that then was lost.
        let there = [self.newest, self.serving, self.handing]
            .map(|link| link.map(|(_, _, ends)| (ends.target, ends.drafter)));
        for (pair, (fate, _)) in &mut self.pairs {
            if *fate == Fate::Open && !there.contains(&Some(*pair)) {
                *fate = Fate::Lost;
            }
        }
        let number = |link: Option<(u64, WorkerSlot, LinkEnds)>| {
            link.map_or(0, |(generation, _, _)| generation)
        };
        LinkReport {
            generation: number(self.newest),
            phase: self.phase,
            reason: String::new(),
            serving: number(self.serving),
        }
    }
}

impl World {
    /// Something happens to the links.
    pub(super) fn link_moves(&mut self) {
        let what = self.random.below(12);
        if let Some((generation, slot, ends)) = self.links.handing.take() {
            let there = self.epoch(WorkerId::Target) == Some(ends.target)
                && self.epoch(WorkerId::Drafter(slot)) == Some(ends.drafter);
            match what {
                0 | 1 => return self.fail(generation, ends),
                _ if !there => return self.fail(generation, ends),
                _ => {
                    // The target knows of no older one any more; the one that serves goes on
                    // serving.
                    self.links.newest = Some((generation, slot, ends));
                    self.links.phase = LinkPhase::Greeting;
                }
            }
            // At times the answer is lost, and the timeout applies.
            if what > 2 {
                self.deliver(Event::Connected { generation, failure: None });
            }
            return;
        }
        let Some(newest) = self.links.newest else { return };
        let links = &mut self.links;
        match (links.phase, what) {
            (LinkPhase::Greeting, 0..=5) => {
                (links.phase, links.serving) = (LinkPhase::Up, Some(newest))
            }
            (LinkPhase::Greeting, 6) => links.phase = LinkPhase::Refused,
            (LinkPhase::Greeting | LinkPhase::Up | LinkPhase::Suspect, 7) => {
                links.phase = LinkPhase::Ejected
            }
            (LinkPhase::Greeting | LinkPhase::Up | LinkPhase::Suspect, 8) => {
                links.phase = LinkPhase::Lost
            }
            (LinkPhase::Up, 9) => links.phase = LinkPhase::Suspect,
            (LinkPhase::Suspect, 9..=11) => links.phase = LinkPhase::Up,
            _ => {}
        }
        if !matches!(links.phase, LinkPhase::Up | LinkPhase::Suspect | LinkPhase::Greeting) {
            links.serving = links.serving.filter(|serving| serving.0 != newest.0);
        }
    }

    fn fail(&mut self, generation: u64, ends: LinkEnds) {
        self.links.mark(ends, Fate::Lost);
        self.deliver(Event::Connected { generation, failure: Some("nobody listens".into()) });
    }
}
