//! Log lines and step spans name their requests.

use std::io;
use std::sync::{Arc, Mutex};

use paceline_models::sample::SamplingRule;
use paceline_target_core::{CostCell, Size};
use paceline_vocabulary::Force;
use tracing::Dispatch;
use tracing::level_filters::LevelFilter;

use super::prompt;
use super::test_drafter::Drafts;
use super::test_engine::{TestEngine, TestRequest};
use crate::cost_file::CostFile;

/// A log in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("not poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// A subscriber as the worker has it, down to this level.
    fn dispatch(&self, level: LevelFilter) -> Dispatch {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(level)
            .with_writer(move || log.clone())
            .finish();
        Dispatch::new(subscriber)
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("not poisoned").clone()).expect("UTF-8")
    }

    /// Lines with all of these words.
    fn lines(&self, words: &[&str]) -> Vec<String> {
        let text = self.text();
        let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
        text.lines().filter(has_all).map(str::to_owned).collect()
    }
}

fn two_requests() -> [TestRequest; 2] {
    let request = |at| TestRequest {
        prompt: prompt(at),
        sampling: SamplingRule::GREEDY,
        margins: false,
        logprobs: None,
    };
    [request(0), request(1)]
}

#[test]
fn lines_and_step_spans_name_both_requests() {
    let log = Log::default();
    let mut engine = TestEngine::open_with_log(log.dispatch(LevelFilter::DEBUG));
    let answers = engine.ask(&two_requests(), None);
    assert!(answers.iter().all(|answer| answer.end.is_ok()));
    drop(engine);
    for id in ["r0", "r1"] {
        for message in ["request admitted", "request started", "request finished"] {
            let named = log.lines(&[message, &format!("request_id=\"{id}\"")]);
            assert_eq!(named.len(), 1, "{message} of {id}: {}", log.text());
        }
        let step = log.lines(&["step{kind=\"decode\"", "tokens=", "step done", id]);
        assert!(!step.is_empty(), "no step names {id}: {}", log.text());
    }
    let both = log.lines(&["step{kind=\"decode\" rows=2 sequences=2 requests=\"r0,r1\" tokens=2}"]);
    assert!(!both.is_empty(), "{}", log.text());
    let finished = log.lines(&["request finished", "r1", "tokens=16", "outcome=\"finished\""]);
    assert_eq!(finished.len(), 1, "{}", log.text());
}

#[test]
fn the_default_level_logs_one_line_for_each_request() {
    let log = Log::default();
    let mut engine = TestEngine::open_with_log(log.dispatch(LevelFilter::INFO));
    engine.ask(&two_requests(), None);
    drop(engine);
    assert_eq!(log.lines(&["r0"]).len(), 1, "{}", log.text());
    assert_eq!(log.lines(&["r1"]).len(), 1, "{}", log.text());
    assert!(log.lines(&["step"]).iter().all(|line| line.contains("request finished")));
}

#[test]
fn drafts_are_logged_when_they_are_requested_and_when_they_are_late() {
    let log = Log::default();
    let mut engine = TestEngine::open_with_log(log.dispatch(LevelFilter::DEBUG));
    let _drafter = engine.link(Drafts::Silent, vec![]);
    let answers = engine.ask(&two_requests(), None);
    assert!(answers.iter().all(|answer| answer.end.is_ok()));
    drop(engine);
    for id in ["r0", "r1"] {
        for message in ["draft requested", "draft late"] {
            let named = log.lines(&[message, &format!("request_id=\"{id}\"")]);
            assert!(!named.is_empty(), "{message} of {id}: {}", log.text());
        }
        let finished = log.lines(&["request finished", id]);
        assert!(!finished[0].contains("late_drafts=0"), "{finished:?}");
        assert!(!log.lines(&["drafter cool-down began", id]).is_empty(), "{}", log.text());
    }
}

#[test]
fn a_sequence_whose_drafts_do_not_pay_logs_its_backoff() {
    // A draft takes 1000 s by what was measured before, so that no speed of this machine makes one
    // pay.
    let cell = |rows: u32| {
        let size = Size { rows: f64::from(rows), sequences: 1.0, context: 0.0 };
        CostCell { size, us: 1e9, times: 10.0 }
    };
    let mut costs = CostFile::none();
    costs.set(&[], Some(("played", &(1..=16).map(cell).collect::<Vec<_>>())));
    let log = Log::default();
    let mut engine = TestEngine::open_with(log.dispatch(LevelFilter::DEBUG), costs);
    let _drafter = engine.link_with(Force::Auto, Drafts::Ids, vec![]);
    engine.ask(&two_requests(), None);
    drop(engine);
    for id in ["r0", "r1"] {
        let line = log.lines(&["backoff began", &format!("request_id=\"{id}\"")]);
        assert!(!line.is_empty(), "{id} did not back off: {}", log.text());
    }
}
