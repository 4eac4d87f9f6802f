//! Scenarios of the core as text: one line for what happens and what must follow, in
//! `testdata/*.txt`.
//!
//! `t=1.2s exited e1 signal=9 => clear; phase ready->starting; spawn`. All actions are listed, in
//! order; none is "nothing follows". `tick` also checks that this very instant is the next
//! deadline. `t=1s..9s` repeats a line every 500 ms. `d0` and `d1` before a word mean a drafter's
//! place, else the target is meant; a beat's `link=g:phase:serving` is its report. `goes_on`
//! repeats the last heartbeat of each worker, one step further. The target takes other permits at
//! once, unless a scenario says `set permits=by_hand` and how it answers them.

mod names;
mod parse;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::tests::testing::*;
pub(crate) use names::name_of;
use names::{show, show_drafter};
use parse::{Words, event, millis};

/// The supervisor's term; the numbers of links contain it.
const TERM: u64 = 3;

fn set(settings: &mut Settings, plan: &mut DrafterPlan, words: &Words<'_>) {
    let known: BTreeMap<&str, &str> =
        words.all[1..].iter().map(|word| word.split_once('=').expect("key=value")).collect();
    for (key, value) in known {
        let number = || value.parse::<u64>().expect("a number");
        match key {
            "restarts" => settings.worker.restarts = number() as u32,
            "places" => settings.admission.queue_places = number() as usize,
            "streams_per_key" => settings.admission.streams_per_key = number() as usize,
            "notice_ms" => settings.notice_ms = number(),
            "queue_wait_ms" => settings.admission.queue_wait_ms = number(),
            "kill_strands_memory" => settings.worker.kill_strands_memory = value == "yes",
            "idle_stop_ms" => plan.idle_stop_ms = number(),
            "permits" => assert_eq!(value, "by_hand"),
            "log_routes" => settings.log_routes = value == "yes",
            "drafter" => plan.models = value.split(',').map(str::to_owned).collect(),
            "start" => {
                plan.start = match value {
                    "eager" => DrafterStart::Eager,
                    "lazy" => DrafterStart::Lazy,
                    "manual" => DrafterStart::Manual,
                    other => panic!("no start {other}"),
                }
            }
            other => panic!("no setting {other}"),
        }
    }
}

/// A scenario that is being run.
struct Scenario {
    core: Supervisor,
    /// The last heartbeat of each worker, for `goes_on`.
    heartbeats: BTreeMap<WorkerId, Box<Heartbeat>>,
    /// The scenario itself answers `Repermit`.
    by_hand: bool,
}

impl Scenario {
    /// Actions that follow from one line at one time, in words.
    fn play(&mut self, words: &Words<'_>, now: Millis, place: &str) -> Vec<String> {
        match words.all[0] {
            "goes_on" => {
                let mut found = Vec::new();
                for (worker, heartbeat) in &mut self.heartbeats {
                    heartbeat.steps += 1;
                    let event = worker::Event::Heartbeat(heartbeat.clone());
                    let actions = self.core.on_event(Event::Worker(*worker, event), now);
                    found.extend(actions.iter().map(name_of));
                }
                return found;
            }
            "show" => return vec![show(&self.core, now)],
            "show_drafter" => return vec![show_drafter(&self.core, now)],
            "tick" => {
                assert_eq!(self.core.next_deadline(), Some(now), "{place}: the next deadline")
            }
            _ => {}
        }
        let event = event(words);
        if let Event::Worker(worker, worker::Event::Heartbeat(heartbeat)) = &event {
            self.heartbeats.insert(*worker, heartbeat.clone());
        }
        let mut actions = self.core.on_event(event, now);
        let ordered = actions.iter().find_map(|action| match action {
            Action::Repermit { epoch, .. } if !self.by_hand => Some(*epoch),
            _ => None,
        });
        if let Some(epoch) = ordered {
            let answer = Event::Repermitted { epoch, missed: Vec::new() };
            actions.extend(self.core.on_event(answer, now));
        }
        if let Some(due) = self.core.next_deadline() {
            assert!(due > now, "{place}: a deadline is left over");
        }
        actions.iter().filter(|action| is_listed(action)).map(name_of).collect()
    }
}

/// Not listed: that each epoch gets the configuration's policy, and the operator's order, which is
/// the line itself.
fn is_listed(action: &Action) -> bool {
    match action {
        Action::PushPolicy { policy, .. } => policy.epoch != 0,
        Action::LogOrder { .. } => false,
        _ => true,
    }
}

/// Runs one scenario.
fn check(name: &str, text: &str) {
    let mut settings = Settings::default();
    let mut plan = DrafterPlan::default();
    let mut scenario: Option<Scenario> = None;
    let by_hand =
        text.lines().any(|line| line.starts_with("set ") && line.contains("permits=by_hand"));
    let mut wrong = String::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line.starts_with("set ") {
            set(&mut settings, &mut plan, &Words { all: line.split_whitespace().collect() });
            continue;
        }
        let scenario = scenario.get_or_insert_with(|| Scenario {
            core: Supervisor::new(settings, plan.clone(), Term(TERM)),
            heartbeats: BTreeMap::new(),
            by_hand,
        });
        let place = format!("{name}:{number}");
        let (happens, follows) =
            line.split_once("=>").unwrap_or_else(|| panic!("{place}: expected =>"));
        let (when, happens) = happens.trim().split_once(' ').expect("t=… what");
        let words = Words { all: happens.split_whitespace().collect() };
        let (from, to) = match when.split_once("..") {
            Some((from, to)) => (millis(from), millis(to)),
            None => (millis(when), millis(when) + 1),
        };
        let mut found = Vec::new();
        let mut now = from;
        while now < to {
            found.extend(scenario.play(&words, now, &place));
            now = now + 500;
        }
        let (found, expected) = (found.join("; "), follows.trim());
        if found != expected {
            write!(wrong, "\n{place} {line}\n  expected {expected}\n  found    {found}")
                .expect("a string");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            check(stringify!($name), include_str!(concat!("../../testdata/", stringify!($name), ".txt")));
        })*
    };
}

scenarios!(
    start,
    crash,
    crash_loop,
    refused_model,
    poison,
    poison_progress,
    hang,
    earlier,
    admission,
    fair,
    expected_memory,
    stop,
    stranded,
    drain,
    drain_crash,
    drain_backing_off,
    asleep,
    drafter_start,
    drafter_link,
    drafter_orders,
    drafter_swap,
    drafter_lazy,
    drafter_none,
    drafter_earlier,
    drafter_list,
    drafter_list_load,
    drafter_list_orders,
    drafter_list_takeover,
    route_load,
    route_policy,
    tuned,
    route_measured,
    route_log,
    route_images,
    route_missed,
    rest_idle,
    rest_memory,
    rest_memory_low,
    rest_squeezed,
    rest_working_set,
    rest_crowd,
    rest_plain,
    drafter_takeover,
    drafter_restart,
    takeover,
    restart_target,
    swap_target,
    restart_supervisor,
    restart_supervisor_now,
    restart_then_stop,
    restart_gateway,
    held,
    held_resumed,
    notice,
    slow_prefill,
);
