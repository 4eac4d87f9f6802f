//! Prompt lookup as a drafter: the texts of the sessions, searched by `paceline_drafter_core`. It
//! has no weights and touches no device, so it starts at once.

use std::collections::HashMap;

use paceline_drafter_core::lookup::{LONGEST_PROPOSAL, LookupProposal, LookupSession};
use paceline_drafter_core::{SessionWork, Step, StoreCommand};
use paceline_link::handshake;
use paceline_models::ModelError;
use paceline_process::config::LOOKUP;
use paceline_vocabulary::TensorType;
use paceline_vocabulary::link::{DraftTokens, ProposalKind, Welcome};
use paceline_vocabulary::report::{DrafterInfo, MemoryUse};

use crate::proposer::{Proposed, Proposer};

/// The texts of all sessions, by slot.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    pub(crate) sessions: HashMap<u64, LookupSession>,
}

impl Lookup {
    /// Describes it to a target: it goes with any.
    pub(crate) fn welcome() -> Welcome {
        Welcome {
            version: handshake::VERSION,
            generation: 0,
            kind: LOOKUP.to_owned(),
            fingerprint: LOOKUP.to_owned(),
            proposal: ProposalKind::Tokens,
            hidden_size: 0,
            vocab_size: None,
            target_layers: None,
            feature_layers: vec![],
            token_ids: true,
            reads_at_once: true,
            block_size: LONGEST_PROPOSAL + 1,
            embeddings: false,
            mask_id: None,
            element: TensorType::F32,
            token_digest: String::new(),
            logit_softcap: None,
            context_length: None,
        }
    }

    /// Describes it to the supervisor.
    pub(crate) fn about() -> DrafterInfo {
        DrafterInfo {
            name: LOOKUP.to_owned(),
            path: LOOKUP.to_owned(),
            kind: LOOKUP.to_owned(),
            weight_bytes: 0,
            block_size: LONGEST_PROPOSAL + 1,
            images: true,
        }
    }

    /// Reads a session's new tokens.
    pub(crate) fn read(&mut self, work: &SessionWork) -> &LookupSession {
        let new = || LookupSession::new(work.position);
        let text = self.sessions.entry(work.slot).or_insert_with(new);
        text.append(work.position, &work.ids);
        let next = work.block.as_ref().map(|block| block.bonus_id).or(work.next_id);
        text.append(work.end(), next.as_slice());
        text
    }

    /// Reads a session's new tokens, and drafts its block.
    fn serve(&mut self, work: &SessionWork) -> Option<DraftTokens> {
        let text = self.read(work);
        let block = work.block.as_ref()?;
        let proposal = text.propose(block.rows - 1, block.least_survival);
        Some(draft_of(work, proposal, text.proposes_from()))
    }
}

/// A proposal as the draft of this work's block.
pub(crate) fn draft_of(work: &SessionWork, proposal: LookupProposal, from: u32) -> DraftTokens {
    let LookupProposal { ids, logprobs } = proposal;
    let (session, position) = (work.session, work.end());
    DraftTokens { session, position, ids, logprobs, drafts_from: from }
}

impl Proposer for Lookup {
    /// Nothing is retained.
    fn row_bytes(&self) -> u64 {
        0
    }

    fn end_bytes(&self) -> u64 {
        0
    }

    fn store_bytes(&self) -> u64 {
        self.sessions.values().map(LookupSession::bytes).sum()
    }

    fn memory(&self) -> MemoryUse {
        MemoryUse::default()
    }

    fn perform(&mut self, commands: &[StoreCommand]) -> Result<(), ModelError> {
        for one in commands {
            match one {
                StoreCommand::Free { slot } => drop(self.sessions.remove(slot)),
                StoreCommand::Evict { .. } => {}
                StoreCommand::Retain { .. } | StoreCommand::Restore { .. } => {
                    return Err(ModelError::Batch("prompt lookup retains no context".into()));
                }
            }
        }
        Ok(())
    }

    fn propose(
        &mut self,
        step: &mut Step,
        _: TensorType,
        _: &[u8],
    ) -> Result<Option<Proposed>, ModelError> {
        let drafts = step.sessions.iter().filter_map(|work| self.serve(work)).collect();
        for read in &mut step.progress {
            let work = step.sessions.iter().find(|work| work.session == read.session);
            let text = work.and_then(|work| self.sessions.get(&work.slot));
            read.drafts_from = text.map_or(0, LookupSession::proposes_from);
        }
        Ok(Some(Proposed::Tokens(drafts)))
    }

    fn settle(&self) -> Result<(), ModelError> {
        Ok(())
    }

    fn clear(&mut self) -> Result<(), ModelError> {
        self.sessions.clear();
        Ok(())
    }

    fn drop_cache(&self) {}
}
