//! The list of `drafter.model`. The first drafter of the list that loads and that the target
//! accepts serves; each refused one is recorded with its reason.
//!
//! ```text
//!  first ── refused ──▶ next ── refused ──▶ … ──▶ last ── refused ──▶ no drafter
//!    ▲                                                                    │
//!    └──────── another epoch of the target, or an operator's start ───────┘
//! ```
//! A drafter is refused if the target refuses it, or if it does not come up within its restart
//! budget. The second does not hold for a drafter that has served: its restarts go on. An
//! operator's start or swap with the name of another drafter ends the list.

/// A drafter that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedDrafter {
    /// Directory of the drafter, or "lookup".
    pub model: String,
    /// Reason from the target or the worker: expected and found, or how the process ended.
    pub reason: String,
}

/// The configured drafters, and how far the list was tried.
#[derive(Debug)]
pub(super) struct Candidates {
    /// In the order in which they are tried; empty after an operator named another drafter.
    models: Vec<String>,
    /// The present one.
    idx: usize,
    /// Those before the present one, as far as they were tried.
    refused: Vec<RefusedDrafter>,
    /// Whether the present one has been linked to a target.
    has_served: bool,
}

impl Candidates {
    pub(super) fn new(models: Vec<String>) -> Self {
        Self { models, idx: 0, refused: Vec::new(), has_served: false }
    }

    /// All of the list, in the order in which they are tried.
    pub(super) fn models(&self) -> &[String] {
        &self.models
    }

    /// The drafter to try first; empty if none is configured.
    pub(super) fn first(&self) -> String {
        self.models.first().cloned().unwrap_or_default()
    }

    /// The present drafter is refused: the next one, which is the present one from now on. `None`
    /// if it was the last one; then nothing changes.
    pub(super) fn pass_over(&mut self, reason: &str) -> Option<String> {
        let next = self.models.get(self.idx + 1)?.clone();
        let model = self.models[self.idx].clone();
        self.refused.push(RefusedDrafter { model, reason: reason.to_owned() });
        (self.idx, self.has_served) = (self.idx + 1, false);
        Some(next)
    }

    /// The first drafter, which is the present one from now on. `None` if there is no list.
    pub(super) fn start_over(&mut self) -> Option<String> {
        let first = self.models.first()?.clone();
        *self = Self::new(std::mem::take(&mut self.models));
        Some(first)
    }

    /// The present drafter is linked to the target.
    pub(super) fn serves(&mut self) {
        self.has_served = true;
    }

    /// Whether the present drafter has been linked to a target.
    pub(super) fn has_served(&self) -> bool {
        self.has_served
    }

    /// An operator named a drafter: there is no list any more.
    pub(super) fn end(&mut self) {
        *self = Self::new(Vec::new());
    }

    /// An earlier supervisor left this drafter. If it is one of the list, it is the present one.
    pub(super) fn adopt(&mut self, model: &str) {
        match self.models.iter().position(|candidate| candidate == model) {
            Some(idx) => (self.idx, self.refused) = (idx, Vec::new()),
            None => self.end(),
        }
        self.has_served = true;
    }

    /// The refused drafters before the present one, in their order.
    pub(super) fn refused(&self) -> &[RefusedDrafter] {
        &self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Candidates {
        Candidates::new(["/a", "/b", "lookup"].map(str::to_owned).into())
    }

    fn refused(candidates: &Candidates) -> Vec<(&str, &str)> {
        let refused = candidates.refused().iter();
        refused.map(|one| (one.model.as_str(), one.reason.as_str())).collect()
    }

    #[test]
    fn each_refused_drafter_is_passed_over_with_its_reason_except_the_last() {
        let mut list = three();
        assert_eq!(list.first(), "/a");
        assert_eq!(list.pass_over("other sizes").as_deref(), Some("/b"));
        assert_eq!(list.pass_over("no files").as_deref(), Some("lookup"));
        assert_eq!(list.pass_over("other ids"), None);
        assert_eq!(refused(&list), [("/a", "other sizes"), ("/b", "no files")]);
        assert_eq!(list.start_over().as_deref(), Some("/a"));
        assert_eq!(refused(&list), []);
        assert_eq!(Candidates::new(Vec::new()).pass_over("other sizes"), None);
        assert_eq!(Candidates::new(Vec::new()).first(), "");
    }

    #[test]
    fn an_adopted_drafter_of_the_list_is_followed_by_those_after_it() {
        let mut list = three();
        list.adopt("/b");
        assert!(list.has_served());
        assert_eq!(list.pass_over("other sizes").as_deref(), Some("lookup"));
        assert!(!list.has_served());
        assert_eq!(refused(&list), [("/b", "other sizes")]);
    }

    #[test]
    fn no_drafter_follows_one_that_an_operator_named() {
        for end in
            [|list: &mut Candidates| list.end(), |list: &mut Candidates| list.adopt("/swapped")]
        {
            let mut list = three();
            list.pass_over("other sizes");
            end(&mut list);
            assert_eq!((list.pass_over("no files"), list.start_over()), (None, None));
            assert_eq!(refused(&list), []);
        }
    }
}
