//! Drafters: models that propose tokens for a target to check. The registry by `architectures`, and
//! what every kind gives.
//!
//! A drafter here owns no tensor of its target: it is given hidden states of the target (taps) and
//! embeddings, and gives hidden rows for the target's head. Its context lives in a [`KvStore`] of
//! the caller, a sequence a session.

mod config;
mod dflash;

use std::path::{Path, PathBuf};

use mlx_rs::{Array, Dtype};

use crate::device::on_gpu;
use crate::error::{ModelError, Result};
use crate::kv::{KvStore, LayerKv};
use crate::load::{ConfigJson, LoadError, Precision, TensorFiles, Weights};
use crate::segment::SequenceId;

/// How a drafter's weights are kept (`drafter.quantize`). Changes what is proposed, never what a
/// client gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quantize {
    /// As loaded.
    #[default]
    None,
    /// 8 bits an element, groups of 64.
    Q8,
    /// 4 bits an element, groups of 64; the projection of the taps stays at 8.
    Q4,
}

impl Quantize {
    /// Bits an element, if not as loaded.
    fn bits(self) -> Option<i32> {
        match self {
            Self::None => None,
            Self::Q8 => Some(8),
            Self::Q4 => Some(4),
        }
    }
}

/// What is known of a loaded drafter.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftInfo {
    /// Its directory.
    pub path: PathBuf,
    /// Its kind: "dflash".
    pub architecture: String,
    /// Width of its hidden states, of the embeddings it is given and of one tap: the target's.
    pub hidden: i32,
    /// Most rows of a block, the bonus token's included; it proposes one token less.
    pub block: i32,
    /// Target layers whose outputs are its context, in the order in which they are concatenated.
    pub tap_layers: Vec<usize>,
    /// Token whose embedding stands in a block's rows behind the first.
    pub mask_id: u32,
    /// Layers of the target it was trained for, where its config says.
    pub target_layers: Option<usize>,
    /// Vocabulary of its target, where its config says; without the padding rows a target may have.
    pub vocab: Option<i32>,
    /// Most positions it was made for.
    pub context: i32,
    /// c where the target's head should give c·tanh(logits / c).
    pub logit_softcap: Option<f32>,
    /// Whether it drafts for requests with images: `dflash_config.serves_images` of its config,
    /// `true` by default.
    pub images: bool,
    /// Bytes of its tensors on disk.
    pub weight_bytes: u64,
}

/// One session's rows in a forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftPart {
    /// Whose rows.
    pub sequence: SequenceId,
    /// Absolute position (the target's) of the first context row, or of the block's first row where
    /// `context` is 0. A session may begin anywhere: the store counts its rows from 0, rotary
    /// embedding uses this number.
    pub position: i32,
    /// Newly committed positions to read in; they follow those read in before without a gap.
    pub context: i32,
    /// Rows of the block behind them: 0 only reads, else 2 to [`DraftInfo::block`].
    pub block: i32,
}

/// One forward's input. Parts in the order of [`KvStore::order`] need the fewest products.
#[derive(Clone, Debug, Default)]
pub struct DraftBatch {
    /// The sessions, each at most once.
    pub parts: Vec<DraftPart>,
    /// `[sum of context, taps · hidden]`, part by part; `None` where no part has context.
    pub taps: Option<Array>,
    /// `[sum of block, hidden]`, the target's embeddings of bonus, mask, mask…, part by part;
    /// `None` where no part has a block.
    pub embeddings: Option<Array>,
}

impl DraftBatch {
    /// Checks that the parts agree with each other and with the drafter.
    fn check(&self, info: &DraftInfo) -> Result<()> {
        let bad = |what: String| Err(ModelError::Batch(what));
        let (mut context, mut block) = (0i64, 0i64);
        for (at, part) in self.parts.iter().enumerate() {
            if part.position < 0 || part.context < 0 || (part.context == 0 && part.block == 0) {
                return bad(format!("part {at}: expected rows from a position of at least 0"));
            }
            if part.block != 0 && !(2..=info.block).contains(&part.block) {
                return bad(format!(
                    "part {at}: expected a block of 0 or 2 to {} rows, found {}",
                    info.block, part.block
                ));
            }
            if self.parts[..at].iter().any(|other| other.sequence == part.sequence) {
                return bad(format!("part {at}: its sequence is in the batch already"));
            }
            context += i64::from(part.context);
            block += i64::from(part.block);
        }
        let width = info.tap_layers.len() as i32 * info.hidden;
        for (name, array, rows, width) in [
            ("taps", &self.taps, context, width),
            ("embeddings", &self.embeddings, block, info.hidden),
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

/// A model that proposes. One set of weights, any number of sessions.
pub trait Draft {
    /// What is known of it.
    fn info(&self) -> &DraftInfo;

    /// What its layers remember, for [`KvStore::new`]; the store needs room for a session's context
    /// and one block.
    fn kv_layers(&self) -> Vec<LayerKv>;

    /// In which type it computes; what it is given is converted.
    fn dtype(&self) -> Dtype;

    /// Reads context in and fills blocks. → hidden states behind the final norm of every block's
    /// rows 1…, `[sum of (block − 1), hidden]`; `None` if no part has a block.
    ///
    /// The context rows are committed to `kv` here ([`KvStore::commit`]), the block's rows are
    /// dropped. Lazy: where nothing comes out that the caller evaluates, [`KvStore::evaluate`] does
    /// the work.
    ///
    /// # Errors
    /// A batch that contradicts itself or the drafter, a session longer than the store's longest;
    /// MLX's own. The store is then as before, but for rows behind the committed ones.
    fn forward(&self, batch: &DraftBatch, kv: &mut KvStore) -> Result<Option<Array>>;
}

/// Loads the drafter in `dir`. `progress` is called with (bytes read, bytes in all).
///
/// On the CPU weights become float32, and quantized ones are expanded again after rounding: MLX's
/// quantized product is slow there. `quantize` then saves no memory; it shows what a GPU's drafter
/// would propose.
///
/// # Errors
/// Broken or foreign files, kinds other than DFlash; see [`LoadError`].
pub fn load_draft(
    dir: &Path,
    quantize: Quantize,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Box<dyn Draft>, LoadError> {
    let config = ConfigJson::read(dir)?;
    let sizes = config::Config::read(&config)?;
    let checkpoint = TensorFiles::open(dir)?;
    let weight_bytes = checkpoint.total_bytes();
    let precision = if on_gpu() { Precision::AsStored } else { Precision::Float32 };
    progress(0, weight_bytes);
    let mut report = |read| progress(read, weight_bytes);
    let weights = Weights::new(checkpoint, precision, &mut report);
    Ok(Box::new(dflash::Dflash::load(dir, &config, sizes, weights, weight_bytes, quantize)?))
}

/// Which target layers the drafter in `dir` taps, from its config.json alone: the target needs it
/// before the drafter runs.
///
/// # Errors
/// As [`load_draft`] for what concerns the config.
pub fn tap_layers(dir: &Path) -> Result<Vec<usize>, LoadError> {
    Ok(config::Config::read(&ConfigJson::read(dir)?)?.tap_layers)
}
