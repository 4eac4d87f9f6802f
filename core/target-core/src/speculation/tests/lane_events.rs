//! The events of a sequence whose drafts do not pay.

use super::super::*;
use super::simulation::*;

#[test]
fn a_sequence_that_does_not_pay_backs_off_before_its_first_probe_and_after_each() {
    let mut simulation = Simulation::new(CPU, 21);
    simulation.scheduler.speculation.set_linked(true, false);
    simulation.run(&[|_| FACTS], ROUTED, 3, 100);
    simulation.scheduler.speculation.log.take_events();
    simulation.run(&[|_| 0.15], ROUTED, 1, 1000);
    let events = simulation.scheduler.speculation.log.take_events();
    let mut in_backoff = false;
    let (mut backoffs, mut probes, mut last_until) = (0, 0, 0);
    for event in &events {
        match *event {
            LaneEvent::BackoffBegan { until_tokens, .. } => {
                assert!(!in_backoff && until_tokens >= last_until, "{events:?}");
                (in_backoff, last_until, backoffs) = (true, until_tokens, backoffs + 1);
            }
            LaneEvent::Probed { draft_tokens, .. } => {
                assert!(in_backoff && draft_tokens > 0, "{events:?}");
                probes += 1;
            }
            LaneEvent::BackoffEnded { .. } => {
                assert!(in_backoff, "{events:?}");
                in_backoff = false;
            }
        }
    }
    assert!(backoffs > 1 && probes > 1, "{events:?}");
    assert_eq!(simulation.scheduler.speculation.log.take_events(), []);
}

#[test]
fn events_that_the_shell_never_takes_are_bounded() {
    let mut speculation = Speculation::default();
    (0..1_000)
        .for_each(|key| speculation.log.add(LaneEvent::BackoffEnded { key: SequenceKey(key) }));
    assert_eq!(speculation.log.take_events().len(), crate::draft_plan::MAX_EVENTS);
    assert_eq!(speculation.log.take_events(), []);
}
