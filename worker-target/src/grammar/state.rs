//! One sequence's place in its grammar. It follows the sequence's ids, and along a drafted path it
//! goes ahead and returns.
//!
//! The algorithm: the parser has read some ids. For other ids it drops those after the common
//! beginning and reads the rest. So the allowed ids depend on the ids before a row alone, whatever
//! was drafted meanwhile (I1).

use std::cell::RefCell;
use std::sync::Arc;

use llguidance::{Matcher, TokenParser};
use paceline_models::sample::{Constraint, IdSet};

use super::compile::first_line;
use super::memory::HeldBytes;

/// A sequence's place in its grammar.
pub(crate) struct GrammarState {
    inner: RefCell<Inner>,
    /// Bytes that the state holds, for the worker's figures.
    held: Option<HeldBytes>,
}

struct Inner {
    matcher: Matcher,
    /// The id that stands for the end of an answer in masks.
    end: u32,
    /// Ids that end the answer.
    end_ids: Vec<u32>,
    /// How many ids the sequence has after its prompt.
    settled: usize,
    /// Ids that the parser has read: those of the sequence, and of a path after them.
    read: Vec<u32>,
    /// The allowed ids after `read`, once they are computed.
    allowed: Option<Arc<IdSet>>,
    /// Why no further mask can be computed.
    failure: Option<String>,
}

impl GrammarState {
    /// The place before the first id.
    pub(super) fn new(parser: TokenParser, end: u32, end_ids: Vec<u32>) -> Self {
        let inner = Inner {
            matcher: Matcher::new(Ok(parser)),
            end,
            end_ids,
            settled: 0,
            read: vec![],
            allowed: None,
            failure: None,
        };
        Self { inner: RefCell::new(inner), held: None }
    }

    /// The state, counted in the worker's memory.
    pub(super) fn holding(self, held: HeldBytes) -> Self {
        Self { held: Some(held), ..self }
    }

    /// Goes to the place after these ids, all that the sequence has after its prompt.
    pub(crate) fn follow(&self, generated: &[u32]) {
        let mut inner = self.inner.borrow_mut();
        let read = inner.go_to(generated);
        inner.settled = generated.len();
        if !read && inner.failure.is_none() {
            inner.failure = Some("the answer so far does not follow the grammar".into());
        }
    }

    /// How many of these drafted ids are allowed, from the first one on, after the sequence's ids.
    pub(crate) fn allowed_drafts(&self, drafts: &[u32]) -> usize {
        let mut inner = self.inner.borrow_mut();
        if inner.failure.is_some() || !inner.go_along(&[]) {
            return 0;
        }
        // The library fails on an id of no token.
        let known = drafts.iter().take_while(|id| **id < inner.end).count();
        let drafts = &drafts[..known];
        match inner.matcher.validate_tokens(drafts) {
            Ok(count) if count == drafts.len() => count,
            // The id after them may end the answer, if the answer is complete there.
            Ok(count) => {
                let ends = inner.end_ids.contains(&drafts[count]);
                let allows_end =
                    ends && inner.go_along(&drafts[..count]) && inner.allows(drafts[count]);
                count + usize::from(allows_end)
            }
            Err(error) => {
                inner.fail(&error.to_string());
                0
            }
        }
    }

    /// Why no further token can be chosen, if that is so: the grammar needs more than its bounds
    /// allow.
    pub(crate) fn failure(&self) -> Option<String> {
        self.inner.borrow().failure.clone()
    }
}

impl Constraint for GrammarState {
    fn allowed(&self, path: &[u32]) -> Arc<IdSet> {
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        if inner.failure.is_some() {
            return Arc::default();
        }
        // An id that ends the answer: rows after it are dropped.
        if path.last().is_some_and(|id| inner.end_ids.contains(id)) {
            return Arc::new(IdSet::of_ids(&inner.end_ids));
        }
        if !inner.go_along(path) {
            return Arc::default();
        }
        inner.mask()
    }
}

impl Inner {
    /// Has the parser read exactly these ids. Returns false if they do not follow the grammar.
    fn go_to(&mut self, ids: &[u32]) -> bool {
        let common = self.read.iter().zip(ids).take_while(|(read, id)| read == id).count();
        self.read_after(common, &ids[common..])
    }

    /// Has the parser read the sequence's ids and then exactly this path. Returns false if the path
    /// does not follow the grammar. Only the path is compared, because all masks of a long answer
    /// would otherwise compare all of it.
    fn go_along(&mut self, path: &[u32]) -> bool {
        let read = self.read.get(self.settled..).unwrap_or_default();
        let common = read.iter().zip(path).take_while(|(read, id)| read == id).count();
        self.read_after(self.settled + common, &path[common..])
    }

    /// Has the parser drop what it has read after the first `common` ids, and read `rest`.
    fn read_after(&mut self, common: usize, rest: &[u32]) -> bool {
        if common < self.read.len() {
            let dropped = self.read.len() - common;
            self.read.truncate(common);
            self.allowed = None;
            if let Err(error) = self.matcher.rollback(dropped) {
                self.fail(&error.to_string());
                return false;
            }
        }
        if rest.is_empty() {
            return true;
        }
        self.allowed = None;
        match self.matcher.try_consume_tokens(rest) {
            Ok(count) => {
                self.read.extend_from_slice(&rest[..count]);
                count == rest.len()
            }
            Err(error) => {
                self.fail(&error.to_string());
                false
            }
        }
    }

    fn allows(&mut self, id: u32) -> bool {
        self.mask().contains(id)
    }

    /// The ids that may follow those read.
    fn mask(&mut self) -> Arc<IdSet> {
        if let Some(allowed) = &self.allowed {
            return Arc::clone(allowed);
        }
        let mask = match self.matcher.compute_mask_or_eos() {
            Ok(mask) => mask,
            Err(error) => {
                self.fail(&error.to_string());
                return Arc::default();
            }
        };
        let is_complete = mask.is_allowed(self.end);
        let mut allowed = IdSet::of_words(mask.as_slice().to_vec());
        allowed.remove(self.end);
        for id in &self.end_ids {
            // An id that ends the answer is no text of it.
            if is_complete { allowed.insert(*id) } else { allowed.remove(*id) }
        }
        let allowed = Arc::new(allowed);
        self.allowed = Some(Arc::clone(&allowed));
        allowed
    }

    fn fail(&mut self, message: &str) {
        self.failure = Some(first_line(message));
    }
}

impl std::fmt::Debug for GrammarState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inner = self.inner.borrow();
        f.debug_struct("GrammarState")
            .field("read", &inner.read.len())
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}
