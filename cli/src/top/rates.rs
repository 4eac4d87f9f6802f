//! Figures of the last seconds, computed from totals of two snapshots. The totals of speculation
//! begin with the target's start, those of routes with the supervisor's. A new process therefore
//! begins a new series.

use std::collections::VecDeque;

use paceline_proto::convert::service::{ProcessReport, ServedRoute, ServiceStatus};
use paceline_proto::v1::Speculation;
use paceline_vocabulary::Millis;

/// Time that the snapshots cover.
const WINDOW_MS: u64 = 60_000;
/// Most snapshots of the window: twice as many as the interval between two gives.
const MOST_SAMPLES: usize = 120;

/// Totals of one snapshot.
#[derive(Clone, Debug)]
struct Sample {
    at: Millis,
    speculation: Speculation,
    routes: Vec<ServedRoute>,
}

/// The lives that the totals belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lives {
    supervisor: Life,
    target: Life,
}

/// One life of a process. Numbers begin again in a new runtime directory, so the process id counts,
/// too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Life {
    epoch: u64,
    pid: Option<u32>,
}

impl Life {
    fn of(process: &ProcessReport) -> Self {
        Self { epoch: process.epoch, pid: process.pid }
    }
}

/// Snapshots of the last minute.
#[derive(Debug, Default)]
pub struct Rates {
    lives: Lives,
    samples: VecDeque<Sample>,
}

impl Rates {
    /// Takes a snapshot.
    pub fn take(&mut self, status: &ServiceStatus, now: Millis) {
        let lives =
            Lives { supervisor: Life::of(&status.supervisor), target: Life::of(&status.target) };
        if lives != self.lives {
            self.samples.clear();
            self.lives = lives;
        }
        let speculation = status.link.speculation();
        let routes = status.routing.routes.clone();
        self.samples.push_back(Sample { at: now, speculation, routes });
        while self.samples.len() > MOST_SAMPLES
            || self.samples.front().is_some_and(|first| now.since(first.at) > WINDOW_MS)
        {
            self.samples.pop_front();
        }
    }

    /// Speculation of the last `ms` milliseconds. `None` before the second snapshot.
    pub fn speculation(&self, ms: u64) -> Option<Speculation> {
        let last = self.samples.back()?;
        let mut recent = self.samples.iter().filter(|sample| last.at.since(sample.at) <= ms);
        let first = recent.next().filter(|first| first.at != last.at)?;
        Some(difference(&first.speculation, &last.speculation))
    }

    /// Requests of this lane and reason that ended within the window.
    pub fn ended(&self, route: &ServedRoute) -> u64 {
        let total = |sample: &Sample| {
            let mut routes = sample.routes.iter();
            let found =
                routes.find(|other| (other.lane, other.reason) == (route.lane, route.reason));
            found.map_or(0, |found| found.requests)
        };
        let ends = self.samples.front().zip(self.samples.back());
        ends.map_or(0, |(first, last)| total(last).saturating_sub(total(first)))
    }

    /// Share of accepted tokens among the drafted ones between one snapshot and the next, oldest
    /// first. `None`: nothing was drafted.
    pub fn acceptance(&self) -> Vec<Option<f64>> {
        let share = |(a, b): (&Sample, &Sample)| share(&difference(&a.speculation, &b.speculation));
        self.pairs().map(share).collect()
    }

    /// Tokens per second of the requests that drafted, oldest first. A cycle gives its accepted
    /// tokens and one of the target's own.
    pub fn drafted_tokens_per_s(&self) -> Vec<f64> {
        let rate = |(a, b): (&Sample, &Sample)| {
            let Speculation { cycles, accepted, .. } = difference(&a.speculation, &b.speculation);
            let ms = b.at.since(a.at).max(1);
            (cycles + accepted) as f64 * 1e3 / ms as f64
        };
        self.pairs().map(rate).collect()
    }

    fn pairs(&self) -> impl Iterator<Item = (&Sample, &Sample)> {
        self.samples.iter().zip(self.samples.iter().skip(1))
    }
}

/// Accepted tokens by drafted ones; `None`: nothing was drafted.
pub fn share(speculation: &Speculation) -> Option<f64> {
    let Speculation { drafted, accepted, .. } = *speculation;
    (drafted > 0).then(|| accepted as f64 / drafted as f64)
}

fn difference(first: &Speculation, last: &Speculation) -> Speculation {
    Speculation {
        cycles: last.cycles.saturating_sub(first.cycles),
        drafted: last.drafted.saturating_sub(first.drafted),
        accepted: last.accepted.saturating_sub(first.accepted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_proto::v1::{
        Lane, LinkStatus, ProcessStatus, RouteCount, RouteReason, RoutingStatus, StatusResponse,
    };

    fn route(requests: u64) -> RouteCount {
        let (lane, reason) = (Lane::Plain.into(), RouteReason::Forced.into());
        RouteCount { lane, reason, requests }
    }

    fn ended(rates: &Rates) -> u64 {
        rates.ended(&route(0).into())
    }

    /// A snapshot of the target's life `epoch` after `cycles` cycles of four drafted tokens,
    /// three of them accepted, and as many requests.
    fn after(epoch: u64, cycles: u64) -> ServiceStatus {
        let speculation = Speculation { cycles, drafted: 4 * cycles, accepted: 3 * cycles };
        let link = LinkStatus { speculation: Some(speculation), ..Default::default() };
        let routing = RoutingStatus { routes: vec![route(cycles)], ..Default::default() };
        let status = StatusResponse {
            target: Some(ProcessStatus { epoch, ..Default::default() }),
            link: Some(link),
            routing: Some(routing),
            ..Default::default()
        };
        status.into()
    }

    #[test]
    fn rates_are_differences_within_their_time() {
        let mut rates = Rates::default();
        assert_eq!(rates.speculation(10_000), None);
        for second in 0..100 {
            rates.take(&after(1, 10 * second), Millis(1_000 * second));
        }
        let last = rates.speculation(10_000).expect("two snapshots");
        assert_eq!(last, Speculation { cycles: 100, drafted: 400, accepted: 300 });
        assert_eq!((share(&last), last.tokens_per_cycle()), (Some(0.75), Some(4.0)));
        assert_eq!(ended(&rates), 600);
        assert_eq!(rates.acceptance(), vec![Some(0.75); 60]);
        assert_eq!(rates.drafted_tokens_per_s(), vec![40.0; 60]);
    }

    #[test]
    fn another_target_begins_a_new_series() {
        let mut rates = Rates::default();
        rates.take(&after(1, 500), Millis(0));
        rates.take(&after(2, 7), Millis(1_000));
        assert_eq!((rates.speculation(10_000), ended(&rates)), (None, 0));
        rates.take(&after(2, 7), Millis(2_000));
        assert_eq!(rates.acceptance(), [None]);
        assert_eq!(rates.speculation(10_000).as_ref().and_then(share), None);
    }

    #[test]
    fn the_window_is_bounded_whatever_the_clock_is() {
        let mut rates = Rates::default();
        for cycles in 0..1_000 {
            rates.take(&after(1, cycles), Millis(0));
        }
        assert_eq!(rates.samples.len(), MOST_SAMPLES);
    }
}
