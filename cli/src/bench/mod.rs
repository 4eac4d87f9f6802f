//! `paceline bench` measures on the user's own model and machine. Without further flags it measures
//! each lane. `--sweep` checks that the routed lane is never slower than the better of the two
//! lanes. `--tables` and `--roofline` measure the target alone ([`tables`]), `--images` images
//! ([`images`]). It starts a service of its own and uses it like any client.
//!
//! [`plan`] what is measured, in which order │ [`load`] one measurement │ [`statistics`] median and
//! interval │ [`same`] equal tokens │ [`verdict`] figures over all runs │ [`report`] the table.
//! This file has the order of the steps.
//!
//! One service is measured in all modes; for "absent" its drafter is stopped, then started again. A
//! second service without a drafter would be another target process. It would have other pages of
//! memory, which alone makes processes of the same model some percent faster or slower; it would
//! need the weights twice; and its processes would wake up now and then. Therefore the lanes of a
//! cell run on the same target, one after the other. Ratios are taken within a run. After each
//! change of the drafter some tokens are generated untimed.

pub mod images;
pub mod load;
pub mod plan;
pub mod report;
pub mod same;
pub mod statistics;
pub mod tables;
pub mod verdict;

use std::path::Path;
use std::time::Duration;

use paceline_process::{Clock, Config, RuntimeDir, socket};
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::operations_client::OperationsClient;
use paceline_proto::v1::{RouteWish, StartDrafterRequest, StopDrafterRequest};
use serde::Serialize;
use tonic::transport::Channel;

use self::load::{CellRun, LaneWorkload};
use self::plan::{Cell, LanePlan, Mode, order, there_and_back};
use self::report::{LaneReport, duration};
use self::same::{Counts, TokenComparison};
use self::verdict::LaneRow;
use crate::args::BenchArgs;
use crate::client;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::selftest::ask::{Ask, Choice};
use crate::selftest::compare::weigh;
use crate::selftest::figures::DifferencePlace;
use crate::selftest::report::Subject;
use crate::selftest::service::{StopSignals, another_runs, until_ready};
use crate::selftest::stage::Stage;

/// Tokens of each untimed answer before a measurement.
const WARM_TOKENS: u32 = 8;
/// Longest time for the start or stop of the drafter.
const DRAFTER_CHANGE_TIMEOUT: Duration = Duration::from_secs(300);

/// Runs the command.
///
/// # Errors
/// A cell fails, answers differ, or nothing can be measured. With `--json` an object has been
/// printed too.
pub async fn run(args: &BenchArgs, screen: &mut Screen) -> Result<(), Failure> {
    let found = if args.images {
        images::bench(args, screen).await.map(|report| {
            (output(args, &report, images::report::ImageReport::text), report.failures())
        })
    } else if args.tables || args.roofline {
        tables::bench(args, screen).await.map(|report| {
            (output(args, &report, tables::report::TableReport::text), report.failures())
        })
    } else {
        bench(args, screen)
            .await
            .map(|report| (output(args, &report, LaneReport::text), report.failures()))
    };
    let (text, failures) = match found {
        Ok(found) => found,
        Err(failure) => {
            let failure = ours(failure);
            if args.json {
                screen.line(&failure.object().to_string());
            }
            return Err(failure);
        }
    };
    screen.text(&text).map_err(|_| Failure::output_closed())?;
    match failures.as_slice() {
        [] => Ok(()),
        failures => Err(Failure::bench(failures.join("; "))),
    }
}

fn output<R: Serialize>(args: &BenchArgs, report: &R, text: impl Fn(&R) -> String) -> String {
    if args.json {
        serde_json::to_string(report).expect("a report is plain JSON") + "\n"
    } else {
        text(report)
    }
}

/// Failures of code shared with `selftest` carry its reason; here they get that of `bench`.
fn ours(failure: Failure) -> Failure {
    match failure.reason.as_str() {
        "SELFTEST" => Failure::bench(failure.message),
        _ => failure,
    }
}

async fn bench(args: &BenchArgs, screen: &mut Screen) -> Result<LaneReport, Failure> {
    let plan = LanePlan::from_args(args)?;
    let work = async |dir: RuntimeDir, address: String, screen: &mut Screen| {
        measure(&plan, &dir, &address, screen).await
    };
    let (report, seconds) = staged(args, &plan.config, plan.file.as_deref(), screen, work).await?;
    Ok(LaneReport { seconds, ..report })
}

/// Starts a service, runs `work` on it and stops it in any case. Returns the duration in seconds
/// too.
async fn staged<R>(
    args: &BenchArgs,
    config: &Config,
    file: Option<&Path>,
    screen: &mut Screen,
    work: impl AsyncFnOnce(RuntimeDir, String, &mut Screen) -> Result<R, Failure>,
) -> Result<(R, f64), Failure> {
    let mut stops = StopSignals::new()?;
    if another_runs(args.config.config.as_deref()) {
        screen.note("another service runs on this machine: it shares the cores, and the speeds below will show it");
    }
    let clock = Clock::start();
    let mut stage = Stage::start("bench", config, file)?;
    let (address, dir) = (stage.address(), stage.dir());
    let outcome = tokio::select! {
        biased;
        () = stops.next() => Err(Failure::interrupted()),
        failure = stage.end() => Err(failure),
        outcome = work(dir, address, screen) => outcome,
    };
    if outcome.is_err() {
        screen.note("stopping the service");
    }
    stage.stop(async || stops.next().await).await;
    outcome.map(|report| (report, clock.now().0 as f64 / 1e3))
}

async fn measure(
    plan: &LanePlan,
    dir: &RuntimeDir,
    address: &str,
    screen: &mut Screen,
) -> Result<LaneReport, Failure> {
    let (status, drafter) = until_ready(dir, |what| screen.note(what)).await?;
    if plan.sweep && !drafter {
        return Err(Failure::usage(
            "--sweep compares a drafter with none: name one with --drafter, or as drafter.model",
        ));
    }
    let modes = plan.modes(drafter);
    let mut bench = LaneBench {
        plan,
        dir,
        client: client::connect(address).await?,
        drafter,
        same: TokenComparison::default(),
    };
    bench.warm_up(modes, screen).await?;

    let cells = plan.cells();
    let mut measured: Vec<Vec<(Mode, Vec<CellRun>)>> =
        cells.iter().map(|_| modes.iter().map(|mode| (*mode, Vec::new())).collect()).collect();
    let clock = Clock::start();
    for run in 0..plan.runs {
        for (at, cell) in cells.iter().enumerate() {
            let mut found: Vec<(Mode, CellRun)> =
                modes.iter().map(|mode| (*mode, CellRun::default())).collect();
            for mode in there_and_back(order(modes, run, at), plan.passes()) {
                let pass = bench.cell(cell, mode).await?;
                found
                    .iter_mut()
                    .filter(|(known, _)| *known == mode)
                    .for_each(|(_, all)| all.add(&pass));
            }
            for ((_, runs), (_, found)) in measured[at].iter_mut().zip(found) {
                runs.push(found);
            }
            screen.note(&report::progress(run, plan.runs, cell, &measured[at]));
        }
        note_time_left(&clock, run, plan.runs, screen);
    }
    let same = bench.weighed(screen).await?;
    let rows = cells
        .into_iter()
        .zip(&measured)
        .map(|(cell, measured)| LaneRow::of(cell, measured))
        .collect();
    Ok(LaneReport {
        subject: Subject::new(&status, drafter),
        sweep: plan.sweep,
        runs: plan.runs,
        max_tokens: plan.max_tokens,
        rows,
        same,
        seconds: 0.0,
    })
}

/// After a run that is not the last: shows how many are done, and how long the others will take.
fn note_time_left(clock: &Clock, run: usize, runs: usize, screen: &mut Screen) {
    let done = run + 1;
    let left_s = clock.now().0 as f64 / 1e3 / done as f64 * (runs - done) as f64;
    if left_s > 0.0 {
        screen.note(&format!("run {done} of {runs} done, about {} left", duration(left_s)));
    }
}

/// Measures cells on a running service.
struct LaneBench<'a> {
    plan: &'a LanePlan,
    dir: &'a RuntimeDir,
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
                return Err(Failure::bench(format!(
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
            // The start is requested each time, because the service may have stopped the drafter
            // meanwhile. A start of a drafter that runs changes nothing. In the routed mode such a
            // stop is part of what is measured.
            Mode::Forced => true,
            Mode::Routed if self.drafter => return Ok(()),
            Mode::Routed => true,
        };
        if wanted == self.drafter && mode != Mode::Forced {
            return Ok(());
        }
        let mut client = OperationsClient::new(socket::channel(self.dir.socket("supervisor")));
        let timeout_ms = DRAFTER_CHANGE_TIMEOUT.as_millis() as u32;
        let outcome = if wanted {
            client.start_drafter(StartDrafterRequest { model: String::new(), timeout_ms }).await
        } else {
            client.stop_drafter(StopDrafterRequest { timeout_ms }).await
        };
        outcome.map_err(|status| Failure::refused(&status))?;
        self.drafter = wanted;
        Ok(())
    }

    /// What was compared; each difference is looked at with the margins of one more plain answer.
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
            let difference = weigh(&suspect.first, &suspect.other, &again.ids, &again.margins);
            let list =
                if difference.near_tie() { &mut counts.near_ties } else { &mut counts.differences };
            list.push(DifferencePlace {
                kind: suspect.prompt.kind,
                prompt: suspect.prompt.index,
                choice: Choice::Greedy.word(),
                difference,
            });
        }
        Ok(counts)
    }
}
