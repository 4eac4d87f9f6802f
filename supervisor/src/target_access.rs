//! The way of a request to the target that runs.

use paceline_proto::internal::v1::target_client::TargetClient;
use paceline_vocabulary::Epoch;
use tonic::transport::Channel;

/// The client for requests to one epoch of the target.
#[derive(Clone, Debug)]
pub struct TargetAccess {
    /// The epoch.
    pub epoch: Epoch,
    /// Client of the epoch.
    pub client: TargetClient<Channel>,
}
