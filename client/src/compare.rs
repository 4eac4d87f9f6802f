//! Identity of the lanes (I1). Two streams of one request are compared up to their first
//! difference. The margin that the plain lane reports at that position decides whether rounding
//! explains it. Pure.

use std::fmt;

use paceline_proto::v1::StatusResponse;
use serde::Serialize;

use crate::ask::Choice;
use crate::prompts::Prompt;

/// Margin below which the order of a floating-point sum may decide the token, if the model computes
/// in float32 (I1).
pub const NEAR_TIE: f32 = 1e-4;

/// Margin below which a difference is a near-tie on the service of `status`: [`NEAR_TIE`], or the
/// unit of the logits of a model in 16 bits, if that is more.
pub fn near_tie_bound(status: &StatusResponse) -> f32 {
    status.model.as_ref().map_or(0.0, |model| model.logit_unit).max(NEAR_TIE)
}

/// The first position where two streams of one request differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Index among the generated tokens.
    pub position: usize,
    /// The plain lane's token there; `None` if its stream had ended.
    pub plain_id: Option<u32>,
    /// The other stream's token there.
    pub other_id: Option<u32>,
    /// Distance of the plain lane's choice from another outcome; `None` if it is unknown.
    pub margin: Option<f32>,
}

impl Difference {
    /// Whether rounding explains it, by a bound of [`near_tie_bound`].
    pub fn near_tie(&self, bound: f32) -> bool {
        self.margin.is_some_and(|margin| margin < bound)
    }
}

/// A difference between two answers, and their prompt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DifferencePlace {
    /// Kind of the prompt.
    pub kind: String,
    /// Number of the prompt among those of its kind, from 0.
    pub prompt: usize,
    /// "greedy" or "sampled".
    pub choice: &'static str,
    /// Position, ids and margin.
    #[serde(flatten)]
    pub difference: Difference,
}

impl fmt::Display for DifferencePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, prompt, choice, difference } = self;
        let id =
            |id: Option<u32>| id.map_or("the stream's end".to_owned(), |id| format!("id {id}"));
        let (plain, other) = (id(difference.plain_id), id(difference.other_id));
        let margin = difference.margin.map_or("unknown".into(), |margin| format!("{margin:.2e}"));
        let (prompt, position) = (prompt + 1, difference.position);
        write!(
            f,
            "{kind} prompt {prompt}, {choice}, token {position}: expected {plain}, found {other}; margin {margin}"
        )
    }
}

/// A bound of [`near_tie_bound`] as people read it.
pub fn bound_in_words(bound: f32) -> String {
    if bound < 1e-3 { format!("{bound:e}") } else { bound.to_string() }
}

/// Differences that were judged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgedDifferences {
    /// Margin below which a difference is a near-tie.
    #[serde(rename = "near_tie_margin")]
    pub bound: f32,
    /// Differences that rounding explains.
    pub near_ties: Vec<DifferencePlace>,
    /// Differences that nothing explains.
    pub differences: Vec<DifferencePlace>,
}

impl Default for JudgedDifferences {
    fn default() -> Self {
        Self { bound: NEAR_TIE, near_ties: vec![], differences: vec![] }
    }
}

impl JudgedDifferences {
    /// None yet, on the service of `status`.
    pub fn of(status: &StatusResponse) -> Self {
        Self { bound: near_tie_bound(status), ..Self::default() }
    }

    /// Adds a difference between answers to a prompt.
    pub fn add(&mut self, prompt: &Prompt, choice: Choice, difference: Difference) {
        let is_near = difference.near_tie(self.bound);
        let list = if is_near { &mut self.near_ties } else { &mut self.differences };
        let (kind, prompt, choice) = (prompt.kind.clone(), prompt.index, choice.word());
        list.push(DifferencePlace { kind, prompt, choice, difference });
    }

    /// A line for each.
    pub fn lines(&self) -> String {
        let near = self.near_ties.iter().map(|place| format!("  near-tie: {place}\n"));
        let real = self.differences.iter().map(|place| format!("  DIFFERENT: {place}\n"));
        near.chain(real).collect()
    }
}

/// Number of equal tokens before the first difference, and whether there is a difference.
pub fn first_difference(plain: &[u32], other: &[u32]) -> (usize, bool) {
    let equal = plain.iter().zip(other).take_while(|(one, two)| one == two).count();
    (equal, equal < plain.len().max(other.len()))
}

/// Judges the difference of `plain` and `other` by `again`, one more run of the plain lane with
/// margins. If the plain lane differs from itself at an earlier position, the margin there counts.
pub fn weigh(plain: &[u32], other: &[u32], again: &[u32], margins: &[f32]) -> Difference {
    let (position, _) = first_difference(plain, other);
    let (repeated, _) = first_difference(plain, again);
    let at = |ids: &[u32]| ids.get(position).copied();
    // If both differ from `plain` at the same position, or `again` equals it, the margin at that
    // position decides.
    let margin = margins.get(repeated.min(position)).copied();
    Difference { position, plain_id: at(plain), other_id: at(other), margin }
}

#[cfg(test)]
mod tests {
    use paceline_proto::v1::ModelStatus;

    use super::*;

    fn check(plain: &[u32], other: &[u32], expected: (usize, bool)) {
        assert_eq!(first_difference(plain, other), expected, "{plain:?} {other:?}");
    }

    #[test]
    fn streams_are_equal_up_to_the_first_difference() {
        check(&[], &[], (0, false));
        check(&[1, 2, 3], &[1, 2, 3], (3, false));
        check(&[1, 2, 3], &[1, 9, 3], (1, true));
        check(&[1, 2], &[1, 2, 3], (2, true));
        check(&[1, 2, 3], &[1, 2], (2, true));
        check(&[1], &[], (0, true));
    }

    #[test]
    fn a_small_margin_explains_a_difference_and_a_large_one_does_not() {
        let margins = [1.0, 0.000_01, 0.5];
        let near = weigh(&[1, 2, 3], &[1, 9, 3], &[1, 2, 3], &margins);
        assert_eq!(
            near,
            Difference {
                position: 1,
                plain_id: Some(2),
                other_id: Some(9),
                margin: Some(0.000_01)
            }
        );
        assert!(near.near_tie(NEAR_TIE));
        let real = weigh(&[1, 2, 3], &[1, 2, 9], &[1, 2, 3], &margins);
        assert_eq!((real.position, real.near_tie(NEAR_TIE)), (2, false));
        assert!(
            !weigh(&[1, 2, 3], &[9, 2, 3], &[1, 2, 3], &[NEAR_TIE]).near_tie(NEAR_TIE),
            "the bound itself is no near-tie"
        );
    }

    #[test]
    fn a_model_in_16_bits_has_the_unit_of_its_logits_as_bound() {
        let status = |logit_unit| StatusResponse {
            model: Some(ModelStatus { logit_unit, ..ModelStatus::default() }),
            ..StatusResponse::default()
        };
        assert_eq!(near_tie_bound(&StatusResponse::default()), NEAR_TIE);
        assert_eq!(near_tie_bound(&status(0.0)), NEAR_TIE);
        assert_eq!(near_tie_bound(&status(0.125)), 0.125);
        let difference = weigh(&[1], &[2], &[1], &[0.1]);
        assert!(difference.near_tie(0.125) && !difference.near_tie(NEAR_TIE));
    }

    #[test]
    fn a_stream_that_ended_alone_differs_where_it_ended() {
        let difference = weigh(&[1, 2, 3], &[1, 2], &[1, 2, 3], &[1.0, 1.0, 0.3]);
        assert_eq!(
            (difference.plain_id, difference.other_id, difference.near_tie(NEAR_TIE)),
            (Some(3), None, false)
        );
        // The plain lane ended and the other went on: there is no margin of a token that was not
        // chosen.
        let difference = weigh(&[1, 2], &[1, 2, 3], &[1, 2], &[1.0, 0.000_01]);
        assert_eq!(
            (difference.plain_id, difference.margin, difference.near_tie(NEAR_TIE)),
            (None, None, false)
        );
    }

    #[test]
    fn near_ties_are_judged_by_the_margin_of_the_plain_lane() {
        // Again the plain lane differed earlier: the choice at that position was near a tie.
        let difference =
            weigh(&[1, 2, 3, 4], &[1, 2, 3, 9], &[1, 7, 8, 8], &[1.0, 0.000_02, 0.9, 0.9]);
        assert_eq!(
            (difference.position, difference.margin, difference.near_tie(NEAR_TIE)),
            (3, Some(0.000_02), true)
        );
        // A later difference of the plain lane explains nothing.
        let difference =
            weigh(&[1, 2, 3, 4], &[1, 9, 3, 4], &[1, 2, 3, 7], &[1.0, 0.9, 0.9, 0.000_02]);
        assert!(!difference.near_tie(NEAR_TIE));
    }
}
