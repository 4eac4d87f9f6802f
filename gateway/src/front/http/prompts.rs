//! Requests with several prompts. Each further prompt is served as a request of its own, which
//! shares the client's slot. The events of all prompts come in one stream: the answers are
//! numbered prompt by prompt, as the samples of a request are.

use std::sync::Arc;

use futures::future::Either;
use futures::{Stream, StreamExt as _, TryFutureExt as _, TryStreamExt as _, stream};
use paceline_protocols::dialect::code;
use paceline_protocols::inference::bounds::SampleCount;
use paceline_protocols::inference::error::{InferenceError, Result};
use paceline_protocols::inference::request::Request;
use paceline_system::clock::monotonic_ns;
use paceline_text::stream::AnswerEvent;
use paceline_vocabulary::TraceContext;

use super::HttpFront;
use crate::guard::keys::Principal;
use crate::inference::RequestContext;
use crate::inference::admission::{ByteHold, RequestSlot};
use crate::inference::record::Method;
use crate::turns::Party;

/// Further prompts of one request that are in the supervisor's queue or run at once. A request with
/// many prompts leaves places of its key to others.
const AT_ONCE: usize = 8;

/// The prompts of a request after its first.
#[derive(Debug, Default)]
pub(super) struct MorePrompts {
    /// Their requests, in order.
    pub(super) requests: Vec<Request>,
    /// Answers of each prompt.
    pub(super) samples: SampleCount,
}

/// Context that the requests of all further prompts share with that of the first.
#[derive(Debug)]
pub(super) struct SharedContext {
    method: Method,
    principal: Option<Principal>,
    slot: Option<Arc<RequestSlot>>,
    party: Party,
    body: Option<Arc<ByteHold>>,
    trace: Option<TraceContext>,
}

impl SharedContext {
    /// The shared part of `context`, for requests of this method.
    pub(super) fn of(context: &RequestContext, method: &'static str) -> Self {
        Self {
            method: Method { name: method, code },
            principal: context.principal.clone(),
            slot: context.slot.clone(),
            party: context.party.clone(),
            body: context.body.clone(),
            trace: context.trace(),
        }
    }

    fn context(&self) -> RequestContext {
        let mut context = RequestContext::new(self.method, monotonic_ns(), self.trace);
        context.principal = self.principal.clone();
        context.slot = self.slot.clone();
        context.party = self.party.clone();
        context.body = self.body.clone();
        context
    }
}

impl MorePrompts {
    /// An error of the first prompt.
    pub(super) fn of_first(&self, error: InferenceError) -> InferenceError {
        if self.requests.is_empty() { error } else { of_prompt(error, 0) }
    }

    /// The events of the first prompt's answers and of those after it.
    pub(super) fn with_first<S>(
        self,
        front: Arc<HttpFront>,
        shared: SharedContext,
        first: S,
    ) -> impl Stream<Item = Result<AnswerEvent>> + Send + Unpin + 'static
    where
        S: Stream<Item = Result<AnswerEvent>> + Send + Unpin + 'static,
    {
        if self.requests.is_empty() {
            return Either::Left(first);
        }
        let samples = self.samples.get();
        let requests = self.requests.into_iter().zip(1u32..);
        let further = stream::iter(requests).map(move |(request, at)| {
            let (front, context) = (Arc::clone(&front), shared.context());
            let answer = async move { front.inference.open(context).answer(request).await };
            Box::pin(answer.try_flatten_stream().map(move |event| placed(event, at, samples)))
        });
        let first = first.map_err(|error| of_prompt(error, 0));
        Either::Right(Box::pin(stream::select(first, further.flatten_unordered(AT_ONCE))))
    }
}

/// An event of the prompt at this index, with the number of its answer among those of all prompts.
fn placed(event: Result<AnswerEvent>, at: u32, samples: u32) -> Result<AnswerEvent> {
    let mut event = event.map_err(|error| of_prompt(error, at))?;
    event.sample_index += at * samples;
    Ok(event)
}

/// The error of one of several prompts, by its index.
pub(super) fn of_prompt(mut error: InferenceError, at: u32) -> InferenceError {
    let Some(field) = &error.field else { return error };
    let inner = ["text", "token_ids.ids"].into_iter().find(|name| field.starts_with(name));
    if let Some(rest) = inner.and_then(|name| field.strip_prefix(name)) {
        let outer = format!("prompt[{at}]{rest}");
        if let Some(words) = error.message.strip_prefix(field.as_str()) {
            error.message = format!("{outer}{words}");
        }
        error.field = Some(outer);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_prompt_by_its_index() {
        for (inner, outer) in [
            ("text", "prompt[3]"),
            ("token_ids.ids[5]", "prompt[3][5]"),
            ("limits.max_tokens", "limits.max_tokens"),
        ] {
            let error = of_prompt(InferenceError::invalid(inner, "a", "b"), 3);
            assert_eq!(error.field.as_deref(), Some(outer));
            assert_eq!(error.message, format!("{outer}: expected a, found b"));
        }
    }
}
