//! Each lane is measured in cells: a kind of prompt, and a number of requests at once. `--sweep`
//! checks that the routed lane is never slower than the better of the two lanes.
//!
//! [`plan`] what is measured │ [`verdict`] figures over all runs │ [`means`] over cells │ [`report`] the
//! tables. This file has one measurement: the requests of a cell, from the first submission to the
//! end of the last answer.
//!
//! One service is measured in all modes; for "absent" its drafter is stopped, then started again. A
//! second service without a drafter would be another target process. It would have other pages of
//! memory, which alone makes processes of the same model some percent faster or slower; it would
//! need the weights twice; and its processes would wake up now and then. Therefore the lanes of a
//! cell run on the same target, one after the other. Ratios are taken within a run. After each
//! change of the drafter some tokens are generated untimed. With `--against` a second service, of
//! another build, is measured in the same way, each time right before or after the first.

mod means;
mod plan;
mod report;
mod verdict;

use paceline_client::failure::BENCH;
use paceline_client::own_service::report::PrintedReport;
use paceline_client::own_service::subject::Subject;
use paceline_client::own_service::{self, OwnService};
use paceline_client::prompts::Prompt;
use paceline_client::{Failure, Screen};
use paceline_process::config::DrafterModels;
use paceline_proto::v1::RouteWish;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_system::Clock;
use tonic::transport::Channel;

use self::plan::{Cell, LanePlan};
use self::report::LaneReport;
use self::verdict::{CellRow, CellRun, compare_with_one_stream};
use crate::args::BenchArgs;
use crate::experiment::{self, BenchPlan, Experiment, MeasuredCell};
use crate::load::FixedAnswer;
use crate::mode::{self, Mode, alternate_direction, by_mode, order};
use crate::progress::{Progress, duration};
use crate::prompts::PromptSet;
use crate::report::{failed, of_service};
use crate::same::{AnswerComparison, Counts};
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
    of_service(args, &plan.bench.settings, screen, work).await
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
    let mut bench = LaneBench { plan, modes, builds: vec![] };
    for service in services {
        let (client, same) = (service.own.connect().await?, AnswerComparison::default());
        let mut build = LaneBuild { plan, service, client, sets: &sets, same };
        build.warm_up(modes, services.len(), screen).await?;
        bench.builds.push(build);
    }
    let BenchPlan { runs, max_tokens, .. } = plan.bench;
    let measured = experiment::measure(&mut bench, runs, plan.cells(), screen).await?;
    let mut rows: Vec<Vec<CellRow>> = services.iter().map(|_| vec![]).collect();
    for MeasuredCell { cell, mut runs } in measured {
        for rows in &mut rows {
            let of_build = runs.iter_mut().map(|run: &mut LaneRun| run.remove(0));
            rows.push(CellRow::of(cell.clone(), &by_mode(of_build)));
        }
    }
    let other = (rows.len() > 1).then(|| rows.remove(1));
    let mut rows = rows.remove(0);
    for (own, other) in rows.iter_mut().zip(other.iter().flatten()) {
        own.compare(other);
    }
    compare_with_one_stream(&mut rows);
    let same = bench.builds.remove(0).weighed(screen).await?;
    Ok(LaneReport::new(plan.sweep, runs, max_tokens, rows, same))
}

/// A run of a cell: for each build what was measured in each mode.
type LaneRun = Vec<Vec<(Mode, CellRun)>>;

/// Measures cells on the services of all builds.
struct LaneBench<'a> {
    plan: &'a LanePlan,
    modes: &'static [Mode],
    builds: Vec<LaneBuild<'a>>,
}

impl Experiment for LaneBench<'_> {
    type Cell = Cell;
    type Run = LaneRun;

    fn work(&self, _cell: &Cell) -> f64 {
        (self.modes.len() * self.plan.passes() * self.builds.len()) as f64
    }

    async fn measure(
        &mut self,
        cell: &Cell,
        progress: &mut Progress<'_>,
    ) -> Result<LaneRun, Failure> {
        let nothing = || self.modes.iter().map(|mode| (*mode, CellRun::default())).collect();
        let mut found: LaneRun = self.builds.iter().map(|_| nothing()).collect();
        let (run, at) = (progress.run, progress.at);
        let modes = order(self.modes, run, at);
        let modes = alternate_direction(modes, self.plan.passes());
        for (place, mode) in modes.into_iter().enumerate() {
            progress.show(&format!("{cell}, {}", mode.word()));
            for build in mode::builds(self.builds.len(), run + at + place) {
                let pass = self.builds[build].cell(cell, mode).await?;
                let of_mode = found[build].iter_mut().filter(|(known, _)| *known == mode);
                of_mode.for_each(|(_, run)| run.add(&pass));
                progress.done += 1.0;
            }
        }
        Ok(found)
    }

    fn line(run: &LaneRun) -> String {
        let speed = |(mode, run): &(Mode, CellRun)| format!("{} {:.0}", mode.word(), run.tok_s());
        format!("{} tok/s", run[0].iter().map(speed).collect::<Vec<_>>().join(", "))
    }
}

/// Measures cells on a running service.
struct LaneBuild<'a> {
    plan: &'a LanePlan,
    service: &'a MeasuredService,
    client: InferenceClient<Channel>,
    /// The prompts of each kind.
    sets: &'a [PromptSet],
    same: AnswerComparison,
}

impl LaneBuild<'_> {
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
        let runs = self.plan.bench.runs;
        let estimate = self.plan.estimate_s(runs * builds, few_s, many_s, change_s);
        let count = cells.len() * modes.len() * builds;
        screen
            .note(&format!("{count} figures in each of {runs} runs: about {}", duration(estimate)));
        Ok(())
    }

    /// A measurement of a cell in a mode.
    async fn cell(&mut self, cell: &Cell, mode: Mode) -> Result<CellRun, Failure> {
        self.service.change(mode).await?;
        let set = self.sets.iter().find(|set| set.kind == cell.kind);
        let prompts = set.map_or(vec![], |set| set.of_cell(cell.streams));
        let warming = set.map_or(vec![], |set| set.warming(cell.streams));
        let (max_tokens, streams) = (self.plan.bench.max_tokens, cell.streams);
        let busy = FixedAnswer::new(RouteWish::Plain, BUSY_TOKENS);
        let clock = Clock::start();
        while clock.now().0 < BUSY_MS {
            busy.chats(&self.client, &warming, streams).await?;
        }
        let warm = FixedAnswer::new(mode.wish(), WARM_TOKENS.min(max_tokens));
        warm.chats(&self.client, &warming, streams).await?;
        let wish = FixedAnswer::new(mode.wish(), max_tokens);
        let measured = CellRun::of(wish.chats(&self.client, &prompts, streams).await?);
        self.same.take(mode, &prompts, &measured.answers);
        Ok(measured)
    }

    /// Counts of the compared answers, with each difference judged.
    async fn weighed(self, screen: &mut Screen) -> Result<Counts, Failure> {
        let Self { plan, service, client, same, .. } = self;
        let again = async |prompt: &Prompt| {
            FixedAnswer::to_judge(plan.bench.max_tokens).chat(&client, prompt).await
        };
        same.weighed(&service.status, "from the first to their prompt", screen, again).await
    }
}
