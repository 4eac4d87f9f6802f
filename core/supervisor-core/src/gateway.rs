//! The gateway as it reports itself over `Attach`. Normally one gateway is attached. While an old
//! one drains beside a new one, the newest stands for both.

use paceline_vocabulary::report::GatewayReport;
use paceline_vocabulary::state::{GatewayState, ProcessState};
use paceline_vocabulary::{Epoch, Millis, ModelMark};

/// A change of the gateway's state, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatewayChange {
    /// Epoch of the gateway.
    pub epoch: Epoch,
    /// The state before.
    pub from: ProcessState,
    /// The state now.
    pub to: ProcessState,
    /// Why.
    pub cause: &'static str,
}

/// State of the gateway, by its stream and its reports.
#[derive(Clone, Debug, Default)]
pub struct Gateway {
    /// Number of the newest `Attach` stream; the shell counts them up.
    newest: u64,
    /// Set while that stream is open.
    attached: Option<Millis>,
    report: Option<GatewayReport>,
}

impl Gateway {
    /// A report came over stream `attachment`. Returns the change of state, if there is one.
    pub fn reported(
        &mut self,
        attachment: u64,
        report: GatewayReport,
        now: Millis,
    ) -> Option<GatewayChange> {
        self.changed("it says so", |gateway| {
            // A gateway that drains may attach again after its successor, to a new supervisor.
            let known = gateway.report.filter(|_| gateway.attached.is_some());
            let is_earlier = known.is_some_and(|known| report.epoch < known.epoch);
            if attachment < gateway.newest || is_earlier {
                return;
            }
            if attachment > gateway.newest || gateway.attached.is_none() {
                gateway.attached = Some(now);
            }
            gateway.newest = attachment;
            gateway.report = Some(report);
        })
    }

    /// Stream `attachment` ended. Returns the change of state, if there is one.
    pub fn detached(&mut self, attachment: u64) -> Option<GatewayChange> {
        self.changed("its stream ended", |gateway| {
            if attachment == gateway.newest {
                gateway.attached = None;
            }
        })
    }

    fn changed(
        &mut self,
        cause: &'static str,
        change: impl FnOnce(&mut Self),
    ) -> Option<GatewayChange> {
        let (epoch_before, before) = (self.epoch(), self.state());
        change(self);
        let (epoch, to) = (self.epoch(), self.state());
        let from = if epoch == epoch_before { before } else { ProcessState::Stopped };
        ((epoch, to) != (epoch_before, before)).then_some(GatewayChange { epoch, from, to, cause })
    }

    /// Number of the newest `Attach` stream there was.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Epoch of the gateway; 0 before the first report.
    pub fn epoch(&self) -> Epoch {
        self.report.map_or(Epoch(0), |report| report.epoch)
    }

    /// State of the gateway as `paceline status` names it.
    pub fn state(&self) -> ProcessState {
        match (self.attached, self.report.map(|report| report.state)) {
            (None, _) => ProcessState::Stopped,
            (Some(_), Some(GatewayState::Ready)) => ProcessState::Ready,
            (Some(_), Some(GatewayState::Draining)) => ProcessState::Draining,
            (Some(_), Some(GatewayState::Starting) | None) => ProcessState::Starting,
        }
    }

    /// Since when it is attached.
    pub fn attached(&self) -> Option<Millis> {
        self.attached
    }

    /// Whether requests for this model are accepted, as far as an attached gateway has reported.
    pub fn serves(&self, model: ModelMark) -> bool {
        let is_ready = self.state() == ProcessState::Ready;
        !is_ready || self.report.is_some_and(|report| report.model == Some(model))
    }

    /// Last report of the gateway; also of a gateway that is gone.
    pub fn report(&self) -> Option<&GatewayReport> {
        self.report.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_attachment_stands_for_the_gateway() {
        let report = |epoch, state| GatewayReport {
            epoch: Epoch(epoch),
            pid: 7,
            state,
            restarts: 0,
            streams: 0,
            images: None,
            model: None,
            unread_tool_calls: false,
        };
        let mut gateway = Gateway::default();
        assert_eq!(gateway.state(), ProcessState::Stopped);
        gateway.reported(1, report(1, GatewayState::Ready), Millis(10));
        gateway.reported(2, report(2, GatewayState::Starting), Millis(20));
        gateway.reported(1, report(1, GatewayState::Draining), Millis(30));
        assert_eq!((gateway.state(), gateway.epoch()), (ProcessState::Starting, Epoch(2)));
        assert_eq!(gateway.detached(1), None);
        assert_eq!(gateway.attached(), Some(Millis(20)));
        // The draining gateway attaches again.
        assert_eq!(gateway.reported(3, report(1, GatewayState::Draining), Millis(40)), None);
        assert_eq!(gateway.detached(3), None);
        assert_eq!((gateway.state(), gateway.newest()), (ProcessState::Starting, 2));
        let change = gateway.detached(2).expect("a change");
        assert_eq!((change.from, change.to), (ProcessState::Starting, ProcessState::Stopped));
    }
}
