//! Attributes of the span of a request: its route, and how it ended.

use paceline_process::telemetry::trace::Span;
use paceline_proto::status::{Reason, ReasonStatus as _};
use tonic::Status;

use crate::mailbox::AdmissionGrant;

/// Notes what the request was granted.
pub(crate) fn set_grant(span: &mut Span, grant: &AdmissionGrant) {
    span.set("paceline.queued_ms", grant.queued_ms);
    span.set("paceline.target_epoch", grant.epoch.0);
    span.set("paceline.lane", grant.permit.lane.word());
    span.set("paceline.reason", grant.permit.reason.word());
}

/// Notes the error with which the request ended.
pub(crate) fn fail(span: &mut Span, status: &Status) {
    span.fail(Reason::of(status).map_or("failed", Reason::word));
}
