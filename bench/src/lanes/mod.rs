//! Each lane is measured in cells: a kind of prompt, and a number of requests at once. `--sweep`
//! checks that the routed lane is never slower than the better of the two lanes.
//!
//! [`plan`] what is measured, in which order │ [`load`] one measurement │ [`same`] equal tokens │
//! [`verdict`] figures over all runs │ [`report`] the table. This file has the order of the steps.
//!
//! One service is measured in all modes; for "absent" its drafter is stopped, then started again. A
//! second service without a drafter would be another target process. It would have other pages of
//! memory, which alone makes processes of the same model some percent faster or slower; it would
//! need the weights twice; and its processes would wake up now and then. Therefore the lanes of a
//! cell run on the same target, one after the other. Ratios are taken within a run. After each
//! change of the drafter some tokens are generated untimed.

mod load;
mod plan;
mod report;
mod same;
mod verdict;

use paceline_client::ask::{Ask, Choice};
use paceline_client::compare::weigh;
use paceline_client::own_service::report::PrintedReport;
use paceline_client::{Failure, Screen};
use paceline_process::Clock;
use paceline_proto::v1::RouteWish;
use paceline_proto::v1::inference_client::InferenceClient;
use tonic::transport::Channel;

use self::load::{CellRun, LaneWorkload};
use self::plan::{Cell, LanePlan, Mode, alternate_direction, order};
use self::report::{LaneReport, progress};
use self::same::{Counts, TokenComparison};
use self::verdict::LaneRow;
use crate::args::BenchArgs;
use crate::report::{MeasuredService, duration, failed, note_time_left, of_service};

/// Tokens of each untimed answer before a measurement.
const WARM_TOKENS: u32 = 8;

/// Measures everything and makes the report.
///
/// # Errors
/// A cell fails, or nothing can be measured.
pub async fn bench(args: &BenchArgs, screen: &mut Screen) -> Result<PrintedReport, Failure> {
    let plan = LanePlan::from_args(args)?;
    let work = async |service, screen: &mut Screen| measure(&plan, &service, screen).await;
    of_service(args, &plan.settings, screen, work).await
}

async fn measure(
    plan: &LanePlan,
    service: &MeasuredService,
    screen: &mut Screen,
) -> Result<LaneReport, Failure> {
    if plan.sweep && !service.drafter {
        return Err(Failure::usage(
            "--sweep compares a drafter with none: name one with --drafter, or as drafter.model",
        ));
    }
    let modes = plan.modes(service.drafter);
    let mut bench = LaneBench {
        plan,
        service,
        client: service.own.connect().await?,
        drafter: service.drafter,
        same: TokenComparison::default(),
    };
    bench.warm_up(modes, screen).await?;

    let cells = plan.cells();
    let mut measured: Vec<Vec<(Mode, Vec<CellRun>)>> =
        cells.iter().map(|_| modes.iter().map(|mode| (*mode, Vec::new())).collect()).collect();
    let clock = Clock::start();
    for run in 0..plan.runs {
        for (at, cell) in cells.iter().enumerate() {
            measured[at].iter_mut().for_each(|(_, runs)| runs.push(CellRun::default()));
            for mode in alternate_direction(order(modes, run, at), plan.passes()) {
                let pass = bench.cell(cell, mode).await?;
                for (_, runs) in measured[at].iter_mut().filter(|(known, _)| *known == mode) {
                    runs.last_mut().expect("begun above").add(&pass);
                }
            }
            screen.note(&progress(run, plan.runs, cell, &measured[at]));
        }
        note_time_left(&clock, run, plan.runs, screen);
    }
    let same = bench.weighed(screen).await?;
    let rows = cells
        .into_iter()
        .zip(&measured)
        .map(|(cell, measured)| LaneRow::of(cell, measured))
        .collect();
    let LanePlan { sweep, runs, max_tokens, .. } = *plan;
    Ok(LaneReport { sweep, runs, max_tokens, rows, same })
}

/// Measures cells on a running service.
struct LaneBench<'a> {
    plan: &'a LanePlan,
    service: &'a MeasuredService,
    client: InferenceClient<Channel>,
    /// Whether the drafter runs now.
    drafter: bool,
    same: TokenComparison,
}

impl LaneBench<'_> {
    /// Each mode once with the fewest and the most requests at once: the first steps of a process
    /// are slow in many ways. Says how long everything will take, and refuses what the service
    /// cannot run at once.
    async fn warm_up(&mut self, modes: &[Mode], screen: &mut Screen) -> Result<(), Failure> {
        let cells = self.plan.cells();
        let (Some(few), Some(many)) = (cells.first(), cells.last()) else { return Ok(()) };
        let clock = Clock::start();
        let (mut few_s, mut many_s) = (0.0, 0.0);
        for mode in modes {
            few_s += self.cell(few, *mode).await?.seconds;
            let found = self.cell(many, *mode).await?;
            many_s += found.seconds;
            if found.waited() > 0 {
                return Err(failed(format!(
                    "expected {} requests at once, found {} of {} waiting for memory: raise kv.budget_bytes, or lower \
                     --concurrency or --max-tokens",
                    many.streams,
                    found.waited(),
                    found.answers.len()
                )));
            }
        }
        // What was not timed: warming tokens, and the drafter's stop and start, for two cells.
        let change_s = (clock.now().0 as f64 / 1e3 - few_s - many_s) / 2.0;
        let estimate = self.plan.estimate_s(self.plan.runs, few_s, many_s, change_s);
        let (count, runs) = (cells.len() * modes.len(), self.plan.runs);
        screen
            .note(&format!("{count} figures in each of {runs} runs: about {}", duration(estimate)));
        Ok(())
    }

    /// A measurement of a cell in a mode.
    async fn cell(&mut self, cell: &Cell, mode: Mode) -> Result<CellRun, Failure> {
        self.change(mode).await?;
        let prompts = cell.prompts();
        let load = LaneWorkload {
            prompts: &prompts,
            streams: cell.streams,
            wish: mode.wish(),
            max_tokens: self.plan.max_tokens,
        };
        let warm = LaneWorkload {
            prompts: &prompts[..cell.streams],
            max_tokens: WARM_TOKENS.min(self.plan.max_tokens),
            ..load
        };
        warm.send(&self.client).await?;
        let measured = load.send(&self.client).await?;
        self.same.take(mode, &prompts, &measured.answers);
        Ok(measured)
    }

    /// Stops or starts the drafter as the mode wants it; returns when it is so.
    async fn change(&mut self, mode: Mode) -> Result<(), Failure> {
        let wanted = match mode {
            Mode::Absent => false,
            Mode::Plain => self.drafter,
            Mode::Forced | Mode::Routed => true,
        };
        // In the forced mode the start is requested each time, because the service may have stopped
        // the drafter meanwhile. A start of a drafter that runs changes nothing. In the routed mode
        // such a stop is part of what is measured.
        if wanted == self.drafter && mode != Mode::Forced {
            return Ok(());
        }
        let own = &self.service.own;
        let outcome = match wanted {
            true => own.start_drafter(String::new()).await,
            false => own.stop_drafter().await,
        };
        outcome.map_err(|status| Failure::refused(&status))?;
        self.drafter = wanted;
        Ok(())
    }

    /// Counts of the compared answers. Each answer that differs is judged by the margins of one
    /// more plain answer.
    async fn weighed(mut self, screen: &mut Screen) -> Result<Counts, Failure> {
        let (mut counts, suspects) = std::mem::take(&mut self.same).finish();
        if !suspects.is_empty() {
            screen.note(&format!(
                "{} answers differ from the first to their prompt: weighing them",
                suspects.len()
            ));
        }
        for suspect in suspects {
            let ask = Ask {
                prompt: &suspect.prompt,
                choice: Choice::Greedy,
                lane: RouteWish::Plain,
                max_tokens: self.plan.max_tokens,
                margins: true,
                ignore_eos: true,
            };
            let again = ask.send(&mut self.client).await?;
            let difference =
                weigh(&suspect.first, &suspect.other, &again.token_ids, &again.margins);
            counts.judged.add(&suspect.prompt, Choice::Greedy, difference);
        }
        Ok(counts)
    }
}
