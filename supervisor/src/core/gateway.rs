//! The gateway as it reports itself over `Attach`. One at a time is normal; while an old one drains
//! beside a new one the newest stands for both.

use paceline_proto::internal::v1::{GatewayReport, GatewayState};
use paceline_proto::v1::ProcessState;
use paceline_vocabulary::Millis;

/// What is known of the gateway.
#[derive(Clone, Debug, Default)]
pub struct Gateway {
    /// Number of the newest `Attach` stream; the shell counts them up.
    newest: u64,
    /// Set while that stream is open.
    attached: Option<Millis>,
    report: GatewayReport,
}

impl Gateway {
    /// A report came over stream `attachment`.
    pub fn reported(&mut self, attachment: u64, report: GatewayReport, now: Millis) {
        if attachment < self.newest {
            return;
        }
        if attachment > self.newest || self.attached.is_none() {
            self.attached = Some(now);
        }
        self.newest = attachment;
        self.report = report;
    }

    /// Stream `attachment` ended.
    pub fn detached(&mut self, attachment: u64) {
        if attachment == self.newest {
            self.attached = None;
        }
    }

    /// Number of the newest `Attach` stream there was.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Its state as `paceline status` names it.
    pub fn state(&self) -> ProcessState {
        match (self.attached, self.report.state()) {
            (None, _) => ProcessState::Stopped,
            (Some(_), GatewayState::Ready) => ProcessState::Ready,
            (Some(_), GatewayState::Draining) => ProcessState::Draining,
            (Some(_), GatewayState::Starting | GatewayState::Unspecified) => ProcessState::Starting,
        }
    }

    /// Since when it is attached.
    pub fn attached(&self) -> Option<Millis> {
        self.attached
    }

    /// What it last said of itself; of a stopped one too.
    pub fn report(&self) -> &GatewayReport {
        &self.report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_wins_and_its_end_is_a_stop() {
        let report = |epoch, state: GatewayState| GatewayReport {
            epoch,
            state: state.into(),
            ..Default::default()
        };
        let mut gateway = Gateway::default();
        assert_eq!(gateway.state(), ProcessState::Stopped);
        gateway.reported(1, report(1, GatewayState::Ready), Millis(10));
        gateway.reported(2, report(2, GatewayState::Starting), Millis(20));
        gateway.reported(1, report(1, GatewayState::Draining), Millis(30));
        assert_eq!((gateway.state(), gateway.report().epoch), (ProcessState::Starting, 2));
        gateway.detached(1);
        assert_eq!(gateway.attached(), Some(Millis(20)));
        gateway.detached(2);
        assert_eq!(gateway.state(), ProcessState::Stopped);
    }
}
