//! Whether a request can be served at this instant, and if not, why: one value that health and
//! requests both read, so that they never disagree.

use paceline_proto::internal::v1::{ModelInfo, ServiceState};
use paceline_proto::status::{Reason, Refusal};

/// Characters of the supervisor's words that are passed on: they travel in HTTP/2 headers.
const MAX_MESSAGE_CHARS: usize = 1000;

/// What the gateway knows of itself and of the service behind it. The default is the first instant:
/// nothing is there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// This gateway was asked to end and takes nothing new.
    pub ending: bool,
    /// The supervisor it is attached to.
    pub supervisor: Option<Attached>,
}

/// A supervisor, as it told about itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attached {
    /// Number of its life.
    pub term: u64,
    /// It ordered that nothing new be taken. The order ends with its life: its successor says what
    /// it wants.
    pub drained: bool,
    /// What it said last about the service; `None` until it did.
    pub service: Option<ServiceState>,
}

/// What a request that can be served now is served by.
#[derive(Clone, Debug, PartialEq)]
pub struct Serving {
    /// The supervisor's life.
    pub term: u64,
    /// The model.
    pub model: ModelInfo,
}

impl Standing {
    /// Whether a supervisor has said how the service is.
    pub fn knows(&self) -> bool {
        self.supervisor.as_ref().is_some_and(|supervisor| supervisor.service.is_some())
    }

    /// Whether nothing new is taken, whatever the service's state.
    ///
    /// # Errors
    /// DRAINING.
    pub fn open(&self) -> Result<(), Refusal> {
        if self.ending || self.supervisor.as_ref().is_some_and(|supervisor| supervisor.drained) {
            let message = "the service is stopping and takes no new requests; try again later";
            return Err(Refusal::new(Reason::Draining, message));
        }
        Ok(())
    }

    /// By what a request would be served now.
    ///
    /// # Errors
    /// Why it cannot be: draining, no supervisor, or the supervisor's own reason.
    pub fn serving(&self) -> Result<Serving, Refusal> {
        self.open()?;
        let Some(Attached { term, service: Some(service), .. }) = &self.supervisor else {
            let message = "the service behind the gateway is being started; try again shortly";
            return Err(Refusal::new(Reason::Restarting, message));
        };
        match &service.model {
            Some(model) if service.can_serve => Ok(Serving { term: *term, model: model.clone() }),
            _ => {
                let reason = Reason::from_word(&service.reason).unwrap_or(Reason::TargetLoading);
                let message = if service.message.is_empty() {
                    "the model is not ready; try again shortly"
                } else {
                    &service.message
                };
                Err(Refusal::new(
                    reason,
                    message.chars().take(MAX_MESSAGE_CHARS).collect::<String>(),
                ))
            }
        }
    }

    /// Whether the target worker is ready, as far as is known here.
    pub fn target_ready(&self) -> bool {
        let service = self.supervisor.as_ref().and_then(|supervisor| supervisor.service.as_ref());
        service.is_some_and(|service| service.can_serve && service.model.is_some())
    }

    /// Whether drafts can come, as far as the supervisor has said.
    pub fn drafter_serves(&self) -> bool {
        let service = self.supervisor.as_ref().and_then(|supervisor| supervisor.service.as_ref());
        service.is_some_and(|service| service.drafter_serves)
    }
}

#[cfg(test)]
mod tests {
    use paceline_proto::status::ReasonStatus as _;
    use tonic::Status;

    use super::*;

    fn attached(service: Option<ServiceState>) -> Standing {
        Standing { ending: false, supervisor: Some(Attached { term: 3, drained: false, service }) }
    }

    fn reason(standing: &Standing) -> (Option<Reason>, String) {
        let status: Status = standing.serving().expect_err("not serving").into();
        (Reason::of(&status), status.message().to_owned())
    }

    #[test]
    fn what_is_missing_is_the_reason() {
        assert_eq!(reason(&Standing::default()).0, Some(Reason::Restarting));
        assert_eq!(reason(&attached(None)).0, Some(Reason::Restarting));
        let loading = ServiceState {
            reason: "TARGET_LOADING".into(),
            message: "loading: 3 of 8 GB".into(),
            ..Default::default()
        };
        assert_eq!(
            reason(&attached(Some(loading.clone()))),
            (Some(Reason::TargetLoading), "loading: 3 of 8 GB".into())
        );
        let failed = ServiceState {
            reason: "CRASH_LOOP".into(),
            model: Some(ModelInfo::default()),
            ..Default::default()
        };
        assert_eq!(reason(&attached(Some(failed))).0, Some(Reason::CrashLoop));
        assert_eq!(
            reason(&attached(Some(ServiceState { can_serve: true, ..Default::default() }))).0,
            Some(Reason::TargetLoading)
        );

        let ready = ServiceState {
            can_serve: true,
            model: Some(ModelInfo::default()),
            ..Default::default()
        };
        let mut standing = attached(Some(ready));
        assert_eq!(standing.serving().expect("serving").term, 3);
        assert!(standing.target_ready());
        standing.ending = true;
        assert_eq!(reason(&standing).0, Some(Reason::Draining));
        assert!(standing.target_ready(), "the worker does not end with its gateway");
        standing.ending = false;
        standing.supervisor.as_mut().expect("attached").drained = true;
        assert_eq!(reason(&standing).0, Some(Reason::Draining));
    }
}
