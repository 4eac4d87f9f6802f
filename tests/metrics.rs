//! `/metrics` of a whole service: the handbook lists exactly what there is, and each metric moves
//! when the service does what it counts.

use std::collections::{BTreeMap, BTreeSet};

use nix::sys::signal::Signal;
use paceline_proto::v1::RouteWish;
use paceline_tests::ask::Ask;
use paceline_tests::prompts::some_of_each;
use paceline_tests::{Stack, chat, repository, signal, wait};

/// Longer than all of this: a supervisor that is stopped for a while keeps its workers.
const SETTINGS: &str = "supervisor.lease_s = 60\nlimits.max_message_bytes = 2097152\nlimits.body_bytes = 8388608\n\
     target.max_sequences = 1\n";

/// The metrics that the handbook lists.
fn listed() -> BTreeSet<String> {
    let text = std::fs::read_to_string(repository().join("docs/monitoring.md")).expect("there");
    let (_, section) = text.split_once("\n## Metrics\n").expect("a section");
    let section = section.split("\n## ").next().expect("its text");
    let names = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    names.map(str::to_owned).collect()
}

/// One scrape: each series and its value.
#[derive(Clone, Debug)]
struct Scrape(BTreeMap<String, f64>);

impl Scrape {
    fn of(stack: &Stack) -> Option<Self> {
        let answer = stack.http_get("/metrics").ok()?;
        assert_eq!(answer.status(), 200, "{}", answer.head);
        assert!(answer.head.contains("text/plain; version=0.0.4"), "{}", answer.head);
        let lines = answer.body.lines().filter(|line| !line.starts_with('#'));
        let series = lines.map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a series and its value");
            (series.to_owned(), value.parse().expect("a number"))
        });
        Some(Self(series.collect()))
    }

    /// The sum of the series that begin so.
    fn sum(&self, beginning: &str) -> f64 {
        let matching = self.0.iter().filter(|(series, _)| series.starts_with(beginning));
        matching.map(|(_, value)| value).sum()
    }

    /// Series of this metric, with their values.
    fn of_metric(&self, name: &str) -> Vec<(String, String)> {
        let is_of = |series: &str| {
            let found = series.split('{').next().unwrap_or_default();
            let parts = ["", "_bucket", "_sum", "_count"];
            parts.iter().any(|part| found.strip_suffix(part) == Some(name))
        };
        let own = self.0.iter().filter(|(series, _)| is_of(series));
        own.map(|(series, value)| (series.clone(), value.to_string())).collect()
    }
}

/// All scrapes of one service.
struct Watcher<'a> {
    stack: &'a Stack,
    scrapes: Vec<Scrape>,
}

impl Watcher<'_> {
    /// Scrapes until it is as wanted.
    fn until(&mut self, what: &str, wanted: impl Fn(&Scrape) -> bool) -> Scrape {
        let stack = self.stack;
        let found = wait(what, || Scrape::of(stack).filter(&wanted));
        self.scrapes.push(found.clone());
        found
    }

    fn now(&mut self) -> Scrape {
        self.until("a scrape", |_| true)
    }
}

/// A prompt that the embedded drafter is good at, drafted whatever it costs.
fn drafted(tokens: u32) -> Ask {
    some_of_each(1)[0].ask.clone().route(RouteWish::Speculative).exactly(tokens)
}

#[test]
// More than 60 lines: one service, which takes seconds to start, is taken through all that is counted.
fn every_metric_of_the_handbook_moves() {
    let stack = Stack::drafting(SETTINGS);
    let mut watcher = Watcher { stack: &stack, scrapes: vec![] };
    let idle = watcher.until("the supervisor's figures", |scrape| {
        scrape.sum("paceline_link_up") == 1.0 && scrape.sum("paceline_supervisor_up") == 1.0
    });
    assert_eq!(idle.sum("paceline_can_serve"), 1.0);
    assert_eq!(idle.sum("paceline_requests_total"), 0.0);

    // The same prompt twice: the second time its beginning is in the prefix cache.
    let long = "One, two, three, four, five, six, seven, eight. ".repeat(40);
    for _ in 0..2 {
        stack.ask(chat(&long).exactly(8).route(RouteWish::Plain)).expect("served");
    }
    stack.ask(drafted(48)).expect("served");
    stack.ask(chat(&"much too long ".repeat(20_000))).expect_err("above the context");
    let worked = watcher.now();
    let ok = |lane: &str| format!("paceline_requests_total{{status=\"OK\",lane=\"{lane}\"");
    assert_eq!(worked.sum(&ok("plain")), 2.0);
    assert_eq!(worked.sum(&ok("speculative")), 1.0);
    assert_eq!(worked.sum("paceline_requests_total{status=\"PROMPT_TOO_LONG\""), 1.0);
    assert_eq!(worked.sum("paceline_prefix_hits_total"), 1.0);
    assert_eq!(worked.sum("paceline_completion_tokens_total"), 64.0);
    assert_eq!(worked.sum("paceline_time_to_first_token_seconds_count"), 3.0);
    assert_eq!(worked.sum("paceline_queue_seconds_count"), 3.0);
    assert_eq!(worked.sum("paceline_request_seconds_count"), 4.0);
    assert!(worked.sum("paceline_token_gap_seconds_count") > 0.0);
    let (drafts, accepted) =
        (worked.sum("paceline_drafted_tokens_total"), worked.sum("paceline_accepted_tokens_total"));
    assert!(drafts >= accepted && accepted > 0.0, "{accepted} of {drafts}");
    // The target's own figures come with its heartbeats.
    watcher.until("the target's heartbeat", |scrape| {
        scrape.sum("paceline_kv_bytes{kind=\"prefix\"}") > 0.0
            && scrape.sum("paceline_link_bytes_total") > idle.sum("paceline_link_bytes_total")
    });

    // The target has one place: the second request waits.
    let first = stack.start(drafted(3_000));
    watcher.until("a request that runs", |scrape| {
        scrape.sum("paceline_supervisor_requests{state=\"active\"}") == 1.0
    });
    let second = stack.start(chat("Tell a long story.").exactly(2));
    watcher.until("a request that waits", |scrape| {
        scrape.sum("paceline_waiting_tokens{state=\"queued\"}") > 0.0
    });
    first.hang_up();
    second.finish().expect("served");
    watcher.until("the end of both", |scrape| scrape.sum("paceline_calls") == 0.0);

    // Two bodies for which there is room once: the second one waits.
    let begun = || {
        let head = "content-type: application/json\r\n";
        stack.http_begin("/v1/completions", head, 2_000_000, &" ".repeat(128 << 10)).expect("open")
    };
    let bodies = (begun(), begun());
    watcher.until("a body that waits", |scrape| scrape.sum("paceline_bodies_waiting") == 1.0);
    drop(bodies);
    let left = watcher.until("the end of both", |scrape| scrape.sum("paceline_calls") == 0.0);
    let cancelled = "paceline_requests_total{status=\"CANCELLED\"";
    let cancelled_before = left.sum(cancelled);

    // A drafter that stands still is late, and then its link is no more up.
    let running = stack.start(drafted(2_000));
    watcher.until("a request that runs", |scrape| {
        scrape.sum("paceline_calls") == 1.0
            && scrape.sum("paceline_supervisor_requests{state=\"active\"}") == 1.0
            && scrape.sum("paceline_kv_bytes{kind=\"held\"}") > 0.0
    });
    signal(stack.pid("drafter"), Signal::SIGSTOP);
    watcher.until("late drafts", |scrape| scrape.sum("paceline_late_drafts_total") > 0.0);
    watcher.until("the link's end", |scrape| scrape.sum("paceline_link_up") == 0.0);
    // The service kills a drafter that hangs, and starts another one.
    running.hang_up();
    watcher.until("the end of the request", |scrape| {
        scrape.sum(cancelled) == cancelled_before + 1.0 && scrape.sum("paceline_calls") == 0.0
    });

    let mut interrupted = stack.open(chat("Tell a long story.").exactly(2_000)).expect("served");
    interrupted.read(3);
    signal(stack.pid("target"), Signal::SIGKILL);
    assert_eq!(interrupted.finish().expect("it goes on").end.resumed, 1);
    watcher.until("a resumed stream", |scrape| scrape.sum("paceline_resumed_total") == 1.0);
    watcher.until("a restart of the target", |scrape| {
        scrape.sum("paceline_process_restarts_total{process=\"target\"}") == 1.0
    });
    watcher.until("the next target", |scrape| {
        let ready = "paceline_process_state{process=\"target\",state=\"ready\"}";
        scrape.sum(ready) == 1.0 && scrape.sum("paceline_can_serve") == 1.0
    });

    // On a busy machine the next target may be there before a scrape.
    assert!(stack.paceline(&["drain"], "").status.success());
    watcher.until("a drained service", |scrape| scrape.sum("paceline_can_serve") == 0.0);
    assert!(stack.paceline(&["drain", "--undo"], "").status.success());

    let supervisor = stack.pid("supervisor");
    let before = watcher.now();
    signal(supervisor, Signal::SIGSTOP);
    let alone = watcher.until("figures without the supervisor", |scrape| {
        scrape.sum("paceline_supervisor_up") == 0.0
    });
    assert!(alone.of_metric("paceline_kv_bytes").is_empty(), "old figures");
    // The request that was resumed is in either lane: what drafts cost here decides that.
    let own = [before, alone].map(|scrape| scrape.sum(&ok("speculative")));
    assert!(own[0] >= 1.0 && own[0] == own[1], "the gateway's own figures stay: {own:?}");
    signal(supervisor, Signal::SIGCONT);
    watcher.until("the supervisor again", |scrape| scrape.sum("paceline_supervisor_up") == 1.0);
    // On a fast machine all scrapes so far may be within a second of a request.
    watcher
        .until("a second without a request", |scrape| scrape.sum("paceline_idle_seconds") >= 1.0);

    let listed = listed();
    let scrapes = &watcher.scrapes;
    for name in &listed {
        // That it is left out without a supervisor is no move.
        let values = scrapes.iter().map(|scrape| scrape.of_metric(name));
        let values: BTreeSet<_> = values.filter(|values| !values.is_empty()).collect();
        assert!(values.len() > 1, "{name} did not move: {values:?}");
    }
    let unlisted = |series: &&String| {
        let name = series.split('{').next().unwrap_or_default();
        let parts = ["", "_bucket", "_sum", "_count"];
        let names = parts.iter().filter_map(|part| name.strip_suffix(part));
        !names.into_iter().any(|name| listed.contains(name))
    };
    let found = scrapes.iter().flat_map(|scrape| scrape.0.keys());
    assert_eq!(found.filter(unlisted).collect::<BTreeSet<_>>(), BTreeSet::new());
    stack.stop();
}
