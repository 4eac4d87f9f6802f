//! The line of progress: what is measured, and how long the rest may take.

use paceline_client::Screen;
use paceline_system::Clock;

/// Progress of a benchmark. Work is counted in any unit whose time is about the same.
pub struct Progress<'a> {
    screen: &'a mut Screen,
    clock: Clock,
    /// Number of the run that is measured now, from 0.
    pub run: usize,
    /// Place of the cell in the plan.
    pub at: usize,
    runs: usize,
    /// All work.
    pub all: f64,
    /// The work that is done.
    pub done: f64,
}

impl<'a> Progress<'a> {
    /// Begins now, with this work ahead in all runs together.
    pub fn begin(runs: usize, all: f64, screen: &'a mut Screen) -> Self {
        Self { screen, clock: Clock::start(), run: 0, at: 0, runs, all, done: 0.0 }
    }

    /// Shows what is measured now. A terminal shows it until the next line.
    pub fn show(&mut self, what: &str) {
        let line = format!("{}: {what}{}", self.place(), self.time_left());
        self.screen.transient(&line);
    }

    /// Notes what was measured in this run.
    pub fn note(&mut self, what: &str) {
        let line = format!("{}: {what}", self.place());
        self.screen.note(&line);
    }

    /// After a run that is not the last: notes how many are done, and how long the others will
    /// take.
    pub fn end_run(&mut self) {
        let left = self.left_s().filter(|_| self.run + 1 < self.runs);
        if let Some(left_s) = left {
            let line = format!("{} done, about {} left", self.place(), duration(left_s));
            self.screen.note(&line);
        }
    }

    fn place(&self) -> String {
        format!("run {} of {}", self.run + 1, self.runs)
    }

    fn time_left(&self) -> String {
        self.left_s().map_or(String::new(), |left_s| format!(", about {} left", duration(left_s)))
    }

    /// Estimated seconds of the work that is not done. `None` before any is done.
    fn left_s(&self) -> Option<f64> {
        left_s(self.clock.now().0 as f64 / 1e3, self.done, self.all)
    }
}

fn left_s(seconds: f64, done: f64, all: f64) -> Option<f64> {
    (done > 0.0).then(|| seconds / done * (all - done).max(0.0))
}

/// Seconds in words.
pub fn duration(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_durations_are_in_minutes() {
        assert_eq!((duration(61.4), duration(1_260.0)), ("61 s".into(), "21 min".into()));
    }

    #[test]
    fn the_rest_takes_as_long_as_the_work_that_is_done() {
        assert_eq!(left_s(10.0, 2.0, 8.0), Some(30.0));
        assert_eq!(left_s(10.0, 0.0, 8.0), None, "nothing is known yet");
        assert_eq!(left_s(10.0, 9.0, 8.0), Some(0.0), "the work was underestimated");
    }
}
