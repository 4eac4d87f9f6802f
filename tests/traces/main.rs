//! Traces for OpenTelemetry: a request is one trace through all processes, without a word of its
//! client; a collector that hangs or is absent costs nothing but spans.

mod collector;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use nix::sys::signal::Signal;
use paceline_process::keys::KeyLine;
use paceline_system::Clock;
use paceline_tests::http::HttpAnswer;
use paceline_tests::{Stack, chat, signal, wait};
use serde_json::{Value, json};

use collector::{Collector, Seen};

const KEY: &str = "pl_traces_0123456789abcdef";
/// A word that no code of ours has.
const CANARY: &str = "zqcanaryxv";
/// The example of the standard.
const CLIENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A service that sends its spans to this address.
fn traced(endpoint: &str, settings: &str) -> Stack {
    Stack::new(&format!("log.otlp = {endpoint:?}\n{settings}"))
}

/// Has the service ask for [`KEY`].
fn ask_for_key(stack: &Stack) {
    let file = stack.path("keys");
    let line = KeyLine::of("tracer", KEY).expect("a key");
    std::fs::write(&file, format!("{line}\n")).expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("ours");
    stack.set(&format!("gateway.api_keys_file = {file:?}\n"));
}

/// A request over HTTP, with [`KEY`] and these headers.
fn post(stack: &Stack, headers: &str) -> HttpAnswer {
    let count = format!("{CANARY}: one, two, three, four, one, two, three, four, one, two,");
    let body = json!({"messages": [{"role": "user", "content": count}], "max_tokens": 24});
    let headers =
        format!("authorization: Bearer {KEY}\r\ncontent-type: application/json\r\n{headers}");
    let answer = stack.http_post("/v1/chat/completions", &headers, &body.to_string());
    let answer = answer.expect("an answer");
    assert_eq!(answer.status(), 200, "{}", answer.body);
    answer
}

/// Id of a request, by the headers of its answer.
fn request_id(answer: &HttpAnswer) -> String {
    let lines = answer.head.lines();
    let mut ids = lines.filter_map(|line| line.strip_prefix("x-request-id: "));
    ids.next().expect("an id").trim().to_owned()
}

/// The spans of one trace.
struct Trace(Vec<Seen>);

impl Trace {
    fn of(spans: &[Seen], trace: &str) -> Self {
        Self(spans.iter().filter(|span| span.trace == trace).cloned().collect())
    }

    /// The only span of this process and name.
    fn one(&self, service: &str, name: &str) -> &Seen {
        let found: Vec<_> =
            self.0.iter().filter(|span| span.service == service && span.name == name).collect();
        let [one] = found[..] else { panic!("expected one {service} {name}, found {:#?}", self.0) };
        one
    }

    /// Spans of a request that was served in one go: who is below whom, and within whose time.
    fn check_parents(&self) {
        let request = self.one("paceline-gateway", "request");
        let submission = self.one("paceline-gateway", "submission");
        let route = self.one("paceline-supervisor", "route");
        for (service, name, parent) in [
            ("paceline-gateway", "check", request),
            ("paceline-gateway", "tokenize", request),
            ("paceline-gateway", "submission", request),
            ("paceline-supervisor", "route", submission),
            ("paceline-supervisor", "admission", route),
            ("paceline-target", "queue", route),
            ("paceline-target", "prefill", route),
            ("paceline-target", "decode", route),
            ("paceline-drafter", "drafts", route),
        ] {
            let span = self.one(service, name);
            assert_eq!(span.parent, parent.id, "{service} {name}");
            assert!(span.start_ns <= span.end_ns, "{span:?}");
            assert!(span.failure.is_empty(), "{span:?}");
        }
        // Clocks of processes are read at different moments, so times have a tolerance.
        let slack_ns = 50_000_000;
        for span in self.0.iter().filter(|span| span.service != "paceline-drafter") {
            assert!(span.start_ns + slack_ns >= request.start_ns, "{span:?} in {request:?}");
            assert!(span.end_ns <= request.end_ns + slack_ns, "{span:?} in {request:?}");
        }
        let (prefill, decode) =
            (self.one("paceline-target", "prefill"), self.one("paceline-target", "decode"));
        assert!(prefill.end_ns <= decode.start_ns + slack_ns, "{prefill:?} {decode:?}");
    }
}

#[test]
// More than 60 lines: one service, which takes seconds to start, serves every kind of request.
fn a_request_is_one_trace_through_all_processes_without_its_text() {
    let collector = Collector::start();
    let mut stack = traced(
        collector.endpoint(),
        "routing.force = \"speculative\"\ntarget.threads = 1\ndrafter.threads = 1\n",
    );
    ask_for_key(&stack);
    stack.serve();
    stack.wait_ready();
    stack.wait_linked();

    let answer = post(&stack, "");
    let own_id = request_id(&answer);
    let answered: Value = serde_json::from_str(&answer.body).expect("JSON");
    let text = answered["choices"][0]["message"]["content"].as_str().expect("a text");
    let tokens = &answered["usage"];
    let continued_id = request_id(&post(&stack, &format!("traceparent: {CLIENT}\r\n")));
    let unsampled = CLIENT.replace("0af7", "1bf8").replace("-01", "-00");
    let unsampled_id = request_id(&post(&stack, &format!("traceparent: {unsampled}\r\n")));
    let malformed = CLIENT.replace("00-0af7", "00-0AF7");
    let malformed_id = request_id(&post(&stack, &format!("traceparent: {malformed}\r\n")));

    // A target that is killed sends nothing more: its spans of the requests so far must be there.
    wait("the target's spans", || {
        let spans = collector.spans();
        (spans.iter().filter(|span| span.name == "decode").count() == 3).then_some(())
    });
    // A request that is interrupted has a submission before that and one after it.
    let broken = stack.start_as(KEY, chat("Count.").exactly(400));
    wait("some tokens", || (broken.tokens() > 2).then_some(()));
    signal(stack.pid("target"), Signal::SIGKILL);
    let resumed = broken.finish().expect("it goes on");
    let refused = post_too_long(&stack);
    stack.stop();

    let spans = collector.spans();
    let own = Trace::of(&spans, &own_id);
    own.check_parents();
    let request = own.one("paceline-gateway", "request");
    assert_eq!((request.parent.as_str(), request.failure.as_str()), ("", ""));
    assert_eq!(request.get("paceline.request_id"), own_id);
    assert_eq!(request.get("paceline.lane"), "speculative");
    assert_eq!(request.number("paceline.prompt_tokens"), tokens["prompt_tokens"]);
    assert_eq!(request.number("paceline.completion_tokens"), tokens["completion_tokens"]);
    let reason = answered["choices"][0]["finish_reason"].as_str();
    assert_eq!(Some(request.get("paceline.finish_reason")), reason);
    assert!(request.number("paceline.ttft_ms") > 0.0 && !request.get("paceline.model").is_empty());
    let decode = own.one("paceline-target", "decode");
    for name in ["paceline.drafted", "paceline.accepted"] {
        assert_eq!(request.get(name), decode.get(name));
    }
    let drafts = own.one("paceline-drafter", "drafts");
    assert!(drafts.number("paceline.drafted") >= decode.number("paceline.drafted"), "{drafts:?}");
    assert!(drafts.number("paceline.drafts") > 0.0, "{drafts:?}");
    for name in ["process.pid", "service.version", "paceline.epoch", "paceline.term"] {
        assert!(!decode.get(name).is_empty());
    }
    assert_eq!(own.one("paceline-supervisor", "route").get("paceline.lane"), "speculative");

    let continued = Trace::of(&spans, &CLIENT[3..35]);
    continued.check_parents();
    let request = continued.one("paceline-gateway", "request");
    assert_eq!(request.parent, CLIENT[36..52], "the client's span");
    assert_eq!(request.get("paceline.request_id"), continued_id);

    let ids: Vec<_> =
        spans.iter().filter_map(|span| span.attributes.get("paceline.request_id")).collect();
    assert!(!ids.contains(&&unsampled_id), "the client does not record its trace");
    assert!(Trace::of(&spans, &unsampled[3..35]).0.is_empty());
    Trace::of(&spans, &malformed_id).check_parents();

    assert_eq!(resumed.end.resumed, 1);
    let resumed = spans
        .iter()
        .find(|span| {
            span.attributes.get("paceline.resumed").is_some_and(|count| count == "1")
                && span.name == "request"
        })
        .expect("its first span");
    let resumed = Trace::of(&spans, &resumed.trace);
    let mut submissions: Vec<_> =
        resumed.0.iter().filter(|span| span.name == "submission").collect();
    submissions.sort_by_key(|span| span.start_ns);
    let failures: Vec<_> = submissions.iter().map(|span| span.failure.as_str()).collect();
    assert_eq!(failures, ["TARGET_GONE", ""], "{submissions:?}");

    let failed = Trace::of(&spans, &refused);
    assert_eq!(failed.one("paceline-gateway", "request").failure, "PROMPT_TOO_LONG");
    assert!(failed.0.iter().all(|span| span.service == "paceline-gateway"));

    for secret in [CANARY, KEY, text.trim(), "one, two"] {
        assert!(!secret.is_empty() && !collector.has(secret), "{secret:?} is in a trace");
    }
    assert!(collector.has(&continued_id), "the search finds what is there");
}

/// A request that the gateway refuses; its id.
fn post_too_long(stack: &Stack) -> String {
    let body = json!({"prompt": "much too long ".repeat(20_000), "max_tokens": 1});
    let headers = format!("authorization: Bearer {KEY}\r\ncontent-type: application/json\r\n");
    let answer = stack.http_post("/v1/completions", &headers, &body.to_string());
    let answer = answer.expect("an answer");
    assert_eq!(answer.status(), 400, "{}", answer.body);
    request_id(&answer)
}

/// Lines that report an outage, in the logs of the gateway, the supervisor and the target.
fn outages(stack: &Stack) -> [usize; 3] {
    ["gateway", "supervisor", "target"].map(|process| {
        let log = std::fs::read_to_string(stack.run_dir().join(format!("{process}.log")));
        let log = log.unwrap_or_default();
        log.lines().filter(|line| line.contains("does not take all spans")).count()
    })
}

#[test]
fn a_collector_that_never_answers_delays_no_request_and_no_end() {
    // The system accepts connections, and nothing answers on them.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    let mut stack = traced(&endpoint, "drafter.model = \"\"\n");
    stack.serve();
    stack.wait_ready();
    for _ in 0..3 {
        stack.ask(chat("Hello.").exactly(4)).expect("served");
    }
    let clock = Clock::start();
    stack.stop();
    let took = Duration::from_millis(clock.now().0);
    assert!(took < Duration::from_secs(25), "{took:?}");
}

#[test]
fn an_absent_collector_costs_one_log_line_and_no_request() {
    let endpoint = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        format!("http://{}", listener.local_addr().expect("an address"))
    };
    let mut stack = traced(&endpoint, "drafter.model = \"\"\n");
    stack.serve();
    stack.wait_ready();
    stack.ask(chat("Hello.").exactly(4)).expect("served");
    wait("a line of each process", || (outages(&stack) == [1; 3]).then_some(()));
    for _ in 0..3 {
        stack.ask(chat("Hello.").exactly(4)).expect("served");
    }
    assert_eq!(outages(&stack), [1; 3]);
    stack.stop();
}
