//! The page as texts and numbers: everything that is drawn, and nothing about where. Texts from
//! outside are harmless here.

use paceline_client::print::{self, bytes, share as loaded_share};
use paceline_proto::convert::service::{
    KvReport, LinkReport, MemoryReport, ProcessReport, ServedRoute, ServiceStatus,
};
use paceline_proto::v1::{Event, ProcessState, Speculation};
use paceline_vocabulary::Millis;

use super::dialog::Dialog;
use super::rates::{Rates, share};
use super::state::{Snapshot, State};
use super::throughput::Throughput;
use crate::harmless::harmless;
use crate::{events, status};

/// Time of the present figures of speculation.
const PRESENT_MS: u64 = 10_000;
/// Share of the KV budget above which requests decode plainly, if the policy does not have it.
const KV_PRESSURE: f64 = 0.85;
/// Share of the memory budget above which admission has little room left.
const HIGH_MEMORY: f64 = 0.95;
/// Keys of the page.
const KEYS: &str = "q quit  r restart  s drafter  d drain";

/// How a text is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// As always.
    #[default]
    Plain,
    /// All is well.
    Good,
    /// On its way, or not as it should be.
    Warning,
    /// Wrong.
    Bad,
}

/// The whole page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// The served model.
    pub model: String,
    /// A line above everything: no supervisor, or a drain.
    pub notice: Option<(Tone, String)>,
    /// Figures, if there was a snapshot.
    pub figures: Option<Figures>,
    /// Events, newest first.
    pub events: Vec<EventRow>,
    /// Lines at the bottom.
    pub footer: Footer,
}

/// The figures of a snapshot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Processes of the service.
    pub processes: Vec<ProcessRow>,
    /// Why something is not as it always is, one text each.
    pub reasons: Vec<String>,
    /// Requests that run or wait.
    pub requests: String,
    /// Ended requests, the most frequent route first.
    pub lanes: Vec<LaneRow>,
    /// Lines about link and drafts.
    pub speculation: Vec<String>,
    /// Share of accepted tokens by second, oldest first.
    pub acceptance: Vec<Option<f64>>,
    /// Memory.
    pub gauges: Vec<Gauge>,
    /// Title of the throughput.
    pub throughput_title: String,
    /// Tokens per second.
    pub throughput: Throughput,
}

/// One process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessRow {
    pub name: &'static str,
    pub state: String,
    pub tone: Tone,
    pub pid: String,
    pub epoch: String,
    pub restarts: String,
    pub uptime: String,
    pub model: String,
}

/// Ended requests of one route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneRow {
    /// Since the supervisor's start.
    pub ended: u64,
    /// Within the last minute.
    pub last_minute: u64,
    /// Lane.
    pub lane: String,
    /// Why this lane.
    pub reason: String,
}

/// A bar with two parts, and a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gauge {
    /// Name.
    pub name: &'static str,
    /// Share of the first part, 0 to 1.
    pub held: f64,
    /// Share of the second part, 0 to 1.
    pub evictable: f64,
    /// Whether the first part is a warning.
    pub tone: Tone,
    /// The text.
    pub text: String,
}

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventRow {
    /// Time of the day.
    pub time: String,
    /// What changed, and why.
    pub text: String,
}

/// The lines at the bottom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footer {
    /// A question, a running order, or the end of one.
    pub text: String,
    /// How the text is meant.
    pub tone: Tone,
    /// Whether the text is a question.
    pub is_question: bool,
    /// Whether the end of the text is the part that matters, as of a text that is typed.
    pub is_typed: bool,
    /// The keys that mean something now.
    pub keys: &'static str,
}

impl View {
    /// The page at `now`.
    pub fn of(state: &State, now: Millis) -> Self {
        let snapshot = state.snapshot.as_ref();
        let status = snapshot.map(|snapshot| &*snapshot.status);
        let model = status.and_then(|status| status.model.as_ref());
        Self {
            model: model.map(|model| harmless(&model.name)).unwrap_or_default(),
            notice: notice(state, now),
            figures: snapshot.map(|snapshot| figures(snapshot, state)),
            events: state.events.iter().rev().map(event_row).collect(),
            footer: footer(state, now),
        }
    }
}

fn notice(state: &State, now: Millis) -> Option<(Tone, String)> {
    match (&state.silent, &state.snapshot) {
        (Some(why), None) => Some((Tone::Bad, format!("{}; trying again", harmless(why)))),
        (Some(why), Some(Snapshot { at, .. })) => {
            let age = now.since(*at) / 1_000;
            Some((Tone::Bad, format!("figures of {age} s ago: {}; trying again", harmless(why))))
        }
        (None, None) => Some((Tone::Warning, "asking the supervisor".into())),
        (None, Some(_)) if state.is_drained() => {
            let text = "drained by an operator: new requests are refused; d, then u, undoes it";
            Some((Tone::Warning, text.into()))
        }
        (None, Some(_)) => None,
    }
}

fn footer(state: &State, now: Millis) -> Footer {
    if let Some(dialog) = &state.dialog {
        let text = harmless_end(&dialog.question());
        let is_typed = matches!(dialog, Dialog::Model(_));
        return Footer {
            text,
            tone: Tone::Warning,
            is_question: true,
            is_typed,
            keys: dialog.keys(),
        };
    }
    let mut lines: Vec<String> = Vec::new();
    let mut tone = Tone::Plain;
    if let Some(message) = &state.message {
        tone = if message.is_failure { Tone::Bad } else { Tone::Good };
        lines.push(harmless(&message.text));
    }
    for running in &state.orders {
        let seconds = now.since(running.since) / 1_000;
        lines.push(format!("{} ({seconds} s)", harmless(&running.order.doing())));
    }
    Footer { text: lines.join("; "), tone, keys: KEYS, ..Footer::default() }
}

/// As [`harmless`], with the end of a text that is too long.
fn harmless_end(text: &str) -> String {
    let turned: String = text.chars().rev().collect();
    harmless(&turned).chars().rev().collect()
}

fn event_row(event: &Event) -> EventRow {
    // "2026-01-02T03:04:05.678Z"
    let time = event.time.get(11..19).unwrap_or(&event.time);
    EventRow { time: harmless(time), text: harmless(&events::change(event)) }
}

fn figures(snapshot: &Snapshot, state: &State) -> Figures {
    let status = &*snapshot.status;
    let (throughput_title, throughput) = throughput(state);
    Figures {
        processes: status.processes().map(|(name, process)| process_row(name, process)).into(),
        reasons: reasons(status),
        requests: requests(status),
        lanes: lanes(status, &state.rates),
        speculation: speculation(&status.link, state.rates.speculation(PRESENT_MS)),
        acceptance: state.rates.acceptance(),
        gauges: gauges(status),
        throughput_title,
        throughput,
    }
}

fn process_row(name: &'static str, process: &ProcessReport) -> ProcessRow {
    let ProcessReport { state, loaded_bytes, weight_bytes, .. } = *process;
    let word = match (state, weight_bytes) {
        (ProcessState::Loading, 0) => format!("loading {}", loaded_share(loaded_bytes, 0)),
        (ProcessState::Loading, all) => {
            format!("loading {} %", u128::from(loaded_bytes) * 100 / u128::from(all))
        }
        _ => state.word(),
    };
    let alive = |text: String| if process.pid.is_some() { text } else { "-".into() };
    ProcessRow {
        name,
        state: word,
        tone: tone(state),
        pid: alive(process.pid.unwrap_or_default().to_string()),
        epoch: process.epoch.to_string(),
        restarts: process.restarts.to_string(),
        uptime: alive(status::uptime(process.uptime_s)),
        model: harmless(&print::process_model(process)),
    }
}

fn tone(state: ProcessState) -> Tone {
    match state {
        ProcessState::Ready => Tone::Good,
        ProcessState::Failed | ProcessState::Suspect | ProcessState::BackingOff => Tone::Bad,
        ProcessState::Absent | ProcessState::Stopped | ProcessState::Unspecified => Tone::Plain,
        ProcessState::Starting | ProcessState::Loading | ProcessState::Draining => Tone::Warning,
    }
}

fn reasons(status: &ServiceStatus) -> Vec<String> {
    let mut reasons = Vec::new();
    for (name, process) in status.processes() {
        if let Some(reason) = &process.reason {
            // Of a process that comes back the lines of its log help nobody.
            let reason = match process.state {
                ProcessState::Failed => reason.as_str(),
                _ => reason.lines().next().unwrap_or_default(),
            };
            reasons.push(harmless(&format!("{name}: {reason}")));
        }
    }
    let others = status::other_refusals(status);
    reasons.extend(others.map(|refused| harmless(&print::refusal(refused))));
    if let Some(reason) = &status.link.reason
        && status.link.state != "up"
    {
        reasons.push(harmless(&format!("link: {reason}")));
    }
    reasons
}

fn requests(status: &ServiceStatus) -> String {
    let requests = &status.requests;
    let plain = requests.active.saturating_sub(requests.speculative);
    format!(
        "{} run ({} may draft, {plain} plain), {} wait",
        requests.active, requests.speculative, requests.queued
    )
}

fn lanes(status: &ServiceStatus, rates: &Rates) -> Vec<LaneRow> {
    let row = |route: &ServedRoute| LaneRow {
        ended: route.requests,
        last_minute: rates.ended(route),
        lane: route.lane.word(),
        reason: route.reason.word(),
    };
    let mut rows: Vec<_> = status.routing.routes.iter().map(row).collect();
    rows.sort_by(|a, b| {
        b.ended.cmp(&a.ended).then_with(|| (&a.lane, &a.reason).cmp(&(&b.lane, &b.reason)))
    });
    rows
}

fn speculation(link: &LinkReport, present: Option<Speculation>) -> Vec<String> {
    let mut lines = vec![harmless(&format!("link {}", link.state))];
    let all = link.speculation();
    let (Some(accepted), Some(tokens)) = (share(&all), all.tokens_per_cycle()) else {
        lines.push("nothing was drafted yet".into());
        return lines;
    };
    let present = present.unwrap_or_default();
    let recent =
        |value: Option<String>| value.map_or(String::new(), |value| format!(", {value} in 10 s"));
    lines.push(format!(
        "{:.0} % of {} drafted accepted{}",
        accepted * 100.0,
        all.drafted,
        recent(share(&present).map(|share| format!("{:.0} %", share * 100.0)))
    ));
    lines.push(format!(
        "{tokens:.2} tokens a cycle{}",
        recent(present.tokens_per_cycle().map(|tokens| format!("{tokens:.2}")))
    ));
    let carried = bytes(link.bytes.unwrap_or_default());
    lines.push(format!("{} late, {carried} over the link", link.late));
    lines
}

fn gauges(status: &ServiceStatus) -> Vec<Gauge> {
    let mut gauges = vec![kv_gauge(&status.kv, high_pressure(status))];
    if status.memory.budget_bytes > 0 {
        gauges.push(memory_gauge(&status.memory));
    }
    gauges
}

/// The share of the KV budget above which requests decode plainly.
fn high_pressure(status: &ServiceStatus) -> f64 {
    let mut policy = status.routing.policy.settings.iter();
    let setting = policy.find(|setting| setting.key == "routing.kv_pressure");
    setting.and_then(|setting| setting.value.parse().ok()).unwrap_or(KV_PRESSURE)
}

fn kv_gauge(kv: &KvReport, high: f64) -> Gauge {
    let held = part(kv.held_bytes, kv.budget_bytes);
    Gauge {
        name: "KV",
        held,
        evictable: part(kv.prefix_bytes, kv.budget_bytes),
        tone: if held > high { Tone::Bad } else { Tone::Good },
        text: format!(
            "{:3.0} %  of {}: {} held, {} for prefixes{}",
            held * 100.0,
            bytes(kv.budget_bytes),
            bytes(kv.held_bytes),
            bytes(kv.prefix_bytes),
            if kv.reduction.is_some() { "; the budget is reduced" } else { "" },
        ),
    }
}

fn memory_gauge(memory: &MemoryReport) -> Gauge {
    let models = memory.target_bytes.saturating_add(memory.drafter_bytes);
    let all = models.saturating_add(memory.cache_bytes);
    let used = part(all, memory.budget_bytes);
    Gauge {
        name: "memory",
        held: part(models, memory.budget_bytes),
        evictable: part(memory.cache_bytes, memory.budget_bytes),
        tone: if used > HIGH_MEMORY { Tone::Warning } else { Tone::Good },
        text: format!(
            "{:3.0} %  of {}: target {}, drafter {}, caches {}, free {}",
            used * 100.0,
            bytes(memory.budget_bytes),
            bytes(memory.target_bytes),
            bytes(memory.drafter_bytes),
            bytes(memory.cache_bytes),
            bytes(memory.available_bytes),
        ),
    }
}

fn part(bytes: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { (bytes as f64 / of as f64).min(1.0) }
}

/// Title and numbers. Without the gateway's figures the supervisor's count of speculation remains.
fn throughput(state: &State) -> (String, Throughput) {
    let rate =
        |throughput: &Throughput| throughput.present().map(|rate| format!("{rate:.1} tokens/s"));
    match &state.throughput {
        None => ("throughput".into(), Throughput::default()),
        Some(Ok(throughput)) => {
            let now = rate(throughput).unwrap_or_else(|| "no figures yet".into());
            let span = throughput.interval_s * throughput.tokens_per_s.len() as u64;
            let peak =
                format!("at most {:.1} in {}", throughput.peak(), status::uptime(span as f64));
            (format!("throughput: {now}, {peak}"), throughput.clone())
        }
        Some(Err(why)) => {
            let tokens_per_s = state.rates.drafted_tokens_per_s();
            let throughput = Throughput { interval_s: 1, tokens_per_s };
            let now = rate(&throughput).unwrap_or_else(|| "no figures yet".into());
            (
                format!("throughput of drafting requests alone: {now} ({})", harmless(why)),
                throughput,
            )
        }
    }
}

#[cfg(test)]
mod tests;
