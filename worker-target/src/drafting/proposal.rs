//! A drafter's proposal against the round of requests that it answers (I3).

use std::collections::HashSet;

use paceline_vocabulary::link::{
    DraftShape, DraftTokens, Drafts, Proposal, ProposalKind, SessionId,
};
use paceline_vocabulary::tensor::TensorRef;

use super::draft::{Proposed, ServedDraft};
use super::link::{DrafterLink, LinkEnd, Received, RequestedDraft};

impl DrafterLink {
    /// Checks a proposal against the requests of its round. Its rows are copied out.
    pub(super) fn check(&mut self, proposal: Proposal) -> Result<Received, LinkEnd> {
        let Proposal { round: number, drafts } = proposal;
        let eject = |what: String| LinkEnd::ejected(format!("proposal of round {number}: {what}"));
        let Some(round) = self.close_round(number) else {
            return Err(eject("it was not requested, or is answered already".into()));
        };
        if drafts.kind() != self.welcome.proposal {
            let expected = name(self.welcome.proposal);
            return Err(eject(format!("expected {expected}, found {}", name(drafts.kind()))));
        }
        let shapes = drafts.shapes();
        let least = u32::from(drafts.kind() == ProposalKind::Hidden);
        let answered = check_shapes(&shapes, &round.requests, least).map_err(eject)?;
        let served = match drafts {
            Drafts::Tokens(drafts) => self.tokens(drafts).map_err(eject)?,
            Drafts::Hidden { rows, .. } => {
                let count = shapes.iter().map(|shape| shape.rows).sum();
                self.check_rows(rows.as_ref(), count).map_err(eject)?;
                rows.map_or(Ok(vec![]), |rows| self.hidden_rows(&shapes, &rows))?
            }
        };
        let left_out = |request: &RequestedDraft| !answered.contains(&request.session);
        let left_out = round.requests.iter().copied().filter(left_out).collect();
        Ok(Received::Drafts { requested: round.requested, served, left_out })
    }

    fn tokens(&self, drafts: Vec<DraftTokens>) -> Result<Vec<ServedDraft>, String> {
        let vocab = self.vocab_size;
        let served = |draft: DraftTokens| match draft.ids.iter().find(|id| **id >= vocab) {
            Some(id) => Err(format!("expected ids below {vocab}, found {id}")),
            None => Ok(ServedDraft {
                session: draft.session,
                position: draft.position,
                drafts_from: if draft.ids.is_empty() { draft.drafts_from } else { 0 },
                proposed: Proposed::Ids(draft.ids),
            }),
        };
        drafts.into_iter().map(served).collect()
    }

    fn check_rows(&self, found: Option<&TensorRef>, rows: u32) -> Result<(), String> {
        let (columns, element) = (self.welcome.hidden_size, self.welcome.element);
        let fits = match found {
            None => rows == 0,
            Some(tensor) => {
                rows > 0
                    && (tensor.rows, tensor.columns, tensor.element) == (rows, columns, element)
            }
        };
        let wrong =
            || format!("expected {rows} hidden rows of {columns} {element:?}, found {found:?}");
        if fits { Ok(()) } else { Err(wrong()) }
    }

    fn hidden_rows(
        &mut self,
        shapes: &[DraftShape],
        tensor: &TensorRef,
    ) -> Result<Vec<ServedDraft>, LinkEnd> {
        let bytes = self.end.take(tensor)?;
        let row_bytes = bytes.len() / tensor.rows as usize;
        let (element, softcap) = (tensor.element, self.welcome.logit_softcap);
        let mut rest = bytes.as_slice();
        let served = |shape: &DraftShape| {
            let rows = shape.rows as usize;
            let (own, others) = rest.split_at(rows * row_bytes);
            rest = others;
            let proposed = Proposed::Hidden { bytes: own.to_vec(), rows, element, softcap };
            let DraftShape { session, position, .. } = *shape;
            ServedDraft { session, position, proposed, drafts_from: 0 }
        };
        Ok(shapes.iter().map(served).collect())
    }
}

fn name(kind: ProposalKind) -> &'static str {
    match kind {
        ProposalKind::Hidden => "hidden rows",
        ProposalKind::Tokens => "ids",
    }
}

/// Each draft answers another request of the round, at its position, with at least `least` tokens
/// and not beyond its length.
/// Returns the answered sessions.
fn check_shapes(
    shapes: &[DraftShape],
    requests: &[RequestedDraft],
    least: u32,
) -> Result<HashSet<SessionId>, String> {
    let mut answered = HashSet::new();
    for shape in shapes {
        let DraftShape { session, position, rows } = *shape;
        let Some(request) = requests.iter().find(|request| request.session == session) else {
            return Err(format!("session {session} was not requested"));
        };
        if !answered.insert(session) {
            return Err(format!("session {session} comes twice"));
        }
        let RequestedDraft { position: at, max_tokens, .. } = *request;
        if position != at || !(least..=max_tokens).contains(&rows) {
            let expected = format!("position {at} and {least} to {max_tokens} tokens");
            return Err(format!("expected {expected}, found {position} and {rows}"));
        }
    }
    Ok(answered)
}
