//! One line of what happens, then what is done. `now` is a number.

use super::*;

/// Plays `events` ("1.5s exited gateway 70", "stop", "tick") and returns the actions of the last
/// one, in short words.
fn play(events: &str) -> String {
    let mut service = Service::new(4, 60_000, 200_000);
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
            "exited" => {
                let member = if words.next() == Some("gateway") {
                    Member::Gateway
                } else {
                    Member::Supervisor
                };
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
    let short = |action: &Action| match action {
        Action::Start(member, restarts) => Some(format!("start {} {restarts}", member.name())),
        Action::Term(member) => Some(format!("term {}", member.name())),
        Action::Hurry(member) => Some(format!("hurry {}", member.name())),
        Action::Kill(member) => Some(format!("kill {}", member.name())),
        Action::KillWorkers => Some("kill workers".into()),
        Action::Report(Notice::Restarting(member, _, pause)) => {
            Some(format!("{} in {pause}", member.name()))
        }
        Action::Report(_) => None,
        Action::Finish(exit) => Some(format!("finish {}", *exit as u8)),
    };
    let mut words: Vec<_> = last.iter().filter_map(short).collect();
    if let Some(at) = service.next_deadline().filter(|at| *at != Millis(u64::MAX)) {
        words.push(format!("wake {:.2}s", at.0 as f64 / 1e3));
    }
    words.join("; ")
}

fn check(events: &str, expected: &str) {
    assert_eq!(play(events), expected, "{events}");
}

#[test]
fn both_are_started() {
    check("begun", "start supervisor 0; start gateway 0");
}

#[test]
fn a_crash_is_restarted_at_once_then_after_pauses_then_given_up() {
    check("begun\n 5s exited gateway signal=9", "gateway in 0; start gateway 1");
    check(
        "begun\n 5s exited gateway signal=9\n 6s exited gateway 70",
        "gateway in 250; wake 6.25s",
    );
    check(
        "begun\n 5s exited gateway signal=9\n 6s exited gateway 70\n 6.25s tick",
        "start gateway 2",
    );
    let thrice = "begun\n 5s exited gateway 70\n 6s exited gateway 70\n 6.3s tick\n 7s exited gateway 70\n 8s tick\n";
    check(&format!("{thrice} 9s exited gateway 70"), "term supervisor; wake 209.00s");
    check(&format!("{thrice} 9s exited gateway 70\n exited supervisor 0"), "finish 70");
    // One that lives a while before it dies does not wait longer and longer.
    let settled =
        "begun\n 5s exited gateway 70\n 7s exited gateway 70\n 7.25s tick\n 9s exited gateway 70";
    check(settled, "gateway in 250; wake 9.25s");
    // Each has a budget of its own, and it fills up again.
    check(&format!("{thrice} 9s exited supervisor 70"), "supervisor in 0; start supervisor 1");
    check(&format!("{thrice} 90s exited gateway 70"), "gateway in 0; start gateway 4");
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
