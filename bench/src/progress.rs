//! The line of progress: what is measured, and how long the rest may take.

use paceline_client::Screen;
use paceline_system::Clock;

/// Progress of a benchmark. Work is counted in any unit whose time is about the same.
pub struct Progress {
    clock: Clock,
    /// All work.
    all: f64,
    /// The work that is done.
    done: f64,
}

impl Progress {
    /// Begins now, with this work ahead.
    pub fn begin(all: f64) -> Self {
        Self { clock: Clock::start(), all, done: 0.0 }
    }

    /// Shows what is measured now. A terminal shows it until the next line.
    pub fn show(&self, run: usize, runs: usize, what: &str, screen: &mut Screen) {
        screen.transient(&format!("run {} of {runs}: {what}{}", run + 1, self.time_left()));
    }

    /// Some work is done.
    pub fn add(&mut self, work: f64) {
        self.done += work;
    }

    /// Some work of the rest will not be done.
    pub fn leave_out(&mut self, work: f64) {
        self.all -= work;
    }

    /// After a run that is not the last: shows how many are done, and how long the others will
    /// take.
    pub fn note(&self, run: usize, runs: usize, screen: &mut Screen) {
        let left = self.left_s().filter(|_| run + 1 < runs);
        if let Some(left_s) = left {
            screen.note(&format!(
                "run {} of {runs} done, about {} left",
                run + 1,
                duration(left_s)
            ));
        }
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
