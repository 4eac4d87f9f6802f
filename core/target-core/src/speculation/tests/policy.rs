//! Policies, limits, reasons and reports.

use paceline_vocabulary::{Millis, Permit};

use super::super::*;
use super::simulation::*;
use crate::draft_plan::*;
use crate::{Chosen, ClassBytes, Ledger, Request, Scheduler, Token};

fn speculation(policy: Policy) -> Simulation {
    let mut simulation = Simulation::new(GPU, 5);
    assert!(simulation.scheduler.speculation.set_policy(policy));
    simulation.scheduler.speculation.set_linked(true, false);
    simulation
}

#[test]
fn a_policy_overrides_permits_and_an_older_one_is_dropped() {
    let force =
        |epoch, force| Policy { term: 1, epoch, force, kv_pressure: 0.85, max_context: None };
    let mut simulation = speculation(force(3, Force::Plain));
    assert!(
        !simulation.scheduler.speculation.set_policy(force(2, Force::Speculative)),
        "it is older"
    );
    simulation.run(&[|_| JSON], ROUTED, 1, 60);
    assert!(simulation.blocks.is_empty());
    assert_eq!(simulation.routes, [RouteReason::Forced]);
    assert!(simulation.scheduler.speculation.set_policy(force(4, Force::Speculative)));
    simulation.run(&[|_| 0.0], ROUTED, 1, 60);
    // The whole text is drafted, with the longest drafts.
    assert!(
        simulation.blocks.len() >= 50
            && simulation.blocks.iter().take(40).all(|block| block.2 == 15),
        "{:?}",
        simulation.blocks
    );
    assert_eq!(simulation.routes[1], RouteReason::Forced);
}

#[test]
fn under_memory_pressure_no_sequence_drafts() {
    let mut scheduler = Scheduler::new(
        Ledger::new(1 << 20, vec![ClassBytes { positions: 4096, kv: 1, hidden: 0 }]),
        4,
    )
    .with_row_us(1_000.0);
    scheduler.speculation.set_linked(true, false);
    let key = scheduler.add(request(FORCED, 50)).expect("room");
    scheduler.start(|_| 0);
    let step = scheduler.next_step(Millis(0), |_| 0);
    scheduler.on_step(
        &step.parts,
        vec![Chosen { key, tokens: vec![Token { id: 1, margin: 1.0 }] }],
        1000,
    );
    let reading = |_: SequenceKey, _: &Sequence| {
        Some(DrafterReadiness {
            unread_rows: 0,
            can_draft: true,
            has_nothing: false,
            longest: None,
            beyond_context: false,
        })
    };
    assert_eq!(scheduler.plan(true, reading), DraftPlan::default());
    let sequence = scheduler.get(key).expect("there");
    assert_eq!(scheduler.speculation.route(key, sequence).reason, RouteReason::KvPressure);
    let plan = scheduler.plan(false, reading);
    assert_eq!((plan.feed, plan.ask), (vec![key], vec![(key, 15)]));
}

#[test]
fn a_sequence_beyond_the_longest_context_does_not_draft() {
    let mut scheduler = Scheduler::new(
        Ledger::new(1 << 20, vec![ClassBytes { positions: 4096, kv: 1, hidden: 0 }]),
        4,
    )
    .with_row_us(1_000.0);
    scheduler.speculation.set_linked(true, false);
    let brief = |permit| Request { prompt: vec![7; 20], ..request(permit, 50) };
    let keys = [FORCED, ROUTED].map(|permit| scheduler.add(brief(permit)).expect("room"));
    scheduler.start(|_| 0);
    let step = scheduler.next_step(Millis(0), |_| 0);
    let token = |key| Chosen { key, tokens: vec![Token { id: 1, margin: 1.0 }] };
    scheduler.on_step(&step.parts, keys.map(token).into(), 1000);
    let committed = scheduler.get(keys[0]).expect("there").committed;
    let mut fed = |context: usize, max_context| {
        let epoch = scheduler.speculation.policy().epoch + 1;
        assert!(scheduler.speculation.set_policy(Policy {
            epoch,
            max_context,
            ..Policy::default()
        }));
        let beyond = |_: SequenceKey, sequence: &Sequence| sequence.committed > context;
        let plan = scheduler.plan(false, |key, one| {
            Some(DrafterReadiness {
                has_nothing: false,
                unread_rows: 0,
                can_draft: true,
                longest: None,
                beyond_context: beyond(key, one),
            })
        });
        let why = |key| scheduler.speculation.route(key, scheduler.get(key).expect("there")).reason;
        (plan.feed, keys.map(why))
    };
    let most = Some(committed as u32);
    assert_eq!(fed(committed, most).0, keys);
    // The operator's limit holds for all but forced sequences. The drafter's limit holds for all.
    assert_eq!(
        fed(committed, most.map(|most| most - 1)),
        (vec![keys[0]], [RouteReason::DrafterBehind, RouteReason::Context])
    );
    assert_eq!(fed(committed - 1, None), (vec![], [RouteReason::Context; 2]));
}

#[test]
fn the_route_names_why_a_sequence_was_plain() {
    let mut simulation = Simulation::new(CPU, 3);
    // A class whose texts never pay becomes known.
    simulation.scheduler.speculation.set_linked(true, false);
    simulation.run(&[|_| 0.02], ROUTED, 40, 40);
    assert!(simulation.routes.contains(&RouteReason::NotWorth), "{:?}", simulation.routes);
    // A class may be parked between the choice of a sequence and its draft.
    let behind = simulation.routes.iter().filter(|one| **one == RouteReason::DrafterBehind).count();
    assert!(behind <= 1, "{:?}", simulation.routes);
    // A sequence that was chosen, and never ready.
    let key = simulation.scheduler.add(Request { class: "other".into(), ..request(ROUTED, 50) });
    let key = key.expect("room");
    simulation.scheduler.plan(false, |_, _| {
        Some(DrafterReadiness {
            unread_rows: 500,
            can_draft: false,
            has_nothing: false,
            longest: None,
            beyond_context: false,
        })
    });
    let reason = |simulation: &Simulation| {
        simulation
            .scheduler
            .speculation
            .route(key, simulation.scheduler.get(key).expect("there"))
            .reason
    };
    assert_eq!(reason(&simulation), RouteReason::DrafterBehind);
    simulation.scheduler.speculation.set_linked(false, false);
    assert_eq!(reason(&simulation), RouteReason::DrafterAbsent);
    // No draft is requested of a drafter that is paused for being late. A forced sequence is
    // plain for that reason alone.
    simulation.scheduler.speculation.set_linked(true, false);
    simulation.scheduler.speculation.set_linked(true, true);
    let key = simulation.scheduler.add(request(FORCED, 50)).expect("room");
    let sequence = simulation.scheduler.get(key).expect("there");
    let route = simulation.scheduler.speculation.route(key, sequence);
    assert_eq!(route.reason, RouteReason::DrafterLate);
    simulation.scheduler.speculation.set_linked(true, false);
    for (permit, expected) in [
        (FORCED, RouteReason::DrafterBehind),
        (Permit { reason: RouteReason::DrafterLate, ..ROUTED }, RouteReason::DrafterLate),
        (ROUTED, RouteReason::NotWorth),
    ] {
        let key = simulation.scheduler.add(request(permit, 50)).expect("room");
        let sequence = simulation.scheduler.get(key).expect("there");
        assert_eq!(simulation.scheduler.speculation.route(key, sequence).reason, expected);
    }
}

#[test]
fn figures_report_what_was_measured() {
    let empty = Speculation::default().figures();
    assert!(empty.by_sequences.iter().all(|range| range.steps == 0) && empty.classes.is_empty());
    let mut simulation = Simulation::new(GPU, 6);
    simulation.run(&[|_| JSON], ROUTED, 5, 150);
    let figures = simulation.scheduler.speculation.figures();
    assert!(
        figures.step.expect("there").observations > 50
            && figures.draft.expect("there").observations > 20
    );
    assert_eq!(figures.classes[0].class, "default");
    let survival = &figures.classes[0].survival;
    assert!(
        survival.windows(2).all(|pair| pair[1] <= pair[0])
            && (survival[0] - JSON as f32).abs() < 0.06,
        "{survival:?}"
    );
    let one = &figures.by_sequences[0];
    assert!(one.up_to == 1 && one.steps > 50 && one.gain > 2.0, "{one:?}");
    assert!(figures.by_sequences.iter().chain(&figures.by_context).all(|range| range.gain >= 1.0));
    assert_eq!(
        figures.by_sequences.iter().map(|range| range.up_to).collect::<Vec<_>>(),
        [1, 2, 4, 8, 16, 32]
    );
}
