//! Prompt lookup beside a model, in one process: `drafter.kind = "lookup+eagle3"` and the like. Both
//! read every session, and the core decides which of them drafts a block ([`ModelDrafts`]). Only for
//! models that propose token ids.

use std::collections::HashMap;

use paceline_drafter_core::lookup::{LONGEST_PROPOSAL, LookupSession, ModelDrafts};
use paceline_drafter_core::{Step, StoreCommand};
use paceline_models::ModelError;
use paceline_process::config::WITH_LOOKUP;
use paceline_vocabulary::TensorType;
use paceline_vocabulary::link::{DraftTokens, Welcome};
use paceline_vocabulary::report::{DrafterInfo, MemoryUse};

use crate::lookup::{Lookup, draft_of};
use crate::proposer::{Proposed, Proposer};

/// A model, and the texts of its sessions.
pub(crate) struct WithLookup {
    model: Box<dyn Proposer>,
    /// Rows of the model's longest block.
    model_rows: u32,
    lookup: Lookup,
    /// Record of the model's drafts of each session, by slot.
    drafts: HashMap<u64, ModelDrafts>,
    /// Position of the first token and the ids of each retained context, by the core's number.
    retained: HashMap<u64, (u32, Vec<u32>)>,
}

impl WithLookup {
    pub(crate) fn new(model: Box<dyn Proposer>, model_rows: u32) -> Self {
        let (drafts, retained) = (HashMap::new(), HashMap::new());
        Self { model, model_rows, lookup: Lookup::default(), drafts, retained }
    }

    /// The proposer, described to the supervisor and to a target by what both together are.
    pub(crate) fn described(
        self,
        mut about: DrafterInfo,
        mut welcome: Welcome,
    ) -> (Box<dyn Proposer>, DrafterInfo, Welcome) {
        about.kind.insert_str(0, WITH_LOOKUP);
        about.block_size = about.block_size.max(LONGEST_PROPOSAL + 1);
        welcome.kind = about.kind.clone();
        welcome.fingerprint.insert_str(0, WITH_LOOKUP);
        welcome.block_size = welcome.block_size.max(LONGEST_PROPOSAL + 1);
        (Box::new(self), about, welcome)
    }

    /// Takes the blocks out of a step for which lookup has the better drafts.
    fn look_up(&mut self, step: &mut Step) -> Vec<DraftTokens> {
        let mut own = vec![];
        for work in &mut step.sessions {
            let text = self.lookup.read(work);
            let of_model = self.drafts.entry(work.slot).or_default();
            of_model.compare(text);
            let Some(block) = &mut work.block else { continue };
            let proposal = text.propose(block.rows - 1, block.least_survival);
            if of_model.is_worse_than(&proposal) {
                work.next_id = Some(block.bonus_id);
                work.block = None;
                own.push(draft_of(work, proposal, 0));
            } else {
                block.rows = block.rows.min(self.model_rows);
            }
        }
        own
    }

    fn perform_one(&mut self, command: &StoreCommand) {
        match *command {
            StoreCommand::Free { slot } => drop(self.drafts.remove(&slot)),
            StoreCommand::Evict { context } => drop(self.retained.remove(&context)),
            StoreCommand::Retain { slot, rows, context } => {
                if let Some(text) = self.lookup.sessions.get(&slot) {
                    let (start, ids) = text.beginning(rows);
                    self.retained.insert(context, (start, ids.to_vec()));
                }
            }
            StoreCommand::Restore { context, slot, rows, .. } => {
                if let Some((start, ids)) = self.retained.get(&context) {
                    let length = rows.saturating_sub(*start).min(ids.len() as u32);
                    let mut text = LookupSession::new(*start);
                    text.append(*start, &ids[..length as usize]);
                    self.lookup.sessions.insert(slot, text);
                }
            }
        }
    }
}

impl Proposer for WithLookup {
    fn row_bytes(&self) -> u64 {
        self.model.row_bytes()
    }

    fn end_bytes(&self) -> u64 {
        self.model.end_bytes()
    }

    fn store_bytes(&self) -> u64 {
        self.model.store_bytes() + self.lookup.store_bytes()
    }

    fn memory(&self) -> MemoryUse {
        self.model.memory()
    }

    fn perform(&mut self, commands: &[StoreCommand]) -> Result<(), ModelError> {
        for command in commands {
            self.perform_one(command);
            if matches!(command, StoreCommand::Free { .. }) {
                self.lookup.perform(std::slice::from_ref(command))?;
            }
        }
        self.model.perform(commands)
    }

    fn propose(
        &mut self,
        step: &mut Step,
        element: TensorType,
        mask: &[u8],
    ) -> Result<Option<Proposed>, ModelError> {
        let mut drafts = self.look_up(step);
        match self.model.propose(step, element, mask)? {
            None => {}
            Some(Proposed::Hidden { .. }) => {
                let what = "expected token ids of a model beside prompt lookup, found hidden rows";
                return Err(ModelError::Batch(what.into()));
            }
            Some(Proposed::Tokens(of_model)) => {
                for draft in &of_model {
                    let work = step.sessions.iter().find(|work| work.session == draft.session);
                    if let Some(record) = work.and_then(|work| self.drafts.get_mut(&work.slot)) {
                        record.remember(draft.position + 1, &draft.ids);
                    }
                }
                drafts.extend(of_model);
            }
        }
        Ok(Some(Proposed::Tokens(drafts)))
    }

    fn settle(&self) -> Result<(), ModelError> {
        self.model.settle()
    }

    fn clear(&mut self) -> Result<(), ModelError> {
        self.drafts.clear();
        self.retained.clear();
        self.lookup.clear()?;
        self.model.clear()
    }

    fn drop_cache(&self) {
        self.model.drop_cache();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use paceline_drafter_core::{DraftBlock, SessionWork};
    use paceline_vocabulary::SamplingRule;
    use paceline_vocabulary::link::DraftSampling;

    use super::*;

    /// A model that always proposes the same, and remembers what it was asked for: rows of blocks by
    /// slot, and contexts that were retained.
    #[derive(Default)]
    struct Asked {
        rows: Vec<(u64, u32)>,
        commands: usize,
    }

    struct SameDraft(Rc<RefCell<Asked>>);

    impl Proposer for SameDraft {
        fn row_bytes(&self) -> u64 {
            1
        }

        fn end_bytes(&self) -> u64 {
            0
        }

        fn store_bytes(&self) -> u64 {
            0
        }

        fn memory(&self) -> MemoryUse {
            MemoryUse::default()
        }

        fn perform(&mut self, commands: &[StoreCommand]) -> Result<(), ModelError> {
            self.0.borrow_mut().commands += commands.len();
            Ok(())
        }

        fn propose(
            &mut self,
            step: &mut Step,
            _: TensorType,
            _: &[u8],
        ) -> Result<Option<Proposed>, ModelError> {
            let blocks = step.sessions.iter().filter(|work| work.block.is_some());
            let draft = |work: &SessionWork| {
                self.0.borrow_mut().rows.push((work.slot, work.block_rows()));
                DraftTokens {
                    session: work.session,
                    position: work.end(),
                    ids: vec![900; work.block_rows() as usize - 1],
                    logprobs: vec![],
                    drafts_from: 0,
                }
            };
            Ok(Some(Proposed::Tokens(blocks.map(draft).collect())))
        }

        fn settle(&self) -> Result<(), ModelError> {
            Ok(())
        }

        fn clear(&mut self) -> Result<(), ModelError> {
            Ok(())
        }

        fn drop_cache(&self) {}
    }

    fn both() -> (WithLookup, Rc<RefCell<Asked>>) {
        let asked = Rc::new(RefCell::new(Asked::default()));
        (WithLookup::new(Box::new(SameDraft(asked.clone())), 8), asked)
    }

    /// One session in slot 7 that reads `ids` from `position` on, then the bonus token, and drafts
    /// 11 tokens.
    fn drafts(both: &mut WithLookup, position: u32, ids: &[u32], bonus_id: u32) -> Vec<u32> {
        let sampling = DraftSampling { rule: SamplingRule::GREEDY, seed: 0, sample_index: 0 };
        let work = SessionWork {
            session: 3,
            slot: 7,
            position,
            context: ids.len() as u32,
            hidden: vec![],
            ids: ids.to_vec(),
            next_id: None,
            images: Rc::new([]),
            block: Some(DraftBlock {
                rows: 12,
                bonus_id,
                bonus: None,
                sampling,
                least_survival: 0.0,
            }),
        };
        let mut step = Step { sessions: vec![work], round: Some(1), ..Step::default() };
        let proposed = both.propose(&mut step, TensorType::F32, &[]).expect("drafts");
        match proposed {
            Some(Proposed::Tokens(drafts)) => drafts.into_iter().flat_map(|one| one.ids).collect(),
            other => panic!("expected ids, found {other:?}"),
        }
    }

    #[test]
    fn lookup_drafts_where_it_is_sure_and_the_model_elsewhere() {
        let (mut both, asked) = both();
        let text: Vec<u32> = (10..40).collect();
        assert_eq!(drafts(&mut both, 0, &text, 40), [900; 7], "nothing recurs: 8 rows at most");
        // The text comes again: lookup has been right often enough for more than one draft.
        let again = drafts(&mut both, 30, &[40, 10, 11, 12, 13, 14, 15, 16, 17, 18], 19);
        assert_eq!(again[..4], [20, 21, 22, 23]);
        assert_eq!(asked.borrow().rows, [(7, 8)]);
    }

    #[test]
    fn the_text_of_a_retained_context_is_searched_by_the_session_that_begins_with_it() {
        let (mut both, asked) = both();
        let text: Vec<u32> = (10..40).collect();
        drafts(&mut both, 0, &text, 40);
        both.perform(&[StoreCommand::Retain { slot: 7, rows: 24, context: 5 }]).expect("retained");
        both.perform(&[StoreCommand::Free { slot: 7 }]).expect("freed");
        assert!(both.drafts.is_empty() && both.lookup.sessions.is_empty());
        let restore = StoreCommand::Restore { context: 5, slot: 7, rows: 24, capacity: 64 };
        both.perform(&[restore]).expect("restored");
        assert_eq!(asked.borrow().commands, 3, "the model has them, too");
        let again = drafts(&mut both, 24, &[10, 11, 12, 13, 14, 15, 16, 17, 18], 19);
        assert_eq!(again[..3], [20, 21, 22]);
        both.perform(&[StoreCommand::Evict { context: 5 }]).expect("evicted");
        assert!(both.retained.is_empty());
    }
}
