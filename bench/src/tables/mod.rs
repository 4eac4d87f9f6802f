//! `--tables` and `--roofline` measure the target alone: the speed of prefill and of generation by
//! length of the prompt and by requests at once, and the share of the memory's bandwidth that is
//! reached.
//!
//! [`plan`] which shapes, in which order │ [`ids`] prompts that no cache has │ [`load`] one
//! measurement │ [`bandwidth`] of memory │ [`device`] of the target │ [`model`] bytes that a token reads │ [`row`] figures
//! over all runs │ [`report`] the table. This file has the order of the steps.
//!
//! Each prompt is sent twice. The first time no cache has any of it and the answer is one token:
//! this measures prefill. The second time the prefix cache has its beginning, and all requests
//! generate at once from the start. This measures generation with a context of this length. Both
//! must give the same first token.

mod bandwidth;
mod device;
mod ids;
mod load;
mod model;
mod plan;
mod report;
mod row;

use std::sync::Arc;

use paceline_client::compare::{near_tie_bound, weigh};
use paceline_client::own_service::report::PrintedReport;
use paceline_client::{Failure, Screen};
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_system::Clock;
use tonic::transport::Channel;

use self::bandwidth::{Bandwidth, Memory};
use self::ids::{PromptPlace, prompt};
use self::load::TableWorkload;
use self::model::Model;
use self::plan::{Shape, TablePlan, order};
use self::report::{Different, TableComparison, TableReport, shape_line};
use self::row::{ShapeRun, TableRow};
use crate::args::BenchArgs;
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
    let plan = TablePlan::from_args(args)?;
    let on_gpu = plan.roofline && device::on_gpu(&plan.settings)?;
    if on_gpu {
        screen.note(
            "--roofline: the target computes on a GPU, whose bandwidth is not measured; no bound is shown",
        );
    }
    // Before the service starts, because its KV takes a share of the free memory.
    let measures = plan.roofline && !on_gpu;
    let memory = measures.then(Memory::take).transpose()?.map(Arc::new);
    let work = async |service: &MeasuredService, screen: &mut Screen| {
        measure(&plan, memory, service, screen).await
    };
    of_service(args, &plan.settings, screen, work).await
}

async fn measure(
    plan: &TablePlan,
    memory: Option<Arc<Memory>>,
    service: &MeasuredService,
    screen: &mut Screen,
) -> Result<TableReport, Failure> {
    let model = Model::of(&service.status)?;
    let shapes = plan.shapes(&model)?;
    let mut bench = TableBench {
        plan,
        shapes: &shapes,
        model: &model,
        bound: near_tie_bound(&service.status),
        client: service.own.connect().await?,
        suspects: vec![],
    };
    let buffer_bytes = memory.as_ref().map_or(0, |memory| memory.bytes());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let threads = on_threads(memory.as_ref(), move |memory| memory.search(cores))
        .await?
        .map(|found| found.threads);
    bench.warm_up(screen).await?;

    let mut measured: Vec<Vec<ShapeRun>> = shapes.iter().map(|_| Vec::new()).collect();
    let mut bandwidth: Vec<Bandwidth> = Vec::new();
    let work = |shape: &Shape| shape.work(plan.max_tokens) as f64;
    let all: f64 = shapes.iter().map(work).sum();
    let mut progress = Progress::begin(all * plan.runs as f64);
    for run in 0..plan.runs {
        if let Some(threads) = threads {
            // The service is idle meanwhile.
            bandwidth
                .extend(on_threads(memory.as_ref(), move |memory| memory.measure(threads)).await?);
        }
        for at in order(shapes.len(), run) {
            progress.show(run, plan.runs, &shapes[at].to_string(), screen);
            let found = bench.shape(run, at, &shapes[at]).await?;
            progress.add(work(&shapes[at]));
            screen.note(&shape_line(run, plan.runs, &shapes[at], &found));
            measured[at].push(found);
        }
        progress.note(run, plan.runs, screen);
    }
    let same = bench.weighed().await?;
    let rows = shapes.iter().zip(&measured);
    let rows = rows
        .map(|(shape, runs)| TableRow::of(*shape, runs, &bandwidth, &model, plan.max_tokens))
        .collect();
    Ok(TableReport {
        runs: plan.runs,
        max_tokens: plan.max_tokens,
        memory: report::Memory::of(&bandwidth, buffer_bytes),
        rows,
        same,
        cached: measured.iter().flatten().map(|run| run.cached).sum(),
        model,
    })
}

/// Reads memory on other threads, so that this one still notices requests to stop.
async fn on_threads(
    memory: Option<&Arc<Memory>>,
    read: impl FnOnce(&Memory) -> Bandwidth + Send + 'static,
) -> Result<Option<Bandwidth>, Failure> {
    let Some(memory) = memory.cloned() else { return Ok(None) };
    let found = tokio::task::spawn_blocking(move || read(&memory)).await;
    found.map(Some).map_err(|error| failed(format!("cannot measure memory: {error}")))
}

/// A prompt whose first token differed the second time.
struct Suspect {
    shape: usize,
    prompt: Vec<u32>,
    first: Option<u32>,
    other: Option<u32>,
}

/// Measures on a running service.
struct TableBench<'a> {
    plan: &'a TablePlan,
    shapes: &'a [Shape],
    model: &'a Model,
    /// Margin below which a difference is a near-tie.
    bound: f32,
    client: InferenceClient<Channel>,
    suspects: Vec<Suspect>,
}

impl TableBench<'_> {
    /// The first and the last shape once, untimed, because the first steps of a process are slow in
    /// many ways. Shows how long a run may take.
    async fn warm_up(&mut self, screen: &mut Screen) -> Result<(), Failure> {
        // A run number of its own, so that its prompts are never used again.
        let run = self.plan.runs;
        let clock = Clock::start();
        let (Some(first), Some(last)) = (self.shapes.first().copied(), self.shapes.last().copied())
        else {
            return Ok(());
        };
        self.shape(run, 0, &first).await?;
        self.shape(run, self.shapes.len() - 1, &last).await?;
        self.suspects.clear();
        let (count, runs) = (self.shapes.len(), self.plan.runs);
        let seconds = clock.now().0 as f64 / 1e3;
        screen.note(&format!(
            "{count} shapes in each of {runs} runs; the first and the last took {}",
            duration(seconds)
        ));
        Ok(())
    }

    /// A measurement of a shape.
    async fn shape(&mut self, run: usize, at: usize, shape: &Shape) -> Result<ShapeRun, Failure> {
        let one = |index| {
            prompt(
                PromptPlace { run, shape: at, prompt: index },
                shape.prompt_tokens,
                self.model.vocab,
            )
        };
        let prompts: Vec<Vec<u32>> = (0..shape.prompts()).map(one).collect();
        let read = TableWorkload {
            prompts: &prompts,
            streams: shape.streams,
            max_tokens: 1,
            margins: false,
        };
        let generate = TableWorkload {
            prompts: &prompts[..shape.streams],
            max_tokens: self.plan.max_tokens,
            ..read
        };
        let read = read.send(&self.client).await?;
        let (generated, _) = generate.send(&self.client).await?;
        for (prompt, (first, other)) in prompts.iter().zip(read.0.iter().zip(&generated)) {
            let [first, other] = [first, other].map(|answer| answer.token_ids.first().copied());
            if first != other && self.suspects.len() < MAX_JUDGED {
                self.suspects.push(Suspect { shape: at, prompt: prompt.clone(), first, other });
            }
        }
        Ok(ShapeRun::of(shape, &read, &generated))
    }

    /// The result of the comparison. Each difference is judged by the margin of one more answer.
    async fn weighed(self) -> Result<TableComparison, Failure> {
        let prompts = self.plan.runs * self.shapes.iter().map(|shape| shape.streams).sum::<usize>();
        let bound = self.bound;
        let mut same = TableComparison { prompts, bound, ..TableComparison::default() };
        for Suspect { shape, prompt, first, other } in self.suspects {
            let prompts = [prompt];
            let load =
                TableWorkload { prompts: &prompts, streams: 1, max_tokens: 1, margins: true };
            let (answers, _) = load.send(&self.client).await?;
            let Some(again) = answers.first() else { continue };
            let difference =
                weigh(first.as_slice(), other.as_slice(), &again.token_ids, &again.margins);
            match difference.near_tie(bound) {
                true => same.near_ties += 1,
                false => same.differences.push(Different { shape: self.shapes[shape], difference }),
            }
        }
        Ok(same)
    }
}
