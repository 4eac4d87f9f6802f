//! The one [`Service`] of all layers before the services: [`Layered`]. What a layer does is its
//! [`RequestLayer`].

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Request, Response};
use tonic::server::NamedService;
use tower::Service;

/// The answer of a layer that does not let a request pass.
pub type Refused<R> = BoxFuture<'static, Response<R>>;

/// A request that a layer lets pass.
pub struct Passed<B, K> {
    /// The request for the next layer.
    pub request: Request<B>,
    /// Data of the request that the layer keeps until the response.
    pub kept: K,
}

/// Outcome of a layer: a request for the next layer, or an answer.
pub type Entered<L, B> = Result<
    Passed<<L as RequestLayer<B>>::Body, <L as RequestLayer<B>>::Kept>,
    Refused<<L as RequestLayer<B>>::Reply>,
>;

/// A layer before a service.
pub trait RequestLayer<B>: Sized {
    /// Body of a request for the next layer.
    type Body;
    /// Body of the next layer's response.
    type Answer;
    /// Body of this layer's response.
    type Reply;
    /// Data of a request that the layer keeps until the response.
    type Kept: Send + 'static;

    /// Lets a request pass, or answers it.
    ///
    /// # Errors
    /// The answer.
    fn before(&self, request: Request<B>) -> Entered<Self, B>;

    /// The response for the previous layer.
    fn after(kept: Self::Kept, response: Response<Self::Answer>) -> Response<Self::Reply>;
}

/// A service behind a layer.
#[derive(Clone, Debug)]
pub struct Layered<S, L> {
    inner: S,
    layer: L,
}

impl<S, L> Layered<S, L> {
    /// `inner` behind `layer`.
    pub fn new(inner: S, layer: L) -> Self {
        Self { inner, layer }
    }
}

impl<S: NamedService, L> NamedService for Layered<S, L> {
    const NAME: &'static str = S::NAME;
}

impl<S, L, B> Service<Request<B>> for Layered<S, L>
where
    L: RequestLayer<B>,
    S: Service<Request<L::Body>, Response = Response<L::Answer>, Error = Infallible>,
    S::Future: Send + 'static,
    L::Reply: 'static,
{
    type Response = Response<L::Reply>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.layer.before(request) {
            Ok(Passed { request, kept }) => {
                let response = self.inner.call(request);
                Box::pin(async move { Ok(L::after(kept, response.await?)) })
            }
            Err(refused) => Box::pin(async move { Ok(refused.await) }),
        }
    }
}
