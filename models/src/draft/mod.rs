//! Drafters: models that propose tokens for a target to check.
//!
//! A drafter shares no tensor with its target's process. It reads hidden states of the target and,
//! if it needs them, embeddings; it proposes hidden rows for the target's output head, or token
//! ids. Its context lives in a [`KvStore`] of the caller, one sequence for each session.
//!
//! # What a new kind needs
//!
//! - `models/src/draft/<kind>.rs`: its config, weights and forward, and `impl Drafter` for it. Its
//!   [`DraftInfo`] declares what it reads and what it proposes: the worker, the handshake and the
//!   target take these from there.
//! - [`KINDS`] below: its name, how its config.json is recognized, how it is loaded.
//! - `settings/src/words.rs`: its name in `DRAFTER_KINDS`.
//! - `models/tests/`: parity with its reference implementation, with golden files.
//!
//! Token ids need nothing else: sampling, seed and bonus token of each sequence are in
//! [`BlockRequest`], ids and log probabilities cross the link, and the target verifies ids. A kind
//! that reads one token and one hidden state a row implements `NextTokenModel` (`next_token.rs`). A
//! kind that computes with parts of its target declares them, and gets them loaded from the
//! target's checkpoint (`borrowed.rs`). A kind whose feature layers depend on its target's
//! config.json names them from there (`of_target`). A kind whose weights lie in a larger
//! checkpoint, such as its target's, names those that are its own (`own_tensors`).

mod assistant;
mod block_diffusion;
mod borrowed;
mod chain;
mod context_rows;
mod dflash;
mod dflash2;
mod dspark;
mod eagle3;
mod info;
mod last_rows;
mod model;
mod mtp;
mod mtp_glm;
mod mtp_head;
mod next_token;
mod options;
mod vocabulary;

use std::path::Path;

use mlx_rs::{Array, Dtype};
use paceline_vocabulary::SamplingRule;

use borrowed::{BorrowedParts, Borrows, FoundParts, TargetEnds};

pub use info::DraftInfo;
pub use options::{DraftOptions, Quantize};

use crate::error::{ModelError, Result};
use crate::families::AssistedTarget;
use crate::kv::{KvStore, LayerKv};
use crate::layers::{Embedding, Linear, NormWeight};
use crate::load::{
    CheckpointError, ConfigJson, LoadError, Packing, StoragePlan, Tensors, WeightForms, Weights,
};
use crate::products::{device_kind, products};
use crate::sample::RowRule;
use crate::sample::noise::NoiseKey;
use crate::segment::SequenceId;
use crate::vision::ImagePlacement;

/// Completes a drafter's description by its target's config.json.
type OfTarget = fn(&mut DraftInfo, &ConfigJson) -> Result<(), LoadError>;

/// A kind of drafter.
struct Kind {
    /// Name of the kind in `drafter.kind`.
    name: &'static str,
    /// Whether a config.json is that of this kind.
    is_config_of: fn(&ConfigJson) -> Result<bool, LoadError>,
    /// Inputs and proposals of a drafter with this config, directory and bytes of weights. Checks
    /// the whole config.
    info: fn(&ConfigJson, &Path, u64) -> Result<DraftInfo, LoadError>,
    /// Adds what its target's config.json decides; `None`: nothing.
    of_target: Option<OfTarget>,
    /// Forgets the tensors of the drafter's directory that are not its own, and tells how its norms
    /// are stored.
    own_tensors: fn(&mut Tensors, &Path) -> Result<NormWeight, LoadError>,
    /// Parts that a drafter with these tensors takes from its target's checkpoint.
    borrows: fn(&Tensors) -> Borrows,
    /// Matrices that [`Quantize`] leaves as floats, by the last parts of their names.
    floats: &'static [&'static str],
    load: fn(DrafterFiles<'_>) -> Result<Box<dyn Drafter>, LoadError>,
}

/// All kinds; the first whose config it is. A checkpoint of no known kind is read as the last one,
/// whose errors name what it expects.
const KINDS: [Kind; 7] = [
    dflash2::KIND,
    dspark::KIND,
    eagle3::KIND,
    assistant::KIND,
    mtp::KIND,
    model::KIND,
    dflash::KIND,
];

/// [`Kind::own_tensors`] of a kind that has its directory for itself.
fn all_tensors(_: &mut Tensors, _: &Path) -> Result<NormWeight, LoadError> {
    Ok(NormWeight::Whole)
}

impl Kind {
    /// The kind with this name, or with `auto` that of the config.
    fn of(config: &ConfigJson, name: &str) -> Result<&'static Kind, LoadError> {
        let named = KINDS.iter().find(|kind| kind.name == name);
        if let (None, true) = (named, name != AUTO) {
            let known: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
            let what = format!("expected {AUTO} or one of {known:?}, found {name}");
            return Err(LoadError::from(CheckpointError::Config {
                key: "drafter.kind".into(),
                what,
            }));
        }
        if let Some(kind) = named {
            return Ok(kind);
        }
        for kind in &KINDS {
            if (kind.is_config_of)(config)? {
                return Ok(kind);
            }
        }
        Ok(&KINDS[KINDS.len() - 1])
    }

    /// Description of a drafter with this config in `dir`, whose target is in the directory
    /// `target`. Checks the whole config.
    ///
    /// # Errors
    /// No target is given to a kind that depends on it, or a config is not served.
    fn describe(
        &self,
        config: &ConfigJson,
        dir: &Path,
        target: Option<&Path>,
    ) -> Result<DraftInfo, LoadError> {
        let mut info = (self.info)(config, dir, 0)?;
        if let Some(of_target) = self.of_target {
            let missing = || {
                let what = format!(
                    "expected the target's directory, found none: a drafter of kind {} reads \
                     layers that the target's config.json decides; set target.model",
                    self.name
                );
                LoadError::from(CheckpointError::Config { key: "target.model".into(), what })
            };
            of_target(&mut info, &ConfigJson::read(target.ok_or_else(missing)?)?)?;
        }
        Ok(info)
    }
}

/// Value of `drafter.kind` with which the checkpoint's config decides.
pub const AUTO: &str = "auto";

/// An opened checkpoint of a drafter.
struct DrafterFiles<'a> {
    dir: &'a Path,
    config: &'a ConfigJson,
    /// Tensors of the drafter's own checkpoint.
    weights: Weights<'a>,
    /// How its norms are stored.
    norms: NormWeight,
    /// With those of the target's parts.
    weight_bytes: u64,
    quantize: Quantize,
    /// The target's embedding, for a kind that borrows it.
    embedding: Option<Embedding>,
    /// The target's output head, `[rows, hidden]` → `[rows, vocab]`, for a kind that borrows it.
    head: Option<Linear>,
    /// Both ends of the target, for a kind that borrows them.
    ends: Option<TargetEnds>,
    /// What computes keys and values of the target, for a kind that borrows it.
    assisted: Option<AssistedTarget>,
}

/// One session's rows in a forward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftPart {
    /// The session's sequence in the store.
    pub sequence: SequenceId,
    /// Absolute position (the target's) of the first context row, or of the block's first row if
    /// `context` is 0. A session may begin anywhere: the store counts its rows from 0, rotary
    /// embedding uses this number.
    pub position: i32,
    /// Newly committed positions to read; they follow those read before without a gap.
    pub context: i32,
    /// The token after the context, if the drafter reads token ids and the token is known. With a
    /// block it is the bonus token.
    pub next_id: Option<u32>,
    /// The block after them; `None` only reads.
    pub block: Option<BlockRequest>,
}

impl DraftPart {
    /// The rule by which the drafts of `block` are chosen: that of the first one, which stands
    /// after the bonus token.
    fn draft_rule(&self, block: &BlockRequest) -> RowRule<'static> {
        RowRule {
            sampling: block.sampling,
            noise: block.noise,
            position: (self.position + self.context + 1) as u32,
            ..RowRule::greedy(&[], 0)
        }
    }

    /// Rows of the block; 0 without one.
    pub fn block_rows(&self) -> i32 {
        self.block.map_or(0, |block| block.rows)
    }
}

/// A block to draft. Noise depends on the absolute position of each token, which the part has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockRequest {
    /// Rows, the bonus token's included: 2 to [`DraftInfo::block`].
    pub rows: i32,
    /// The bonus token.
    pub bonus_id: u32,
    /// How the sequence samples, without its penalties.
    pub sampling: SamplingRule,
    /// The noise with which the target samples the sequence.
    pub noise: NoiseKey,
    /// Survival from which on a draft is worth verifying: the probability, by the drafter's own logits,
    /// that it and all drafts before it are right. A block whose drafts are chosen one after another ends
    /// before the first draft below it. With 0 it never ends early.
    pub least_survival: f32,
}

impl BlockRequest {
    /// A whole block of a greedy sequence; none for no rows.
    pub fn greedy(rows: i32, bonus_id: u32) -> Option<Self> {
        let noise = NoiseKey { seed: 0, sample: 0 };
        let (sampling, least_survival) = (SamplingRule::GREEDY, 0.0);
        (rows != 0).then_some(Self { rows, bonus_id, sampling, noise, least_survival })
    }
}

/// One forward's input. Parts in the order of [`KvStore::order`] need the fewest products.
#[derive(Clone, Debug, Default)]
pub struct DraftBatch {
    /// The sessions, each at most once.
    pub parts: Vec<DraftPart>,
    /// `[sum of context, feature layers · hidden]`, part by part; `None` without context, and for a
    /// drafter without feature layers.
    pub hidden_states: Option<Array>,
    /// Token ids of the context, part by part, if the drafter reads them.
    pub ids: Vec<u32>,
    /// The target's embeddings, part by part: `[sum of DraftInfo::embedding_rows, hidden]`; `None`
    /// without rows.
    pub embeddings: Option<Array>,
    /// Images of sequences that have some, for heads that rotate by three positions and for models
    /// that leave out rows of images. Sequences that are not among them have text alone.
    pub images: Vec<(SequenceId, Vec<ImagePlacement>)>,
}

impl DraftBatch {
    /// The images of a sequence.
    fn images_of(&self, sequence: SequenceId) -> &[ImagePlacement] {
        let of = |(other, _): &&(SequenceId, _)| *other == sequence;
        self.images.iter().find(of).map_or(&[], |(_, images)| images.as_slice())
    }

    /// The parts with a block, and their blocks, for a kind that has a table of token ids.
    ///
    /// # Errors
    /// A bonus token that is not in the vocabulary.
    fn blocks(&self, vocab: i32) -> Result<Vec<(DraftPart, BlockRequest)>> {
        let blocks: Vec<(DraftPart, BlockRequest)> =
            self.parts.iter().filter_map(|part| Some((*part, part.block?))).collect();
        match blocks.iter().find(|(_, block)| block.bonus_id >= vocab as u32) {
            None => Ok(blocks),
            Some((_, block)) => Err(ModelError::Batch(format!(
                "expected bonus tokens below {vocab}, found {}",
                block.bonus_id
            ))),
        }
    }

    /// Checks that the parts agree with each other and with the drafter.
    fn check(&self, info: &DraftInfo) -> Result<()> {
        let bad = |what: String| Err(ModelError::Batch(what));
        let (mut context, mut embedded) = (0i64, 0i64);
        for (at, part) in self.parts.iter().enumerate() {
            if part.position < 0 || part.context < 0 || (part.context == 0 && part.block.is_none())
            {
                return bad(format!("part {at}: expected rows from a position of at least 0"));
            }
            if let Some(block) = part.block.filter(|block| !(2..=info.block).contains(&block.rows))
            {
                return bad(format!(
                    "part {at}: expected no block or one of 2 to {} rows, found {}",
                    info.block, block.rows
                ));
            }
            if self.parts[..at].iter().any(|other| other.sequence == part.sequence) {
                return bad(format!("part {at}: its sequence is in the batch already"));
            }
            context += i64::from(part.context);
            embedded += i64::from(info.embedding_rows(part.block_rows()));
        }
        let ids = if info.token_ids { context } else { 0 };
        if self.ids.len() as i64 != ids {
            return bad(format!("expected {ids} token ids, found {}", self.ids.len()));
        }
        let states = if info.feature_layers.is_empty() { 0 } else { context };
        for (name, array, rows, width) in [
            ("hidden states", &self.hidden_states, states, info.feature_width()),
            ("embeddings", &self.embeddings, embedded, info.hidden),
        ] {
            let found = array.as_ref().map(Array::shape);
            let fits = match found {
                None => rows == 0,
                Some(shape) => rows > 0 && *shape == [rows as i32, width],
            };
            if !fits {
                return bad(format!(
                    "expected {name} of shape [{rows}, {width}], none for no rows; found {found:?}"
                ));
            }
        }
        if self.parts.is_empty() { bad("expected at least one part".into()) } else { Ok(()) }
    }
}

/// The drafts of all parts with a block, in their order.
#[derive(Clone, Debug)]
pub enum Proposal {
    /// Hidden rows after the final norm, `[sum of (block rows − 1), hidden]`.
    Hidden(Array),
    /// Token ids.
    Tokens(Vec<TokenDraft>),
}

/// The draft of one part as token ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenDraft {
    /// At most the block's rows without the bonus token.
    pub ids: Vec<u32>,
    /// Natural logarithm of the drafter's probability of each id; empty if it computes none.
    pub logprobs: Vec<f32>,
}

/// Facts of a loaded drafter beside its weights.
#[derive(Clone, Debug)]
pub struct DraftFacts {
    /// Properties of the drafter.
    pub info: DraftInfo,
    /// Forms of its layers' keys and values.
    pub kv_layers: Vec<LayerKv>,
    /// The type in which it computes.
    pub dtype: Dtype,
}

/// A model that proposes. One set of weights, any number of sessions.
pub trait Drafter {
    /// Facts of the drafter beside its weights.
    fn facts(&self) -> &DraftFacts;

    /// Properties of the drafter.
    fn info(&self) -> &DraftInfo {
        &self.facts().info
    }

    /// Forms of its layers' keys and values, for [`KvStore::new`]; the store needs room for a
    /// session's context and one block.
    fn kv_layers(&self) -> Vec<LayerKv> {
        self.facts().kv_layers.clone()
    }

    /// The type in which it computes; its inputs are converted.
    fn dtype(&self) -> Dtype {
        self.facts().dtype
    }

    /// Rows that the store has of a sequence of which the first `positions` were read. Fewer than
    /// these if the drafter leaves out the rows of `images`.
    fn rows_of(&self, _images: &[ImagePlacement], positions: i32) -> i32 {
        positions
    }

    /// Reads context and drafts blocks; `None` if no part has a block.
    ///
    /// The context rows are committed to `kv` here ([`KvStore::commit`]), the block's rows are
    /// dropped. Lazy: if the caller evaluates none of the result, [`KvStore::evaluate`] does the
    /// work.
    ///
    /// # Errors
    /// A batch that contradicts itself or the drafter, a session longer than the store's longest;
    /// MLX's own. The store is then as before, but for rows after the committed ones.
    fn propose(&self, batch: &DraftBatch, kv: &mut KvStore) -> Result<Option<Proposal>>;
}

/// Loads the drafter in `dir`, of the kind that `kind` names ([`AUTO`]: by its config). `target` is
/// the directory of its target, of which some kinds compute with a part. `progress` is called
/// with (bytes read, bytes in all).
///
/// `options` may be the quantization alone. It is for weights that the checkpoint has as floats,
/// which otherwise become float32 on the CPU; quantized ones stay as they are.
///
/// # Errors
/// Broken or foreign files, an unknown kind, a kind that needs a part of its target without a target
/// that fits; see [`LoadError`].
pub fn load_draft(
    dir: &Path,
    kind: &str,
    target: Option<&Path>,
    options: impl Into<DraftOptions>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Box<dyn Drafter>, LoadError> {
    load_parts(&Sources { dir, kind, target, rehearses: false }, options.into(), progress)
}

/// Where a drafter's parts are.
struct Sources<'a> {
    dir: &'a Path,
    kind: &'a str,
    target: Option<&'a Path>,
    /// All is checked as in a load, and no weight is read: see [`Weights::rehearsing`].
    rehearses: bool,
}

/// As [`load_draft`].
fn load_parts(
    sources: &Sources<'_>,
    options: DraftOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Box<dyn Drafter>, LoadError> {
    let Sources { dir, kind, target, rehearses } = *sources;
    let config = ConfigJson::read(dir)?;
    let kind = Kind::of(&config, kind)?;
    // The config is checked before weights are opened.
    let info = kind.describe(&config, dir, target)?;
    let mut checkpoint = Tensors::open(dir)?;
    let norms = (kind.own_tensors)(&mut checkpoint, dir)?;
    let found = FoundParts::of(kind, &checkpoint, target, &info)?;
    let borrowed_bytes = found.as_ref().map_or(0, FoundParts::bytes);
    let weight_bytes = borrowed_bytes + checkpoint.total_bytes();
    let forms = forms(&config)?;
    progress(0, weight_bytes);
    let mut report_borrowed = |read| progress(read, weight_bytes);
    let load = |found: FoundParts| found.load(options, rehearses, &mut report_borrowed);
    let borrowed = found.map(load).transpose()?.unwrap_or_default();
    let mut report = |read| progress(borrowed_bytes + read, weight_bytes);
    if !rehearses {
        checkpoint.log_notes();
    }
    let weights = Weights::new(checkpoint, forms, &mut report)?;
    let weights = if rehearses { weights.rehearsing() } else { weights };
    let config = &config;
    let quantize = options.quantize;
    let BorrowedParts { embedding, head, ends, assisted } = borrowed;
    (kind.load)(DrafterFiles {
        dir,
        config,
        weights,
        norms,
        weight_bytes,
        quantize,
        embedding,
        head,
        ends,
        assisted,
    })
}

/// Properties of a drafter, and the storage of its weights on this device.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftPlan {
    /// Inputs and proposals of the drafter.
    pub info: DraftInfo,
    /// Storage of its tensors, with those of the target's parts that it computes with.
    pub storage: StoragePlan,
}

/// Plan of the drafter in `dir`: from headers and config.json, no weight is read. `kind`, `target`
/// and `quantize` as in [`load_draft`]. Refuses what a load refuses.
///
/// # Errors
/// As [`load_draft`].
pub fn plan_draft(
    dir: &Path,
    kind: &str,
    target: Option<&Path>,
    quantize: Quantize,
) -> Result<DraftPlan, LoadError> {
    let sources = Sources { dir, kind, target, rehearses: true };
    load_parts(&sources, Quantize::None.into(), &mut |_, _| {})?;
    let config = ConfigJson::read(dir)?;
    let kind = Kind::of(&config, kind)?;
    let mut info = kind.describe(&config, dir, target)?;
    let mut checkpoint = Tensors::open(dir)?;
    (kind.own_tensors)(&mut checkpoint, dir)?;
    info.weight_bytes = checkpoint.total_bytes();
    let packing = |floats| quantize.bits().map(|bits| Packing { bits, floats });
    let packed = packing(kind.floats);
    let mut storage = StoragePlan::of_packed(&checkpoint, &forms(&config)?, packed)?;
    if let Some(parts) = FoundParts::of(kind, &checkpoint, target, &info)? {
        info.weight_bytes += parts.bytes();
        storage = storage.with(parts.storage(packing(&[]))?);
    }
    Ok(DraftPlan { info, storage })
}

/// In which form this device keeps the weights.
fn forms(config: &ConfigJson) -> Result<WeightForms, LoadError> {
    Ok(WeightForms::of(config, device_kind(), true, products())?)
}

/// Target layers whose hidden states the drafter in `dir` reads, from its config.json and that of
/// its target: the target needs them before the drafter runs. `kind` and `target` as in
/// [`load_draft`].
///
/// # Errors
/// As [`load_draft`] for what concerns the config.
pub fn feature_layers(
    dir: &Path,
    kind: &str,
    target: Option<&Path>,
) -> Result<Vec<usize>, LoadError> {
    let config = ConfigJson::read(dir)?;
    Ok(Kind::of(&config, kind)?.describe(&config, dir, target)?.feature_layers)
}
