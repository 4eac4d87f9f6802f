//! Orders of the status page: one at a time for each process, each carried out by a task of its
//! own, so that no connection has to last as long as an order. The last order of each kind is kept
//! for the page. All of it is bounded by [`OrderSubject::COUNT`].

use std::sync::{Arc, Mutex};

use paceline_process::task;
use paceline_protocols::inference::error::{InferenceError, Result};
use paceline_protocols::shorten::shorten;
use paceline_system::clock::unix_seconds;
use paceline_vocabulary::Reason;

use crate::inference::upstream::Upstream;
use crate::lock::lock;
use crate::service_report::orders::{OrderReport, OrderSubject, ServiceOrder};

/// Characters of the reason of a failure, as [`OrderReport::message`] says.
const MAX_MESSAGE_CHARS: usize = 997;
const RUNNING: &str = "running";

/// The orders of this gateway's life.
#[derive(Debug)]
pub struct OrderBook {
    upstream: Upstream,
    table: Mutex<Table>,
}

/// The last order of each subject.
#[derive(Debug, Default)]
struct Table {
    last_number: u64,
    rows: [Option<OrderReport>; OrderSubject::COUNT],
}

impl OrderBook {
    /// No order yet; orders go to this upstream.
    pub fn new(upstream: Upstream) -> Self {
        Self { upstream, table: Mutex::default() }
    }

    /// Begins to carry out an order. `source` is the program and the person it comes from.
    ///
    /// # Errors
    /// An earlier order of the same process is not done yet.
    pub fn begin(self: &Arc<Self>, order: ServiceOrder, source: String) -> Result<OrderReport> {
        let report = lock(&self.table).enter(&order, unix_seconds())?;
        tracing::info!(
            order = report.order,
            process = report.process,
            model = report.model,
            source,
            "order of the status page"
        );
        let (book, subject) = (Arc::clone(self), order.subject());
        task::spawn("order", async move {
            let outcome = book.upstream.order(&order, &source).await;
            if let Err(error) = &outcome {
                let (order, process) = (order.word(), subject.word());
                tracing::warn!(order, process, %error, "an order of the status page failed");
            }
            lock(&book.table).end(subject, outcome, unix_seconds());
        });
        Ok(report)
    }

    /// The last order of each kind, newest first.
    pub fn last(&self) -> Vec<OrderReport> {
        let mut last: Vec<_> = lock(&self.table).rows.iter().flatten().cloned().collect();
        last.sort_by_key(|report| std::cmp::Reverse(report.number));
        last
    }
}

impl Table {
    fn enter(&mut self, order: &ServiceOrder, now: i64) -> Result<OrderReport> {
        let subject = order.subject();
        let row = &mut self.rows[subject.index()];
        if let Some(open) = row.as_ref().filter(|row| row.state == RUNNING) {
            let (process, order, since) = (open.process, open.order, now - open.began);
            let message = format!(
                "the {process} is busy with an earlier order ({order}, for {since} s); wait for its end, and try again"
            );
            return Err(InferenceError::new(Reason::ProcessState, message));
        }
        self.last_number += 1;
        let report = OrderReport {
            number: self.last_number,
            order: order.word(),
            process: subject.word(),
            model: order.model().map(str::to_owned),
            state: RUNNING,
            began: now,
            ended: None,
            message: None,
        };
        *row = Some(report.clone());
        Ok(report)
    }

    fn end(&mut self, subject: OrderSubject, outcome: Result<()>, now: i64) {
        let Some(report) = &mut self.rows[subject.index()] else { return };
        report.ended = Some(now);
        report.state = if outcome.is_ok() { "done" } else { "failed" };
        report.message = outcome.err().map(|error| {
            let mut message = error.message;
            shorten(&mut message, MAX_MESSAGE_CHARS);
            message
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service_report::orders::RestartedProcess;

    #[test]
    fn a_process_has_one_order_at_a_time_and_its_last_outcome_is_kept() {
        let mut table = Table::default();
        let restart = ServiceOrder::Restart(RestartedProcess::Drafter);
        let first = table.enter(&restart, 100).expect("nothing runs");
        assert_eq!((first.number, first.process, first.state), (1, "drafter", "running"));
        for other in [ServiceOrder::StopDrafter, restart.clone()] {
            let refused = table.enter(&other, 112).expect_err("one runs");
            assert_eq!(refused.kind, Reason::ProcessState);
            assert!(refused.message.contains("the drafter is busy"), "{refused}");
            assert!(refused.message.contains("restart, for 12 s"), "{refused}");
        }
        // A drain waits, and is undone meanwhile.
        for order in [ServiceOrder::Drain, ServiceOrder::Undrain] {
            table.enter(&order, 113).expect("another subject");
        }
        let error = InferenceError::new(Reason::DrafterFailed, "x".repeat(5_000));
        table.end(restart.subject(), Err(error), 120);
        let row = table.rows[restart.subject().index()].clone().expect("kept");
        assert_eq!((row.state, row.ended), ("failed", Some(120)));
        assert_eq!(row.message.map(|text| text.chars().count()), Some(1_000));
        let again = table.enter(&ServiceOrder::StopDrafter, 121).expect("the first has ended");
        assert_eq!((again.number, again.order, again.message), (4, "drafter_stop", None));
        table.end(restart.subject(), Ok(()), 122);
        assert_eq!(table.rows.iter().flatten().count(), 3);
    }
}
