//! Display for people: a bar on a terminal, lines otherwise. All of it goes to standard error.

use std::cell::RefCell;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use paceline_system::Clock;

/// Interval between two states of the bar.
const REDRAW: Duration = Duration::from_millis(100);
/// Cells of the bar.
const CELLS: u64 = 24;

/// Shows how far a pull is.
pub(crate) struct Progress {
    is_terminal: bool,
    clock: Clock,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    done: u64,
    total: u64,
    /// Bytes that were there at the beginning, which say nothing about the speed.
    there: u64,
    begun_ms: u64,
    drawn_ms: Option<u64>,
}

impl Progress {
    /// On standard error.
    pub(crate) fn standard() -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { is_terminal, clock: Clock::start(), state: RefCell::default() }
    }

    /// Begins to count: `there` of `total` bytes are there already.
    pub(crate) fn begin(&self, there: u64, total: u64) {
        let begun_ms = self.clock.now().0;
        *self.state.borrow_mut() = State { done: there, total, there, begun_ms, drawn_ms: None };
    }

    /// Counts bytes that came.
    pub(crate) fn add(&self, bytes: u64) {
        let now_ms = self.clock.now().0;
        let mut state = self.state.borrow_mut();
        state.done += bytes;
        let due = state.drawn_ms.is_none_or(|at| now_ms >= at + REDRAW.as_millis() as u64);
        if self.is_terminal && due {
            state.drawn_ms = Some(now_ms);
            // A terminal that is gone shows nothing, and the files still count.
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", state.bar(now_ms));
        }
    }

    /// Takes bytes back that have to be fetched again.
    pub(crate) fn take_back(&self, bytes: u64) {
        let mut state = self.state.borrow_mut();
        state.done = state.done.saturating_sub(bytes);
    }

    /// Shows a line, above the bar if there is one.
    pub(crate) fn line(&self, text: &str) {
        let clear = if self.is_terminal { "\r\x1b[K" } else { "" };
        let _ = writeln!(std::io::stderr(), "{clear}{text}");
    }

    /// Shows why the pull failed.
    pub(crate) fn complain(&self, text: &str) {
        self.line(&format!("paceline pull: {text}"));
    }
}

impl State {
    fn bar(&self, now_ms: u64) -> String {
        let share = |whole: u64| match self.total {
            0 => whole,
            total => (u128::from(self.done) * u128::from(whole) / u128::from(total)) as u64,
        };
        let full = share(CELLS).min(CELLS) as usize;
        let (done, rest) = ("#".repeat(full), "-".repeat(CELLS as usize - full));
        let ms = now_ms.saturating_sub(self.begun_ms).max(1);
        let speed = self.done.saturating_sub(self.there).saturating_mul(1_000) / ms;
        let left = self.total.saturating_sub(self.done).checked_div(speed).map(time_left);
        let (have, all, speed) = (bytes(self.done), bytes(self.total), bytes(speed));
        let left = left.unwrap_or_default();
        format!("[{done}{rest}] {}% {have} of {all}, {speed}/s{left}", share(100))
    }
}

/// The expected time to the end, as a clause.
fn time_left(seconds: u64) -> String {
    match seconds {
        0..120 => format!(", {seconds} s left"),
        120..7_200 => format!(", {} min left", seconds / 60),
        _ => format!(", {} h left", seconds / 3_600),
    }
}

/// A number of bytes for people.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if unit == 0 { format!("{count} bytes") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_counts_what_was_there_and_the_speed_does_not() {
        let mib = 1 << 20;
        let state =
            State { done: 3 * mib, total: 4 * mib, there: mib, begun_ms: 1_000, drawn_ms: None };
        let bar = "[##################------] 75% 3.0 MiB of 4.0 MiB, 1.0 MiB/s, 1 s left";
        assert_eq!(state.bar(3_000), bar);
        assert!(State::default().bar(0).ends_with("100% 0 bytes of 0 bytes, 0 bytes/s"));
        let times = [119, 120, 7_200].map(time_left);
        assert_eq!(times, [", 119 s left", ", 2 min left", ", 2 h left"]);
        assert_eq!([bytes(0), bytes(1023), bytes(5 << 30)], ["0 bytes", "1023 bytes", "5.0 GiB"]);
    }
}
