//! The simulations' own count of waiting and running requests, by which the fairness of each
//! admission is judged. Written apart from the queue that it judges, and slower.

use std::collections::{BTreeMap, BTreeSet};

use paceline_vocabulary::KeyId;

use crate::ids::Ticket;

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// In the queue.
    Waiting,
    /// Admitted, and its end not reported.
    Running,
    /// Neither.
    Gone,
}

/// The requests of all keys, just before one is admitted.
#[derive(Debug, Default)]
pub(crate) struct FairnessCheck {
    waiting: BTreeMap<KeyId, BTreeSet<Ticket>>,
    running: BTreeMap<KeyId, usize>,
}

impl FairnessCheck {
    pub(crate) fn new(all: impl Iterator<Item = (Ticket, KeyId, Standing)>) -> Self {
        let mut fairness = Self::default();
        for (ticket, key, standing) in all {
            match standing {
                Standing::Waiting => {
                    fairness.waiting.entry(key).or_default().insert(ticket);
                }
                Standing::Running => *fairness.running.entry(key).or_default() += 1,
                Standing::Gone => {}
            }
        }
        fairness
    }

    /// The oldest that waits of a key, where tickets are numbered by arrival.
    pub(crate) fn oldest(&self, key: KeyId) -> Option<Ticket> {
        self.waiting.get(&key)?.first().copied()
    }

    fn runs(&self, key: KeyId) -> usize {
        self.running.get(&key).copied().unwrap_or(0)
    }

    fn may_run(&self, key: KeyId, limit: usize) -> bool {
        key == KeyId::NONE || self.runs(key) < limit
    }

    /// The share of each key, with one more running.
    fn share(&self) -> usize {
        let keys: BTreeSet<&KeyId> = self.waiting.keys().chain(self.running.keys()).collect();
        (self.running.values().sum::<usize>() + 1).div_ceil(keys.len().max(1))
    }

    /// Whether one of this key may be admitted.
    ///
    /// # Errors
    /// The rule that forbids it.
    pub(crate) fn judge(&self, key: KeyId, limit: usize) -> Result<(), String> {
        let (runs, share) = (self.runs(key), self.share());
        if !self.may_run(key, limit) {
            return Err(format!("its key runs {runs} of at most {limit} (share)"));
        }
        let others =
            self.waiting.keys().filter(|other| **other != key && self.may_run(**other, limit));
        let behind = others.clone().find(|other| {
            runs >= share && (self.runs(**other) < share || self.runs(**other) < runs)
        });
        match behind {
            Some(other) => Err(format!(
                "its key runs {runs}, {other:?} waits and runs {}, a share is {share}",
                self.runs(*other)
            )),
            None => Ok(()),
        }
    }

    /// The rules that kept another key from coming first. A simulation in which they never do
    /// proves nothing about them.
    pub(crate) fn passed(&self, key: KeyId, limit: usize) -> Vec<&'static str> {
        let others: Vec<KeyId> =
            self.waiting.keys().copied().filter(|other| *other != key).collect();
        let at_limit = others.iter().any(|other| !self.may_run(*other, limit));
        let at_share = others
            .iter()
            .any(|other| self.may_run(*other, limit) && self.runs(*other) >= self.share());
        let all = [(at_limit, "passed at its limit"), (at_share, "passed at its share")];
        all.into_iter().filter(|(holds, _)| *holds).map(|(_, what)| what).collect()
    }
}
