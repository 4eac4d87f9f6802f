//! Names and small helpers that scenarios and simulations share.

pub(crate) use paceline_settings::{Auto, DrafterStart};
pub(crate) use paceline_vocabulary::report::{
    CostModel, DrafterInfo, GatewayReport, Heartbeat, KvClass, KvUse, LinkReport, MemoryUse,
    ModelInfo, SpeculationBucket, SpeculationFigures, StepTimes,
};
pub(crate) use paceline_vocabulary::state::{GatewayState, LinkPhase, WorkerPhase};
pub(crate) use paceline_vocabulary::{
    Epoch, Force, KeyId, Lane, Millis, ModelMark, Permit, RouteReason, RouteWish, Term,
};

pub(crate) use crate::admission::AdmissionBounds;
pub(crate) use crate::capacity::Capacity;
pub(crate) use crate::denial::Denial;
pub(crate) use crate::drafter::{DrafterOrder, DrafterPlan, LinkEnds};
pub(crate) use crate::operations::{OperatorOrder, ServiceProcess, TargetChoice, TargetSwapOrder};
pub(crate) use crate::request::Fingerprint;
pub(crate) use crate::request::{RequestSummary, ServedRequest};
pub(crate) use crate::routing::{DrafterState, PolicyChange};
pub(crate) use crate::tests::fairness::{FairnessCheck, Standing};
pub(crate) use crate::tests::fault_injection::{Bug, FaultySupervisor};
pub(crate) use crate::tests::random::Random;
pub(crate) use crate::tests::scenarios::name_of;
pub(crate) use crate::tuning::Tuning;
pub(crate) use crate::worker::{
    self, Phase, StopReason, WiredReading, WorkerDescription, WorkerExit,
};
pub(crate) use crate::{
    Action, Event, Notice, OrderId, Settings, Supervisor, Ticket, WorkerId, WorkerSlot,
};

/// Classes of KV memory: positions and bytes of each.
pub(crate) fn kv_classes(sizes: &[(u32, u64)]) -> Vec<KvClass> {
    sizes.iter().map(|&(positions, bytes)| KvClass { positions, bytes }).collect()
}

/// The report of a gateway whose epoch is its attachment's number. It accepts requests for the model
/// without a path, which the simulations serve.
pub(crate) fn gateway_report(attachment: u64, state: GatewayState) -> GatewayReport {
    GatewayReport {
        epoch: Epoch(attachment),
        pid: 7,
        state,
        restarts: 0,
        streams: 0,
        images: None,
        model: Some(ModelMark::of("")),
        unread_tool_calls: false,
    }
}

/// An order to serve this model with these drafters.
pub(crate) fn target_swap(model: &str, drafters: &[&str], at_once: bool) -> OperatorOrder {
    let drafters = drafters.iter().map(|name| (*name).to_owned()).collect();
    OperatorOrder::SwapTarget(TargetSwapOrder {
        choice: TargetChoice { model: model.to_owned(), drafters },
        drain_ms: at_once.then_some(0),
        same: false,
    })
}

/// A request that was served plainly with this many tokens.
pub(crate) fn served_plainly(tokens: u64) -> ServedRequest {
    ServedRequest { lane: Lane::Plain, reason: RouteReason::Forced, tokens, first_ms: None }
}

/// A change of the policy from the words of a scenario.
pub(crate) fn policy_change(key: &str, value: &str) -> PolicyChange {
    let limit = |value: &str| match value {
        "auto" => Auto::Auto,
        number => Auto::Is(number.parse().expect("a number")),
    };
    match key {
        "routing.force" => PolicyChange::Force(Force::from_word(value).expect("a force")),
        "routing.max_concurrent" => PolicyChange::MaxConcurrent(limit(value)),
        "routing.max_context" => PolicyChange::MaxContext(limit(value)),
        "routing.kv_pressure" => PolicyChange::KvPressure(value.parse().expect("a share")),
        other => panic!("no key {other}"),
    }
}
