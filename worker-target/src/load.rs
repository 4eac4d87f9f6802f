//! Loading: weights, KV budget, vision tower, drafting, and the engine made of them.

use std::sync::OnceLock;

use paceline_checkpoint::files::TOKENIZER;
use paceline_checkpoint::plan::{DoesNotFit, Fit, KV_SHARE};
use paceline_models::exact_lanes::{logit_unit, needs_exact_lanes, set_exact_lanes};
use paceline_models::load::token_digest;
use paceline_models::{
    DeviceChoice, DeviceError, Dtype, KvStore, LoadError, LoadOptions, ModelError, ProductsError,
    Target, TargetInfo, device, draft, load_target_with, plan_target, products,
};
use paceline_process::config::{Auto, Config, ConfigError, Device, DrafterFiles, ExactLanes};
use paceline_process::worker::WorkerContext;
use paceline_system::clock::unix_seconds;
use paceline_system::platform;
use paceline_target_core::{ClassBytes, Ledger, Scheduler, Tower, TowerInfo};
use paceline_vocabulary::TensorType;
use paceline_vocabulary::link::Hello;
use paceline_vocabulary::report::KvClass;

use crate::cost_file::CostFile;
use crate::drafting::Drafting;
use crate::engine::{Engine, EngineParts, LaneForm, WiredState};
use crate::grammar::Grammars;
use crate::loaded_model::LoadedModel;
use crate::page_store::PageStore;

/// Share of the memory that is free after loading which MLX may fill: the machine should not swap
/// for a step's intermediate results.
const MLX_SHARE: f64 = 0.9;
/// Rows that the vision tower computes for each row of an image in the prompt: its embedding, and
/// three that are added after layers.
const FEATURE_ROWS: u64 = 4;
/// Most bytes of features that are retained for later requests.
const RETAINED_FEATURES_BYTES: u64 = 64 << 20;
/// Most of the KV budget that they may take: one part of this many.
const RETAINED_FEATURES_SHARE: u64 = 8;

/// Why a target cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Products(#[from] ProductsError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Model(#[from] LoadError),
    #[error(transparent)]
    TooLarge(DoesNotFit),
    #[error(transparent)]
    TooLargeForEver(DoesNotFit),
    #[error("cannot make the KV store")]
    Store(#[source] ModelError),
    #[error("cannot tell how much memory is free; set kv.budget_bytes")]
    FreeMemory,
    #[error(
        "kv.budget_bytes is {budget}, the shortest sequence of this model holds {needed} bytes"
    )]
    Budget { budget: u64, needed: u64 },
}

impl StartError {
    /// Whether each load of the same files ends the same.
    pub(crate) fn is_lasting(&self) -> bool {
        matches!(self, Self::TooLargeForEver(_) | Self::Products(_))
            || matches!(self, Self::Model(error) if error.is_lasting())
    }
}

/// Loads the target and makes the engine, with `kv_percent` of the KV budget. Sets `known` once the
/// weights are there.
///
/// # Errors
/// See [`StartError`].
pub(crate) fn load(
    context: &WorkerContext,
    kv_percent: u8,
    known: &OnceLock<LoadedModel>,
) -> Result<Engine, StartError> {
    let WorkerContext { config, progress, pulse, clock, .. } = context;
    let model = load_weights(context)?;
    let info = model.info();
    let kv = kv_store(model.as_ref()).map_err(StartError::Store)?;
    let usable = platform::available_memory().map(device::usable_memory);
    let whole_budget = kv_budget(config, usable)?;
    if let Some(usable) = usable {
        device::limit_memory(device::memory().0 + (usable as f64 * MLX_SHARE) as u64);
    }
    let drafting = drafting(config, model.as_ref());
    let classes = classes(&kv, &drafting);
    let needed = classes[0].kv;
    if needed > whole_budget {
        return Err(StartError::Budget { budget: whole_budget, needed });
    }
    let budget = reduced_budget(whole_budget, kv_percent, needed);
    progress.set_loaded_at(unix_seconds());
    tracing::info!(
        weight_bytes = info.weight_bytes,
        kv_budget_bytes = budget,
        kv_percent,
        context = info.context,
        products = %info.products,
        "loaded"
    );
    let tower = tower(model.as_ref(), budget);
    known
        .set(loaded_model(context, model.as_ref(), &classes, &tower))
        .expect("a worker loads once");
    let pages = PageStore::new(&kv, config.kv.prefix_cache);
    let cost_file = CostFile::of(&config.target, info);
    let (growth_row, growth_least) = kv.growth_bytes();
    let ledger = Ledger::new(budget, classes)
        .with_tape_row_bytes(kv.tape_row_bytes())
        .with_growth_bytes(growth_row, growth_least);
    let scheduler = Scheduler::new(ledger, config.target.max_sequences as usize)
        .with_longest_chunk_ms(config.target.prompt_chunk_ms)
        .with_most_rows(kv.most_rows().map(|rows| rows as usize));
    let scheduler = scheduler.with_tower(Tower::new(tower));
    let keeps_states = config.kv.prefix_cache && kv.kept_bytes() > 0;
    let scheduler = if keeps_states { scheduler.with_snapshots() } else { scheduler };
    Ok(Engine::new(EngineParts {
        model,
        kv,
        scheduler,
        drafting,
        pages,
        cost_file,
        wired: WiredState::new(config.target.wired, device::wire),
        lanes: lane_form(config),
        progress: progress.clone(),
        pulse: pulse.clone(),
        clock: *clock,
    }))
}

/// The store of a model, empty.
fn kv_store(model: &dyn Target) -> Result<KvStore, ModelError> {
    let (layers, context) = (model.kv_layers(), model.info().context);
    KvStore::with_most_rows(&layers, model.dtype(), context, model.most_rows())
}

/// Description of the model for the other threads.
fn loaded_model(
    context: &WorkerContext,
    model: &dyn Target,
    classes: &[ClassBytes],
    tower: &TowerInfo,
) -> LoadedModel {
    let WorkerContext { config, progress, .. } = context;
    let info = model.info();
    let tokenizer = info.path.join(TOKENIZER);
    let grammars = Grammars::new(tokenizer, info.vocab as usize, progress.clone());
    if let Err(error) = grammars.read_vocabulary() {
        tracing::warn!(%error, "the first grammar waits until the vocabulary is read");
    }
    let bytes = |class: &ClassBytes| KvClass { positions: class.positions as u32, bytes: class.kv };
    LoadedModel {
        info: info.clone(),
        vision: model.vision().map(|vision| vision.info().clone()),
        logit_unit: logit_unit(model.dtype()),
        patch_bytes: tower.feature_bytes + tower.pixel_bytes,
        name: config.model_name(),
        kv_classes: classes.iter().map(bytes).collect(),
        max_sequences: config.target.max_sequences as usize,
        grammars,
    }
}

fn load_weights(context: &WorkerContext) -> Result<Box<dyn Target>, StartError> {
    let WorkerContext { config, progress, .. } = context;
    let on_gpu = device::choose(device_choice(config))?;
    products::choose(config.products_choice())?;
    set_exact_lanes(on_gpu && lane_form(config) == LaneForm::Exact);
    // Without a bound MLX retains most of the machine's memory.
    device::limit_cache(device::cache_bytes());
    let dir = config.model_dir()?;
    tracing::info!(model = %dir.display(), on_gpu, "loading");
    let options = load_options(config);
    // Refused now and not in the middle of a load, which would take other programs' memory first.
    let plan = plan_target(&dir, options)?;
    for note in &plan.notes {
        tracing::warn!(note, "checkpoint");
    }
    let fit =
        |bytes: Option<u64>| Fit::new(&plan, config.kv_memory(), bytes.map(device::usable_memory));
    fit(platform::machine_memory()).check().map_err(StartError::TooLargeForEver)?;
    fit(platform::available_memory()).check().map_err(StartError::TooLarge)?;
    Ok(load_target_with(&dir, options, &mut |read, total| progress.set_load(read, total))?)
}

/// Whether this GPU's lanes are exact by the configuration.
fn lane_form(config: &Config) -> LaneForm {
    let has_drafter = !config.drafter_choices().is_empty();
    exact_lanes_of(config.target.exact_lanes, needs_exact_lanes(), has_drafter)
}

/// Whether lanes are exact on a GPU that needs that or not, while a drafter is configured or not.
fn exact_lanes_of(setting: ExactLanes, needs: bool, has_drafter: bool) -> LaneForm {
    match setting {
        ExactLanes::On => LaneForm::Exact,
        ExactLanes::Auto if needs && has_drafter => LaneForm::Exact,
        ExactLanes::Auto if needs => LaneForm::ExactOnceLinked,
        ExactLanes::Auto | ExactLanes::Off => LaneForm::Fast,
    }
}

/// The device that the configuration names.
pub(crate) fn device_choice(config: &Config) -> DeviceChoice {
    match config.target.device {
        Device::Auto => DeviceChoice::Auto,
        Device::Cpu => DeviceChoice::Cpu,
        Device::Gpu => DeviceChoice::Gpu,
    }
}

/// How the configuration has weights loaded.
pub(crate) fn load_options(config: &Config) -> LoadOptions {
    LoadOptions { keep_quantized: config.target.keep_quantized, vision: config.target.vision }
}

/// Bytes for the KV: as configured, or a share of the memory that is free after loading.
fn kv_budget(config: &Config, usable: Option<u64>) -> Result<u64, StartError> {
    match config.kv.budget_bytes {
        Auto::Is(bytes) => {
            if let Some(usable) = usable.filter(|usable| bytes > *usable) {
                tracing::warn!(
                    kv_budget_bytes = bytes,
                    usable_bytes = usable,
                    "kv.budget_bytes is more than this machine has left"
                );
            }
            Ok(bytes)
        }
        Auto::Auto => {
            let usable = usable.ok_or(StartError::FreeMemory)?;
            Ok((usable as f64 * config.kv.budget_fraction.or(KV_SHARE)) as u64)
        }
    }
}

/// `percent` of a KV budget, but room for one sequence, whose shortest takes `needed` bytes: a model
/// that can be served with the whole budget is served with a part of it.
fn reduced_budget(whole: u64, percent: u8, needed: u64) -> u64 {
    let part = u128::from(whole) * u128::from(percent) / 100;
    u64::try_from(part).unwrap_or(whole).max(needed).min(whole)
}

/// Bytes of a sequence by its length: its KV, and hidden states for a drafter.
fn classes(kv: &KvStore, drafting: &Drafting) -> Vec<ClassBytes> {
    let class = |(positions, kv): (i32, u64)| {
        let positions = positions as usize;
        ClassBytes { positions, kv, hidden: drafting.window_bytes(positions) }
    };
    kv.class_bytes().into_iter().map(class).collect()
}

/// The figures of the vision tower that the core needs; all 0 without one.
fn tower(model: &dyn Target, budget: u64) -> TowerInfo {
    let Some(vision) = model.vision() else { return TowerInfo::default() };
    let info = vision.info();
    let number_bytes = if model.dtype() == Dtype::Float32 { 4 } else { 2 };
    let row_bytes = FEATURE_ROWS * model.info().hidden as u64 * number_bytes;
    TowerInfo {
        blocks: info.blocks,
        whole: info.whole,
        feature_bytes: row_bytes.div_ceil(u64::from(info.merge).pow(2)),
        pixel_bytes: u64::from(info.patch).pow(2) * 3,
        keep_bytes: RETAINED_FEATURES_BYTES.min(budget / RETAINED_FEATURES_SHARE),
    }
}

/// The target's end of the link. If a drafter is configured, hidden states are kept from the first
/// token on. The drafter can then start in the middle of a stream.
fn drafting(config: &Config, model: &dyn Target) -> Drafting {
    let info: &TargetInfo = model.info();
    let hello = Hello {
        version: paceline_link::handshake::VERSION,
        generation: 0,
        hidden_size: info.hidden as u32,
        vocab_size: info.vocab as u32,
        n_layers: info.n_layers as u32,
        element: match model.dtype() {
            Dtype::Float16 => TensorType::F16,
            Dtype::Bfloat16 => TensorType::Bf16,
            _ => TensorType::F32,
        },
        token_digest: token_digest(&info.path).unwrap_or_default(),
        context_length: info.context as u32,
        max_sessions: config.target.max_sequences,
    };
    let feature_layers = feature_layers(config, info);
    Drafting::new(hello, feature_layers, config.kv.hidden_window as usize)
}

/// The layers whose hidden states the first drafter of `drafter.model` reads that may fit a target
/// of this description. If another drafter is linked, the target follows the layers of that one.
fn feature_layers(config: &Config, info: &TargetInfo) -> Vec<usize> {
    for choice in config.drafter_choices() {
        let DrafterFiles { dir, kind, .. } = match config.drafter_files(&choice) {
            Ok(Some(files)) => files,
            Ok(None) => return vec![],
            // Its worker reports the same error.
            Err(_) => continue,
        };
        match draft::feature_layers(&dir, &kind, Some(&info.path)) {
            Ok(layers) if layers.iter().all(|layer| *layer < info.n_layers) => return layers,
            // Its handshake is refused with the reason.
            Ok(_) => {}
            // The drafter's own worker reports the same error to its supervisor.
            Err(error) => {
                let error = paceline_vocabulary::chain(&error);
                tracing::warn!(error, drafter = %dir.display(), "cannot read the drafter's layers");
            }
        }
    }
    vec![]
}

#[cfg(test)]
mod tests {
    use super::reduced_budget;

    #[test]
    fn a_reduced_budget_still_holds_one_sequence() {
        assert_eq!(reduced_budget(1_000, 100, 10), 1_000);
        assert_eq!(reduced_budget(1_000, 80, 10), 800);
        assert_eq!(reduced_budget(1_000, 80, 900), 900);
        assert_eq!(reduced_budget(u64::MAX, 80, 10), u64::MAX / 5 * 4);
    }
}
