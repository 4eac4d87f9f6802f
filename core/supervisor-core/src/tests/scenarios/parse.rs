//! Events from the words of a scenario.

use std::sync::Arc;

use super::TERM;
use crate::tests::testing::*;

/// A line's words: `name e1 key=value …`.
pub(super) struct Words<'a> {
    pub(super) all: Vec<&'a str>,
}

impl<'a> Words<'a> {
    pub(super) fn value(&self, key: &str) -> Option<&'a str> {
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

pub(super) fn millis(text: &str) -> Millis {
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

/// `4:1.5,16:0.9`: up to 4 sequences the gain is 1.5, up to 16 it is 0.9, each well measured.
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
    let path = words.value("path").unwrap_or_default().to_owned();
    let model = ModelInfo { name: "demo".into(), path, ..Default::default() };
    let described = Arc::new(WorkerDescription::Target {
        model,
        capacity: Capacity { classes, max_sequences, patch_bytes },
    });
    worker::Event::Described { epoch: words.epoch(), described }
}

/// The event of a line. Words of a worker follow `d0` or `d1`, else they concern the target.
pub(super) fn event(words: &Words<'_>) -> Event {
    let slot = match words.all[0] {
        "d0" => Some(WorkerSlot::First),
        "d1" => Some(WorkerSlot::Second),
        _ => None,
    };
    if let Some(slot) = slot {
        let rest = Words { all: words.all[1..].to_vec() };
        let event = match rest.all[0] {
            "described" => described_drafter(&rest),
            _ => worker_event(&rest),
        };
        return Event::Worker(WorkerId::Drafter(slot), event);
    }
    match words.all[0] {
        "start" => Event::Begun,
        "gateway" => gateway_event(words),
        "free" => Event::MemoryRead { available_bytes: words.number("bytes") },
        "connected" => {
            let generation = (TERM << 32) + words.number("g").expect("g=1");
            let failure = words.value("failure").map(|text| text.replace('_', " "));
            Event::Connected { generation, failure }
        }
        "repermitted" => {
            let ticket = |text: &str| {
                Ticket(text.trim_start_matches('r').parse().expect("a request like r1"))
            };
            let missed = words.value("missed").unwrap_or_default();
            let missed = missed.split(',').filter(|text| !text.is_empty()).map(ticket).collect();
            Event::Repermitted { epoch: words.epoch(), missed }
        }
        "request" => Event::Submitted { ticket: words.ticket(), summary: summary(words) },
        "served" => {
            let served = served_plainly(words.number("tokens").expect("tokens=9"));
            Event::Served { ticket: words.ticket(), served }
        }
        "progressed" => Event::Progressed { ticket: words.ticket() },
        "ended" => Event::Ended { ticket: words.ticket() },
        "stop" => Event::StopAsked,
        "orphaned" => Event::ParentGone,
        "tick" => Event::TimePassed,
        _ if words.value("order").is_some() => ordered(words),
        _ => Event::Worker(WorkerId::Target, worker_event(words)),
    }
}

/// An operator's order.
fn ordered(words: &Words<'_>) -> Event {
    let order_id = OrderId(words.number("order").expect("order=1"));
    let of_drafter = |order| Event::DrafterOrdered { order_id, order };
    let of_service = |order| Event::Ordered { order_id, order };
    match words.all[0] {
        "start_drafter" => of_drafter(DrafterOrder::Start { model: words.model() }),
        "stop_drafter" => of_drafter(DrafterOrder::Stop),
        "renew_drafter" => of_drafter(DrafterOrder::Renew),
        "swap_drafter" => of_drafter(DrafterOrder::Swap { model: words.model() }),
        "restart" => {
            let process = match words.all[1] {
                "gateway" => ServiceProcess::Gateway,
                "target" => ServiceProcess::Target,
                "drafter" => ServiceProcess::Drafter,
                "supervisor" => ServiceProcess::Supervisor,
                other => panic!("no process {other}"),
            };
            let at_once = words.value("now") == Some("yes");
            of_service(OperatorOrder::Restart { process, at_once })
        }
        "swap_target" => {
            let drafters = words.value("drafters").unwrap_or_default().split(',');
            let drafters = drafters.filter(|name| !name.is_empty()).map(str::to_owned).collect();
            of_service(OperatorOrder::SwapTarget(TargetSwapOrder {
                choice: TargetChoice { model: words.model(), drafters },
                drain_ms: words.number("drain_ms"),
                same: words.value("same") == Some("yes"),
            }))
        }
        "drain" => of_service(OperatorOrder::Drain),
        "resume" => of_service(OperatorOrder::Resume),
        "policy" => {
            let setting = words.all.iter().find(|word| word.starts_with("routing."));
            let setting = setting.and_then(|word| word.split_once('='));
            let (key, value) = setting.expect("routing.key=value");
            Event::PolicySet { order_id, change: policy_change(key, value) }
        }
        "admission" => Event::Tuned {
            order_id,
            tuning: Tuning::Admission(AdmissionBounds {
                queue_places: words.number("places").expect("places=1") as usize,
                queue_wait_ms: words.number("wait_ms").expect("wait_ms=1"),
                streams_per_key: words.number("per_key").expect("per_key=1") as usize,
            }),
        },
        "notice" => {
            let ms = words.number("ms").expect("ms=1");
            Event::Tuned { order_id, tuning: Tuning::Notice { ms } }
        }
        "drafters" => {
            let models = words.value("models").unwrap_or_default().split(',');
            let models = models.filter(|name| !name.is_empty()).map(str::to_owned).collect();
            let plan = DrafterPlan { models, ..DrafterPlan::default() };
            Event::Tuned { order_id, tuning: Tuning::Drafters(plan) }
        }
        other => panic!("no order {other}"),
    }
}

fn gateway_event(words: &Words<'_>) -> Event {
    let attachment = words.number("a").expect("a=1");
    let state = match words.all[1] {
        "ready" => GatewayState::Ready,
        "draining" => GatewayState::Draining,
        "gone" => return Event::Detached { attachment },
        other => panic!("no state {other}"),
    };
    let report = gateway_report(attachment, state);
    let model = words.value("model").map_or(report.model, |path| Some(ModelMark::of(path)));
    let streams = words.number("streams").unwrap_or(0) as u32;
    Event::Reported { attachment, report: GatewayReport { model, streams, ..report } }
}

fn worker_event(words: &Words<'_>) -> worker::Event {
    let pid = words.number("pid").unwrap_or(1) as u32;
    match words.all[0] {
        "spawned" => worker::Event::Spawned { epoch: words.epoch(), pid },
        "found" => worker::Event::Found { epoch: words.epoch(), pid },
        "foreign" => {
            worker::Event::Foreign { epoch: words.epoch(), cause: "its version is 9".into() }
        }
        "spawn_failed" => worker::Event::SpawnFailed { cause: "no program".into() },
        "beat" => worker::Event::Heartbeat(Box::new(heartbeat(words))),
        "described" => described(words),
        "wired" => {
            worker::Event::WiredRead(words.number("bytes").map(|wired_bytes| WiredReading {
                wired_bytes,
                machine_bytes: words.number("of").unwrap_or(1_000),
                others_bytes: 0,
            }))
        }
        "undescribed" => worker::Event::DescribeFailed { epoch: words.epoch() },
        "stop_answered" => {
            let reached = words.value("reached") == Some("yes");
            worker::Event::StopAnswered { epoch: words.epoch(), reached }
        }
        "files" => worker::Event::FilesSeen { files: words.number("are").expect("are=1") },
        "frozen" => worker::Event::Frozen { epoch: words.epoch() },
        "exited" => {
            let signal = words.number("signal").map(|signal| WorkerExit::Signal(signal as i32));
            let code = words.number("code").map(|code| WorkerExit::Code(code as i32));
            let exit = signal.or(code).unwrap_or(WorkerExit::Unknown);
            worker::Event::Exited { epoch: words.epoch(), exit, log: "last words".into() }
        }
        other => panic!("no event {other}"),
    }
}

fn summary(words: &Words<'_>) -> RequestSummary {
    let wish = match words.value("wish") {
        Some("plain") => RouteWish::Plain,
        Some("speculative") => RouteWish::Speculative,
        _ => RouteWish::Auto,
    };
    let prompt_tokens = words.number("prompt").unwrap_or(100) as u32;
    RequestSummary {
        key: KeyId(words.number("key").unwrap_or(0)),
        prompt_tokens,
        max_tokens: words.number("max").unwrap_or(100) as u32,
        context_tokens: prompt_tokens,
        deadline: words.value("deadline").map(millis),
        wish,
        patches: words.number("patches").unwrap_or(0),
        resumed: words.all.contains(&"resumed"),
        fingerprint: Fingerprint(words.number("content").unwrap_or(words.ticket().0)),
        model: words.value("model").map(ModelMark::of),
    }
}
