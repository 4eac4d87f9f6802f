//! Scenarios of the core as text: one line for what happens and what must follow, in `testdata/*.txt`.
//!
//! `t=1.2s exited e1 signal=9 => clear; phase ready->starting; spawn`. All actions are listed, in order; none is "nothing
//! follows". `tick` also checks that this very instant is the next deadline. `t=1s..9s` repeats a line every 500 ms.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use paceline_process::{Config, Millis};
use paceline_proto::ids::Epoch;
use paceline_proto::internal::v1::{Heartbeat, KvUse, ModelInfo, WorkerPhase};
use paceline_proto::v1::RouteWish;

use super::admission::{Ask, Capacity, Ticket};
use super::denial::Denial;
use super::worker::{self, Described, Exit};
use super::{Action, Event, Settings, Supervisor};

/// A line's words: `name e1 key=value …`.
struct Words<'a> {
    all: Vec<&'a str>,
}

impl<'a> Words<'a> {
    fn value(&self, key: &str) -> Option<&'a str> {
        self.all.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.value(key).map(|text| text.parse().expect("a number"))
    }

    fn epoch(&self) -> Epoch {
        let word = self.all.iter().find_map(|word| word.strip_prefix('e')?.parse().ok());
        Epoch(word.expect("an epoch like e1"))
    }

    fn ticket(&self) -> Ticket {
        let word = self.all.iter().find_map(|word| word.strip_prefix('r')?.parse().ok());
        Ticket(word.expect("a request like r1"))
    }
}

fn millis(text: &str) -> Millis {
    let text = text.trim_start_matches("t=").trim_end_matches('s');
    Millis((text.parse::<f64>().expect("seconds") * 1_000.0).round() as u64)
}

fn beat(words: &Words<'_>) -> Heartbeat {
    let phase = match words.all[2] {
        "loading" => WorkerPhase::Loading,
        "idle" => WorkerPhase::Idle,
        "prefill" => WorkerPhase::Prefill,
        "decode" => WorkerPhase::Decode,
        "stopping" => WorkerPhase::Stopping,
        "failed" => WorkerPhase::Failed,
        other => panic!("no phase {other}"),
    };
    let (loaded, total) = words.value("bytes").map_or((0, 0), |text| {
        let (loaded, total) = text.split_once('/').expect("bytes=10/100");
        (loaded.parse().expect("a number"), total.parse().expect("a number"))
    });
    Heartbeat {
        epoch: words.epoch().0,
        phase: phase.into(),
        steps: words.number("steps").unwrap_or(0),
        loaded_bytes: loaded,
        total_bytes: total,
        kv: words.number("kv").map(|budget_bytes| KvUse { budget_bytes, ..Default::default() }),
        failure: words.value("failure").unwrap_or_default().replace('_', " "),
        ..Default::default()
    }
}

fn described(words: &Words<'_>) -> worker::Event {
    let class = |text: &str| {
        let (positions, bytes) = text.split_once(':').expect("256:100");
        (positions.parse().expect("a number"), bytes.parse().expect("a number"))
    };
    let classes = words.value("classes").map_or(vec![(256, 100), (1024, 400)], |text| text.split(',').map(class).collect());
    let max_sequences = words.number("max").unwrap_or(2) as usize;
    let model = ModelInfo { name: "demo".into(), ..Default::default() };
    let described = Arc::new(Described { model, capacity: Capacity { classes, max_sequences } });
    worker::Event::Described { epoch: words.epoch(), described }
}

fn event(words: &Words<'_>) -> Event {
    let pid = words.number("pid").unwrap_or(1) as u32;
    Event::Target(match words.all[0] {
        "start" => worker::Event::StartAsked,
        "spawned" => worker::Event::Spawned { epoch: words.epoch(), pid },
        "found" => worker::Event::Found { epoch: words.epoch(), pid },
        "spawn_failed" => worker::Event::SpawnFailed { cause: "no program".into() },
        "beat" => worker::Event::Beat(beat(words)),
        "described" => described(words),
        "undescribed" => worker::Event::DescribeFailed { epoch: words.epoch() },
        "stop_answered" => worker::Event::StopAnswered { epoch: words.epoch(), reached: words.value("reached") == Some("yes") },
        "frozen" => worker::Event::Frozen { epoch: words.epoch() },
        "exited" => {
            let signal = words.number("signal").map(|signal| Exit::Signal(signal as i32));
            let code = words.number("code").map(|code| Exit::Code(code as i32));
            let exit = signal.or(code).unwrap_or(Exit::Unknown);
            worker::Event::Exited { epoch: words.epoch(), exit, log: "last words".into() }
        }
        "request" => {
            let wish = if words.value("wish") == Some("plain") { RouteWish::Plain } else { RouteWish::Auto };
            let ask = Ask {
                prompt_tokens: words.number("prompt").unwrap_or(100) as u32,
                max_tokens: words.number("max").unwrap_or(100) as u32,
                deadline: words.value("deadline").map(millis),
                wish,
            };
            return Event::Submitted { ticket: words.ticket(), ask };
        }
        "ended" => return Event::Ended { ticket: words.ticket() },
        "stop" => return Event::StopAsked,
        "orphaned" => return Event::ParentGone,
        "tick" => return Event::TimePassed,
        other => panic!("no event {other}"),
    })
}

pub(super) fn name_of(action: &Action) -> String {
    let denied = |denial: &Denial| {
        let retry = match denial {
            Denial::Outage { retry_ms, .. } | Denial::Gone { retry_ms, .. } => format!(" retry={retry_ms}"),
            Denial::DeadlinePassed { waited_ms } | Denial::QueueWait { waited_ms } => format!(" waited={waited_ms}"),
            _ => String::new(),
        };
        format!("{}{retry}", denial.reason().word())
    };
    match action {
        Action::Target(action) => match action {
            worker::Action::Spawn => "spawn".into(),
            worker::Action::AskStop { epoch, .. } => format!("ask_stop e{epoch}"),
            worker::Action::Terminate { epoch } => format!("terminate e{epoch}"),
            worker::Action::Kill { epoch } => format!("kill e{epoch}"),
            worker::Action::Describe { epoch } => format!("describe e{epoch}"),
            worker::Action::Clear => "clear".into(),
            worker::Action::Abandon { epoch, .. } => format!("abandon e{epoch}"),
            worker::Action::LogPhase { from, to, .. } => format!("phase {from}->{to}"),
            worker::Action::Surprise { phase, event } => format!("surprise {phase}/{event}"),
        },
        Action::Admit { ticket, epoch, permit, queued_ms } => {
            let lane = permit.lane.as_str_name().trim_start_matches("LANE_").to_lowercase();
            let reason = permit.reason.as_str_name().trim_start_matches("ROUTE_REASON_").to_lowercase();
            format!("admit r{} e{epoch} {lane} {reason} queued={queued_ms}", ticket.0)
        }
        Action::Deny { ticket, denial } => format!("deny r{} {}", ticket.0, denied(denial)),
        Action::Cut { epoch, denial } => format!("cut e{epoch} {}", denied(denial)),
        Action::Announce(notice) => match &notice.outage {
            None => "announce serving".into(),
            Some(outage) => format!("announce {}", outage.reason.word()),
        },
        Action::Overslept { ms } => format!("overslept {ms}"),
        Action::LogService { from, to, .. } => format!("service {from}->{to}"),
        Action::Exit => "exit".into(),
    }
}

fn show(core: &Supervisor, now: Millis) -> String {
    let target = core.target();
    let admission = core.admission();
    let mut text = format!(
        "{} restarts={} active={} queued={} reserved={}",
        target.phase().name(),
        target.restarts(),
        admission.active(),
        admission.queued(),
        admission.reserved_bytes()
    );
    let reason = target.reason(now).replace('\n', " | ").replace(';', ",");
    if !reason.is_empty() {
        write!(text, " [{reason}]").expect("writing to a string");
    }
    text
}

fn set(settings: &mut Settings, words: &Words<'_>) {
    let known: BTreeMap<&str, u64> = words.all[1..]
        .iter()
        .map(|word| word.split_once('=').expect("key=value"))
        .map(|(key, value)| (key, value.parse().expect("a number")))
        .collect();
    for (key, value) in known {
        match key {
            "restarts" => settings.restarts = value as u32,
            "places" => settings.places = value as usize,
            "queue_wait_ms" => settings.queue_wait_ms = value,
            other => panic!("no setting {other}"),
        }
    }
}

/// Runs one scenario.
fn check(name: &str, text: &str) {
    let mut settings = crate::config::settings(&Config::default());
    let mut core: Option<Supervisor> = None;
    let mut wrong = String::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line.starts_with("set ") {
            set(&mut settings, &Words { all: line.split_whitespace().collect() });
            continue;
        }
        let core = core.get_or_insert_with(|| Supervisor::new(settings));
        let (happens, follows) = line.split_once("=>").unwrap_or_else(|| panic!("{name}:{}: expected =>", number + 1));
        let (when, happens) = happens.trim().split_once(' ').expect("t=… what");
        let words = Words { all: happens.split_whitespace().collect() };
        let (from, to) = match when.split_once("..") {
            Some((from, to)) => (millis(from), Some(millis(to))),
            None => (millis(when), None),
        };
        let mut found = Vec::new();
        let mut now = from;
        loop {
            match words.all[0] {
                "show" => found.push(show(core, now)),
                word => {
                    if word == "tick" {
                        assert_eq!(core.next_deadline(), Some(now), "{name}:{}: the next deadline", number + 1);
                    }
                    found.extend(core.on_event(event(&words), now).iter().map(name_of));
                    if let Some(due) = core.next_deadline() {
                        assert!(due > now, "{name}:{}: a deadline is left over", number + 1);
                    }
                }
            }
            now = now + 500;
            if to.is_none_or(|to| now >= to) {
                break;
            }
        }
        if found.join("; ") != follows.trim() {
            let found = found.join("; ");
            write!(wrong, "\n{name}:{} {}\n  expected {}\n  found    {found}", number + 1, line, follows.trim())
                .expect("a string");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            check(stringify!($name), include_str!(concat!("testdata/", stringify!($name), ".txt")));
        })*
    };
}

scenarios!(start, crash, crash_loop, hang, earlier, admission, stop, drain, drain_crash, drain_backing_off, asleep);
