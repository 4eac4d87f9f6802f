//! The choice between the drafts of a model and those of prompt lookup. A block gets the drafts of
//! which more are accepted on average: lookup knows the probability of each token, and the model's
//! accepted drafts are counted.

use super::{LookupProposal, LookupSession};

/// Weight of one more block in the mean of accepted drafts. About the last ten blocks count, because
/// a text changes its kind within about that number. Not measured.
const WEIGHT: f32 = 0.1;

/// Record of a model's drafts of one sequence.
#[derive(Debug)]
pub struct ModelDrafts {
    /// Position of the newest draft's first token, and its ids, until it is compared.
    newest: Option<(u32, Vec<u32>)>,
    /// Accepted drafts a block. Begins with one.
    mean: f32,
}

impl Default for ModelDrafts {
    fn default() -> Self {
        Self { newest: None, mean: 1.0 }
    }
}

impl ModelDrafts {
    /// Remembers the newest draft, whose first token is at `position`.
    pub fn remember(&mut self, position: u32, ids: &[u32]) {
        self.newest = Some((position, ids.to_vec()));
    }

    /// Compares the newest draft with the tokens of the text at its position, if there are any.
    pub fn compare(&mut self, text: &LookupSession) {
        let Some((position, ids)) = &self.newest else { return };
        let came = text.tokens_from(*position);
        if came.is_empty() {
            return;
        }
        let accepted = came.iter().zip(ids).take_while(|(came, id)| came == id).count();
        self.mean += WEIGHT * (accepted as f32 - self.mean);
        self.newest = None;
    }

    /// Whether more tokens of this proposal than of a draft of the model are accepted on average.
    pub fn is_worse_than(&self, proposal: &LookupProposal) -> bool {
        self.mean < proposal.expected()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_draft_of_the_model_is_compared_once_with_the_tokens_at_its_position() {
        let (mut drafts, mut text) = (ModelDrafts::default(), LookupSession::new(0));
        drafts.remember(2, &[5, 6, 7]);
        text.append(0, &[1, 1]);
        drafts.compare(&text);
        assert_eq!(drafts.mean, 1.0, "no token stands at its position yet");
        text.append(2, &[5, 6, 9]);
        drafts.compare(&text);
        assert_eq!(drafts.mean, 1.1, "two are accepted");
        drafts.compare(&text);
        assert_eq!(drafts.mean, 1.1);
    }

    #[test]
    fn the_proposal_with_more_accepted_tokens_wins() {
        let certain = |count| LookupProposal { ids: vec![1; count], logprobs: vec![0.0; count] };
        let drafts = ModelDrafts::default();
        assert!(drafts.is_worse_than(&certain(2)));
        assert!(!drafts.is_worse_than(&certain(1)) && !drafts.is_worse_than(&certain(0)));
    }
}
