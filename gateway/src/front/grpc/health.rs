//! `grpc.health.v1`: answers SERVING exactly when a request would be served at this instant. It
//! reads the same [`Standing`] as requests and starts no work. It needs no key. The places of its
//! watches are those of [`crate::front::connection::places`].
//!
//! tonic-health's own service is a copy that must be kept in step, and ends a watch of an unknown
//! name where the protocol wants SERVICE_UNKNOWN; its messages are used here.

use std::pin::Pin;

use futures::Stream;
use paceline_protocols::inference::error::quoted;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::inference::standing::Standing;

/// Condition of the service that a check or watch names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServiceName {
    /// "" and the inference service: a request can be served, and no drain follows.
    Inference,
    /// The target worker is ready.
    Target,
    /// The drafter has loaded, is linked to the target, and its drafts are in time. Requests are
    /// served without it too.
    Drafter,
}

impl ServiceName {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "paceline.v1.Inference" => Some(ServiceName::Inference),
            "worker.target" => Some(ServiceName::Target),
            "worker.drafter" => Some(ServiceName::Drafter),
            _ => None,
        }
    }

    fn status(self, standing: &Standing) -> ServingStatus {
        let serving = match self {
            ServiceName::Inference => standing.healthy().is_ok(),
            ServiceName::Target => standing.target_ready(),
            ServiceName::Drafter => standing.drafter_serves(),
        };
        if serving { ServingStatus::Serving } else { ServingStatus::NotServing }
    }
}

/// The service.
#[derive(Clone, Debug)]
pub(super) struct HealthService {
    standing: watch::Receiver<Standing>,
    closing: CancellationToken,
}

impl HealthService {
    /// Answers from `standing`; watches end when `closing` is cancelled.
    pub(super) fn new(standing: watch::Receiver<Standing>, closing: CancellationToken) -> Self {
        Self { standing, closing }
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status as i32 }
}

#[tonic::async_trait]
impl Health for HealthService {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let HealthCheckRequest { service } = request.into_inner();
        let Some(name) = ServiceName::parse(&service) else {
            let known = "\"\", paceline.v1.Inference, worker.target or worker.drafter";
            return Err(Status::not_found(format!(
                "service: expected {known}, found {}",
                quoted(&service)
            )));
        };
        Ok(Response::new(answer(name.status(&self.standing.borrow()))))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let name = ServiceName::parse(&request.into_inner().service);
        let state = (self.standing.clone(), self.closing.clone(), None);
        let stream =
            futures::stream::unfold(state, move |(mut standing, closing, last)| async move {
                loop {
                    let status = name.map_or(ServingStatus::ServiceUnknown, |name| {
                        name.status(&standing.borrow_and_update())
                    });
                    if last != Some(status) {
                        return Some((Ok(answer(status)), (standing, closing, Some(status))));
                    }
                    tokio::select! {
                        () = closing.cancelled() => return None,
                        changed = standing.changed() => changed.ok()?,
                    }
                }
            });
        Ok(Response::new(Box::pin(stream)))
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use paceline_vocabulary::Term;
    use paceline_vocabulary::report::ModelInfo;

    use super::*;
    use crate::inference::standing::{Attached, ServiceState};

    fn service(can_serve: bool) -> Standing {
        let service =
            ServiceState { can_serve, model: Some(ModelInfo::default()), ..Default::default() };
        Standing {
            ending: false,
            leaving: false,
            supervisor: Some(Attached {
                term: Term(1),
                service: Some(service),
                ..Default::default()
            }),
        }
    }

    fn ask(service: &str) -> Request<HealthCheckRequest> {
        Request::new(HealthCheckRequest { service: service.into() })
    }

    #[tokio::test]
    async fn health_follows_the_standing() {
        let (standing, seen) = watch::channel(Standing::default());
        let health = HealthService::new(seen, CancellationToken::new());
        let all = async || {
            let mut serving = Vec::new();
            for name in ["", "paceline.v1.Inference", "worker.target", "worker.drafter"] {
                let answer = health.check(ask(name)).await.expect("a known name").into_inner();
                serving.push(answer.status == ServingStatus::Serving as i32);
            }
            serving
        };
        assert_eq!(all().await, [false, false, false, false], "the first instant");
        standing.send_replace(service(true));
        assert_eq!(all().await, [true, true, true, false]);
        let drafter = |serves| {
            standing.send_modify(|standing| {
                let service =
                    standing.supervisor.as_mut().and_then(|supervisor| supervisor.service.as_mut());
                service.expect("attached").drafter_serves = serves;
            });
        };
        drafter(true);
        assert_eq!(all().await, [true, true, true, true]);
        drafter(false);
        assert_eq!(
            all().await,
            [true, true, true, false],
            "a drafter that is gone costs no request"
        );
        drafter(true);
        standing.send_modify(|standing| standing.ending = true);
        assert_eq!(all().await, [false, false, true, true]);
        standing.send_replace(Standing::default());
        assert_eq!(
            all().await,
            [false, false, false, false],
            "without a supervisor nothing is known"
        );
        assert_eq!(
            health.check(ask("x")).await.expect_err("unknown").code(),
            tonic::Code::NotFound
        );
    }

    #[tokio::test]
    async fn a_watch_sends_changes_and_ends_with_the_gateway() {
        let (standing, seen) = watch::channel(Standing::default());
        let closing = CancellationToken::new();
        let health = HealthService::new(seen, closing.clone());
        let mut watch = health.watch(ask("")).await.expect("open").into_inner();
        let mut unknown = health.watch(ask("x")).await.expect("open").into_inner();
        let status = |item: Option<Result<HealthCheckResponse, Status>>| {
            item.expect("open").expect("fine").status
        };
        assert_eq!(status(watch.next().await), ServingStatus::NotServing as i32);
        assert_eq!(status(unknown.next().await), ServingStatus::ServiceUnknown as i32);
        standing.send_replace(service(false));
        standing.send_replace(service(true));
        assert_eq!(status(watch.next().await), ServingStatus::Serving as i32);
        standing.send_replace(Standing::default());
        assert_eq!(status(watch.next().await), ServingStatus::NotServing as i32);
        closing.cancel();
        assert!(watch.next().await.is_none());
        assert!(unknown.next().await.is_none());
    }
}
