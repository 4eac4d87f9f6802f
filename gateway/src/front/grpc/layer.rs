//! The one [`Service`] of all layers before the services: [`Layered`]. What a layer does is its
//! [`CallLayer`].

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Request, Response};
use tonic::body::Body;
use tonic::server::NamedService;
use tower::Service;

/// The answer of a layer that does not let a call pass.
pub(super) type Refused = BoxFuture<'static, Response<Body>>;

/// A call that a layer lets pass.
pub(super) struct Passed<B, C> {
    /// The request for the next layer.
    pub(super) request: Request<B>,
    /// What the layer keeps of the call until the response.
    pub(super) call: C,
}

/// A layer before a service.
pub(super) trait CallLayer<B> {
    /// Body of a request for the next layer.
    type Body;
    /// What the layer keeps of a call until the response.
    type Call: Send + 'static;

    /// Lets a call pass, or answers it.
    ///
    /// # Errors
    /// The answer.
    fn before(&self, request: Request<B>) -> Result<Passed<Self::Body, Self::Call>, Refused>;

    /// The response for the previous layer.
    fn after(call: Self::Call, response: Response<Body>) -> Response<Body>;
}

/// A service behind a layer.
#[derive(Clone, Debug)]
pub(super) struct Layered<S, L> {
    inner: S,
    layer: L,
}

impl<S, L> Layered<S, L> {
    /// `inner` behind `layer`.
    pub(super) fn new(inner: S, layer: L) -> Self {
        Self { inner, layer }
    }
}

impl<S: NamedService, L> NamedService for Layered<S, L> {
    const NAME: &'static str = S::NAME;
}

impl<S, L, B> Service<Request<B>> for Layered<S, L>
where
    L: CallLayer<B>,
    S: Service<Request<L::Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.layer.before(request) {
            Ok(Passed { request, call }) => {
                let response = self.inner.call(request);
                Box::pin(async move { Ok(L::after(call, response.await?)) })
            }
            Err(refused) => Box::pin(async move { Ok(refused.await) }),
        }
    }
}
