//! A connection to the target itself, for figures that are newer than its last heartbeat.

use std::time::Duration;

use paceline_proto::internal::v1::target_client::TargetClient;
use paceline_proto::internal::v1::{Stamp, StatsRequest, StatsResponse};
use paceline_system::clock::monotonic_ns;
use tokio::runtime::Runtime;
use tonic::transport::Channel;

use crate::wait::wait_at;

/// The target's figures, as its supervisor would ask for them.
pub struct TargetProbe<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) client: TargetClient<Channel>,
    pub(crate) stamp: Option<Stamp>,
}

impl TargetProbe<'_> {
    /// All of them.
    ///
    /// # Panics
    /// It does not answer.
    pub fn stats(&mut self) -> StatsResponse {
        self.runtime
            .block_on(self.client.stats(StatsRequest { stamp: self.stamp }))
            .unwrap()
            .into_inner()
    }

    /// Looks every millisecond until what running requests hold is as wanted; when it was, in
    /// nanoseconds of the machine's clock.
    ///
    /// # Panics
    /// It does not become so in time; the message names what was waited for.
    pub fn until_held(&mut self, what: &str, wanted: impl Fn(u64) -> bool) -> i64 {
        wait_at(Duration::from_millis(1), what, || {
            let held = self.stats().now.unwrap_or_default().kv.unwrap_or_default().held_bytes;
            wanted(held).then(monotonic_ns)
        })
    }
}
