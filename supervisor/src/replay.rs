//! Decisions that another policy would have made: the route log's decisions once more, by the same
//! function, with what was known then. Only first decisions count; later ones of the same request
//! followed what happened meanwhile.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;

use paceline_process::config::ConfigError;
use paceline_supervisor_core::routing::{Policy, route};
use paceline_vocabulary::RouteWish;
use serde_json::json;

use crate::config;
use crate::route_log::{DecidedLine, PolicyLine, RouteLogLine};

/// Longest line of a log that is read.
const LINE_BYTES: u64 = 64 << 10;
/// Changed requests that are listed.
const LISTED: usize = 20;

/// Why nothing can be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The log cannot be read.
    #[error("cannot read the route log {path}")]
    Read {
        /// The file.
        path: String,
        /// The cause.
        #[source]
        cause: io::Error,
    },
    /// A setting that the configuration would refuse.
    #[error("--set {setting}")]
    Setting {
        /// As typed.
        setting: String,
        /// The cause.
        #[source]
        cause: ConfigError,
    },
    /// Not of the form key=value.
    #[error("expected --set routing.key=value, found {0:?}")]
    Form(String),
}

/// A request that would have been routed otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Id of the request.
    pub request: String,
    /// As it was.
    pub before: (String, String),
    /// As it would have been.
    pub after: (String, String),
}

/// Result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// Decisions that were replayed.
    pub decisions: u64,
    /// Lines that are none of a route log.
    pub unreadable: u64,
    /// By lane and reason, as it was.
    pub before: BTreeMap<(String, String), u64>,
    /// By lane and reason, as it would have been.
    pub after: BTreeMap<(String, String), u64>,
    /// Requests that would have been routed otherwise.
    pub changes: u64,
    /// The first of them.
    pub changed: Vec<Changed>,
}

impl Replay {
    /// Replays the log at `path` with these settings, each `routing.key=value`.
    ///
    /// # Errors
    /// The log cannot be read, or a setting would be refused.
    pub fn of(path: &Path, settings: &[String]) -> Result<Self, ReplayError> {
        let settings = settings
            .iter()
            .map(|text| text.split_once('=').ok_or_else(|| ReplayError::Form(text.clone())));
        let settings = settings.collect::<Result<Vec<_>, _>>()?;
        // Refused before anything is read, and not once a line.
        policy_of(settings.iter().copied())?;
        let read = |cause| ReplayError::Read { path: path.display().to_string(), cause };
        let mut log = BufReader::new(File::open(path).map_err(read)?);
        let mut replay = Self::default();
        let mut line = Vec::new();
        loop {
            line.clear();
            // A line that is longer is cut into pieces, of which none is one.
            if (&mut log).take(LINE_BYTES).read_until(b'\n', &mut line).map_err(read)? == 0 {
                return Ok(replay);
            }
            match serde_json::from_slice::<RouteLogLine>(&line) {
                Ok(RouteLogLine::Decided(decided)) if decided.again => {}
                Ok(RouteLogLine::Decided(decided)) => replay.take(*decided, &settings),
                Ok(RouteLogLine::Ended(_)) => {}
                Err(_) => replay.unreadable += 1,
            }
        }
    }

    fn take(&mut self, decided: DecidedLine, settings: &[(&str, &str)]) {
        let wish = RouteWish::from_word(&decided.wish);
        let (Some(wish), Ok(policy)) = (wish, changed_policy(&decided.policy, settings)) else {
            self.unreadable += 1;
            return;
        };
        let permit = route(wish, &decided.signals, &policy);
        let before = (decided.permit.lane, decided.permit.reason);
        let after = (permit.lane.word().to_owned(), permit.reason.word().to_owned());
        self.decisions += 1;
        *self.before.entry(before.clone()).or_default() += 1;
        *self.after.entry(after.clone()).or_default() += 1;
        if before != after {
            self.changes += 1;
            if self.changed.len() < LISTED {
                self.changed.push(Changed { request: decided.request, before, after });
            }
        }
    }

    /// For programs: one object.
    pub fn object(&self) -> serde_json::Value {
        let counts = |counts: &BTreeMap<(String, String), u64>| {
            let count = |((lane, reason), requests): (&(String, String), &u64)| json!({ "lane": lane, "reason": reason, "requests": requests });
            counts.iter().map(count).collect::<Vec<_>>()
        };
        let pair = |(lane, reason): &(String, String)| json!({ "lane": lane, "reason": reason });
        let changed = |changed: &Changed| json!({ "request": changed.request, "before": pair(&changed.before), "after": pair(&changed.after) });
        json!({
            "decisions": self.decisions,
            "unreadable": self.unreadable,
            "before": counts(&self.before),
            "after": counts(&self.after),
            "changes": self.changes,
            "changed": self.changed.iter().map(changed).collect::<Vec<_>>(),
        })
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!("{} decisions, {} would change\n", self.decisions, self.changes);
        let mut keys: Vec<_> = self.before.keys().chain(self.after.keys()).collect();
        keys.sort();
        keys.dedup();
        // Writing to a string does not fail.
        let _ = writeln!(text, "{:12} {:22} {:>8} {:>8}", "LANE", "REASON", "BEFORE", "AFTER");
        for key in keys {
            let count =
                |counts: &BTreeMap<(String, String), u64>| counts.get(key).copied().unwrap_or(0);
            let _ = writeln!(
                text,
                "{:12} {:22} {:>8} {:>8}",
                key.0,
                key.1,
                count(&self.before),
                count(&self.after)
            );
        }
        for Changed { request, before, after } in &self.changed {
            let _ = writeln!(
                text,
                "{request}: {} ({}) -> {} ({})",
                before.0, before.1, after.0, after.1
            );
        }
        let more = self.changes.saturating_sub(self.changed.len() as u64);
        if more > 0 {
            let _ = writeln!(text, "... and {more} more");
        }
        if self.unreadable > 0 {
            let _ = writeln!(text, "{} lines are not of this version's route log", self.unreadable);
        }
        text
    }
}

fn changed_policy(line: &PolicyLine, settings: &[(&str, &str)]) -> Result<Policy, ReplayError> {
    let logged = [
        ("routing.force", line.force.as_str()),
        ("routing.max_concurrent", &line.max_concurrent),
        ("routing.max_context", &line.max_context),
        ("routing.kv_pressure", &line.kv_pressure),
    ];
    policy_of(logged.into_iter().chain(settings.iter().copied()))
}

fn policy_of<'a>(
    settings: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<Policy, ReplayError> {
    let mut policy = Policy::default();
    for (key, value) in settings {
        let change = config::policy_change(key, value)
            .map_err(|cause| ReplayError::Setting { setting: format!("{key}={value}"), cause })?;
        policy = policy.with(change);
    }
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route_log::{EndedLine, ServedLine};
    use paceline_supervisor_core::routing::{Decision, DrafterState, Measured, Signals};
    use paceline_vocabulary::{RequestId, Term, chain};

    fn decided(n: u32, again: bool) -> RouteLogLine {
        let unknown = Measured::default();
        let signals = Signals {
            drafter: DrafterState::Ready { max_draft: 15 },
            images: false,
            drafter_images: false,
            place: n,
            running: n,
            context_tokens: 10,
            kv_pressure: 0.25,
            by_sequences: unknown,
            by_context: Measured { up_to: 1_024, steps: 3, gain: 1.1 },
            probe: false,
        };
        let policy = Policy::default();
        let permit = route(RouteWish::Auto, &signals, &policy);
        let decision = Decision { wish: RouteWish::Auto, signals, policy, permit, again };
        let id = RequestId::parse(&format!("r{n}")).expect("an id");
        RouteLogLine::Decided(Box::new(DecidedLine::of(&decision, &id, "default", Term(3))))
    }

    fn log(lines: &[RouteLogLine], rest: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("routes.jsonl");
        let text: String = lines
            .iter()
            .map(|line| format!("{}\n", serde_json::to_string(line).expect("plain")))
            .collect();
        std::fs::write(&path, text + rest).expect("written");
        (dir, path)
    }

    #[test]
    fn a_line_reads_back_as_it_was_written() {
        let served = Some(ServedLine {
            lane: "plain".into(),
            reason: "forced".into(),
            completion_tokens: 4,
            ..Default::default()
        });
        let ended = RouteLogLine::Ended(EndedLine {
            time: "t".into(),
            request: "r".into(),
            term: 1,
            duration_ms: 9,
            served,
        });
        for line in [decided(1, false), decided(7, true), ended] {
            let text = serde_json::to_string(&line).expect("plain");
            assert_eq!(
                serde_json::from_str::<RouteLogLine>(&text).expect("its own form"),
                line,
                "{text}"
            );
        }
    }

    #[test]
    fn the_same_policy_changes_nothing_and_another_lists_its_changes() {
        let mut lines: Vec<_> = (1..=30).map(|n| decided(n, false)).collect();
        lines.push(decided(2, true));
        let (_dir, path) = log(&lines, "no line of a log\n");
        let same = Replay::of(&path, &[]).expect("readable");
        assert_eq!((same.decisions, same.changes, same.unreadable), (30, 0, 1));
        assert_eq!(same.before, same.after);
        let capped = Replay::of(&path, &["routing.max_concurrent=2".into()]).expect("readable");
        let count = |counts: &BTreeMap<(String, String), u64>, lane: &str, reason: &str| {
            counts.get(&(lane.into(), reason.into())).copied()
        };
        assert_eq!(
            (
                count(&capped.before, "speculative", "prior"),
                count(&capped.after, "speculative", "prior")
            ),
            (Some(4), Some(2))
        );
        assert_eq!(
            capped.changed.iter().map(|changed| changed.request.as_str()).collect::<Vec<_>>(),
            ["r3", "r4"]
        );
        let forced = Replay::of(&path, &["routing.force=plain".into()]).expect("readable");
        assert_eq!(
            (forced.changes, forced.changed.len(), count(&forced.after, "plain", "forced")),
            (30, LISTED, Some(30))
        );
        assert!(forced.text().contains("... and 10 more"), "{}", forced.text());
        assert_eq!(forced.object()["changed"][0]["after"]["reason"], "forced");
    }

    #[test]
    fn a_refused_setting_and_a_missing_log_are_named() {
        let (_dir, path) = log(&[decided(1, false)], "");
        let refused =
            |setting: &str| chain(&Replay::of(&path, &[setting.to_owned()]).expect_err("refused"));
        assert!(refused("routing.forse=plain").contains("did you mean routing.force?"));
        assert!(refused("routing.kv_pressure=2").contains("at most 1"));
        assert!(refused("plain").contains("expected --set routing.key=value"));
        let missing = chain(&Replay::of(Path::new("/nowhere/routes"), &[]).expect_err("refused"));
        assert!(missing.contains("/nowhere/routes"), "{missing}");
    }
}
