//! Protobuf to and from the core's types: the only place of the supervisor that converts messages
//! of workers and gateways.

use paceline_proto::convert::Unspecified;
use paceline_proto::internal::v1 as internal;
use paceline_proto::{status::Reason, status::ReasonStatus as _, v1};
use paceline_supervisor_core::capacity::Capacity;
use paceline_supervisor_core::routing::Policy;
use paceline_supervisor_core::worker::{WorkerClaim, WorkerDescription, WorkerIdentity};
use paceline_vocabulary::report::{GatewayReport, Heartbeat, KvUse, LinkReport};
use paceline_vocabulary::state::{GatewayState, LinkPhase, WorkerPhase};
use paceline_vocabulary::{Epoch, Lane, ModelMark, Permit, RouteReason, RouteWish};
use tonic::Status;

/// A worker's heartbeat.
///
/// # Errors
/// The phase of the worker is not specified.
pub fn heartbeat(message: internal::Heartbeat) -> Result<Heartbeat, Unspecified> {
    let phase = WorkerPhase::try_from(message.phase())?;
    Ok(Heartbeat {
        epoch: Epoch(message.epoch),
        phase,
        steps: message.steps,
        loaded_bytes: message.loaded_bytes,
        total_bytes: message.total_bytes,
        weights_loaded_unix_s: message.weights_loaded_unix_s,
        kv: message.kv.map(kv_use),
        sequences: message.sequences,
        unstarted: message.unstarted,
        unstarted_tokens: message.unstarted_tokens,
        failure: message.failure,
        link: message.link.map(link_report),
        speculation: message.speculation.map(Into::into),
        figures: message.figures.map(Into::into),
        step_times: message.step_times.map(Into::into),
        memory: message.memory.map(Into::into),
    })
}

fn kv_use(message: internal::KvUse) -> KvUse {
    KvUse {
        budget_bytes: message.budget_bytes,
        held_bytes: message.held_bytes,
        prefix_bytes: message.prefix_bytes,
        hidden_bytes: message.tap_bytes,
    }
}

/// A target's report of its newest link. A phase that is not specified means that there is no link.
fn link_report(message: internal::LinkReport) -> LinkReport {
    LinkReport {
        generation: message.generation,
        phase: LinkPhase::try_from(message.phase()).unwrap_or(LinkPhase::Absent),
        serving: message.serving,
        reason: message.reason,
    }
}

/// A gateway's report. A state that is not specified means that it starts.
pub fn gateway_report(message: internal::GatewayReport) -> GatewayReport {
    GatewayReport {
        epoch: Epoch(message.epoch),
        pid: message.pid,
        state: GatewayState::try_from(message.state()).unwrap_or(GatewayState::Starting),
        restarts: message.restarts,
        streams: message.streams,
        images: message.images.map(Into::into),
        model: message.model.map(ModelMark),
        unread_tool_calls: message.unread_tool_calls,
    }
}

/// A worker's answer to the question what it serves.
#[derive(Clone, Debug)]
pub struct DescribedWorker {
    /// The process that it claims to be.
    pub claim: WorkerClaim,
    /// Description of the model that it serves.
    pub description: WorkerDescription,
}

/// A target's description of itself.
pub fn target(message: internal::DescribeResponse) -> DescribedWorker {
    let identity = WorkerIdentity { build: message.build, config_digest: message.config_digest };
    let capacity = Capacity {
        classes: message.kv_classes.into_iter().map(Into::into).collect(),
        max_sequences: message.max_sequences as usize,
        patch_bytes: message.image_patch_bytes,
    };
    DescribedWorker {
        claim: WorkerClaim { epoch: Epoch(message.epoch), pid: message.pid, identity },
        description: WorkerDescription::Target {
            model: message.model.unwrap_or_default().into(),
            capacity,
        },
    }
}

/// A drafter's description of itself.
pub fn drafter(message: internal::DescribeDrafterResponse) -> DescribedWorker {
    let identity = WorkerIdentity { build: message.build, config_digest: message.config_digest };
    DescribedWorker {
        claim: WorkerClaim { epoch: Epoch(message.epoch), pid: message.pid, identity },
        description: WorkerDescription::Drafter(message.drafter.unwrap_or_default().into()),
    }
}

/// The message of a permit.
pub fn permit_message(permit: Permit) -> internal::Permit {
    internal::Permit {
        lane_allowed: v1::Lane::from(permit.lane).into(),
        max_draft: permit.max_draft,
        reason: v1::RouteReason::from(permit.reason).into(),
        policy_epoch: permit.policy_epoch,
    }
}

/// The message of a policy.
pub fn policy_message(policy: &Policy) -> internal::Policy {
    internal::Policy {
        epoch: policy.epoch,
        force: internal::PolicyForce::from(policy.force).into(),
        max_concurrent: policy.max_concurrent.given(),
        max_context: policy.max_context.given(),
        kv_pressure: policy.kv_pressure,
    }
}

/// The lane that a client asks for; not specified is `auto`.
///
/// # Errors
/// A number that this version does not know.
pub fn route_wish(number: i32) -> Result<RouteWish, Status> {
    let wish = v1::RouteWish::try_from(number).map_err(|_| {
        let message = format!("expected a route wish known to this version, found {number}");
        Reason::InvalidArgument.field("route", message)
    })?;
    Ok(RouteWish::try_from(wish).unwrap_or(RouteWish::Auto))
}

/// Lane and reason of a finished request. A target that leaves them out served it plainly, as
/// forced.
pub fn served_route(route: Option<v1::Route>) -> paceline_vocabulary::Route {
    let route = route.unwrap_or_default();
    paceline_vocabulary::Route {
        lane: Lane::try_from(route.lane()).unwrap_or(Lane::Plain),
        reason: RouteReason::try_from(route.reason()).unwrap_or(RouteReason::Forced),
    }
}

#[cfg(test)]
mod tests {
    use paceline_process::config::Auto;
    use paceline_supervisor_core::routing::PolicyChange;
    use paceline_vocabulary::Force;

    use super::*;

    #[test]
    fn a_heartbeat_without_a_phase_is_refused_and_a_link_without_one_is_absent() {
        let message = internal::Heartbeat { epoch: 4, ..Default::default() };
        assert!(heartbeat(message.clone()).is_err());
        let phase = internal::WorkerPhase::Decode.into();
        let kv = Some(internal::KvUse { held_bytes: 9, tap_bytes: 3, ..Default::default() });
        let link = Some(internal::LinkReport { generation: 7, ..Default::default() });
        let heartbeat = heartbeat(internal::Heartbeat { phase, kv, link, ..message });
        let heartbeat = heartbeat.expect("it has a phase");
        assert_eq!((heartbeat.epoch, heartbeat.phase), (Epoch(4), WorkerPhase::Decode));
        assert_eq!(heartbeat.kv.map(|kv| (kv.held_bytes, kv.hidden_bytes)), Some((9, 3)));
        let link = heartbeat.link.expect("a link");
        assert_eq!((link.generation, link.phase), (7, LinkPhase::Absent));
    }

    #[test]
    fn an_auto_limit_is_left_out_of_the_policys_message() {
        let policy = Policy::default()
            .with(PolicyChange::MaxConcurrent(Auto::Is(2)))
            .with(PolicyChange::Force(Force::Plain));
        let message = policy_message(&policy);
        assert_eq!((message.epoch, message.force()), (2, internal::PolicyForce::Plain));
        assert_eq!((message.max_concurrent, message.max_context), (Some(2), None));
        assert_eq!(message.kv_pressure, 0.85);
    }
}
