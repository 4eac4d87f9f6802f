//! The requests that routers have sent, by the names that they gave them: a router ends a request by
//! its name. Requests of one key are ended by that key alone (I9).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;

use crate::lock::lock;

/// Owner and name of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Label {
    /// Name of the key; `None` if no keys are set.
    owner: Option<Arc<str>>,
    name: String,
}

/// Requests that run, by their names. Requests of one name are ended together.
#[derive(Clone, Debug, Default)]
pub(super) struct RunningRequests(Arc<Mutex<HashMap<Label, Entry>>>);

#[derive(Debug, Default)]
struct Entry {
    aborted: CancellationToken,
    requests: usize,
}

/// A request under its name, until this is dropped.
#[derive(Debug)]
pub(super) struct RunningRequest {
    all: RunningRequests,
    label: Label,
    /// Cancelled when the router ends the request.
    pub(super) aborted: CancellationToken,
}

impl RunningRequests {
    /// Enters a request.
    pub(super) fn enter(&self, owner: Option<Arc<str>>, name: String) -> RunningRequest {
        let label = Label { owner, name };
        let mut entries = lock(&self.0);
        let entry = entries.entry(label.clone()).or_default();
        entry.requests += 1;
        let aborted = entry.aborted.clone();
        drop(entries);
        RunningRequest { all: self.clone(), label, aborted }
    }

    /// Ends the requests of this owner with this name. An empty name is none.
    pub(super) fn abort(&self, owner: Option<Arc<str>>, name: String) {
        if name.is_empty() {
            return;
        }
        if let Some(entry) = lock(&self.0).remove(&Label { owner, name }) {
            entry.aborted.cancel();
        }
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        // The entry of an aborted request is gone, and a later request may have the same name.
        if self.aborted.is_cancelled() {
            return;
        }
        let mut entries = lock(&self.all.0);
        if let Some(entry) = entries.get_mut(&self.label) {
            entry.requests -= 1;
            if entry.requests == 0 {
                entries.remove(&self.label);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: &str) -> Option<Arc<str>> {
        Some(name.into())
    }

    #[test]
    fn a_request_is_ended_by_its_name_and_by_its_owner_alone() {
        let running = RunningRequests::default();
        let his = running.enter(owner("a"), "r".into());
        let hers = running.enter(owner("b"), "r".into());
        let nobodys = running.enter(None, "r".into());
        for unknown in [(owner("c"), "r"), (owner("a"), "s"), (owner("a"), "")] {
            running.abort(unknown.0, unknown.1.into());
        }
        assert!(![&his, &hers, &nobodys].iter().any(|one| one.aborted.is_cancelled()));
        running.abort(owner("a"), "r".into());
        assert!(his.aborted.is_cancelled());
        assert!(!hers.aborted.is_cancelled() && !nobodys.aborted.is_cancelled());
    }

    #[test]
    fn requests_of_one_name_end_together_and_leave_nothing() {
        let running = RunningRequests::default();
        let first = running.enter(None, "r".into());
        let second = running.enter(None, "r".into());
        drop(first);
        running.abort(None, "r".into());
        assert!(second.aborted.is_cancelled());
        let third = running.enter(None, "r".into());
        drop(second);
        assert!(!third.aborted.is_cancelled());
        running.abort(None, "r".into());
        assert!(third.aborted.is_cancelled(), "the end of the second one did not take it out");
        drop(third);
        drop(running.enter(None, "s".into()));
        assert!(lock(&running.0).is_empty());
    }

    #[test]
    fn a_request_without_a_name_cannot_be_ended_by_name() {
        let running = RunningRequests::default();
        let one = running.enter(None, String::new());
        running.abort(None, String::new());
        assert!(!one.aborted.is_cancelled());
    }
}
