//! One line of what happens, then what is done. `now` is a number.

use super::*;

/// Plays `events` ("1.5s exited gateway 70", "beat gateway", "stop", "tick") and returns the actions of the last
/// one, in short words.
fn play(events: &str) -> String {
    let mut service = Service::new(Bounds {
        restarts: 4,
        period_ms: 60_000,
        supervisor_retry_ms: 10_000,
        supervisor_stop_ms: 200_000,
        // Longer than a test's story, which has no ticks in between.
        frozen_ms: 3_600_000,
    });
    let mut last = Vec::new();
    let mut now = Millis(0);
    for line in events.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let mut words = line.split_whitespace().peekable();
        if let Some(seconds) = words
            .peek()
            .and_then(|word| word.strip_suffix('s'))
            .and_then(|text| text.parse::<f64>().ok())
        {
            now = Millis((seconds * 1e3).round() as u64);
            words.next();
        }
        let event = match words.next().expect("an event") {
            "begun" => Event::Begun,
            "stop" => Event::StopAsked,
            "tick" => Event::Tick,
            "beat" => Event::Beat(member(words.next())),
            "ready" => Event::Ready(member(words.next())),
            "wants" => Event::SuccessorWanted(member(words.next())),
            "exited" => {
                let member = member(words.next());
                let end = words.next().expect("a code or signal");
                match end.strip_prefix("signal=") {
                    Some(signal) => {
                        Event::Exited(member, ChildEnd::Signal(signal.parse().expect("a number")))
                    }
                    None => Event::Exited(member, ChildEnd::Code(end.parse().expect("a number"))),
                }
            }
            other => panic!("{other}"),
        };
        last = service.on_event(event, now);
    }
    let mut words: Vec<_> = last.iter().filter_map(short).collect();
    if let Some(at) = service.next_step().filter(|at| *at != Millis(u64::MAX)) {
        words.push(format!("wake {:.2}s", at.0 as f64 / 1e3));
    }
    words.join("; ")
}

/// An action in short words; `None` for a note that no test looks at.
fn short(action: &Action) -> Option<String> {
    match action {
        Action::Start(member, restarts) => Some(format!("start {} {restarts}", word(*member))),
        Action::Term(member) => Some(format!("term {}", word(*member))),
        Action::Hurry(member) => Some(format!("hurry {}", word(*member))),
        Action::Kill(member) => Some(format!("kill {}", word(*member))),
        Action::HandOver => Some("hand over".into()),
        Action::Promote => Some("promote".into()),
        Action::Decline => Some("decline".into()),
        Action::KillWorkers => Some("kill workers".into()),
        Action::Report(Notice::Restarting(member, _, pause)) => {
            Some(format!("{} in {pause}", member.name()))
        }
        Action::Report(Notice::Failed(member, _, pause)) => {
            Some(format!("{} failed for {pause}", member.name()))
        }
        Action::Report(Notice::Frozen(member)) => Some(format!("{} frozen", member.name())),
        Action::Report(_) => None,
        Action::Finish(exit) => Some(format!("finish {}", *exit as u8)),
    }
}

/// The name of a child in these stories.
fn word(member: Member) -> &'static str {
    if member == Member::SecondGateway { "second" } else { member.name() }
}

fn member(name: Option<&str>) -> Member {
    let named = |member: &Member| Some(word(*member)) == name;
    BOTH.into_iter().chain([Member::SecondGateway]).find(named).expect("a child")
}

fn check(events: &str, expected: &str) {
    assert_eq!(play(events), expected, "{events}");
}

#[test]
fn both_are_started() {
    check("begun", "start supervisor 0; start gateway 0");
}

#[test]
fn a_crash_is_restarted_at_once_then_after_pauses() {
    check("begun\n 5s exited gateway signal=9", "gateway in 0; start gateway 1");
    check(
        "begun\n 5s exited gateway signal=9\n 6s exited gateway 70",
        "gateway in 250; wake 6.25s",
    );
    check(
        "begun\n 5s exited gateway signal=9\n 6s exited gateway 70\n 6.25s tick",
        "start gateway 2",
    );
    // One that lives a while before it dies does not wait longer and longer.
    let settled =
        "begun\n 5s exited gateway 70\n 7s exited gateway 70\n 7.25s tick\n 9s exited gateway 70";
    check(settled, "gateway in 250; wake 9.25s");
}

/// Three crashes of this child, each of which is followed by a start.
fn thrice(child: &str) -> String {
    let died = |second: u32| format!("{second}s exited {child} 70\n {second}.9s tick\n");
    format!("begun\n{}{}{}", died(5), died(6), died(7))
}

#[test]
fn a_child_whose_budget_is_spent_is_down_for_a_while_and_the_other_goes_on() {
    let gateway = thrice("gateway");
    check(&format!("{gateway} 9s exited gateway 70"), "gateway failed for 60000; wake 69.00s");
    // Each has a budget of its own, and it fills up again.
    check(&format!("{gateway} 9s exited supervisor 70"), "supervisor in 0; start supervisor 1");
    check(&format!("{gateway} 90s exited gateway 70"), "gateway in 0; start gateway 4");
    // The next try comes by itself. A failure there is enough to wait twice as long.
    let down = format!("{gateway} 9s exited gateway 70\n 69s tick\n");
    check(&down, "start gateway 4");
    check(&format!("{down} 70s exited gateway 70"), "gateway failed for 120000; wake 190.00s");
    // A try that lasts a whole period fills the budget.
    check(&format!("{down} 129s exited gateway 70"), "gateway in 0; start gateway 5");
}

#[test]
fn a_failed_child_is_tried_again_after_pauses_that_double_to_fifteen_minutes() {
    let mut story = format!("{} 9s exited gateway 70\n", thrice("gateway"));
    let mut now = 9;
    for pause in [60, 120, 240, 480, 900, 900] {
        check(&story, &format!("gateway failed for {pause}000; wake {}.00s", now + pause));
        now += pause;
        story += &format!(" {now}s tick\n {now}s exited gateway 70\n");
    }
}

#[test]
fn a_failed_supervisor_is_tried_again_inside_the_lease_however_often_it_fails() {
    let mut story = format!("{} 9s exited supervisor 70\n", thrice("supervisor"));
    for at in [19, 29, 39] {
        check(&story, &format!("supervisor failed for 10000; wake {at}.00s"));
        story += &format!(" {at}s tick\n {at}s exited supervisor signal=9\n");
    }
}

#[test]
fn a_child_that_always_dies_never_ends_the_service() {
    let mut service = Service::new(Bounds {
        restarts: 0,
        period_ms: 60_000,
        supervisor_retry_ms: 10_000,
        supervisor_stop_ms: 200_000,
        frozen_ms: 30_000,
    });
    let (mut now, mut starts) = (Millis(0), [0; 2]);
    let mut actions = service.on_event(Event::Begun, now);
    while now < Millis(24 * 3_600_000) {
        let mut next = vec![];
        for action in actions {
            match action {
                Action::Start(member, _) => {
                    starts[member.place()] += 1;
                    next.extend(service.on_event(Event::Exited(member, ChildEnd::Signal(6)), now));
                }
                Action::Report(_) => {}
                other => panic!("{other:?}"),
            }
        }
        now = service.next_deadline().expect("it is tried again").max(now);
        next.extend(service.on_event(Event::Tick, now));
        actions = next;
    }
    assert!((8_000..9_000).contains(&starts[0]), "every 10 s: {starts:?}");
    assert!((90..110).contains(&starts[1]), "every 15 minutes: {starts:?}");
}

#[test]
fn a_child_without_a_sign_of_life_is_killed_and_replaced() {
    let ticks = |from: u64, to: u64| -> String {
        (from..to).map(|second| format!("{second}s tick\n beat gateway\n")).collect()
    };
    let frozen = format!("begun\n 0s beat supervisor\n{}", ticks(1, 3_600));
    check(&frozen, "");
    check(&format!("{frozen} 3600s tick"), "supervisor frozen; kill supervisor");
    check(&format!("{frozen} 3600s tick\n 3601s tick"), "");
    check(
        &format!("{frozen} 3600s tick\n 3600.1s exited supervisor signal=9"),
        "supervisor in 0; start supervisor 1",
    );
    // Asleep for two hours: nobody is frozen.
    check("begun\n 0s beat supervisor\n 0s beat gateway\n 7200s tick", "");
    // While the service stops each child has another time within which it must end.
    check(&format!("{frozen} 3599s stop\n 3600s tick"), "wake 3644.00s");
}

#[test]
fn an_asked_restart_costs_nothing_unless_it_spins() {
    check(
        "begun\n 5s exited supervisor 75\n 9s exited supervisor 75",
        "supervisor in 0; start supervisor 0",
    );
    check(
        "begun\n 0.1s exited supervisor 75\n 0.2s exited supervisor 75",
        "supervisor in 250; wake 0.45s",
    );
}

#[test]
fn an_end_that_a_restart_cannot_fix_stops_the_service() {
    check("begun\n exited supervisor 64", "term gateway; wake 45.00s");
    check("begun\n exited supervisor 64\n exited gateway 0", "finish 64");
    check("begun\n exited gateway 69\n exited supervisor 0", "finish 69");
    check("begun\n exited supervisor 78\n exited gateway 0", "finish 78");
    check("begun\n exited gateway 0\n exited supervisor 0", "finish 0");
}

#[test]
fn stopping_lets_the_gateway_end_first() {
    check("begun\n 9s stop", "term gateway; wake 54.00s");
    check("begun\n 9s stop\n 10s exited gateway 0", "term supervisor; wake 210.00s");
    check("begun\n 9s stop\n 10s exited gateway 0\n 11s exited supervisor 0", "finish 0");
    // Whatever they end with, they were asked to.
    check("begun\n 9s stop\n 10s exited supervisor signal=9", "wake 54.00s");
    check("begun\n 9s stop\n 10s exited supervisor 70\n 11s exited gateway signal=9", "finish 0");
    // Nothing is started while stopping.
    check(
        "begun\n exited gateway 70\n 1s exited gateway 70\n 1s stop",
        "term supervisor; wake 201.00s",
    );
    check("begun\n exited gateway 70\n 1s exited gateway 70\n 1s stop\n 2s tick", "wake 201.00s");
}

#[test]
fn asking_again_hurries_then_kills() {
    check("begun\n stop\n stop", "term supervisor; hurry gateway; wake 45.00s");
    check("begun\n stop\n stop\n exited gateway 0", "wake 200.00s");
    check("begun\n stop\n stop\n stop", "kill supervisor; kill gateway; kill workers; wake 45.00s");
    check(
        "begun\n stop\n stop\n stop\n exited gateway signal=9\n exited supervisor signal=9",
        "finish 0",
    );
}

#[test]
fn a_stuck_child_is_killed() {
    check("begun\n stop\n 45s tick", "kill gateway");
    check(
        "begun\n stop\n 45s tick\n 45.1s exited gateway signal=9",
        "term supervisor; wake 245.10s",
    );
}

const HANDED_OVER: &str = "begun\n 5s wants gateway\n 6s ready second\n";

#[test]
fn a_successor_is_started_beside_the_gateway_and_takes_its_place_when_it_is_ready() {
    check("begun\n 5s wants gateway", "start second 0; wake 65.00s");
    check(HANDED_OVER, "hand over; wake 51.00s");
    check(&format!("{HANDED_OVER} 20s exited second 75"), "");
    // Restarts that nobody asked for are still counted, and the budget is a new one.
    let crashed = "begun\n 5s exited gateway signal=9\n 6s exited gateway 70\n 6.25s tick\n";
    check(&format!("{crashed} 9s wants gateway"), "start second 2; wake 69.00s");
    check(
        &format!("{crashed} 9s wants gateway\n 10s ready second\n 11s exited gateway 70"),
        "gateway in 0; start gateway 3; wake 55.00s",
    );
    // Signs of life are those of the new one, which has a minute for the first.
    check(&format!("{HANDED_OVER} 7s beat second\n 8s ready gateway"), "wake 51.00s");
}

#[test]
fn there_is_one_predecessor_at_a_time() {
    let again = format!("{HANDED_OVER} 10s wants gateway\n");
    check(&again, "wake 51.00s");
    check(&format!("{again} 20s exited second 75"), "start second 0; wake 80.00s");
    // A gateway that is gone wants no successor any more.
    check(&format!("{again} 20s exited gateway 75\n 21s exited second 75"), "");
    // One that is asked itself while it starts is replaced after its own predecessor.
    let early = "begun\n 5s wants gateway\n 5.5s wants second\n 6s ready second\n";
    check(&format!("{early} 7s exited second 75"), "start second 0; wake 67.00s");
}

#[test]
fn a_predecessor_that_is_stuck_is_killed() {
    check(&format!("{HANDED_OVER} 50s tick"), "wake 51.00s");
    check(&format!("{HANDED_OVER} 51s tick"), "kill second");
    check(&format!("{HANDED_OVER} 51s tick\n 52s tick"), "");
    check(&format!("{HANDED_OVER} 51s tick\n 52s exited second signal=9"), "");
    let again = format!("{HANDED_OVER} 10s wants gateway\n 51s tick\n");
    check(&format!("{again} 52s exited second signal=9"), "start second 0; wake 112.00s");
}

#[test]
fn a_gateway_goes_on_if_its_successor_fails() {
    for end in ["64", "70", "0", "signal=9"] {
        check(&format!("begun\n 5s wants gateway\n 6s exited second {end}"), "decline");
    }
    // It is late, and killed.
    check("begun\n 5s wants gateway\n 65s tick", "kill second");
    check("begun\n 5s wants gateway\n 65s tick\n 66s exited second signal=9", "decline");
    // The next order starts another one.
    check(
        "begun\n 5s wants gateway\n 6s exited second 70\n 9s wants gateway",
        "start second 0; wake 69.00s",
    );
    // A successor that ends later is a gateway that ended.
    check(
        &format!("{HANDED_OVER} 6.1s exited gateway 70"),
        "gateway in 0; start gateway 1; wake 51.00s",
    );
    check(&format!("{HANDED_OVER} 7s exited gateway 64"), "term second; wake 51.00s");
}

#[test]
fn a_gateway_that_ends_before_its_successor_is_ready_is_replaced_by_it() {
    check("begun\n 5s wants gateway\n 5.5s exited gateway 75", "promote; gateway in 0");
    check("begun\n 5s wants gateway\n 5.5s exited gateway signal=9", "promote; gateway in 0");
    // It is ready like any gateway that was started.
    let promoted = "begun\n 5s wants gateway\n 5.5s exited gateway signal=9\n 6s ready gateway\n";
    check(promoted, "");
    check(&format!("{promoted} 7s exited gateway 70"), "gateway in 0; start gateway 2");
}

#[test]
fn a_stop_ends_both_gateways_at_once_and_then_the_supervisor() {
    let stopped = format!("{HANDED_OVER} 9s stop\n");
    check(&stopped, "term second; term gateway; wake 51.00s");
    check(&format!("{stopped} 10s exited gateway 0"), "wake 51.00s");
    check(
        &format!("{stopped} 10s exited gateway 0\n 11s exited second 0"),
        "term supervisor; wake 211.00s",
    );
    check(
        &format!("{stopped} 10s exited second 75\n 11s exited gateway 0\n 12s exited supervisor 0"),
        "finish 0",
    );
    check(&format!("{stopped} 51s tick"), "kill second; wake 54.00s");
    check(
        &format!("{stopped} 10s stop"),
        "term supervisor; hurry gateway; hurry second; wake 51.00s",
    );
    check(
        &format!("{stopped} 10s stop\n 11s stop"),
        "kill supervisor; kill gateway; kill second; kill workers; wake 51.00s",
    );
    // Nothing takes over while the service stops.
    let starting = "begun\n 5s wants gateway\n 6s stop\n";
    check(starting, "term second; term gateway; wake 51.00s");
    check(&format!("{starting} 7s ready second"), "wake 51.00s");
    check(&format!("{starting} 7s exited second signal=15"), "wake 51.00s");
    check(&format!("{stopped} 10s wants gateway"), "wake 51.00s");
}
