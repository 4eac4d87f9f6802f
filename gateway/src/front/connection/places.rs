//! Places of answers that no model writes (I14): archives, loads, watches, descriptions, figures and
//! pages. A request takes one before its service makes the answer, and holds it until the answer is
//! read, or was not read in time. Answers of models have their bounds in
//! [`crate::inference::admission`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use paceline_protocols::inference::error::{InferenceError, Result};
use paceline_vocabulary::Reason;

use crate::lock::lock;
use crate::turns::Party;

/// Places that a party may have for each free one, as for requests: one party alone gets at most
/// eight of nine.
const PLACES_PER_FREE_PLACE: usize = 8;

/// Whose bound an answer counts in. A path that a protocol does not name is [`AnswerKind::Other`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnswerKind {
    /// A model writes it, and its request has a place among those inside the gateway.
    Model,
    /// At most a kilobyte, such as health. It is given when all places are taken.
    Small,
    /// A watch of health. Each takes some kilobytes.
    Watch,
    /// A stream of loads, for a few routers with a few connections each.
    Loads,
    /// An archive of a model's text files, which a router fetches once.
    Archive,
    /// Every other answer.
    Other,
}

/// The bound of one kind.
struct Bound {
    /// The answers, in words.
    name: &'static str,
    /// What a client can do that gets no place.
    advice: &'static str,
    all: usize,
    of_party: usize,
    /// Of callers without a key, if keys are set: for the few programs that look after a service
    /// and have none.
    of_unknown: usize,
}

impl AnswerKind {
    /// The bound. With the pieces of [`super::track`], answers of all kinds together hold some
    /// 20 MiB.
    fn bound(self) -> Option<Bound> {
        let bound =
            |all, of_party, name, advice| Bound { name, advice, all, of_party, of_unknown: 32 };
        match self {
            AnswerKind::Model | AnswerKind::Small => None,
            // Two for each connection by default.
            AnswerKind::Watch => {
                Some(bound(1024, 1024, "watches of health", "end one, or use Check"))
            }
            AnswerKind::Loads => Some(bound(64, 64, "streams of loads", "use GetLoads")),
            AnswerKind::Archive => Some(bound(
                4,
                1,
                "archives of the model's files",
                "read the one that is sent first",
            )),
            // A fourth more than the requests that may be inside the gateway by default: a client
            // may count the tokens of each.
            AnswerKind::Other => {
                Some(bound(512, 512, "answers that no model writes", "read those that are sent"))
            }
        }
    }
}

/// The client of a request, in the request's extensions.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Party whose turns and bytes the request counts as.
    pub party: Party,
    /// Whether the request has a right key, if it needs one.
    pub is_authenticated: bool,
}

/// The places that are taken. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct AnswerPlaces(Arc<Mutex<HashMap<AnswerKind, TakenPlaces>>>);

/// Places of one kind that are taken.
#[derive(Debug, Default)]
struct TakenPlaces {
    all: usize,
    unknown: usize,
    /// A party without a place has no entry.
    of_parties: HashMap<Party, usize>,
}

/// The place of one answer; given back when dropped.
#[derive(Debug)]
pub struct AnswerPlace {
    places: AnswerPlaces,
    kind: AnswerKind,
    caller: Caller,
}

impl AnswerPlaces {
    /// A place for the answer to a request of this path; `None` if its kind needs none.
    ///
    /// # Errors
    /// All places are taken, or the caller has its share.
    pub fn enter(
        &self,
        kind: AnswerKind,
        caller: &Caller,
        path: &str,
    ) -> Result<Option<AnswerPlace>> {
        let Some(Bound { name, advice, all, of_party, of_unknown }) = kind.bound() else {
            return Ok(None);
        };
        let refusal = |most: usize, whose: &str| {
            let message = format!(
                "there are {most} {name} {whose}, the most there may be; {advice}, or try again shortly"
            );
            let error = InferenceError::new(Reason::TooManyStreams, message);
            Err(error.field(path.trim_start_matches('/')).fact("limit", most))
        };
        let mut kinds = lock(&self.0);
        let taken = kinds.entry(kind).or_default();
        let own = taken.of_parties.get(&caller.party).copied().unwrap_or(0);
        let left = all.saturating_sub(taken.all);
        if !caller.is_authenticated && taken.unknown >= of_unknown {
            return refusal(of_unknown, "without a key");
        }
        if left == 0 {
            return refusal(all, "in all");
        }
        if own >= of_party.min(left * PLACES_PER_FREE_PLACE) {
            return refusal(own, "of this client");
        }
        taken.all += 1;
        taken.unknown += usize::from(!caller.is_authenticated);
        taken.of_parties.insert(caller.party.clone(), own + 1);
        Ok(Some(AnswerPlace { places: self.clone(), kind, caller: caller.clone() }))
    }
}

impl Drop for AnswerPlace {
    fn drop(&mut self) {
        let mut kinds = lock(&self.places.0);
        let Some(taken) = kinds.get_mut(&self.kind) else { return };
        taken.all -= 1;
        taken.unknown -= usize::from(!self.caller.is_authenticated);
        if let Some(own) = taken.of_parties.get_mut(&self.caller.party) {
            *own -= 1;
            if *own == 0 {
                taken.of_parties.remove(&self.caller.party);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(name: &str, is_authenticated: bool) -> Caller {
        Caller { party: Party::of_key(name), is_authenticated }
    }

    /// As many places as this caller gets, and the refusal of the next one.
    fn fill(
        places: &AnswerPlaces,
        kind: AnswerKind,
        caller: &Caller,
    ) -> (Vec<AnswerPlace>, InferenceError) {
        let mut taken = Vec::new();
        loop {
            match places.enter(kind, caller, "/a/B") {
                Ok(place) => taken.push(place.expect("a kind with places")),
                Err(error) => return (taken, error),
            }
            assert!(taken.len() <= 2_000, "it has a bound");
        }
    }

    #[test]
    fn places_of_each_kind_are_bounded_shared_and_given_back() {
        use AnswerKind::{Archive, Loads, Other, Watch};
        for (kind, all, alone) in
            [(Watch, 1024, 911), (Loads, 64, 57), (Archive, 4, 1), (Other, 512, 456)]
        {
            let places = AnswerPlaces::default();
            let mut taken = Vec::new();
            for name in ["alice", "bob", "carol", "dave", "erin"] {
                let (more, refused) = fill(&places, kind, &caller(name, true));
                assert_eq!(refused.kind, Reason::TooManyStreams);
                assert_eq!(refused.field.as_deref(), Some("a/B"));
                if name == "alice" {
                    assert_eq!(more.len(), alone, "{kind:?}");
                    assert!(refused.message.contains("of this client"), "{refused}");
                }
                taken.extend(more);
            }
            assert_eq!(taken.len(), all, "{kind:?}");
            let refused = places.enter(kind, &caller("frank", true), "").expect_err("full");
            assert!(refused.message.contains(&format!("there are {all} ")), "{refused}");
            let (others, _) =
                fill(&places, if kind == Other { Loads } else { Other }, &caller("a", true));
            assert!(!others.is_empty(), "another kind has places of its own");
            drop((taken, others));
            let kinds = lock(&places.0);
            assert!(kinds.values().all(|taken| taken.all == 0 && taken.of_parties.is_empty()));
        }
    }

    #[test]
    fn callers_without_a_key_share_thirty_two_places_and_leave_the_others() {
        let places = AnswerPlaces::default();
        let (first, refused) = fill(&places, AnswerKind::Watch, &caller("peer", false));
        assert_eq!(first.len(), 32);
        assert!(refused.message.contains("32 watches of health without a key"), "{refused}");
        let enter = |caller| places.enter(AnswerKind::Watch, &caller, "");
        enter(caller("other", false)).expect_err("all of them together");
        assert!(enter(caller("key", true)).expect("a place").is_some());
        drop(first);
        assert!(enter(caller("other", false)).expect("a place again").is_some());
    }

    #[test]
    fn answers_of_models_and_small_ones_need_no_place() {
        let places = AnswerPlaces::default();
        for kind in [AnswerKind::Model, AnswerKind::Small] {
            assert!(places.enter(kind, &caller("a", false), "").expect("always").is_none());
        }
    }
}
