//! The route log: how each request was routed and what came of it, as JSON lines. No text of a request is ever in it, for
//! none comes here (I9).
//!
//! Lines are made on the actor's task and written by a thread of its own, behind a bounded queue: a slow disk costs lines,
//! a full one a warning, neither a request. A file above its bound becomes `.1`; the one before that goes (I6).

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use paceline_proto::ids::{RequestId, Term};
use paceline_proto::v1::{Lane, RouteReason, RouteWish};
use serde::{Deserialize, Serialize};

use crate::core::route::{Policy, Signals};
use crate::core::routing::Decision;

/// Largest file.
const FILE_BYTES: u64 = 16 << 20;
/// Lines on their way to the disk.
const LINES: usize = 1_024;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase", deny_unknown_fields)]
pub enum Line {
    /// A request was routed.
    Decided(Box<Decided>),
    /// A request ended.
    Ended(Ended),
}

/// A route as it was decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decided {
    /// RFC 3339, UTC.
    pub time: String,
    /// Id of the request.
    pub request: String,
    /// The supervisor's life.
    pub term: u64,
    /// Traffic class.
    pub class: String,
    /// "auto", "plain" or "speculative".
    pub wish: String,
    /// It ran already: load, the drafter or the policy had changed.
    pub again: bool,
    /// The policy in force.
    pub policy: PolicyLine,
    /// What was known.
    pub signals: Signals,
    /// What was decided.
    pub permit: RouteLine,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ended {
    /// RFC 3339, UTC.
    pub time: String,
    /// Id of the request.
    pub request: String,
    /// The supervisor's life.
    pub term: u64,
    /// Milliseconds from its route to its end.
    pub duration_ms: u64,
    /// How it was served; none if it was broken off.
    pub served: Option<ServedLine>,
}

/// What a finished request came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServedLine {
    /// "plain" or "speculative".
    pub lane: String,
    /// Word of the list of reasons.
    pub reason: String,
    /// Draft-and-verify rounds.
    pub cycles: u64,
    /// Tokens proposed.
    pub drafted: u64,
    /// Proposed tokens equal to the target's choice.
    pub accepted: u64,
    /// Tokens generated, counted by this supervisor.
    pub completion_tokens: u64,
}

/// A policy, each key in the configuration's form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "as in the configuration")]
pub struct PolicyLine {
    pub epoch: u64,
    pub force: String,
    pub max_concurrent: String,
    pub max_context: String,
    pub kv_pressure: String,
}

/// Lane and reason.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteLine {
    /// "plain" or "speculative".
    pub lane: String,
    /// Word of the list of reasons.
    pub reason: String,
    /// Longest draft.
    pub max_draft: u32,
}

/// An enum's name as JSON has it.
fn word(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_lowercase()
}

/// "plain" or "speculative".
pub fn lane_word(lane: Lane) -> String {
    word(lane.as_str_name(), "LANE_")
}

/// "benefit", …
pub fn reason_word(reason: RouteReason) -> String {
    word(reason.as_str_name(), "ROUTE_REASON_")
}

impl PolicyLine {
    fn of(policy: &Policy) -> Self {
        let [force, max_concurrent, max_context, kv_pressure] = policy.settings().map(|(_, value)| value);
        Self { epoch: policy.epoch, force, max_concurrent, max_context, kv_pressure }
    }
}

impl Decided {
    /// The line of a decision.
    pub fn of(decision: &Decision, request: &RequestId, class: &str, term: Term) -> Self {
        let permit = &decision.permit;
        let wish = if decision.wish == RouteWish::Unspecified { RouteWish::Auto } else { decision.wish };
        Self {
            time: now(),
            request: request.as_str().to_owned(),
            term: term.0,
            class: class.to_owned(),
            wish: word(wish.as_str_name(), "ROUTE_WISH_"),
            again: decision.again,
            policy: PolicyLine::of(&decision.policy),
            signals: decision.signals,
            permit: RouteLine { lane: lane_word(permit.lane), reason: reason_word(permit.reason), max_draft: permit.max_draft },
        }
    }
}

impl Ended {
    /// The line of an end.
    pub fn of(request: &RequestId, term: Term, duration_ms: u64, served: Option<ServedLine>) -> Self {
        Self { time: now(), request: request.as_str().to_owned(), term: term.0, duration_ms, served }
    }
}

/// Wall clock, for people who read the log.
fn now() -> String {
    jiff::Timestamp::now().to_string()
}

/// The log's writer. Dropped, it writes what is on its way and closes the file.
#[derive(Debug)]
pub struct RouteLog {
    lines: Option<SyncSender<Line>>,
    writer: Option<JoinHandle<()>>,
    lost: bool,
}

impl RouteLog {
    /// A log at `path`; a file that cannot be written is warned of and tried again at each line.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(path: PathBuf) -> io::Result<Self> {
        let (lines, incoming) = sync_channel(LINES);
        let writer =
            std::thread::Builder::new().name("route-log".into()).spawn(move || Book::new(path, FILE_BYTES).keep(&incoming))?;
        Ok(Self { lines: Some(lines), writer: Some(writer), lost: false })
    }

    /// Has a line written. Never waits: where lines come faster than the disk takes them some are lost.
    pub fn write(&mut self, line: Line) {
        let taken = self.lines.as_ref().is_some_and(|lines| lines.try_send(line).is_ok());
        if !taken && !self.lost {
            tracing::warn!("the route log does not take lines as fast as they come; some are lost");
        }
        self.lost |= !taken;
    }
}

impl Drop for RouteLog {
    fn drop(&mut self) {
        self.lines = None;
        if let Some(writer) = self.writer.take() {
            // What it panicked of is in the log.
            let _ = writer.join();
        }
    }
}

/// The files, and whether anything is wrong with them.
struct Book {
    path: PathBuf,
    most_bytes: u64,
    file: Option<(File, u64)>,
    troubled: bool,
}

impl Book {
    fn new(path: PathBuf, most_bytes: u64) -> Self {
        Self { path, most_bytes, file: None, troubled: false }
    }

    fn keep(mut self, lines: &Receiver<Line>) {
        while let Ok(line) = lines.recv() {
            match self.write(&line) {
                Ok(()) => self.troubled = false,
                Err(error) => {
                    self.file = None;
                    if !self.troubled {
                        tracing::warn!(path = %self.path.display(), %error, "the route log cannot be written; requests are served all the same");
                    }
                    self.troubled = true;
                }
            }
        }
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let (mut file, bytes) = match self.file.take() {
            Some(open) => open,
            None => open(&self.path)?,
        };
        let mut bytes = bytes;
        if bytes > 0 && bytes + text.len() as u64 > self.most_bytes {
            drop(file);
            std::fs::rename(&self.path, older(&self.path))?;
            (file, bytes) = open(&self.path)?;
        }
        file.write_all(&text)?;
        self.file = Some((file, bytes + text.len() as u64));
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}

/// Where a full file goes.
fn older(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(request: &str) -> Line {
        Line::Ended(Ended { time: "t".into(), request: request.into(), term: 1, duration_ms: 5, served: None })
    }

    #[test]
    fn two_files_of_bounded_size_are_kept() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("routes.jsonl");
        let mut book = Book::new(path.clone(), 1_000);
        for n in 0..200 {
            book.write(&line(&format!("r{n}"))).expect("written");
        }
        let sizes = [path.clone(), older(&path)].map(|path| std::fs::metadata(path).expect("there").len());
        assert!(sizes.iter().all(|bytes| (1..=1_000).contains(bytes)), "{sizes:?}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 2);
        let last = std::fs::read_to_string(&path).expect("text");
        assert!(last.ends_with("\"request\":\"r199\",\"term\":1,\"duration_ms\":5,\"served\":null}\n"), "{last}");
        for text in last.lines() {
            assert!(matches!(serde_json::from_str(text).expect("a line"), Line::Ended(_)));
        }
        // Another life goes on in the same file.
        let mut book = Book::new(path.clone(), 1_000);
        let before = std::fs::metadata(&path).expect("there").len();
        book.write(&line("x")).expect("written");
        assert!(std::fs::metadata(&path).expect("there").len() > before || older(&path).exists());
    }

    #[test]
    fn a_disk_that_takes_nothing_costs_nothing_but_lines() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("missing/routes.jsonl");
        let mut log = RouteLog::start(path.clone()).expect("a thread");
        log.write(line("a"));
        drop(log);
        assert!(!path.exists());
        // Mended, it is written again.
        std::fs::create_dir(dir.path().join("missing")).expect("made");
        let mut log = RouteLog::start(path.clone()).expect("a thread");
        log.write(line("b"));
        drop(log);
        assert!(std::fs::read_to_string(&path).expect("written").contains("\"request\":\"b\""));
        let full = RouteLog::start("/dev/full".into());
        let mut full = full.expect("a thread");
        for _ in 0..3 {
            full.write(line("c"));
        }
        drop(full);
    }
}
