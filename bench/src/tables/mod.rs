//! `--tables` and `--roofline` measure the target alone: the speed of prefill and of generation by
//! length of the prompt and by requests at once, and the share of the memory's bandwidth that is
//! reached.
//!
//! [`plan`] which shapes │ [`ids`] prompts that no cache has │ [`bandwidth`] of memory │ [`device`]
//! of the target │ [`model`] bytes that a token reads │ [`row`] figures over all runs │ [`report`] the
//! table. This file has one measurement.
//!
//! Each prompt is sent twice. The first time no cache has any of it and the answer is one token:
//! this measures prefill. The second time the prefix cache has its beginning, and all requests
//! generate at once from the start. This measures generation with a context of this length. Both
//! must give the same first token.

mod bandwidth;
mod device;
mod ids;
mod model;
mod plan;
mod report;
mod row;

use std::sync::Arc;

use paceline_client::answer::Answer;
use paceline_client::compare::{near_tie_bound, weigh};
use paceline_client::own_service::report::PrintedReport;
use paceline_client::print::number;
use paceline_client::{Failure, Screen};
use paceline_proto::v1::RouteWish;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_system::Clock;
use tonic::transport::Channel;

use self::bandwidth::{Bandwidth, MemoryBuffer};
use self::ids::{PromptPlace, prompt};
use self::model::Model;
use self::plan::{STREAMS, Shape, shapes};
use self::report::{Different, MemorySpeed, TableComparison, TableReport};
use self::row::{ShapeRun, TableRow};
use crate::args::{ANSWER_TOKENS, BenchArgs, ascending};
use crate::experiment::{self, BenchPlan, Experiment, MeasuredCell, rotated};
use crate::load::{FixedAnswer, at_once};
use crate::progress::{Progress, duration};
use crate::report::{failed, of_service};
use crate::service::MeasuredService;

/// Most differences that are judged.
const MAX_JUDGED: usize = 20;

/// Measures everything and makes the report.
///
/// # Errors
/// Nothing can be measured, or the service refuses a request.
pub async fn bench(args: &BenchArgs, screen: &mut Screen) -> Result<PrintedReport, Failure> {
    // The target's own speed is measured.
    let plan = BenchPlan::target_alone(args, 7, ANSWER_TOKENS)?;
    let on_gpu = args.roofline && device::on_gpu(&plan.settings)?;
    if on_gpu {
        screen.note(
            "--roofline: the target computes on a GPU, whose bandwidth is not measured; no bound is shown",
        );
    }
    // Before the service starts, because its KV takes a share of the free memory.
    let measures = args.roofline && !on_gpu;
    let memory = measures.then(MemoryBuffer::take).transpose()?.map(Arc::new);
    let work = async |service: &MeasuredService, screen: &mut Screen| {
        measure(args, &plan, memory, service, screen).await
    };
    of_service(args, &plan.settings, screen, work).await
}

async fn measure(
    args: &BenchArgs,
    plan: &BenchPlan,
    memory: Option<Arc<MemoryBuffer>>,
    service: &MeasuredService,
    screen: &mut Screen,
) -> Result<TableReport, Failure> {
    let BenchPlan { runs, max_tokens, .. } = *plan;
    let model = Model::of(&service.status)?;
    let streams = args.streams(if args.tables { &STREAMS } else { &[1] });
    let shapes = shapes(&ascending(&args.lengths), &streams, max_tokens, &model)?;
    let buffer_bytes = memory.as_ref().map_or(0, |memory| memory.bytes());
    let mut bench = TableBench {
        max_tokens,
        vocab: model.vocab,
        client: service.own.connect().await?,
        memory,
        threads: 0,
        bandwidth: vec![],
        suspects: vec![],
    };
    bench.search_threads().await?;
    bench.warm_up(runs, &shapes, screen).await?;
    let prompts = runs * shapes.iter().map(|shape| shape.streams).sum::<usize>();
    let measured = experiment::measure(&mut bench, runs, shapes, screen).await?;
    let bound = near_tie_bound(&service.status);
    let same = TableComparison { prompts, bound, ..TableComparison::default() };
    let same = bench.weighed(same).await?;
    let bandwidth = &bench.bandwidth;
    let row =
        |one: &MeasuredShape| TableRow::of(one.cell, &one.runs, bandwidth, &model, max_tokens);
    Ok(TableReport {
        runs,
        max_tokens,
        memory: MemorySpeed::of(bandwidth, buffer_bytes),
        rows: measured.iter().map(row).collect(),
        same,
        cached: measured.iter().flat_map(|one| &one.runs).map(|run| run.cached).sum(),
        model,
    })
}

/// A shape, run by run.
type MeasuredShape = MeasuredCell<Shape, ShapeRun>;

/// A prompt whose first token differed the second time.
struct DifferentFirst {
    shape: Shape,
    prompt: Vec<u32>,
    first: Option<u32>,
    other: Option<u32>,
}

/// Measures on a running service.
struct TableBench {
    max_tokens: u32,
    vocab: u32,
    client: InferenceClient<Channel>,
    /// The memory to read, if it is measured.
    memory: Option<Arc<MemoryBuffer>>,
    /// The fastest number of threads that read it.
    threads: usize,
    /// Bandwidth of the memory in each run.
    bandwidth: Vec<Bandwidth>,
    suspects: Vec<DifferentFirst>,
}

impl Experiment for TableBench {
    type Cell = Shape;
    type Run = ShapeRun;

    fn order(&self, run: usize, cells: usize) -> Vec<usize> {
        rotated(run, cells)
    }

    fn work(&self, shape: &Shape) -> f64 {
        shape.work(self.max_tokens as usize) as f64
    }

    /// Measures the memory. The service is idle meanwhile.
    async fn begin_run(&mut self) -> Result<(), Failure> {
        let threads = self.threads;
        let found = self.on_threads(move |memory| memory.measure(threads)).await?;
        self.bandwidth.extend(found);
        Ok(())
    }

    async fn measure(
        &mut self,
        shape: &Shape,
        progress: &mut Progress<'_>,
    ) -> Result<ShapeRun, Failure> {
        self.shape(progress.run, progress.at, shape).await
    }

    fn line(run: &ShapeRun) -> String {
        format!("pp {:.0}, tg {} tok/s", run.pp_tok_s, number(run.tg_tok_s, 0))
    }
}

impl TableBench {
    /// Reads memory on other threads, so that this one still notices requests to stop.
    async fn on_threads(
        &self,
        read: impl FnOnce(&MemoryBuffer) -> Bandwidth + Send + 'static,
    ) -> Result<Option<Bandwidth>, Failure> {
        let Some(memory) = self.memory.clone() else { return Ok(None) };
        let found = tokio::task::spawn_blocking(move || read(&memory)).await;
        found.map(Some).map_err(|error| failed(format!("cannot measure memory: {error}")))
    }

    /// Finds the fastest number of threads that read memory.
    async fn search_threads(&mut self) -> Result<(), Failure> {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let found = self.on_threads(move |memory| memory.search(cores)).await?;
        self.threads = found.map_or(0, |found| found.threads);
        Ok(())
    }

    /// The first and the last shape once, untimed, because the first steps of a process are slow in
    /// many ways. Shows how long a run may take.
    async fn warm_up(
        &mut self,
        runs: usize,
        shapes: &[Shape],
        screen: &mut Screen,
    ) -> Result<(), Failure> {
        let clock = Clock::start();
        let (Some(first), Some(last)) = (shapes.first(), shapes.last()) else { return Ok(()) };
        // A run number of its own, so that its prompts are never used again.
        self.shape(runs, 0, first).await?;
        self.shape(runs, shapes.len() - 1, last).await?;
        self.suspects.clear();
        let (count, seconds) = (shapes.len(), clock.now().0 as f64 / 1e3);
        screen.note(&format!(
            "{count} shapes in each of {runs} runs; the first and the last took {}",
            duration(seconds)
        ));
        Ok(())
    }

    /// A measurement of a shape.
    async fn shape(&mut self, run: usize, at: usize, shape: &Shape) -> Result<ShapeRun, Failure> {
        let one = |index| {
            let place = PromptPlace { run, shape: at, prompt: index };
            prompt(place, shape.prompt_tokens, self.vocab)
        };
        let prompts: Vec<Vec<u32>> = (0..shape.prompts()).map(one).collect();
        let (read, seconds) = self.answers(&prompts, shape.streams, 1).await?;
        let again = &prompts[..shape.streams];
        let (generated, _) = self.answers(again, shape.streams, self.max_tokens).await?;
        for (prompt, (first, other)) in prompts.iter().zip(read.iter().zip(&generated)) {
            let [first, other] = [first, other].map(|answer| answer.token_ids.first().copied());
            if first != other && self.suspects.len() < MAX_JUDGED {
                let (shape, prompt) = (*shape, prompt.clone());
                self.suspects.push(DifferentFirst { shape, prompt, first, other });
            }
        }
        Ok(ShapeRun::of(shape, &(read, seconds), &generated))
    }

    /// Answers to prompts in the plain lane, and the seconds until the end of the last one.
    async fn answers(
        &self,
        prompts: &[Vec<u32>],
        streams: usize,
        max_tokens: u32,
    ) -> Result<(Vec<Answer>, f64), Failure> {
        let wish = FixedAnswer::new(RouteWish::Plain, max_tokens);
        let (sent, seconds) =
            at_once(prompts, streams, |ids| wish.complete(&self.client, ids)).await?;
        Ok((sent.into_iter().map(|sent| sent.answer).collect(), seconds))
    }

    /// The result of the comparison. Each difference is judged by the margin of one more answer.
    async fn weighed(&mut self, mut same: TableComparison) -> Result<TableComparison, Failure> {
        for DifferentFirst { shape, prompt, first, other } in std::mem::take(&mut self.suspects) {
            let again = FixedAnswer::to_judge(1).complete(&self.client, &prompt).await?.answer;
            let difference =
                weigh(first.as_slice(), other.as_slice(), &again.token_ids, &again.margins);
            match difference.near_tie(same.bound) {
                true => same.near_ties += 1,
                false => same.differences.push(Different { shape, difference }),
            }
        }
        Ok(same)
    }
}
