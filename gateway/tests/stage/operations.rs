//! The operators' service of the scripted supervisor: a snapshot and events that the test sets.
//! Orders are counted, and end as the test says.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::{Stream, StreamExt as _};
use paceline_proto::ORDER_SOURCE;
use paceline_proto::v1::operations_server::Operations;
use paceline_proto::v1::{
    ChangeSettingsRequest, ChangeSettingsResponse, DrafterResponse, DrainRequest, DrainResponse,
    Event, EventsRequest, PolicyResponse, RestartRequest, RestartResponse, SetPolicyRequest,
    ShowPolicyRequest, ShowSettingsRequest, ShowSettingsResponse, StartDrafterRequest,
    StatusRequest, StatusResponse, StopDrafterRequest, SwapDrafterRequest, SwapTargetRequest,
    SwapTargetResponse,
};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

/// The scripted supervisor's answers to operators.
#[derive(Clone)]
pub struct Operator {
    /// The snapshot; without one the question is refused.
    pub status: Arc<Mutex<Option<StatusResponse>>>,
    /// How often a snapshot was asked for.
    pub asked: Arc<AtomicUsize>,
    /// How often an order was given.
    pub orders: Arc<AtomicUsize>,
    /// The orders with their sources, in words.
    pub given: Arc<Mutex<Vec<String>>>,
    /// How orders end; `None`: they wait.
    pub outcome: watch::Sender<Option<Result<(), Status>>>,
    /// All events so far.
    pub events: watch::Sender<Vec<Event>>,
}

impl Default for Operator {
    fn default() -> Self {
        Self {
            status: Arc::default(),
            asked: Arc::default(),
            orders: Arc::default(),
            given: Arc::default(),
            outcome: watch::Sender::new(Some(Err(Status::unimplemented("an order")))),
            events: watch::Sender::default(),
        }
    }
}

impl Operator {
    /// Sets the snapshot.
    pub fn report(&self, status: StatusResponse) {
        *self.status.lock().expect("no panic") = Some(status);
    }

    /// The orders so far, with their sources.
    pub fn given(&self) -> Vec<String> {
        self.given.lock().expect("no panic").clone()
    }

    async fn order<M, T: Default>(
        &self,
        request: Request<M>,
        words: impl FnOnce(M) -> String,
    ) -> Result<Response<T>, Status> {
        self.orders.fetch_add(1, Ordering::SeqCst);
        let source =
            request.metadata().get(ORDER_SOURCE).map(|value| value.to_str().expect("text"));
        let source = source.unwrap_or("no source").to_owned();
        let words = words(request.into_inner());
        self.given.lock().expect("no panic").push(format!("{words}, by {source}"));
        let mut outcome = self.outcome.subscribe();
        let outcome = outcome.wait_for(Option::is_some).await.expect("the test runs").clone();
        outcome.expect("waited for").map(|()| Response::new(T::default()))
    }
}

/// The events of a list that grows.
fn following(list: watch::Receiver<Vec<Event>>) -> impl Stream<Item = Result<Event, Status>> {
    futures::stream::unfold((list, 0), |(mut list, at)| async move {
        let event = list.wait_for(|list| list.len() > at).await.ok()?[at].clone();
        Some((Ok(event), (list, at + 1)))
    })
}

#[tonic::async_trait]
impl Operations for Operator {
    type EventsStream = Pin<Box<dyn Stream<Item = Result<Event, Status>> + Send>>;

    async fn status(
        &self,
        _request: Request<StatusRequest>,
    ) -> Result<Response<StatusResponse>, Status> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let status = self.status.lock().expect("no panic").clone();
        status.map(Response::new).ok_or_else(|| Status::unimplemented("no snapshot"))
    }

    async fn events(
        &self,
        request: Request<EventsRequest>,
    ) -> Result<Response<Self::EventsStream>, Status> {
        assert!(request.get_ref().follow, "one stream for the gateway's life");
        Ok(Response::new(following(self.events.subscribe()).boxed()))
    }

    async fn start_drafter(
        &self,
        request: Request<StartDrafterRequest>,
    ) -> Result<Response<DrafterResponse>, Status> {
        self.order(request, |order| format!("start {:?}", order.model)).await
    }

    async fn stop_drafter(
        &self,
        request: Request<StopDrafterRequest>,
    ) -> Result<Response<DrafterResponse>, Status> {
        self.order(request, |_| "stop".to_owned()).await
    }

    async fn swap_drafter(
        &self,
        request: Request<SwapDrafterRequest>,
    ) -> Result<Response<DrafterResponse>, Status> {
        self.order(request, |order| format!("swap {:?}", order.model)).await
    }

    async fn show_policy(
        &self,
        request: Request<ShowPolicyRequest>,
    ) -> Result<Response<PolicyResponse>, Status> {
        self.order(request, |_| "policy".to_owned()).await
    }

    async fn set_policy(
        &self,
        request: Request<SetPolicyRequest>,
    ) -> Result<Response<PolicyResponse>, Status> {
        self.order(request, |order| format!("set {}", order.key)).await
    }

    async fn show_settings(
        &self,
        request: Request<ShowSettingsRequest>,
    ) -> Result<Response<ShowSettingsResponse>, Status> {
        self.order(request, |_| "show settings".to_owned()).await
    }

    async fn change_settings(
        &self,
        request: Request<ChangeSettingsRequest>,
    ) -> Result<Response<ChangeSettingsResponse>, Status> {
        self.order(request, |_| "change settings".to_owned()).await
    }

    async fn swap_target(
        &self,
        request: Request<SwapTargetRequest>,
    ) -> Result<Response<SwapTargetResponse>, Status> {
        self.order(request, |order| format!("swap target {:?}", order.model)).await
    }

    async fn restart(
        &self,
        request: Request<RestartRequest>,
    ) -> Result<Response<RestartResponse>, Status> {
        self.order(request, |order| format!("restart {}", order.process().as_str_name())).await
    }

    async fn drain(
        &self,
        request: Request<DrainRequest>,
    ) -> Result<Response<DrainResponse>, Status> {
        self.order(request, |order| format!("drain, undo {}", order.undo)).await
    }
}
