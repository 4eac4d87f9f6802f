//! The operators' service of the scripted supervisor: a snapshot and events that the test sets.
//! Orders are counted and refused.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::{Stream, StreamExt as _};
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
#[derive(Clone, Default)]
pub struct Operator {
    /// The snapshot; without one the question is refused.
    pub status: Arc<Mutex<Option<StatusResponse>>>,
    /// How often a snapshot was asked for.
    pub asked: Arc<AtomicUsize>,
    /// How often an order was given.
    pub orders: Arc<AtomicUsize>,
    /// All events so far.
    pub events: watch::Sender<Vec<Event>>,
}

impl Operator {
    /// Sets the snapshot.
    pub fn report(&self, status: StatusResponse) {
        *self.status.lock().expect("no panic") = Some(status);
    }

    fn order<T>(&self) -> Result<Response<T>, Status> {
        self.orders.fetch_add(1, Ordering::SeqCst);
        Err(Status::unimplemented("an order"))
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
        _request: Request<StartDrafterRequest>,
    ) -> Result<Response<DrafterResponse>, Status> {
        self.order()
    }

    async fn stop_drafter(
        &self,
        _request: Request<StopDrafterRequest>,
    ) -> Result<Response<DrafterResponse>, Status> {
        self.order()
    }

    async fn swap_drafter(
        &self,
        _request: Request<SwapDrafterRequest>,
    ) -> Result<Response<DrafterResponse>, Status> {
        self.order()
    }

    async fn show_policy(
        &self,
        _request: Request<ShowPolicyRequest>,
    ) -> Result<Response<PolicyResponse>, Status> {
        self.order()
    }

    async fn set_policy(
        &self,
        _request: Request<SetPolicyRequest>,
    ) -> Result<Response<PolicyResponse>, Status> {
        self.order()
    }

    async fn show_settings(
        &self,
        _request: Request<ShowSettingsRequest>,
    ) -> Result<Response<ShowSettingsResponse>, Status> {
        self.order()
    }

    async fn change_settings(
        &self,
        _request: Request<ChangeSettingsRequest>,
    ) -> Result<Response<ChangeSettingsResponse>, Status> {
        self.order()
    }

    async fn swap_target(
        &self,
        _request: Request<SwapTargetRequest>,
    ) -> Result<Response<SwapTargetResponse>, Status> {
        self.order()
    }

    async fn restart(
        &self,
        _request: Request<RestartRequest>,
    ) -> Result<Response<RestartResponse>, Status> {
        self.order()
    }

    async fn drain(
        &self,
        _request: Request<DrainRequest>,
    ) -> Result<Response<DrainResponse>, Status> {
        self.order()
    }
}
