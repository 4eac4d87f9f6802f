//! The wait for a draft.

use std::sync::Arc;

use paceline_models::sample::SamplingRule;
use paceline_process::worker::{Progress, mailbox};
use paceline_proto::internal::v1::TokenBatch;
use paceline_system::Clock;
use paceline_system::clock::monotonic_ns;
use paceline_vocabulary::Millis;

use super::fixture;
use super::prompt;
use super::test_engine::engine;
use crate::cost_file::CostFile;
use crate::engine::EngineCommand;

#[test]
fn tokens_are_sent_before_the_engine_waits_for_a_draft() {
    const LONG_MS: u64 = 30_000;
    let (mail, mut inbox) = mailbox(1).expect("a mailbox");
    let (running, mut rx) = fixture::request("r", prompt(0), 9, SamplingRule::GREEDY);
    let clock = Clock::start();
    let until = clock.now() + LONG_MS;
    let wait = move || {
        let mut engine = engine(Arc::default(), Arc::new(Progress::default()), CostFile::none());
        let (mut running, batch) = (running, |index: u32| TokenBatch {
            first_index: index,
            ids: vec![index],
            step_end_ns: monotonic_ns(),
            ..TokenBatch::default()
        });
        // The first token is sent. The second follows too soon after it and stays pending.
        for index in 0..2 {
            running.outlet.add(batch(index));
            running.outlet.offer();
        }
        let key = engine.scheduler.add(running.request.scheduling.clone()).expect("room");
        engine.running.insert(key, running);
        // Until the test sends a command, or the draft is late.
        while inbox.try_recv().is_err() && engine.clock.now() < until {
            engine.wait_for_draft(&mut inbox, until);
        }
    };
    let thread = std::thread::Builder::new().name("engine".into()).spawn(wait).expect("a thread");
    let mut ids = vec![];
    while ids.len() < 2 {
        ids.extend(rx.blocking_recv().expect("the engine is there").expect("tokens").ids);
    }
    assert_eq!(ids, [0, 1]);
    assert!(clock.now() < until, "the second token left long before the draft was late");
    mail.try_send(EngineCommand::Stop { until: Millis(0) }).expect("there is room");
    thread.join().expect("it ends well");
}
