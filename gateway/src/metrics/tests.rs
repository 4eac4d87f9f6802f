use std::collections::BTreeMap;

use futures::FutureExt as _;
use paceline_proto::convert::service::{
    KvReport, LinkReport, MemoryReport, ProcessReport, RequestsStatus,
};
use paceline_vocabulary::state::ProcessState;
use paceline_vocabulary::{Lane, RouteReason};

use super::*;

/// The metrics that the handbook lists.
fn listed() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/monitoring.md");
    let text = std::fs::read_to_string(path).expect("the handbook is in the repository");
    let (_, section) = text.split_once("\n## Metrics\n").expect("a section");
    let section = section.split("\n## ").next().expect("its text");
    let names = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    names.map(str::to_owned).collect()
}

/// Each line's value, under the name of its metric.
fn values(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut values = BTreeMap::<String, Vec<String>>::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').expect("a series and its value");
        let name = series.split('{').next().expect("a name");
        let parts = ["_bucket", "_sum", "_count"];
        let name = parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name);
        values.entry(name.to_owned()).or_default().push(format!("{series} {value}"));
    }
    values
}

fn service(step: u64) -> ServiceStatus {
    let state = if step == 0 { ProcessState::Loading } else { ProcessState::Ready };
    let process = ProcessReport {
        state: state.into(),
        restarts: step as u32,
        uptime_s: step as f64 + 0.5,
        ..Default::default()
    };
    ServiceStatus {
        gateway: process.clone(),
        supervisor: process.clone(),
        target: process.clone(),
        drafter: process,
        kv: KvReport {
            budget_bytes: 100 + step,
            held_bytes: step,
            prefix_bytes: step,
            ..Default::default()
        },
        requests: RequestsStatus {
            active: step as u32,
            queued: step as u32,
            unstarted: step as u32,
            queued_tokens: step,
            unstarted_tokens: step,
            idle_s: step as f64,
            ..Default::default()
        },
        link: LinkReport {
            state: if step > 0 { "up" } else { "suspect" }.into(),
            bytes: Some(step),
            late: step,
            ..Default::default()
        },
        memory: MemoryReport {
            budget_bytes: step,
            target_bytes: step,
            drafter_bytes: step,
            cache_bytes: step,
            available_bytes: step,
            ..Default::default()
        },
        ..Default::default()
    }
}

fn text(metrics: &Metrics, step: u64, service: Option<ServiceStatus>) -> String {
    let bytes =
        ByteFigures { limit: 100 + step, bodies: step, answers: step, waiting: step as usize };
    let own = GatewayFigures { requests: step as usize, can_serve: step > 0, bytes };
    let text = metrics.text(own, std::future::ready(service));
    text.now_or_never().expect("nothing to wait for")
}

fn scrape(metrics: &Metrics, step: u64) -> BTreeMap<String, Vec<String>> {
    values(&text(metrics, step, Some(service(step))))
}

const ROUTE: Route = Route { lane: Lane::Speculative, reason: RouteReason::Benefit };

fn ended(outcome: Result<(), Reason>) -> EndedRequest {
    EndedRequest {
        outcome,
        route: Some(ROUTE),
        seconds: 0.7,
        prompt_tokens: 64,
        cached_tokens: 48,
        completion_tokens: 9,
    }
}

#[test]
fn the_handbook_lists_exactly_the_metrics_that_there_are_and_each_moves() {
    let metrics = Metrics::default();
    let alone = values(&text(&metrics, 0, None));
    let before = scrape(&metrics, 0);
    metrics.first_token(0.2);
    metrics.gap(0.02);
    metrics.queued(0.001);
    metrics.drafts(Speculation { cycles: 3, drafted: 8, accepted: 5 });
    metrics.resumed(1);
    metrics.ended(&ended(Ok(())));
    let after = scrape(&metrics, 1);
    let mut listed = listed();
    listed.sort();
    assert_eq!(after.keys().cloned().collect::<Vec<_>>(), listed);
    for name in &listed {
        let before = if name == "paceline_supervisor_up" { &alone } else { &before };
        assert_ne!(before.get(name), after.get(name), "{name}");
    }
}

#[test]
fn requests_are_counted_by_status_lane_and_reason() {
    let metrics = Metrics::default();
    metrics.ended(&ended(Ok(())));
    metrics.ended(&ended(Ok(())));
    metrics.ended(&EndedRequest { route: None, ..ended(Err(Reason::QueueWait)) });
    metrics.refused(Reason::QueueFull);
    let after = scrape(&metrics, 1);
    let mut counted = after["paceline_requests_total"].clone();
    counted.sort();
    let series =
        |labels: &str, number: u32| format!("paceline_requests_total{{{labels}}} {number}");
    assert_eq!(
        counted,
        [
            series("status=\"OK\",lane=\"speculative\",reason=\"benefit\"", 2),
            series("status=\"QUEUE_FULL\",lane=\"none\",reason=\"none\"", 1),
            series("status=\"QUEUE_WAIT\",lane=\"none\",reason=\"none\"", 1),
        ]
    );
    assert_eq!(after["paceline_prefix_hits_total"], ["paceline_prefix_hits_total 3"]);
    assert_eq!(after["paceline_accepted_tokens_total"], ["paceline_accepted_tokens_total 0"]);
}

#[test]
fn a_process_is_in_one_state_at_a_time() {
    let metrics = Metrics::default();
    for (step, state) in [(0, "loading"), (1, "ready")] {
        let states = &scrape(&metrics, step)["paceline_process_state"];
        let of_target = states.iter().filter(|line| line.contains("process=\"target\""));
        let (is_in, is_not): (Vec<_>, Vec<_>) = of_target.partition(|line| line.ends_with(" 1"));
        let expected = format!("paceline_process_state{{process=\"target\",state=\"{state}\"}} 1");
        assert_eq!(is_in, [&expected]);
        assert_eq!(is_not.len(), ProcessState::ALL.len() - 1);
    }
}

#[test]
fn a_process_that_is_not_reported_has_no_figures() {
    let metrics = Metrics::default();
    let target = service(1).target;
    let status = ServiceStatus { target, ..ServiceStatus::default() };
    let found = values(&text(&metrics, 1, Some(status)));
    let expected = ["paceline_process_restarts_total{process=\"target\"} 1"];
    assert_eq!(found["paceline_process_restarts_total"], expected);
    assert_eq!(found["paceline_process_state"].len(), ProcessState::ALL.len());
    assert_eq!(found["paceline_link_up"], ["paceline_link_up 0"]);
}

#[test]
fn without_a_supervisor_no_old_figures_of_it_are_shown() {
    let metrics = Metrics::default();
    let with = scrape(&metrics, 1);
    let without = values(&text(&metrics, 1, None));
    assert_eq!(without["paceline_supervisor_up"], ["paceline_supervisor_up 0"]);
    let gone: Vec<_> = with.keys().filter(|name| !without.contains_key(*name)).collect();
    assert_eq!(gone.len(), 11, "{gone:?}");
    assert!(without.contains_key("paceline_request_seconds"));
}
