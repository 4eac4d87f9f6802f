//! Whether a request can be served at this instant, and if not, why: one value that health and
//! requests both read, so that they never disagree.

use std::time::Duration;

use paceline_protocols::inference::error::{InferenceError, Result};
use paceline_vocabulary::report::{ImageLimits, ModelInfo};
use paceline_vocabulary::{Reason, Term};

/// Characters of the supervisor's message that are passed on: they travel in headers.
const MAX_MESSAGE_CHARS: usize = 1000;

/// Message for clients while the supervisor hangs.
const SILENT: &str = "the supervisor has not answered for 3 s; if it stays like that it is \
                      replaced, so try again in some seconds";

/// The gateway's knowledge of itself and of the service behind it. The default is the first
/// instant: nothing is there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// This gateway was asked to end and takes nothing new.
    pub ending: bool,
    /// This gateway accepts no further connection, and serves those that it has until they end.
    pub leaving: bool,
    /// The supervisor it is attached to.
    pub supervisor: Option<Attached>,
}

/// A supervisor, as it reports itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attached {
    /// Number of its life.
    pub term: Term,
    /// It ordered that nothing new be taken. The order ends with its life: its successor sends its
    /// own.
    pub drained: bool,
    /// It does not answer any more, although the stream to it is open.
    pub silent: bool,
    /// Last report of the supervisor about the service. `None` until the first one.
    pub service: Option<ServiceState>,
}

/// The state of the service behind the gateway.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceState {
    /// Whether requests are served.
    pub can_serve: bool,
    /// Why they are not.
    pub reason: Option<Reason>,
    /// The reason in words, with progress.
    pub message: String,
    /// The served model; `None` before it is known.
    pub model: Option<ModelInfo>,
    /// Whether drafts can come.
    pub drafter_serves: bool,
    /// Whether health reports that requests are not served: they are, and a drain follows.
    pub leaving: bool,
    /// Whether an operator has drained the service: interrupted requests go on all the same.
    pub held: bool,
    /// Why interrupted requests of a drained service do not go on now.
    pub held_reason: Option<Reason>,
    /// When requests may be served again, as far as the supervisor can tell.
    pub retry_after: Duration,
    /// Limits of images; `None` while none are served.
    pub images: Option<ImageLimits>,
    /// Whether the model has tools and the format of its tool calls is not read.
    pub unread_tool_calls: bool,
}

impl ServiceState {
    /// Whether more than the message or the model is another.
    pub(super) fn differs_in_state(&self, other: &ServiceState) -> bool {
        let state = |state: &ServiceState| {
            let held = (state.held, state.held_reason);
            (state.can_serve, state.leaving, held, state.drafter_serves, state.reason)
        };
        state(self) != state(other)
    }
}

/// The supervisor and the model by which a request would be served now.
#[derive(Clone, Debug, PartialEq)]
pub struct Serving {
    /// The supervisor's life.
    pub term: Term,
    /// The model.
    pub model: ModelInfo,
}

/// Why no request is served.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Refused {
    /// A request is refused at once.
    Now(InferenceError),
    /// The service is being started: a request may wait for it.
    Awaited(InferenceError),
}

impl Standing {
    /// Whether a supervisor has reported the state of the service.
    pub fn knows(&self) -> bool {
        self.supervisor.as_ref().is_some_and(|supervisor| supervisor.service.is_some())
    }

    /// Whether nothing new is taken, whatever the service's state.
    ///
    /// # Errors
    /// DRAINING.
    pub fn open(&self) -> Result<()> {
        if self.ending || self.supervisor.as_ref().is_some_and(|supervisor| supervisor.drained) {
            let message = "the service is stopping and takes no new requests; try again later";
            return Err(InferenceError::new(Reason::Draining, message));
        }
        Ok(())
    }

    /// The supervisor and the model by which a request would be served now.
    ///
    /// # Errors
    /// Why it cannot be: draining, no supervisor, or the supervisor's own reason.
    pub fn serving(&self) -> Result<Serving> {
        self.open()?;
        if self.supervisor_hangs() {
            return Err(InferenceError::new(Reason::Restarting, SILENT));
        }
        let Some(Attached { term, service: Some(service), .. }) = &self.supervisor else {
            let message = "the service behind the gateway is being started; try again shortly";
            return Err(InferenceError::new(Reason::Restarting, message));
        };
        match &service.model {
            Some(model) if service.can_serve => Ok(Serving { term: *term, model: model.clone() }),
            _ => {
                let reason = service.reason.unwrap_or(Reason::TargetLoading);
                let message = if service.message.is_empty() {
                    "the model is not ready; try again shortly"
                } else {
                    &service.message
                };
                let message: String = message.chars().take(MAX_MESSAGE_CHARS).collect();
                let mut error = InferenceError::new(reason, message);
                if !service.retry_after.is_zero() {
                    error.retry_after = service.retry_after;
                }
                Err(error)
            }
        }
    }

    /// Whether a router should send requests here.
    ///
    /// # Errors
    /// No request would be served, or a drain follows before which the service gives notice.
    pub fn healthy(&self) -> Result<()> {
        self.serving()?;
        if self.reported().is_some_and(|service| service.leaving) {
            let message =
                "an operator drains the service; requests are served until the notice is over";
            return Err(InferenceError::new(Reason::Draining, message));
        }
        Ok(())
    }

    /// The supervisor and the model by which a new request would be served now.
    ///
    /// # Errors
    /// Why it cannot be. The service is awaited while the target is started, and while the
    /// supervisor is: a supervisor that hangs is not.
    pub(super) fn awaited(&self) -> Result<Serving, Refused> {
        self.serving().map_err(|error| {
            let is_coming = error.kind.is_interruption() && !self.supervisor_hangs();
            if is_coming { Refused::Awaited(error) } else { Refused::Now(error) }
        })
    }

    /// The supervisor and the model by which an interrupted request would go on now; `None` while
    /// the service is expected to return. A gateway that takes nothing new still ends what it has,
    /// and so does a service that an operator has drained.
    ///
    /// # Errors
    /// The service will not return soon: the target failed, or the service stops.
    pub(super) fn returned(&self) -> Option<Result<Serving>> {
        let mut standing = self.clone();
        standing.ending = false;
        if let Some(supervisor) = &mut standing.supervisor {
            supervisor.drained = false;
            if let Some(service) = supervisor.service.as_mut().filter(|service| service.held) {
                service.can_serve = service.held_reason.is_none();
                service.reason = service.held_reason;
            }
        }
        match standing.serving() {
            Err(error) if error.kind.is_interruption() => None,
            outcome => Some(outcome),
        }
    }

    /// Whether the supervisor does not answer any more.
    pub fn supervisor_hangs(&self) -> bool {
        self.supervisor.as_ref().is_some_and(|supervisor| supervisor.silent)
    }

    /// Last report about the service, if the supervisor answers.
    fn reported(&self) -> Option<&ServiceState> {
        let answering = self.supervisor.as_ref().filter(|supervisor| !supervisor.silent);
        answering.and_then(|supervisor| supervisor.service.as_ref())
    }

    /// Whether the target worker is ready, as far as is known here.
    pub fn target_ready(&self) -> bool {
        self.reported().is_some_and(|service| service.can_serve && service.model.is_some())
    }

    /// Whether drafts can come, as far as the supervisor has reported.
    pub fn drafter_serves(&self) -> bool {
        self.reported().is_some_and(|service| service.drafter_serves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attached(service: Option<ServiceState>) -> Standing {
        Standing {
            ending: false,
            leaving: false,
            supervisor: Some(Attached { term: Term(3), service, ..Default::default() }),
        }
    }

    fn reason(standing: &Standing) -> (Reason, String) {
        let error = standing.serving().expect_err("not serving");
        (error.kind, error.message)
    }

    #[test]
    fn a_drained_service_takes_interrupted_requests_and_no_new_ones() {
        let held = |held_reason| {
            attached(Some(ServiceState {
                held: true,
                held_reason,
                reason: Some(Reason::Draining),
                model: Some(ModelInfo::default()),
                ..Default::default()
            }))
        };
        let standing = held(None);
        assert_eq!(standing.serving().expect_err("drained").kind, Reason::Draining);
        assert!(standing.returned().expect("at once").is_ok());
        assert_eq!(held(Some(Reason::Restarting)).returned(), None, "it is awaited");
        let failed = held(Some(Reason::CrashLoop)).returned().expect("known");
        assert_eq!(failed.expect_err("it does not return").kind, Reason::CrashLoop);
    }

    #[test]
    fn before_a_drain_requests_are_served_and_health_reports_the_drain() {
        let serving = ServiceState {
            can_serve: true,
            model: Some(ModelInfo::default()),
            ..Default::default()
        };
        let leaving = attached(Some(ServiceState { leaving: true, ..serving.clone() }));
        assert!(leaving.serving().is_ok());
        assert_eq!(leaving.healthy().expect_err("leaving").kind, Reason::Draining);
        assert!(attached(Some(serving)).healthy().is_ok());
    }

    #[test]
    fn the_missing_part_is_the_reason() {
        assert_eq!(reason(&Standing::default()).0, Reason::Restarting);
        assert_eq!(reason(&attached(None)).0, Reason::Restarting);
        let loading = ServiceState {
            reason: Some(Reason::TargetLoading),
            message: "loading: 3 of 8 GB".into(),
            ..Default::default()
        };
        assert_eq!(
            reason(&attached(Some(loading.clone()))),
            (Reason::TargetLoading, "loading: 3 of 8 GB".into())
        );
        let failed = ServiceState {
            reason: Some(Reason::CrashLoop),
            model: Some(ModelInfo::default()),
            ..Default::default()
        };
        assert_eq!(reason(&attached(Some(failed))).0, Reason::CrashLoop);
        assert_eq!(
            reason(&attached(Some(ServiceState { can_serve: true, ..Default::default() }))).0,
            Reason::TargetLoading
        );

        let ready = ServiceState {
            can_serve: true,
            model: Some(ModelInfo::default()),
            ..Default::default()
        };
        let mut standing = attached(Some(ready));
        assert_eq!(standing.serving().expect("serving").term, Term(3));
        assert!(standing.target_ready());
        standing.ending = true;
        assert_eq!(reason(&standing).0, Reason::Draining);
        assert!(standing.target_ready(), "the worker does not end with its gateway");
        standing.ending = false;
        standing.supervisor.as_mut().expect("attached").silent = true;
        assert_eq!(reason(&standing), (Reason::Restarting, SILENT.to_owned()));
        assert!(!standing.target_ready(), "nobody knows");
        standing.supervisor.as_mut().expect("attached").drained = true;
        assert_eq!(reason(&standing).0, Reason::Draining);
    }
}
