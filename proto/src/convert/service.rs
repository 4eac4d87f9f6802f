//! The service's status as JSON: [`ServiceStatus`] is made of [`v1::StatusResponse`] here and
//! nowhere else. `paceline status --json` prints all of it. The status page of the gateway gives a
//! part of it, by one rule in `gateway/src/service_report/service.rs`.
//!
//! Each message has a report here, but those whose fields are their JSON as they are: these have
//! `Serialize` themselves (`build.rs`). A value that is not known is null, so that no program takes
//! "" for a directory or 0 for a process.

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::each;
use crate::v1::{
    self, ImageLimits, KvReduction, Lane, PolicySetting, ProcessState, Products, RouteReason,
    RoutingBucket, Speculation, StepCost,
};
pub use crate::v1::{RefusedDrafter, RequestsStatus};

/// Declares reports, and makes each of its message, whose fields have the same names. A value is
/// the message's own, or what the function after `=` makes of it.
macro_rules! reports {
    ($(
        $(#[$meta:meta])*
        $report:ident of $message:ident {
            $($(#[$about:meta])* $field:ident: $type:ty $(= $convert:ident)?,)*
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize)]
        pub struct $report {
            $($(#[$about])* pub $field: $type,)*
        }

        impl From<v1::$message> for $report {
            fn from(message: v1::$message) -> Self {
                // Without `..`: a field of the message that has no place in the report is an error.
                let v1::$message { $($field,)* } = message;
                $($(let $field = $convert($field);)?)*
                Self { $($field,)* }
            }
        }
    )*};
}

reports! {
    /// The service, in one snapshot of its supervisor.
    ServiceStatus of StatusResponse {
        /// The gateway.
        gateway: ProcessReport = part,
        /// The process that starts and stops the workers.
        supervisor: ProcessReport = part,
        /// The worker with the model.
        target: ProcessReport = part,
        /// The worker that drafts.
        drafter: ProcessReport = part,
        /// The target's KV memory.
        kv: KvReport = part,
        /// Requests inside the supervisor.
        requests: RequestsStatus = part,
        /// The link between target and drafter, and what came of drafts.
        link: LinkReport = part,
        /// How requests are routed.
        routing: RoutingReport = part,
        /// The machine's memory.
        memory: MemoryReport = part,
        /// The served model; null until it has loaded.
        model: Option<ServedModel> = if_any,
        /// Drafters that were refused.
        refused_drafters: Vec<RefusedDrafter>,
        /// Number of the supervisor's life.
        term: u64,
    }

    /// A process.
    #[derive(ToSchema)]
    ProcessReport of ProcessStatus {
        /// `absent`, `stopped`, `starting`, `loading`, `ready`, `suspect`, `draining`,
        /// `backing_off` or `failed`.
        #[schema(value_type = String)]
        state: ProcessState = valued,
        /// Process id of the worker.
        pid: Option<u32> = known,
        /// Number of its life.
        epoch: u64,
        /// Restarts since the supervisor's start that nobody ordered.
        restarts: u32,
        /// Seconds since its start.
        uptime_s: f64,
        /// Directory or name of its model.
        model: Option<String> = known,
        /// Time when the weights were loaded, RFC 3339. For operators: the outer `None` leaves it
        /// out.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(ignore)]
        weights_loaded_at: Option<Option<String>> = for_operators,
        /// Bytes of its weights.
        weight_bytes: u64,
        /// Bytes of weights that were read so far.
        loaded_bytes: u64,
        /// Why it is in this state, in words.
        reason: Option<String> = known,
    }

    /// The target's KV memory.
    #[derive(ToSchema)]
    KvReport of KvStatus {
        /// Most bytes that sequences may hold together.
        budget_bytes: u64,
        /// Bytes that running sequences hold.
        held_bytes: u64,
        /// Bytes that the prefix cache holds. They are freed for sequences.
        prefix_bytes: u64,
        /// `held_bytes` divided by `budget_bytes`.
        pressure: f64,
        /// Why `budget_bytes` is 80 % of what it would be, such as `reboot_while_busy`; null if it
        /// is not.
        #[serde(rename = "reduced_reason")]
        #[schema(value_type = Option<String>)]
        reduction: Option<KvReduction> = known_value,
    }

    /// The machine's memory, in bytes.
    #[derive(ToSchema)]
    MemoryReport of MemoryStatus {
        /// Most that target, drafter, KV and MLX's caches may hold together.
        budget_bytes: u64,
        /// Arrays of the target.
        target_bytes: u64,
        /// Arrays of the drafter.
        drafter_bytes: u64,
        /// MLX's caches of both.
        cache_bytes: u64,
        /// Free in the machine.
        available_bytes: u64,
        /// The working set that the GPU's driver recommends, if it does. For operators: the outer
        /// `None` leaves it out.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(ignore)]
        recommended_bytes: Option<Option<u64>> = for_operators,
    }

    /// Requests that one route served.
    #[derive(ToSchema)]
    ServedRoute of RouteCount {
        /// `plain` or `speculative`.
        #[schema(value_type = String)]
        lane: Lane = valued,
        /// Why, as in the answers.
        #[schema(value_type = String)]
        reason: RouteReason = valued,
        /// Requests that ended so.
        requests: u64,
    }

    /// The served model.
    ServedModel of ModelStatus {
        /// Name by which clients ask for it.
        name: String,
        /// Most tokens of prompt and answer together.
        context_length: u32,
        /// Rows of the output head.
        vocab_size: u32,
        /// Bytes of one position of a long sequence.
        position_bytes: u64,
        /// Whether both lanes have the same bits on this GPU.
        exact_lanes: bool,
        /// Unit of the logits that the model computes in 16 bits; 0: that of float32.
        logit_unit: f32,
        /// How products by quantized weights are computed.
        products: Products = valued,
        /// Instruction set of the CPU's kernels; null where MLX computes.
        instructions: Option<String> = known,
        /// Whether images are served.
        vision: bool,
        /// Limits of the images of a request; null until a gateway has reported them.
        image_limits: Option<ImageLimits>,
        /// Whether tool calls arrive as text, because the model's format is not read.
        unread_tool_calls: bool,
    }
}

/// The link between target and drafter, and what came of drafts since the target's start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct LinkReport {
    /// `absent`, `greeting`, `up`, `refused`, `ejected`, `lost` or `suspect`.
    pub state: String,
    /// Why the link is not up.
    pub reason: Option<String>,
    /// Number of the link. For operators: `None` leaves it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub generation: Option<u64>,
    /// Rounds of drafting and verifying.
    pub cycles: u64,
    /// Drafted tokens.
    pub drafted: u64,
    /// Drafted tokens that the target accepted.
    pub accepted: u64,
    /// Tokens of a cycle: the accepted ones, and one of the target's own. Null before the first
    /// cycle.
    // For the status page, which computes nothing: the outer `None` leaves it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub tokens_per_cycle: Option<Option<f64>>,
    /// Drafts that came too late.
    pub late: u64,
    /// Bytes over the link in both directions. For operators: `None` leaves them out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub bytes: Option<u64>,
}

impl From<v1::LinkStatus> for LinkReport {
    fn from(link: v1::LinkStatus) -> Self {
        let v1::LinkStatus { state, reason, generation, speculation, late, bytes } = link;
        let Speculation { cycles, drafted, accepted } = speculation.unwrap_or_default();
        Self {
            state: known(state).unwrap_or_else(|| "absent".to_owned()),
            reason: known(reason),
            generation: Some(generation),
            cycles,
            drafted,
            accepted,
            tokens_per_cycle: None,
            late,
            bytes: Some(bytes),
        }
    }
}

impl LinkReport {
    /// What came of drafts since the target's start.
    pub fn speculation(&self) -> Speculation {
        let Self { cycles, drafted, accepted, .. } = *self;
        Speculation { cycles, drafted, accepted }
    }
}

impl Speculation {
    /// Tokens of a cycle: the accepted ones, and one of the target's own. `None` without a cycle.
    pub fn tokens_per_cycle(&self) -> Option<f64> {
        (self.cycles > 0).then(|| self.accepted as f64 / self.cycles as f64 + 1.0)
    }
}

/// How requests are routed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RoutingReport {
    /// The policy in force.
    pub policy: PolicyReport,
    /// Finished requests since the supervisor's start, by lane and reason.
    pub routes: Vec<ServedRoute>,
    /// Measured gain of speculation, by the number of sequences that decode at once.
    pub by_sequences: Vec<RoutingBucket>,
    /// The same, by positions of a request's context.
    pub by_context: Vec<RoutingBucket>,
    /// Measured costs of a step of one sequence, by its rows, ascending.
    pub step_costs: Vec<StepCost>,
}

impl From<v1::RoutingStatus> for RoutingReport {
    fn from(routing: v1::RoutingStatus) -> Self {
        let v1::RoutingStatus {
            policy_epoch,
            policy,
            routes,
            by_sequences,
            by_context,
            step_costs,
        } = routing;
        let policy = PolicyReport { epoch: policy_epoch, settings: policy };
        Self { policy, routes: each(routes), by_sequences, by_context, step_costs }
    }
}

/// The routing policy, also of `paceline policy --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PolicyReport {
    /// Changes since the supervisor's start.
    pub epoch: u64,
    /// Settings: in JSON an object with their keys.
    #[serde(serialize_with = "by_key")]
    pub settings: Vec<PolicySetting>,
}

impl From<v1::PolicyResponse> for PolicyReport {
    fn from(v1::PolicyResponse { epoch, policy }: v1::PolicyResponse) -> Self {
        Self { epoch, settings: policy }
    }
}

fn by_key<S: Serializer>(settings: &[PolicySetting], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(settings.iter().map(|setting| (&setting.key, setting)))
}

impl ServiceStatus {
    /// The processes with their names.
    pub fn processes(&self) -> [(&'static str, &ProcessReport); 4] {
        [
            ("gateway", &self.gateway),
            ("supervisor", &self.supervisor),
            ("target", &self.target),
            ("drafter", &self.drafter),
        ]
    }
}

/// The report of a message that may be absent.
fn part<M: Default, R: From<M>>(message: Option<M>) -> R {
    message.unwrap_or_default().into()
}

fn if_any<M, R: From<M>>(message: Option<M>) -> Option<R> {
    message.map(R::from)
}

/// The value of an enum by its number.
fn valued<E: TryFrom<i32> + Default>(number: i32) -> E {
    E::try_from(number).unwrap_or_default()
}

/// `None` for the value that means "not known": 0, "" and `UNSPECIFIED`.
fn known<T: Default + PartialEq>(value: T) -> Option<T> {
    (value != T::default()).then_some(value)
}

fn known_value<E: TryFrom<i32> + Default + PartialEq>(number: i32) -> Option<E> {
    known(valued(number))
}

fn for_operators<T: Default + PartialEq>(value: T) -> Option<Option<T>> {
    Some(known(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// The JSON of a status with this target alone.
    fn target(target: v1::ProcessStatus) -> Value {
        let status = v1::StatusResponse { target: Some(target), ..Default::default() };
        json!(ServiceStatus::from(status))["target"].clone()
    }

    #[test]
    fn a_value_that_is_not_known_is_null_and_a_count_of_zero_is_not() {
        let none = target(v1::ProcessStatus::default());
        let nulls = ["pid", "model", "weights_loaded_at", "reason"];
        assert!(nulls.iter().all(|name| none.get(name) == Some(&Value::Null)), "{none}");
        assert_eq!((&none["epoch"], &none["state"]), (&json!(0), &json!("unspecified")));
        let status = json!(ServiceStatus::default());
        assert_eq!(status.get("model"), Some(&Value::Null));
        assert_eq!(status["kv"].get("reduced_reason"), Some(&Value::Null));
        let link = json!(LinkReport::from(v1::LinkStatus::default()));
        assert_eq!((&link["state"], link.get("reason")), (&json!("absent"), Some(&Value::Null)));
        assert_eq!((&link["generation"], &link["bytes"]), (&json!(0), &json!(0)));
        let memory = json!(MemoryReport::from(v1::MemoryStatus::default()));
        assert_eq!(memory.get("recommended_bytes"), Some(&Value::Null));
    }

    #[test]
    fn enums_are_words_and_an_unknown_number_is_unspecified() {
        let state = |state: i32| target(v1::ProcessStatus { state, ..Default::default() });
        assert_eq!(state(ProcessState::BackingOff.into())["state"], "backing_off");
        assert_eq!(state(99)["state"], "unspecified");
        let reduction = KvReduction::RebootWhileBusy.into();
        let kv = KvReport::from(v1::KvStatus { reduction, ..Default::default() });
        assert_eq!(json!(kv)["reduced_reason"], "reboot_while_busy");
    }

    #[test]
    fn a_cycle_has_its_accepted_tokens_and_one_of_the_target() {
        let speculation = Speculation { cycles: 10, drafted: 150, accepted: 42 };
        let link = v1::LinkStatus { speculation: Some(speculation), ..Default::default() };
        assert_eq!(LinkReport::from(link).speculation(), speculation);
        assert_eq!(speculation.tokens_per_cycle(), Some(5.2));
        assert_eq!(Speculation::default().tokens_per_cycle(), None);
    }

    #[test]
    fn settings_of_the_policy_are_an_object_with_their_keys() {
        let setting = PolicySetting {
            key: "routing.force".into(),
            value: "plain".into(),
            source: "operator".into(),
        };
        let policy = PolicyReport::from(v1::PolicyResponse { epoch: 3, policy: vec![setting] });
        let setting = json!({ "value": "plain", "source": "operator" });
        assert_eq!(json!(policy), json!({ "epoch": 3, "settings": { "routing.force": setting } }));
    }
}
