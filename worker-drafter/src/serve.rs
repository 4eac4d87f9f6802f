//! The drafter's own gRPC service: describes the loaded drafter.

use std::sync::{Arc, OnceLock};

use paceline_process::worker::Gate;
use paceline_proto::internal::v1::drafter_server::Drafter;
use paceline_proto::internal::v1::{DescribeDrafterRequest, DescribeDrafterResponse};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_vocabulary::report::DrafterInfo;
use tonic::{Request, Response, Status};

/// The service.
#[derive(Clone, Debug)]
pub(crate) struct DrafterService {
    pub(crate) gate: Gate,
    pub(crate) config_digest: String,
    /// Set once the weights are loaded.
    pub(crate) loaded: Arc<OnceLock<DrafterInfo>>,
}

#[tonic::async_trait]
impl Drafter for DrafterService {
    async fn describe(
        &self,
        request: Request<DescribeDrafterRequest>,
    ) -> Result<Response<DescribeDrafterResponse>, Status> {
        self.gate.check_stamp(request.into_inner().stamp)?;
        let loading = || Reason::DrafterLoading.status("the drafter is loading its weights");
        let drafter = self.loaded.get().ok_or_else(loading)?;
        Ok(Response::new(DescribeDrafterResponse {
            epoch: self.gate.epoch(),
            pid: std::process::id(),
            build: paceline_proto::BUILD.to_owned(),
            config_digest: self.config_digest.clone(),
            drafter: Some(drafter.clone().into()),
        }))
    }
}
