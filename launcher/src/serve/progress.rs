//! Lines of `serve` about the start of the service until it is ready, and about later changes.
//! Given snapshots, returns lines.

use std::path::Path;

use paceline_checkpoint::name_of;
use paceline_client::print::indented;
use paceline_client::print::{bytes, share};
use paceline_proto::convert::service::{ProcessReport, ServiceStatus};
use paceline_proto::v1::ProcessState;
use paceline_vocabulary::Millis;

/// Share of the weights that is read before the rest's time is estimated.
const LEAST_PERCENT: u64 = 3;

/// Something to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Show {
    /// A line that stays.
    Line(String),
    /// A line the next one replaces.
    Passing(String),
}

/// State that `serve` has shown so far.
#[derive(Debug, Default)]
pub struct Progress {
    /// Name of the configured model.
    model: String,
    /// Its directory, which the first report names; another one was swapped in.
    dir: Option<String>,
    address: String,
    /// Passing lines are not seen, so some of them have to stay.
    sparse: bool,
    seen: Option<(ProcessState, u64)>,
    quarter: u64,
    served: bool,
    /// When the present load began.
    loading: Option<Millis>,
    /// When the target was lost that served before.
    lost: Option<Millis>,
}

/// Whether a request would be served now.
pub fn ready(status: &ServiceStatus) -> bool {
    [&status.gateway, &status.target].iter().all(|process| process.state == ProcessState::Ready)
}

impl Progress {
    /// Nothing shown yet. `sparse`: there is no terminal.
    pub fn new(model: String, address: String, sparse: bool) -> Self {
        Self { model, address, sparse, ..Self::default() }
    }

    /// Whether the service was ready once.
    pub fn has_served(&self) -> bool {
        self.served
    }

    /// Name of the model in this directory.
    fn name(&mut self, dir: Option<&String>) -> String {
        match dir {
            Some(dir) if self.dir.get_or_insert_with(|| dir.clone()) != dir => {
                name_of(Path::new(dir)).unwrap_or_else(|| dir.clone())
            }
            _ => self.model.clone(),
        }
    }

    /// Text for what changed since the last snapshot, if anything did. `now`: of any clock that goes on.
    pub fn update(&mut self, status: &ServiceStatus, now: Millis) -> Option<Show> {
        let target = &status.target;
        let state = (target.state, target.epoch);
        let model = self.name(target.model.as_ref());
        if self.served && state.0 != ProcessState::Ready {
            self.lost.get_or_insert(now);
        }
        match state.0 {
            ProcessState::Loading => {
                let fresh = self.seen.replace(state) != Some(state);
                self.quarter = if fresh { 0 } else { self.quarter };
                let quarter =
                    (target.loaded_bytes * 4).checked_div(target.weight_bytes).unwrap_or(0);
                let begun =
                    if fresh { self.loading.insert(now) } else { self.loading.get_or_insert(now) };
                let left = time_left(target, now.since(*begun));
                let share = share(target.loaded_bytes, target.weight_bytes);
                let text = format!("loading {model}: {share}{left}");
                let stays = self.sparse && (fresh || quarter > self.quarter);
                self.quarter = self.quarter.max(quarter);
                (stays || !self.sparse).then_some(if stays {
                    Show::Line(text)
                } else {
                    Show::Passing(text)
                })
            }
            ProcessState::Ready => {
                // Not before the gateway takes requests too.
                if !ready(status) || self.seen.replace(state) == Some(state) {
                    return None;
                }
                let (address, weights) = (&self.address, bytes(target.weight_bytes));
                Some(Show::Line(match std::mem::replace(&mut self.served, true) {
                    true => {
                        let pause = self.lost.take().map_or(0, |lost| now.since(lost)) as f64 / 1e3;
                        let going_on = going_on(status);
                        format!("ready again after {pause:.1} s: {model} at {address}{going_on}")
                    }
                    false => format!("ready: {model} at {address}, {weights} of weights"),
                }))
            }
            ProcessState::Suspect
            | ProcessState::BackingOff
            | ProcessState::Failed
            | ProcessState::Draining => {
                if self.seen.replace(state) == Some(state) {
                    return None;
                }
                Some(Show::Line(trouble(target)))
            }
            ProcessState::Unspecified
            | ProcessState::Absent
            | ProcessState::Stopped
            | ProcessState::Starting => None,
        }
    }
}

/// What is wrong with the target. The lines of its log help only if it does not come back.
fn trouble(target: &ProcessReport) -> String {
    let reason = target.reason.as_deref().unwrap_or_default();
    let reason = match target.state {
        ProcessState::Failed => indented(reason),
        _ => reason.lines().next().unwrap_or_default().to_owned(),
    };
    let why = if reason.is_empty() { reason } else { format!(": {reason}") };
    format!("target {}{why}", target.state.word().replace('_', " "))
}

/// The requests that a next target continues, as a clause.
fn going_on(status: &ServiceStatus) -> String {
    match status.requests.active {
        0 => String::new(),
        1 => "; 1 request goes on".to_owned(),
        count => format!("; {count} requests go on"),
    }
}

/// The expected time to the end of a load, as a clause. None before some percent are read: the first bytes come from
/// a cold disk, or from the page cache.
fn time_left(target: &ProcessReport, spent_ms: u64) -> String {
    let (done, all) = (target.loaded_bytes, target.weight_bytes);
    if done.saturating_mul(100) < all.saturating_mul(LEAST_PERCENT) || done >= all || spent_ms == 0
    {
        return String::new();
    }
    let left_s = (spent_ms as f64 / 1e3 * (all - done) as f64 / done as f64).ceil();
    if left_s < 120.0 {
        format!(", about {left_s} s left")
    } else {
        format!(", about {:.0} min left", left_s / 60.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_proto::v1::{ProcessStatus, RequestsStatus, StatusResponse};

    fn snapshot(state: ProcessState, epoch: u64, loaded_bytes: u64) -> ServiceStatus {
        let gateway =
            ProcessStatus { state: ProcessState::Ready.into(), ..ProcessStatus::default() };
        let reason = if state == ProcessState::BackingOff {
            "it ended\nlast line".into()
        } else {
            String::new()
        };
        let target = ProcessStatus {
            state: state.into(),
            epoch,
            loaded_bytes,
            weight_bytes: 1000,
            reason,
            ..ProcessStatus::default()
        };
        let requests = Some(RequestsStatus { active: 2, ..RequestsStatus::default() });
        let (gateway, target) = (Some(gateway), Some(target));
        StatusResponse { gateway, target, requests, ..StatusResponse::default() }.into()
    }

    fn lines(sparse: bool) -> Vec<String> {
        let mut progress = Progress::new("m".into(), "a:1".into(), sparse);
        let story = [
            (ProcessState::Starting, 1, 0),
            (ProcessState::Loading, 1, 0),
            (ProcessState::Loading, 1, 100),
            (ProcessState::Loading, 1, 600),
            (ProcessState::Ready, 1, 1000),
            (ProcessState::Ready, 1, 1000),
            (ProcessState::BackingOff, 1, 0),
            (ProcessState::Loading, 2, 0),
            (ProcessState::Ready, 2, 1000),
        ];
        let shown = story.into_iter().enumerate().filter_map(|(at, (state, epoch, loaded))| {
            progress.update(&snapshot(state, epoch, loaded), Millis(at as u64 * 700))
        });
        shown
            .map(|show| match show {
                Show::Line(text) => text,
                Show::Passing(text) => format!("~{text}"),
            })
            .collect()
    }

    #[test]
    fn without_a_terminal_few_lines_stay() {
        let expected = [
            "loading m: 0 B of 1000 B (0 %)",
            "loading m: 600 B of 1000 B (60 %), about 1 s left",
            "ready: m at a:1, 1000 B of weights",
            "target backing off: it ended",
            "loading m: 0 B of 1000 B (0 %)",
            "ready again after 1.4 s: m at a:1; 2 requests go on",
        ];
        assert_eq!(lines(true), expected);
    }

    #[test]
    fn a_model_that_was_swapped_in_has_its_own_name() {
        let mut progress = Progress::new("m".into(), "a:1".into(), true);
        let mut shown = |model: &str, epoch| {
            let mut status = snapshot(ProcessState::Ready, epoch, 1000);
            status.target.model = Some(model.to_owned());
            progress.update(&status, Millis(0))
        };
        let line = |text: &str| Some(Show::Line(text.to_owned()));
        assert_eq!(shown("/models/first", 1), line("ready: m at a:1, 1000 B of weights"));
        assert_eq!(
            shown("/models/b", 2),
            line("ready again after 0.0 s: b at a:1; 2 requests go on")
        );
        assert_eq!(
            shown("/models/first", 3),
            line("ready again after 0.0 s: m at a:1; 2 requests go on")
        );
    }

    #[test]
    fn on_a_terminal_loading_passes() {
        assert_eq!(lines(false).iter().filter(|line| line.starts_with("~loading")).count(), 4);
        assert_eq!(lines(false).iter().filter(|line| !line.starts_with('~')).count(), 3);
    }
}
