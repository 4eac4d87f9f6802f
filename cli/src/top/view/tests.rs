use super::*;
use crate::args::Process;
use crate::top::key::Key;
use crate::top::state::Input;
use paceline_proto::v1::{
    KvStatus, Lane, LinkStatus, ModelStatus, ProcessStatus, RefusedDrafter, RequestsStatus,
    RouteCount, RouteReason, RoutingStatus, StatusResponse,
};

const NOW: Millis = Millis(60_000);

fn view(state: &State) -> View {
    View::of(state, NOW)
}

fn with(status: StatusResponse) -> State {
    let mut state = State::default();
    state.on(Input::Status(Ok(Box::new(status.into()))), NOW);
    state
}

#[test]
fn texts_from_outside_are_harmless_wherever_they_are_shown() {
    let evil = "\x1b]0;owned\x07\u{202e}\nend";
    let process = ProcessStatus { reason: evil.into(), model: evil.into(), ..Default::default() };
    let link = LinkStatus { state: evil.into(), reason: evil.into(), ..Default::default() };
    let refused = RefusedDrafter { model: evil.into(), reason: evil.into() };
    let mut state = with(StatusResponse {
        gateway: Some(process.clone()),
        target: Some(process),
        link: Some(link),
        refused_drafters: vec![refused],
        model: Some(ModelStatus { name: evil.into(), ..Default::default() }),
        ..Default::default()
    });
    let event = Event {
        time: evil.into(),
        number: 1,
        subject: evil.into(),
        cause: evil.into(),
        ..Default::default()
    };
    state.on(Input::Changed(Box::new(event)), NOW);
    state.on(Input::Throughput(Err(evil.into())), NOW);
    state.on(Input::Status(Err(evil.into())), NOW);
    state.on(Input::Ended { number: 1, outcome: Err(evil.into()) }, NOW);
    let text = format!("{:#?}", view(&state));
    // Debug output escapes what is not printable.
    assert!(
        !text.contains("\\u{1b}") && !text.contains("\\u{7}") && !text.contains("\\u{202e}"),
        "{text}"
    );
    assert!(!text.contains("\\n") && text.matches("]0;owned").count() >= 10, "{text}");
}

#[test]
fn the_notice_is_the_state_of_the_supervisor() {
    let mut state = State::default();
    let notice = |state: &State, now| View::of(state, now).notice.map(|(_, text)| text);
    assert_eq!(notice(&state, NOW).as_deref(), Some("asking the supervisor"));
    state.on(Input::Status(Err("no service at /s".into())), NOW);
    assert_eq!(notice(&state, NOW).as_deref(), Some("no service at /s; trying again"));
    assert_eq!(View::of(&state, NOW).figures, None);
    state.on(Input::Status(Ok(Box::default())), NOW);
    assert_eq!(notice(&state, NOW), None);
    state.on(Input::Status(Err("gone".into())), NOW + 4_000);
    assert_eq!(
        notice(&state, NOW + 5_000).as_deref(),
        Some("figures of 5 s ago: gone; trying again")
    );
    assert!(View::of(&state, NOW).figures.is_some(), "the last ones remain");
}

#[test]
fn the_question_names_what_happens_and_an_order_is_shown_until_its_end() {
    let mut state = State::default();
    for key in ['r', 'd'] {
        state.on(Input::Key(Key::Char(key)), NOW);
    }
    let footer = view(&state).footer;
    assert!(footer.text.starts_with("Restart the drafter?") && footer.keys.contains("y yes"));
    state.on(Input::Key(Key::Char('y')), NOW);
    let footer = View::of(&state, NOW + 3_500).footer;
    assert_eq!((footer.text.as_str(), footer.keys), ("restarting the drafter (3 s)", KEYS));
    state.on(Input::Ended { number: 1, outcome: Ok("drafter ready\n".into()) }, NOW);
    let footer = view(&state).footer;
    assert_eq!((footer.text.as_str(), footer.tone), ("drafter ready", Tone::Good));
    assert_eq!(crate::top::order::name(Process::Drafter), "drafter");
}

#[test]
fn figures_are_those_of_the_snapshot() {
    let target = ProcessStatus {
        state: ProcessState::Loading.into(),
        pid: 7,
        weight_bytes: 200,
        loaded_bytes: 90,
        ..Default::default()
    };
    let route = |lane: Lane, reason: RouteReason, requests| RouteCount {
        lane: lane.into(),
        reason: reason.into(),
        requests,
    };
    let routing = RoutingStatus {
        routes: vec![
            route(Lane::Plain, RouteReason::Concurrency, 2),
            route(Lane::Speculative, RouteReason::Benefit, 34),
        ],
        ..Default::default()
    };
    let speculation = Speculation { cycles: 10, drafted: 40, accepted: 30 };
    let status = StatusResponse {
        target: Some(target),
        kv: Some(KvStatus {
            budget_bytes: 100,
            held_bytes: 90,
            prefix_bytes: 5,
            ..Default::default()
        }),
        requests: Some(RequestsStatus {
            active: 3,
            queued: 4,
            speculative: 2,
            ..Default::default()
        }),
        link: Some(LinkStatus {
            state: "up".into(),
            generation: 2,
            speculation: Some(speculation),
            late: 1,
            bytes: 2_048,
            ..Default::default()
        }),
        routing: Some(routing),
        ..Default::default()
    };
    let figures = view(&with(status)).figures.expect("a snapshot");
    assert_eq!(figures.processes[2].state, "loading 45 %");
    assert_eq!(
        (figures.processes[2].tone, figures.processes[0].pid.as_str()),
        (Tone::Warning, "-")
    );
    assert_eq!(figures.requests, "3 run (2 may draft, 1 plain), 4 wait");
    assert_eq!((figures.lanes[0].ended, figures.lanes[0].reason.as_str()), (34, "benefit"));
    assert_eq!(
        figures.speculation,
        [
            "link up",
            "75 % of 40 drafted accepted",
            "4.00 tokens a cycle",
            "1 late, 2.0 KiB over the link"
        ]
    );
    let kv = &figures.gauges[0];
    assert_eq!((kv.held, kv.evictable, kv.tone, figures.gauges.len()), (0.9, 0.05, Tone::Bad, 1));
}

#[test]
fn without_the_gateway_the_throughput_is_that_of_drafts_and_says_so() {
    let mut state = State::default();
    for (second, cycles) in [(0, 100), (1, 110)] {
        let speculation = Speculation { cycles, drafted: 0, accepted: 0 };
        let link = LinkStatus { speculation: Some(speculation), ..Default::default() };
        let status = StatusResponse { link: Some(link), ..Default::default() };
        state.on(Input::Status(Ok(Box::new(status.into()))), Millis(1_000 * second));
    }
    state.on(Input::Throughput(Err("off".into())), NOW);
    let figures = view(&state).figures.expect("a snapshot");
    assert_eq!(
        figures.throughput_title,
        "throughput of drafting requests alone: 10.0 tokens/s (off)"
    );
    assert_eq!(figures.throughput.tokens_per_s, [10.0]);
    let known = Throughput { interval_s: 2, tokens_per_s: vec![0.0, 3.0, 4.0, 5.0, 6.0, 7.0] };
    state.on(Input::Throughput(Ok(known)), NOW);
    let figures = view(&state).figures.expect("a snapshot");
    assert_eq!(figures.throughput_title, "throughput: 5.0 tokens/s, at most 7.0 in 12 s");
}
