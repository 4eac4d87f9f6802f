//! How requests are served, and the order in which modes are measured. Pure.

use paceline_proto::v1::RouteWish;
use serde::Serialize;

/// How a cell is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// No drafter process runs. Requests also ask for the plain lane, so that the target retains
    /// nothing for a later drafter. This is the service of a user without a drafter.
    Absent,
    /// Plain decoding while a drafter runs.
    Plain,
    /// Each request asks for drafts.
    Forced,
    /// The service decides.
    Routed,
}

impl Mode {
    /// The lane that requests ask for.
    pub fn wish(self) -> RouteWish {
        match self {
            Mode::Absent | Mode::Plain => RouteWish::Plain,
            Mode::Forced => RouteWish::Speculative,
            Mode::Routed => RouteWish::Auto,
        }
    }

    /// Name of the mode in reports.
    pub fn word(self) -> &'static str {
        match self {
            Mode::Absent => "absent",
            Mode::Plain => "plain",
            Mode::Forced => "forced",
            Mode::Routed => "routed",
        }
    }
}

/// The modes of a cell in the order of this run. Over the runs each mode is first, in the middle
/// and last equally often, and follows each other mode equally often; the next cell begins with
/// another mode. So no effect of the order favours a mode.
pub fn order(modes: &[Mode], run: usize, cell: usize) -> Vec<Mode> {
    let mut modes = modes.to_vec();
    if run % 2 == 1 {
        modes.reverse();
    }
    let places = modes.len().max(1);
    modes.rotate_left((run + cell) % places);
    modes
}

/// Places of the cells in the order of this run, if there is one for each mode of a thing that is
/// measured. Those of a thing follow one another, in the order of [`order`].
pub fn places(modes: &[Mode], run: usize, cells: usize) -> Vec<usize> {
    let place = |mode: Mode| modes.iter().position(|known| *known == mode).unwrap_or(0);
    let of_thing = |thing: usize| {
        order(modes, run, thing).into_iter().map(move |mode| thing * modes.len() + place(mode))
    };
    (0..cells / modes.len().max(1)).flat_map(of_thing).collect()
}

/// What was measured in each mode, run by run, in the order of the first run's modes.
pub fn by_mode<R>(runs: impl IntoIterator<Item = Vec<(Mode, R)>>) -> Vec<(Mode, Vec<R>)> {
    let mut all: Vec<(Mode, Vec<R>)> = vec![];
    for (mode, found) in runs.into_iter().flatten() {
        match all.iter_mut().find(|(known, _)| *known == mode) {
            Some((_, runs)) => runs.push(found),
            None => all.push((mode, vec![found])),
        }
    }
    all
}

/// That order for each pass, reversed in every second pass.
pub fn alternate_direction(order: Vec<Mode>, passes: usize) -> Vec<Mode> {
    let back: Vec<Mode> = order.iter().rev().copied().collect();
    (0..passes).flat_map(|pass| if pass % 2 == 0 { order.clone() } else { back.clone() }).collect()
}

/// `count` builds in the order of this measurement: there at every second one, and back at the
/// others.
pub fn builds(count: usize, measurement: usize) -> Vec<usize> {
    let mut builds: Vec<usize> = (0..count).collect();
    if !measurement.is_multiple_of(2) {
        builds.reverse();
    }
    builds
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODES: [Mode; 3] = [Mode::Absent, Mode::Forced, Mode::Routed];

    #[test]
    fn each_mode_runs_equally_often_at_each_position() {
        assert_eq!(order(&MODES, 0, 0), MODES);
        for cell in 0..5 {
            for place in 0..3 {
                for mode in MODES {
                    let times =
                        (0..6).filter(|run| order(&MODES, *run, cell)[place] == mode).count();
                    assert_eq!(times, 2, "{mode:?} at {place}");
                }
            }
        }
        let behind = |run| {
            order(&MODES, run, 0)
                .windows(2)
                .filter(|pair| pair == &[Mode::Forced, Mode::Routed])
                .count()
        };
        assert_eq!((0..6).map(behind).sum::<usize>(), 2);
        assert_eq!(order(&[], 3, 1), []);
    }

    #[test]
    fn the_modes_of_a_thing_follow_one_another() {
        assert_eq!(places(&MODES, 0, 6), [0, 1, 2, 4, 5, 3]);
        assert_eq!(places(&MODES, 1, 6), [1, 0, 2, 3, 5, 4]);
        assert_eq!(places(&[], 0, 6), Vec::<usize>::new());
    }

    #[test]
    fn runs_are_sorted_by_their_modes() {
        let runs = [[(Mode::Plain, 1), (Mode::Routed, 2)], [(Mode::Routed, 4), (Mode::Plain, 3)]];
        let expected = [(Mode::Plain, vec![1, 3]), (Mode::Routed, vec![2, 4])];
        assert_eq!(by_mode(runs.map(Vec::from)), expected);
    }

    #[test]
    fn a_steady_drift_favours_no_mode() {
        for run in 0..6 {
            let places = alternate_direction(order(&MODES, run, 2), 2);
            let sum = |mode| {
                places
                    .iter()
                    .enumerate()
                    .filter(|(_, other)| **other == mode)
                    .map(|(place, _)| place)
                    .sum::<usize>()
            };
            assert_eq!(MODES.map(sum), [5, 5, 5], "{places:?}");
        }
        assert_eq!(alternate_direction(order(&MODES, 0, 0), 1), MODES);
    }

    #[test]
    fn each_build_is_first_as_often_as_the_other_in_each_mode() {
        assert_eq!(builds(1, 3), [0]);
        for run in 0..3 {
            let mut first = [0, 0];
            for (place, mode) in alternate_direction(order(&MODES, run, 1), 2).iter().enumerate() {
                first[builds(2, run + 1 + place)[0]] += usize::from(*mode == Mode::Routed);
            }
            assert_eq!(first, [1, 1]);
        }
    }
}
