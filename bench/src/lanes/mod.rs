//! Each lane is measured in cells: a kind of prompt, and a number of requests at once. `--sweep`
//! checks that the routed lane is never slower than the better of the two lanes.
//!
//! [`plan`] what is measured │ [`load`] one measurement │ [`verdict`] figures over all runs │
//! [`means`] over cells │ [`report`] the tables. This file has the order of the steps.
//!
//! One service is measured in all modes; for "absent" its drafter is stopped, then started again. A
//! second service without a drafter would be another target process. It would have other pages of
//! memory, which alone makes processes of the same model some percent faster or slower; it would
//! need the weights twice; and its processes would wake up now and then. Therefore the lanes of a
//! cell run on the same target, one after the other. Ratios are taken within a run. After each
//! change of the drafter some tokens are generated untimed. With `--against` a second service, of
//! another build, is measured in the same way, each time right before or after the first.

mod load;
mod means;
mod plan;
mod report;
mod verdict;

use paceline_client::ask::{Ask, Choice};
use paceline_client::compare::{JudgedDifferences, weigh};
use paceline_client::failure::BENCH;
use paceline_client::own_service::report::PrintedReport;
use paceline_client::own_service::subject::Subject;
use paceline_client::own_service::{self, OwnService};
use paceline_client::{Failure, Screen};
use paceline_process::config::DrafterModels;
use paceline_proto::v1::RouteWish;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_system::Clock;
use tonic::transport::Channel;

use self::load::{CellRun, LaneWorkload};
use self::plan::{Cell, LanePlan};
use self::report::{LaneReport, cell_line};
use self::verdict::{LaneRow, compare_with_one_stream};
use crate::args::BenchArgs;
use crate::mode::{self, Mode, alternate_direction, order};
use crate::progress::{Progress, duration};
use crate::prompts::PromptSet;
use crate::report::{failed, of_service};
use crate::same::{Counts, TokenComparison};
use crate::service::MeasuredService;

/// Tokens of each untimed answer before a measurement.
const WARM_TOKENS: u32 = 8;

/// Milliseconds of plain answers before those. A target that waited while its drafter was started
/// is slower for some tenths of a second: on two virtual cores the first answers of four plain
/// streams had 0.87 of their later speed.
const BUSY_MS: u64 = 400;
/// Tokens of each of these answers.
const BUSY_TOKENS: u32 = 32;

/// Measures everything and makes the report.
///
/// # Errors
/// A cell fails, or nothing can be measured.
pub async fn bench(args: &BenchArgs, screen: &mut Screen) -> Result<PrintedReport, Failure> {
    let plan = LanePlan::from_args(args)?;
    let work = async |service: &MeasuredService, screen: &mut Screen| {
        let Some(settings) = &plan.other else {
            return measure(&plan, &[service], screen).await;
        };
        screen.note("starting the other build");
        let subject = |of: &MeasuredService| Subject::new(&of.status, of.drafter);
        let own = subject(service);
        let both = async |other: OwnService, screen: &mut Screen| {
            let other = MeasuredService::ready(other, screen).await?;
            same_models(&own, &subject(&other))?;
            measure(&plan, &[service, &other], screen).await
        };
        let mut settings = settings.clone();
        if let Some(drafter) = &own.drafter {
            // Another build may look for a drafter elsewhere.
            settings.config.drafter.model = DrafterModels::one(drafter.model.clone());
        }
        own_service::run(BENCH, &settings, screen, both).await.map(|(report, _)| report)
    };
    of_service(args, &plan.settings, screen, work).await
}

/// Checks that two builds serve the same models.
fn same_models(own: &Subject, other: &Subject) -> Result<(), Failure> {
    let models = |subject: &Subject| {
        let drafter = subject.drafter.as_ref().map(|drafter| drafter.model.clone());
        (subject.target.model.clone(), drafter)
    };
    let [(target, drafter), (other_target, other_drafter)] = [own, other].map(models);
    if (&target, &drafter) == (&other_target, &other_drafter) {
        return Ok(());
    }
    let word = |drafter: Option<String>| drafter.unwrap_or_else(|| "none".into());
    Err(failed(format!(
        "--against: expected the other build to serve {target} with the drafter {}, found {other_target} with {}",
        word(drafter),
        word(other_drafter)
    )))
}

/// Measures on the services of one build or two, this one first.
async fn measure(
    plan: &LanePlan,
    services: &[&MeasuredService],
    screen: &mut Screen,
) -> Result<LaneReport, Failure> {
    let service = services[0];
    if plan.sweep && !service.drafter {
        return Err(Failure::usage(
            "--sweep compares a drafter with none: name one with --drafter, or as drafter.model",
        ));
    }
    let modes = plan.modes(service.drafter);
    let (sets, cut) = plan.sets(&service.status)?;
    if let Some(tokens) = cut {
        screen
            .note(&format!("kind long: texts of {tokens} tokens, which fill the model's context"));
    }
    let mut builds = vec![];
    for service in services {
        let mut bench = LaneBench::new(plan, service, &sets, modes).await?;
        bench.warm_up(modes, services.len(), screen).await?;
        builds.push(bench);
    }
    let cells = plan.cells();
    let steps = cells.len() * modes.len() * plan.passes() * plan.runs * builds.len();
    let mut progress = Progress::begin(steps as f64);
    for run in 0..plan.runs {
        for (at, cell) in cells.iter().enumerate() {
            builds.iter_mut().for_each(|build| build.begin_run(at));
            let modes = alternate_direction(order(modes, run, at), plan.passes());
            for (place, mode) in modes.into_iter().enumerate() {
                progress.show(run, plan.runs, &format!("{cell}, {}", mode.word()), screen);
                for build in mode::builds(builds.len(), run + at + place) {
                    builds[build].add_pass(at, cell, mode).await?;
                    progress.add(1.0);
                }
            }
            screen.note(&cell_line(run, plan.runs, cell, &builds[0].measured[at]));
        }
        progress.note(run, plan.runs, screen);
    }
    let mut rows: Vec<Vec<LaneRow>> = builds.iter().map(|build| build.rows(&cells)).collect();
    let other = (rows.len() > 1).then(|| rows.remove(1));
    let mut rows = rows.remove(0);
    for (own, other) in rows.iter_mut().zip(other.iter().flatten()) {
        own.compare(other);
    }
    compare_with_one_stream(&mut rows);
    let same = builds.remove(0).weighed(screen).await?;
    let LanePlan { sweep, runs, max_tokens, .. } = *plan;
    Ok(LaneReport::new(sweep, runs, max_tokens, rows, same))
}

/// Measures cells on a running service.
struct LaneBench<'a> {
    plan: &'a LanePlan,
    service: &'a MeasuredService,
    client: InferenceClient<Channel>,
    /// The prompts of each kind.
    sets: &'a [PromptSet],
    same: TokenComparison,
    /// What was measured of each cell, by mode and run.
    measured: Vec<Vec<(Mode, Vec<CellRun>)>>,
}

impl<'a> LaneBench<'a> {
    async fn new(
        plan: &'a LanePlan,
        service: &'a MeasuredService,
        sets: &'a [PromptSet],
        modes: &[Mode],
    ) -> Result<Self, Failure> {
        let client = service.own.connect().await?;
        let nothing = || modes.iter().map(|mode| (*mode, Vec::new())).collect();
        let measured = plan.cells().iter().map(|_| nothing()).collect();
        Ok(Self { plan, service, client, sets, same: TokenComparison::default(), measured })
    }

    /// Begins a run of the cell at this place.
    fn begin_run(&mut self, at: usize) {
        self.measured[at].iter_mut().for_each(|(_, runs)| runs.push(CellRun::default()));
    }

    /// Measures the cell at this place once in a mode, in the run that was begun.
    async fn add_pass(&mut self, at: usize, cell: &Cell, mode: Mode) -> Result<(), Failure> {
        let pass = self.cell(cell, mode).await?;
        for (_, runs) in self.measured[at].iter_mut().filter(|(known, _)| *known == mode) {
            runs.last_mut().expect("begun").add(&pass);
        }
        Ok(())
    }

    fn rows(&self, cells: &[Cell]) -> Vec<LaneRow> {
        let cells = cells.iter().zip(&self.measured);
        cells.map(|(cell, measured)| LaneRow::of(cell.clone(), measured)).collect()
    }

    /// Each mode once with the fewest and the most requests at once: the first steps of a process
    /// are slow in many ways. Says how long everything will take, and refuses what the service
    /// cannot run at once.
    async fn warm_up(
        &mut self,
        modes: &[Mode],
        builds: usize,
        screen: &mut Screen,
    ) -> Result<(), Failure> {
        let cells = self.plan.cells();
        let (Some(few), Some(many)) = (cells.first(), cells.last()) else { return Ok(()) };
        let clock = Clock::start();
        let (mut few_s, mut many_s) = (0.0, 0.0);
        for mode in modes {
            screen.transient(&format!("warming up: {}", mode.word()));
            if few != many {
                few_s += self.cell(few, *mode).await?.seconds;
            }
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
        // What was not timed: warming tokens, and the drafter's stop and start, for each cell.
        let count = if few == many { 1.0 } else { 2.0 };
        let change_s = (clock.now().0 as f64 / 1e3 - few_s - many_s) / count;
        let few_s = if few == many { many_s } else { few_s };
        let estimate = self.plan.estimate_s(self.plan.runs * builds, few_s, many_s, change_s);
        let (count, runs) = (cells.len() * modes.len() * builds, self.plan.runs);
        screen
            .note(&format!("{count} figures in each of {runs} runs: about {}", duration(estimate)));
        Ok(())
    }

    /// A measurement of a cell in a mode.
    async fn cell(&mut self, cell: &Cell, mode: Mode) -> Result<CellRun, Failure> {
        self.service.change(mode).await?;
        let set = self.sets.iter().find(|set| set.kind == cell.kind);
        let prompts = set.map_or(vec![], |set| set.of_cell(cell.streams));
        let load = LaneWorkload {
            prompts: &prompts,
            streams: cell.streams,
            wish: mode.wish(),
            max_tokens: self.plan.max_tokens,
        };
        let warming = set.map_or(vec![], |set| set.warming(cell.streams));
        let warm = LaneWorkload {
            prompts: &warming,
            max_tokens: WARM_TOKENS.min(self.plan.max_tokens),
            ..load
        };
        let busy = LaneWorkload { wish: RouteWish::Plain, max_tokens: BUSY_TOKENS, ..warm };
        let clock = Clock::start();
        while clock.now().0 < BUSY_MS {
            busy.send(&self.client).await?;
        }
        warm.send(&self.client).await?;
        let measured = load.send(&self.client).await?;
        self.same.take(mode, &prompts, &measured.answers);
        Ok(measured)
    }

    /// Counts of the compared answers. Each answer that differs is judged by the margins of one
    /// more plain answer.
    async fn weighed(mut self, screen: &mut Screen) -> Result<Counts, Failure> {
        let (mut counts, suspects) = std::mem::take(&mut self.same).finish();
        counts.judged = JudgedDifferences::of(&self.service.status);
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
