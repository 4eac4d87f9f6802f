//! The supervisor, as the gateway's upstream: [`Upstream`] submits requests to it, asks it for the
//! service's figures and follows its events, and [`attach`] follows its state. Only [`wire`] knows the messages of `paceline.internal.v1`.

pub mod attach;
mod service;
mod wire;

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use futures::{Stream, StreamExt as _};
use paceline_process::telemetry::trace;
use paceline_proto::internal::v1::SubmitRequest;
use paceline_proto::internal::v1::supervisor_client::SupervisorClient;
use paceline_proto::v1::operations_client::OperationsClient;
use paceline_protocols::inference::error::Result;
use paceline_vocabulary::generation::Generation;
use paceline_vocabulary::generation::TokenBatch;
use paceline_vocabulary::{Epoch, KeyId, Term, TraceContext};
use tonic::transport::Channel;
use tonic::{Request, Streaming};

/// A submission under way.
pub type Submission = BoxFuture<'static, Result<BatchStream>>;

/// Submits requests to the supervisor.
#[derive(Clone, Debug)]
pub struct Upstream {
    supervisor: SupervisorClient<Channel>,
    operations: OperationsClient<Channel>,
    /// Number of this gateway's life.
    epoch: Epoch,
}

impl Upstream {
    /// The upstream behind this channel.
    pub fn new(supervisor: Channel, epoch: Epoch) -> Self {
        // A clone shares the connection.
        let operations = OperationsClient::new(supervisor.clone());
        Self { supervisor: SupervisorClient::new(supervisor), operations, epoch }
    }

    /// Submits a request of this key, with tokens of the model in `model_path`, to the supervisor
    /// of this term. `resumed` counts its earlier submissions that began to run; `span` is the
    /// parent of the supervisor's span.
    pub fn submit(
        &self,
        term: Term,
        key: KeyId,
        model_path: &str,
        generation: Generation,
        resumed: u32,
        span: Option<TraceContext>,
    ) -> Submission {
        // A clone shares the connection.
        let mut supervisor = self.supervisor.clone();
        let mut submitted = Request::new(SubmitRequest {
            stamp: Some(wire::stamp(term, self.epoch)),
            generation: Some(generation.into()),
            key_id: key.0,
            resumed,
            model_path: model_path.to_owned(),
        });
        trace::put(submitted.metadata_mut(), span);
        Box::pin(async move {
            let response = supervisor.submit(submitted).await.map_err(wire::error)?;
            Ok(BatchStream(response.into_inner()))
        })
    }
}

/// The batches of one submitted request.
#[derive(Debug)]
pub struct BatchStream(Streaming<paceline_proto::internal::v1::TokenBatch>);

impl Stream for BatchStream {
    type Item = Result<TokenBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.0.poll_next_unpin(context);
        next.map(|next| next.map(|next| next.map(TokenBatch::from).map_err(wire::error)))
    }
}
