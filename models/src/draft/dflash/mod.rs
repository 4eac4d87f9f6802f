//! DFlash drafter: fills a block of masked positions in one forward (arXiv 2602.06036) and proposes
//! the hidden rows. The arithmetic is in [`super::block_diffusion`].

mod config;

use std::path::Path;

use paceline_vocabulary::link::ProposalKind;

use super::block_diffusion::{Backbone, Config, Layer, commit_context};
use super::{
    Borrows, DraftBatch, DraftFacts, DraftInfo, Drafter, DrafterFiles, Kind, Proposal, all_tensors,
};
use crate::error::Result;
use crate::kv::KvStore;
use crate::load::{CheckpointError, LoadError, Weights};

/// Refuses a checkpoint with tensors of a related kind.
fn check_tensors(weights: &Weights<'_>) -> Result<(), LoadError> {
    for foreign in [
        "layers.0.attention_conv.base_kernel",
        "candidate_selector.predecessor_codebook",
        "candidate_selector.predecessor_codebook.weight",
        "markov_head.markov_w1.weight",
        "layers.0.self_attn.sinks",
    ] {
        if weights.has(foreign) {
            let what = format!(
                "the checkpoint has tensor {foreign}: not plain DFlash, which its config.json \
                 names; use the config.json that it was published with"
            );
            return Err(LoadError::from(CheckpointError::Config {
                key: "architectures".into(),
                what,
            }));
        }
    }
    Ok(())
}

/// How DFlash drafters are recognized and loaded.
pub(super) const KIND: Kind = Kind {
    name: "dflash",
    is_config_of: config::is_dflash,
    info: |config, dir, weight_bytes| Ok(info(&config::read(config)?, dir, weight_bytes)),
    of_target: None,
    own_tensors: all_tensors,
    borrows: |_| Borrows::Nothing,
    floats: &[],
    load: |files| Ok(Box::new(Dflash::load(files)?)),
};

/// Inputs and proposals of a drafter with this config.
fn info(sizes: &Config, dir: &Path, weight_bytes: u64) -> DraftInfo {
    let proposal = ProposalKind::Hidden;
    DraftInfo {
        logit_softcap: sizes.logit_softcap,
        ..sizes.info(KIND.name, proposal, dir, weight_bytes)
    }
}

/// A loaded DFlash drafter.
pub(super) struct Dflash {
    backbone: Backbone<Layer>,
}

impl Dflash {
    fn load(files: DrafterFiles<'_>) -> Result<Self, LoadError> {
        let DrafterFiles { dir, config, weights, weight_bytes, quantize, .. } = files;
        let sizes = config::read(config)?;
        let info = info(&sizes, dir, weight_bytes);
        let bits = quantize.bits();
        let mut weights = weights.with_prefix_of("model.", "fc.weight");
        check_tensors(&weights)?;
        let layer = |weights: &mut Weights, name: &str, rule| {
            Layer::load(weights, name, &sizes, rule, bits)
        };
        let backbone = Backbone::load(&mut weights, config, info, sizes.clone(), bits, layer)?;
        weights.finish()?;
        Ok(Self { backbone })
    }
}

impl Drafter for Dflash {
    fn facts(&self) -> &DraftFacts {
        &self.backbone.facts
    }

    fn propose(&self, batch: &DraftBatch, kv: &mut KvStore) -> Result<Option<Proposal>> {
        batch.check(self.info())?;
        let hidden = self.backbone.forward(batch, kv)?;
        commit_context(batch, kv)?;
        Ok(hidden.map(Proposal::Hidden))
    }
}
