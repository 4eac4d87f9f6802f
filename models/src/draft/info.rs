//! The description of a drafter: what it reads and what it proposes.

use std::path::{Path, PathBuf};

use paceline_vocabulary::TensorType;
use paceline_vocabulary::link::{ProposalKind, Welcome};

use crate::load::{LoadError, token_digest};

/// Properties and inputs of a loaded drafter.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftInfo {
    /// Directory of the drafter.
    pub path: PathBuf,
    /// Kind of the drafter, such as `dflash`.
    pub kind: String,
    /// Form of the proposals.
    pub proposal: ProposalKind,
    /// Hidden size of its target: the width of one layer's hidden states, of embeddings, and of
    /// proposed hidden rows. Of a drafter that has to do with none of them its own hidden size.
    pub hidden: i32,
    /// Most rows of a block, the bonus token's included; it proposes one token less.
    pub block: i32,
    /// Target layers whose hidden states are its context, in the order in which they are
    /// concatenated. Empty if it reads token ids alone.
    pub feature_layers: Vec<usize>,
    /// Whether it reads the token ids of its context.
    pub token_ids: bool,
    /// Whether it reads embeddings: those of bonus tokens, and of the mask token if it names one.
    pub embeddings: bool,
    /// Token whose embedding fills the rows of a block after the bonus token's.
    pub mask_id: Option<u32>,
    /// Layers of the target it was trained for, if its config names them.
    pub target_layers: Option<usize>,
    /// Vocabulary of its target, if its config names it; without the padding rows that a target may
    /// have. A drafter that proposes token ids names the ids below this number and no others.
    pub vocab: Option<i32>,
    /// Most positions it was made for.
    pub context: i32,
    /// c if the target's head should give c·tanh(logits / c).
    pub logit_softcap: Option<f32>,
    /// Whether it drafts for requests with images.
    pub images: bool,
    /// Bytes of its tensors on disk, with those of the target's parts that it computes with.
    pub weight_bytes: u64,
}

impl DraftInfo {
    /// A drafter of this kind in `dir` that reads token ids and proposes them. Its kind sets the sizes,
    /// and what differs.
    pub(super) fn of_tokens(kind: &str, dir: &Path, weight_bytes: u64) -> Self {
        Self {
            path: dir.to_path_buf(),
            kind: kind.to_owned(),
            proposal: ProposalKind::Tokens,
            hidden: 0,
            block: 0,
            feature_layers: vec![],
            token_ids: true,
            embeddings: false,
            mask_id: None,
            target_layers: None,
            vocab: None,
            context: 0,
            logit_softcap: None,
            images: true,
            weight_bytes,
        }
    }

    /// Describes the drafter to a target: the answer to its Hello, without a generation. `version`
    /// is that of the link, `element` the type of the rows that it sends.
    ///
    /// # Errors
    /// Its tokenizer.json is there and cannot be read.
    pub fn welcome(
        &self,
        version: u32,
        element: TensorType,
        fingerprint: String,
    ) -> Result<Welcome, LoadError> {
        Ok(Welcome {
            version,
            generation: 0,
            kind: self.kind.clone(),
            fingerprint,
            proposal: self.proposal,
            hidden_size: self.hidden as u32,
            vocab_size: self.vocab.map(|rows| rows as u32),
            target_layers: self.target_layers.map(|layers| layers as u32),
            feature_layers: self.feature_layers.iter().map(|layer| *layer as u32).collect(),
            block_size: self.block as u32,
            embeddings: self.embeddings,
            token_ids: self.token_ids,
            reads_at_once: false,
            mask_id: self.mask_id.filter(|_| self.embeddings),
            element,
            token_digest: token_digest(&self.path)?,
            logit_softcap: self.logit_softcap,
            context_length: Some(self.context as u32),
        })
    }

    /// Width of a context row: the hidden states of all feature layers.
    pub fn feature_width(&self) -> i32 {
        self.feature_layers.len() as i32 * self.hidden
    }

    /// Rows of embeddings that a block of `rows` needs.
    pub fn embedding_rows(&self, rows: i32) -> i32 {
        match (self.embeddings, self.mask_id) {
            (true, Some(_)) => rows,
            (true, None) => rows.min(1),
            (false, _) => 0,
        }
    }
}
