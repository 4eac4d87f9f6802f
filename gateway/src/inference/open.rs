//! A request from its arrival to its first token. All of it counts: the decoding of its message,
//! its checks, its images. Each step ends at the request's deadline and when the gateway stops.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use paceline_protocols::inference::error::{InferenceError, Result};
use paceline_protocols::inference::model::TokenCount;
use paceline_protocols::inference::request::Request;
use paceline_vocabulary::{KeyId, RequestId};
use tracing::Instrument;

use super::admission::RequestSlot;
use super::deadline::{BACKSTOP, Deadline};
use super::labels::RequestLabels;
use super::record::Record;
use super::unread::AnswerStream;
use super::{Inference, Prepared, RequestContext, Sender};
use crate::guard::keys::Principal;

/// A request whose time runs. It is recorded when this, or its answer, is dropped.
#[derive(Debug)]
pub struct OpenRequest {
    inference: Arc<Inference>,
    request_id: RequestId,
    deadline: Deadline,
    record: Record,
    principal: Option<Principal>,
    slot: Option<Arc<RequestSlot>>,
    sender: Sender,
}

impl OpenRequest {
    pub(super) fn new(inference: Arc<Inference>, context: RequestContext) -> Self {
        let RequestContext {
            request_id,
            arrived_ns,
            mut record,
            timeout,
            principal,
            slot,
            party,
            body,
            trace: _,
        } = context;
        record.record_in(&inference.metrics);
        let limit = Duration::from_secs(inference.limits.deadline_s);
        let deadline = Deadline::new(arrived_ns, limit, timeout);
        let sender = Sender { party, body };
        Self { inference, request_id, deadline, record, principal, slot, sender }
    }

    /// Id of the request.
    pub fn request_id(&self) -> &RequestId {
        &self.request_id
    }

    /// The sender of its message, for work on the message.
    pub fn sender(&self) -> Sender {
        self.sender.clone()
    }

    /// Runs work that the request needs before it is known, such as its decoding. The time, the
    /// errors and the panics of the work are the request's.
    ///
    /// # Errors
    /// Those of `work`, which end the request; the request's time is over.
    pub async fn within<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let checking = self.record.span.child("check");
        let done = bounded(&self.inference, self.deadline, &self.request_id, work).await;
        drop(checking);
        if let Err(error) = &done {
            self.record.ended(Err(error.kind));
        }
        done
    }

    /// Submits the request and waits for its first tokens. An error before them comes without an
    /// answer, so that clients may retry it by policy.
    ///
    /// # Errors
    /// Why the request is refused; why it ended before its first token.
    pub async fn answer(self, request: Request) -> Result<AnswerStream> {
        let Self { inference, request_id, deadline, mut record, principal, slot, sender } = self;
        let labels = RequestLabels::new(request_id.as_str(), deadline.at_ns, principal.as_ref());
        let key = principal.map_or(KeyId::NONE, |principal| principal.id);
        let begun = inference.begin(request, sender, labels, key, deadline, &mut record);
        match bounded(&inference, deadline, &request_id, begun).await {
            Ok(mut answer) => {
                answer.keep(record, slot);
                let limit = Duration::from_secs(inference.limits.unread_s);
                Ok(AnswerStream::watch(answer, limit))
            }
            Err(error) => {
                record.ended(Err(error.kind));
                Err(error)
            }
        }
    }

    /// Ends a request that asked nothing of the model.
    pub fn answered(mut self) {
        self.record.ended(Ok(()));
    }

    /// Counts the tokens of the request's prompt.
    ///
    /// # Errors
    /// Those that the request would meet before it is submitted.
    pub async fn count(self, request: Request) -> Result<TokenCount> {
        let Self { inference, request_id, deadline, mut record, slot: _slot, sender, .. } = self;
        let labels = RequestLabels::new(request_id.as_str(), deadline.at_ns, None);
        let counting = async {
            let served = inference.service().await?;
            let Prepared { served, generation, images, .. } =
                inference.prepare(request, served, &sender.party, labels, &mut record).await?;
            // A prompt with an image that could not be served has no number of tokens.
            inference.images.verify(images).await?;
            let context_length = served.serving.model.context_length;
            Ok(TokenCount { ids: generation.prompt_ids, context_length })
        };
        let counted = bounded(&inference, deadline, &request_id, counting).await;
        record.ended(counted.as_ref().map(|_| ()).map_err(|error| error.kind));
        counted
    }
}

/// Runs work of a request in its span until the request must be over. A panic in it is an error of
/// this request alone.
async fn bounded<T>(
    inference: &Inference,
    deadline: Deadline,
    request_id: &RequestId,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let guarded = async {
        tokio::select! {
            biased;
            () = inference.cancel.cancelled() => Err(InferenceError::draining()),
            done = AssertUnwindSafe(work).catch_unwind() => {
                let bug = |_| Err(InferenceError::bug("a panic while beginning a request"));
                done.unwrap_or_else(bug)
            }
            () = tokio::time::sleep(deadline.until(BACKSTOP)) => {
                Err(InferenceError::deadline_passed())
            }
        }
    };
    // Errors are logged with the id whatever level the operator chose.
    guarded.instrument(tracing::error_span!("request", request_id = request_id.as_str())).await
}
