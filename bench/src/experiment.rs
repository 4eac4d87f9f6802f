//! The frame of all benchmarks: a plan, its cells, how a cell is measured, and what is kept of it.

use std::fmt::Display;

use paceline_client::own_service::settings::Settings;
use paceline_client::{Failure, Screen};

use crate::args::BenchArgs;
use crate::progress::Progress;

/// What all benchmarks plan.
#[derive(Clone, Debug, Default)]
pub struct BenchPlan {
    /// Settings of the service.
    pub settings: Settings,
    /// Number of runs; each measures everything once.
    pub runs: usize,
    /// Tokens of each answer.
    pub max_tokens: u32,
}

impl BenchPlan {
    /// A plan with the drafter of the flags or of the configuration. `runs` and `max_tokens` are
    /// those that hold if the flags name none.
    ///
    /// # Errors
    /// The configuration cannot be used, or a named directory does not exist.
    pub fn with_drafter(args: &BenchArgs, runs: usize, max_tokens: u32) -> Result<Self, Failure> {
        let settings = args.settings(args.drafter.as_deref())?;
        Ok(Self::new(args, settings, runs, max_tokens))
    }

    /// The same of a service without a drafter.
    ///
    /// # Errors
    /// The configuration cannot be used, or a named directory does not exist.
    pub fn target_alone(args: &BenchArgs, runs: usize, max_tokens: u32) -> Result<Self, Failure> {
        let settings = args.settings(None)?.without_drafter()?;
        Ok(Self::new(args, settings, runs, max_tokens))
    }

    fn new(args: &BenchArgs, settings: Settings, runs: usize, max_tokens: u32) -> Self {
        let runs = args.runs.map_or(runs, |runs| runs as usize);
        Self { settings, runs, max_tokens: args.max_tokens.unwrap_or(max_tokens) }
    }
}

/// A cell, and what was measured of it: the row that a report keeps.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredCell<C, R> {
    /// What was measured in each run.
    pub cell: C,
    /// One measurement for each run.
    pub runs: Vec<R>,
}

/// A benchmark on a service that is ready.
pub trait Experiment {
    /// What is measured once in each run. Lines about it begin with its words.
    type Cell: Display;
    /// The figures of one measurement.
    type Run;

    /// Number of cells, the first ones of the plan, that are measured once before all runs: the
    /// first steps of a process are slow in many ways.
    fn warming(&self) -> usize {
        0
    }

    /// Places of the cells in the order of this run. By default that of the plan.
    fn order(&self, _run: usize, cells: usize) -> Vec<usize> {
        (0..cells).collect()
    }

    /// Work of one measurement, in any unit whose time is about the same.
    fn work(&self, cell: &Self::Cell) -> f64;

    /// Measures what a run has once.
    ///
    /// # Errors
    /// It cannot be measured.
    async fn begin_run(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Measures a cell once, in the run and at the place of the progress.
    ///
    /// # Errors
    /// The service refuses a request, or its answer has no figures.
    async fn measure(
        &mut self,
        cell: &Self::Cell,
        progress: &mut Progress<'_>,
    ) -> Result<Self::Run, Failure>;

    /// Figures of one measurement, for the line about it.
    fn line(run: &Self::Run) -> String;

    /// Decides about a cell that failed in this run. After `Ok` this cell and those after it are
    /// left out of all runs. By default the benchmark fails.
    ///
    /// # Errors
    /// The failure, if the benchmark fails for it.
    fn leave_out(&mut self, _run: usize, failure: Failure) -> Result<(), Failure> {
        Err(failure)
    }
}

/// Measures each cell once in each run.
///
/// # Errors
/// A cell fails.
pub async fn measure<E: Experiment>(
    experiment: &mut E,
    runs: usize,
    cells: Vec<E::Cell>,
    screen: &mut Screen,
) -> Result<Vec<MeasuredCell<E::Cell, E::Run>>, Failure> {
    let all: f64 = cells.iter().map(|cell| experiment.work(cell)).sum();
    let warming = experiment.warming().min(cells.len());
    if warming > 0 {
        screen.transient("warming up");
    }
    let mut warm = Progress::begin(runs, 0.0, screen);
    for cell in &cells[..warming] {
        experiment.measure(cell, &mut warm).await?;
    }
    let mut measured: Vec<MeasuredCell<E::Cell, E::Run>> =
        cells.into_iter().map(|cell| MeasuredCell { cell, runs: vec![] }).collect();
    let mut progress = Progress::begin(runs, all * runs as f64, screen);
    for run in 0..runs {
        progress.run = run;
        experiment.begin_run().await?;
        for at in experiment.order(run, measured.len()) {
            progress.at = at;
            let MeasuredCell { cell, runs: kept } = &mut measured[at];
            progress.show(&cell.to_string());
            let end = progress.done + experiment.work(cell);
            match experiment.measure(cell, &mut progress).await {
                Ok(found) => {
                    progress.done = end;
                    progress.note(&format!("{cell}: {}", E::line(&found)));
                    kept.push(found);
                }
                Err(failure) => {
                    experiment.leave_out(run, failure)?;
                    let left_out = measured.drain(at..).map(|one| experiment.work(&one.cell));
                    progress.all -= left_out.sum::<f64>() * runs as f64;
                    break;
                }
            }
        }
        progress.end_run();
    }
    Ok(measured)
}

/// The plan's order, which each run begins one cell later, so that no effect of the order favours
/// a cell.
pub fn rotated(run: usize, cells: usize) -> Vec<usize> {
    (0..cells).map(|at| (at + run) % cells).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    /// Measures numbers, up to the first one that is too large.
    struct Numbers {
        most: u32,
        measured: usize,
        left_out: Vec<String>,
    }

    impl Experiment for Numbers {
        type Cell = u32;
        type Run = (usize, usize);

        fn warming(&self) -> usize {
            1
        }

        fn work(&self, cell: &u32) -> f64 {
            f64::from(*cell)
        }

        async fn measure(
            &mut self,
            cell: &u32,
            progress: &mut Progress<'_>,
        ) -> Result<(usize, usize), Failure> {
            self.measured += 1;
            match *cell <= self.most {
                true => Ok((progress.at, progress.run)),
                false => Err(Failure::usage("too large")),
            }
        }

        fn line((at, _): &(usize, usize)) -> String {
            format!("place {at}")
        }

        fn leave_out(&mut self, run: usize, failure: Failure) -> Result<(), Failure> {
            self.left_out.push(failure.message.clone());
            if run == 0 { Ok(()) } else { Err(failure) }
        }
    }

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("one thread").write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn each_run_measures_each_cell_and_cells_from_a_refused_one_on_are_left_out() {
        let lines = Lines::default();
        let mut screen = Screen::over(std::io::sink(), lines.clone());
        let mut numbers = Numbers { most: 2, measured: 0, left_out: vec![] };
        let measured = measure(&mut numbers, 2, vec![1, 2, 3, 1], &mut screen).await;
        let measured = measured.expect("two are small enough");
        let cell = |at, cell| MeasuredCell { cell, runs: vec![(at, 0), (at, 1)] };
        assert_eq!(measured, [cell(0, 1), cell(1, 2)]);
        assert_eq!(numbers.left_out, ["too large"]);
        assert_eq!(numbers.measured, 1 + 3 + 2, "the first one untimed, a refused one, two again");
        let lines = String::from_utf8(lines.0.lock().expect("one thread").clone()).expect("text");
        assert!(lines.contains("run 1 of 2: 1: place 0\n"), "{lines}");
        assert!(lines.contains("run 1 of 2 done, about 0 s left\n"), "{lines}");
        assert!(lines.ends_with("run 2 of 2: 2: place 1\n"), "{lines}");
    }

    #[test]
    fn each_cell_comes_first_in_some_run() {
        assert_eq!(rotated(0, 3), [0, 1, 2]);
        assert_eq!(rotated(4, 3), [1, 2, 0]);
        assert_eq!(rotated(4, 0), Vec::<usize>::new());
    }
}
