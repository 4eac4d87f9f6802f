//! How a call reaches the target that runs.

use paceline_proto::internal::v1::target_client::TargetClient;
use paceline_vocabulary::Epoch;
use tonic::transport::Channel;

/// The client for calls to one epoch of the target.
#[derive(Clone, Debug)]
pub struct TargetAccess {
    /// The epoch.
    pub epoch: Epoch,
    /// Its client.
    pub client: TargetClient<Channel>,
}
