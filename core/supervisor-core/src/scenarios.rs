//! Scenarios of the core as text: one line for what happens and what must follow, in
//! `testdata/*.txt`.
//!
//! `t=1.2s exited e1 signal=9 => clear; phase ready->starting; spawn`. All actions are listed, in
//! order; none is "nothing follows". `tick` also checks that this very instant is the next
//! deadline. `t=1s..9s` repeats a line every 500 ms. `d0` and `d1` before a word mean a drafter's
//! place, else the target is meant; a beat's `link=g:phase:serving` is its report. `goes_on`
//! repeats everybody's last heartbeat, one step further. The target takes other permits at once,
//! unless a scenario says `set permits=by_hand` and how it answers them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use crate::testing::*;
/// The supervisor's life; links are numbered from it on.
const TERM: u64 = 3;

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

    /// `model=/d`
    fn model(&self) -> String {
        self.value("model").unwrap_or_default().to_owned()
    }

    fn text(&self, key: &str) -> String {
        self.value(key).unwrap_or_default().replace('_', " ")
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

fn heartbeat(words: &Words<'_>) -> Heartbeat {
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
        steps: words.number("steps").unwrap_or(0),
        loaded_bytes: loaded,
        total_bytes: total,
        kv: words.number("kv").map(|budget_bytes| KvUse {
            budget_bytes,
            held_bytes: words.number("held").unwrap_or(0),
            ..Default::default()
        }),
        failure: words.text("failure"),
        step_times: words
            .number("p99_ms")
            .map(|ms| StepTimes { prefill_p99_us: ms as u32 * 1_000, decode_p99_us: 0 }),
        link: words.value("link").map(|text| report(text, words)),
        figures: words.value("gains").map(figures),
        memory: words.value("memory").map(|text| {
            let mut numbers =
                text.split('/').map(|text| text.parse().expect("memory=100/20, memory=100/20/500"));
            let mut next = || numbers.next().unwrap_or(0);
            MemoryUse {
                active_bytes: next(),
                cache_bytes: next(),
                recommended_bytes: next(),
                limit_bytes: 0,
            }
        }),
        ..Heartbeat::new(words.epoch(), phase)
    }
}

/// `4:1.5,16:0.9`: up to so many sequences, so much is gained, each well measured.
fn figures(text: &str) -> SpeculationFigures {
    let bucket = |text: &str| {
        let (up_to, gain) = text.split_once(':').expect("4:1.5");
        SpeculationBucket {
            up_to: up_to.parse().expect("a number"),
            steps: 1_000,
            gain: gain.parse().expect("a number"),
        }
    };
    let draft = Some(CostModel { observations: 1_000, ..Default::default() });
    SpeculationFigures {
        draft,
        by_sequences: text.split(',').map(bucket).collect(),
        ..Default::default()
    }
}

/// `7:up:7`, with the supervisor's term left out of both numbers.
fn report(text: &str, words: &Words<'_>) -> LinkReport {
    let parts: Vec<&str> = text.split(':').collect();
    let phase = match parts[1] {
        "absent" => LinkPhase::Absent,
        "greeting" => LinkPhase::Greeting,
        "up" => LinkPhase::Up,
        "refused" => LinkPhase::Refused,
        "ejected" => LinkPhase::Ejected,
        "lost" => LinkPhase::Lost,
        "suspect" => LinkPhase::Suspect,
        other => panic!("no link phase {other}"),
    };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let full = |number: u64| if number == 0 { 0 } else { (TERM << 32) + number };
    LinkReport {
        generation: full(number(parts[0])),
        phase,
        reason: words.text("reason"),
        serving: full(parts.get(2).map_or(0, |text| number(text))),
    }
}

fn described_drafter(words: &Words<'_>) -> worker::Event {
    let block_size = words.number("block").unwrap_or(16) as u32;
    let path = words.model();
    let described = Arc::new(WorkerDescription::Drafter(DrafterInfo {
        block_size,
        path,
        images: words.value("images") != Some("no"),
        ..Default::default()
    }));
    worker::Event::Described { epoch: words.epoch(), described }
}

fn described(words: &Words<'_>) -> worker::Event {
    let class = |text: &str| {
        let (positions, bytes) = text.split_once(':').expect("256:100");
        let positions = positions.parse().expect("a number");
        KvClass { positions, bytes: bytes.parse().expect("a number") }
    };
    let classes = words.value("classes").map_or(kv_classes(&[(256, 100), (1024, 400)]), |text| {
        text.split(',').map(class).collect()
    });
    let max_sequences = words.number("max").unwrap_or(2) as usize;
    let patch_bytes = words.number("patch").unwrap_or(0);
    let model = ModelInfo { name: "demo".into(), ..Default::default() };
    let described = Arc::new(WorkerDescription::Target {
        model,
        capacity: Capacity { classes, max_sequences, patch_bytes },
    });
    worker::Event::Described { epoch: words.epoch(), described }
}

fn event(words: &Words<'_>) -> Event {
    let pid = words.number("pid").unwrap_or(1) as u32;
    let slot = match words.all[0] {
        "d0" => Some(WorkerSlot::First),
        "d1" => Some(WorkerSlot::Second),
        _ => None,
    };
    if let Some(slot) = slot {
        let rest = Words { all: words.all[1..].to_vec() };
        let event = match rest.all[0] {
            "described" => described_drafter(&rest),
            _ => match event(&rest) {
                Event::Worker(_, event) => event,
                other => panic!("no news of a drafter: {other:?}"),
            },
        };
        return Event::Worker(WorkerId::Drafter(slot), event);
    }
    let call = || CallId(words.number("call").expect("call=1"));
    Event::Worker(
        WorkerId::Target,
        match words.all[0] {
            "start" => return Event::Begun,
            "start_drafter" => {
                return Event::DrafterOrdered {
                    call: call(),
                    order: DrafterOrder::Start { model: words.model() },
                };
            }
            "stop_drafter" => {
                return Event::DrafterOrdered { call: call(), order: DrafterOrder::Stop };
            }
            "restart" => {
                let process = match words.all[1] {
                    "gateway" => ServiceProcess::Gateway,
                    "target" => ServiceProcess::Target,
                    "drafter" => ServiceProcess::Drafter,
                    "supervisor" => ServiceProcess::Supervisor,
                    other => panic!("no process {other}"),
                };
                let at_once = words.value("now") == Some("yes");
                return Event::Ordered {
                    call: call(),
                    order: OperatorOrder::Restart { process, at_once },
                };
            }
            "drain" => return Event::Ordered { call: call(), order: OperatorOrder::Drain },
            "resume" => return Event::Ordered { call: call(), order: OperatorOrder::Resume },
            "gateway" => {
                let attachment = words.number("a").expect("a=1");
                let state = match words.all[1] {
                    "ready" => GatewayState::Ready,
                    "draining" => GatewayState::Draining,
                    "gone" => return Event::Detached { attachment },
                    other => panic!("no state {other}"),
                };
                let report = gateway_report(attachment, state);
                return Event::Reported { attachment, report };
            }
            "renew_drafter" => {
                return Event::DrafterOrdered { call: call(), order: DrafterOrder::Renew };
            }
            "swap_drafter" => {
                return Event::DrafterOrdered {
                    call: call(),
                    order: DrafterOrder::Swap { model: words.model() },
                };
            }
            "policy" => {
                let setting = words
                    .all
                    .iter()
                    .find(|word| word.starts_with("routing."))
                    .and_then(|word| word.split_once('='));
                let (key, value) = setting.expect("routing.key=value");
                return Event::PolicySet { call: call(), change: policy_change(key, value) };
            }
            "free" => return Event::MemoryRead { available_bytes: words.number("bytes") },
            "connected" => {
                let generation = (TERM << 32) + words.number("g").expect("g=1");
                let failure = words.value("failure").map(|text| text.replace('_', " "));
                return Event::Connected { generation, failure };
            }
            "repermitted" => {
                let missed = words.value("missed").map_or(Vec::new(), |text| {
                    let ticket = |text: &str| {
                        Ticket(text.trim_start_matches('r').parse().expect("a request like r1"))
                    };
                    text.split(',').map(ticket).collect()
                });
                return Event::Repermitted { epoch: words.epoch(), missed };
            }
            "spawned" => worker::Event::Spawned { epoch: words.epoch(), pid },
            "found" => worker::Event::Found { epoch: words.epoch(), pid },
            "foreign" => {
                worker::Event::Foreign { epoch: words.epoch(), cause: "its version is 9".into() }
            }
            "spawn_failed" => worker::Event::SpawnFailed { cause: "no program".into() },
            "beat" => worker::Event::Heartbeat(Box::new(heartbeat(words))),
            "described" => described(words),
            "undescribed" => worker::Event::DescribeFailed { epoch: words.epoch() },
            "stop_answered" => worker::Event::StopAnswered {
                epoch: words.epoch(),
                reached: words.value("reached") == Some("yes"),
            },
            "frozen" => worker::Event::Frozen { epoch: words.epoch() },
            "exited" => {
                let signal = words.number("signal").map(|signal| WorkerExit::Signal(signal as i32));
                let code = words.number("code").map(|code| WorkerExit::Code(code as i32));
                let exit = signal.or(code).unwrap_or(WorkerExit::Unknown);
                worker::Event::Exited { epoch: words.epoch(), exit, log: "last words".into() }
            }
            "request" => {
                let wish = match words.value("wish") {
                    Some("plain") => RouteWish::Plain,
                    Some("speculative") => RouteWish::Speculative,
                    _ => RouteWish::Auto,
                };
                let summary = RequestSummary {
                    key: KeyId(words.number("key").unwrap_or(0)),
                    prompt_tokens: words.number("prompt").unwrap_or(100) as u32,
                    max_tokens: words.number("max").unwrap_or(100) as u32,
                    context_tokens: words.number("prompt").unwrap_or(100) as u32,
                    deadline: words.value("deadline").map(millis),
                    wish,
                    patches: words.number("patches").unwrap_or(0),
                };
                return Event::Submitted { ticket: words.ticket(), summary };
            }
            "served" => {
                let tokens = words.number("tokens").expect("tokens=9");
                let served = served_plainly(tokens);
                return Event::Served { ticket: words.ticket(), served };
            }
            "ended" => return Event::Ended { ticket: words.ticket() },
            "stop" => return Event::StopAsked,
            "orphaned" => return Event::ParentGone,
            "tick" => return Event::TimePassed,
            other => panic!("no event {other}"),
        },
    )
}

fn route(permit: &Permit) -> String {
    let lane = permit.lane.word();
    let reason = permit.reason.word();
    let draft =
        if permit.max_draft == 0 { String::new() } else { format!("={}", permit.max_draft) };
    let policy =
        if permit.policy_epoch == 0 { String::new() } else { format!(" p{}", permit.policy_epoch) };
    format!("{lane}{draft} {reason}{policy}")
}

pub(super) fn name_of(action: &Action) -> String {
    let denied = |denial: &Denial| {
        let retry = match denial {
            Denial::Outage { retry_ms, .. } | Denial::Gone { retry_ms, .. } => {
                format!(" retry={retry_ms}")
            }
            Denial::DeadlinePassed { waited_ms } | Denial::QueueWait { waited_ms } => {
                format!(" waited={waited_ms}")
            }
            _ => String::new(),
        };
        format!("{}{retry}", denial.reason().word())
    };
    match action {
        Action::Worker(WorkerId::Drafter(slot), action) => {
            format!(
                "d{} {}",
                slot.idx(),
                name_of(&Action::Worker(WorkerId::Target, action.clone()))
            )
        }
        Action::Connect { generation, slot, ends } => {
            format!(
                "connect g={} d{} e{}/e{}",
                generation & 0xFFFF_FFFF,
                slot.idx(),
                ends.target,
                ends.drafter
            )
        }
        Action::Repermit { epoch, changes } => {
            let changes: Vec<_> = changes
                .iter()
                .map(|(ticket, permit)| format!("r{} {}", ticket.0, route(permit)))
                .collect();
            format!("repermit e{epoch} {}", changes.join(", "))
        }
        Action::PushPolicy { epoch, policy } => format!("push e{epoch} p{}", policy.epoch),
        Action::LogPolicy { epoch, key, from, to, .. } => {
            format!("policy p{epoch} {key} {from}->{to}")
        }
        Action::LogRoute { ticket, decision } => {
            let again = if decision.again { " again" } else { "" };
            format!("log r{}{again} {}", ticket.0, route(&decision.permit))
        }
        Action::Answer { call, outcome } => match outcome {
            Ok(()) => format!("answer call={} done", call.0),
            Err(refused) => format!("answer call={} {}", call.0, refused.reason.word()),
        },
        Action::LogLink { slot, generation, to, .. } => {
            format!("link g={} d{} {to}", generation & 0xFFFF_FFFF, slot.idx())
        }
        Action::Worker(WorkerId::Target, action) => match action {
            worker::Action::Spawn { model } if model.is_empty() => "spawn".into(),
            worker::Action::Spawn { model } => format!("spawn {model}"),
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
            format!("admit r{} e{epoch} {} queued={queued_ms}", ticket.0, route(permit))
        }
        Action::Deny { ticket, denial } => format!("deny r{} {}", ticket.0, denied(denial)),
        Action::Abort { epoch, denial } => format!("abort e{epoch} {}", denied(denial)),
        Action::Announce(notice) => match &notice.outage {
            None => "announce serving".into(),
            Some(outage) => format!("announce {}", outage.reason.word()),
        },
        Action::Overslept { ms } => format!("overslept {ms}"),
        Action::LogService { from, to, .. } => format!("service {from}->{to}"),
        Action::LogGateway { from, to, .. } => format!("gateway {}->{}", from.word(), to.word()),
        Action::LogOrder { subject, to } => format!("order {subject}: {to}"),
        Action::RestartGateway { attachment, grace_ms: None } => {
            format!("restart_gateway a{attachment}")
        }
        Action::RestartGateway { attachment, grace_ms: Some(ms) } => {
            format!("restart_gateway a{attachment} grace={ms}")
        }
        Action::Exit { restart: false } => "exit".into(),
        Action::Exit { restart: true } => "leave".into(),
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

fn show_drafter(core: &Supervisor, now: Millis) -> String {
    let drafters = core.drafters();
    let state = drafters.process_state().word();
    let reason = drafters.reason(now).replace('\n', " | ").replace(';', ",");
    format!("{state} {} restarts={} [{reason}]", drafters.model(), drafters.restarts())
}

fn set(settings: &mut Settings, plan: &mut DrafterPlan, words: &Words<'_>) {
    let known: BTreeMap<&str, &str> =
        words.all[1..].iter().map(|word| word.split_once('=').expect("key=value")).collect();
    for (key, value) in known {
        let number = || value.parse::<u64>().expect("a number");
        match key {
            "restarts" => settings.worker.restarts = number() as u32,
            "places" => settings.queue_places = number() as usize,
            "streams_per_key" => settings.streams_per_key = number() as usize,
            "queue_wait_ms" => settings.queue_wait_ms = number(),
            "idle_stop_ms" => plan.idle_stop_ms = number(),
            "permits" => assert_eq!(value, "by_hand"),
            "log_routes" => settings.log_routes = value == "yes",
            "drafter" => plan.model = value.to_owned(),
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

/// Runs one scenario.
fn check(name: &str, text: &str) {
    let mut settings = Settings::default();
    let mut plan = DrafterPlan::default();
    let mut core: Option<Supervisor> = None;
    let mut heartbeats: BTreeMap<WorkerId, Box<Heartbeat>> = BTreeMap::new();
    let by_hand =
        text.lines().any(|line| line.starts_with("set ") && line.contains("permits=by_hand"));
    let mut wrong = String::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line.starts_with("set ") {
            set(&mut settings, &mut plan, &Words { all: line.split_whitespace().collect() });
            continue;
        }
        let core = core.get_or_insert_with(|| Supervisor::new(settings, plan.clone(), Term(TERM)));
        let (happens, follows) =
            line.split_once("=>").unwrap_or_else(|| panic!("{name}:{}: expected =>", number + 1));
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
                "goes_on" => {
                    for (worker, heartbeat) in &mut heartbeats {
                        heartbeat.steps += 1;
                        let event =
                            Event::Worker(*worker, worker::Event::Heartbeat(heartbeat.clone()));
                        found.extend(core.on_event(event, now).iter().map(name_of));
                    }
                }
                "show" => found.push(show(core, now)),
                "show_drafter" => found.push(show_drafter(core, now)),
                word => {
                    if word == "tick" {
                        assert_eq!(
                            core.next_deadline(),
                            Some(now),
                            "{name}:{}: the next deadline",
                            number + 1
                        );
                    }
                    let event = event(&words);
                    if let Event::Worker(worker, worker::Event::Heartbeat(heartbeat)) = &event {
                        heartbeats.insert(*worker, heartbeat.clone());
                    }
                    let mut actions = core.on_event(event, now);
                    let asked = actions.iter().find_map(|action| match action {
                        Action::Repermit { epoch, .. } if !by_hand => Some(*epoch),
                        _ => None,
                    });
                    if let Some(epoch) = asked {
                        actions.extend(
                            core.on_event(Event::Repermitted { epoch, missed: Vec::new() }, now),
                        );
                    }
                    // That each life gets the configuration's policy would be said again and again.
                    let first = |action: &&Action| matches!(action, Action::PushPolicy { policy, .. } if policy.epoch == 0);
                    // What an operator orders is the line itself.
                    let told = |action: &&Action| {
                        !first(action) && !matches!(action, Action::LogOrder { .. })
                    };
                    found.extend(actions.iter().filter(told).map(name_of));
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
            write!(
                wrong,
                "\n{name}:{} {}\n  expected {}\n  found    {found}",
                number + 1,
                line,
                follows.trim()
            )
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

scenarios!(
    start,
    crash,
    crash_loop,
    hang,
    earlier,
    admission,
    fair,
    likely,
    stop,
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
    route_load,
    route_policy,
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
    drafter_takeover,
    drafter_restart,
    takeover,
    restart_target,
    restart_supervisor,
    restart_supervisor_now,
    restart_then_stop,
    restart_gateway,
    held,
    slow_prefill,
);
