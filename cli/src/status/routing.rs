//! How `status` shows routing and memory.

use paceline_client::print::bytes;
use paceline_proto::v1::{MemoryStatus, RouteCount, RoutingBucket, RoutingStatus, StepCost};
use serde_json::{Value, json};

use crate::policy;
use crate::step_costs::{self, StepMs};

/// As JSON.
pub(super) fn object(routing: &RoutingStatus) -> Value {
    let route = |count: &RouteCount| {
        let (lane, reason) = words(count);
        json!({ "lane": lane, "reason": reason, "requests": count.requests })
    };
    let bucket = |bucket: &RoutingBucket| json!({ "up_to": bucket.up_to, "steps": bucket.steps, "gain": bucket.gain });
    let cost =
        |cost: &StepCost| json!({ "rows": cost.rows, "us": cost.us, "draft_us": cost.draft_us });
    json!({
        "policy": policy::object(routing.policy_epoch, &routing.policy),
        "routes": routing.routes.iter().map(route).collect::<Vec<_>>(),
        "by_sequences": routing.by_sequences.iter().map(bucket).collect::<Vec<_>>(),
        "by_context": routing.by_context.iter().map(bucket).collect::<Vec<_>>(),
        "step_costs": routing.step_costs.iter().map(cost).collect::<Vec<_>>(),
    })
}

/// The machine's memory as JSON.
pub(super) fn memory_object(memory: &MemoryStatus) -> Value {
    json!({
        "budget_bytes": memory.budget_bytes, "target_bytes": memory.target_bytes, "drafter_bytes": memory.drafter_bytes,
        "cache_bytes": memory.cache_bytes, "available_bytes": memory.available_bytes,
        "recommended_bytes": (memory.recommended_bytes > 0).then_some(memory.recommended_bytes),
    })
}

/// For people: lines of what is not as it always is.
pub(super) fn text(routing: &RoutingStatus, memory: &MemoryStatus) -> String {
    let mut text = String::new();
    if memory.budget_bytes > 0 {
        text.push_str(&format!(
            "memory: target {}, drafter {}, caches {} of {}; {} free",
            bytes(memory.target_bytes),
            bytes(memory.drafter_bytes),
            bytes(memory.cache_bytes),
            bytes(memory.budget_bytes),
            bytes(memory.available_bytes),
        ));
        if memory.recommended_bytes > 0 {
            text.push_str(&format!("; working set of the GPU {}", bytes(memory.recommended_bytes)));
        }
        text.push('\n');
    }
    if !routing.routes.is_empty() {
        let route = |count: &RouteCount| {
            let (lane, reason) = words(count);
            format!("{} {lane} ({reason})", count.requests)
        };
        text.push_str(&format!(
            "routes: {}\n",
            routing.routes.iter().map(route).collect::<Vec<_>>().join(", ")
        ));
    }
    let set: Vec<_> =
        routing.policy.iter().filter(|setting| setting.source == "operator").collect();
    if !set.is_empty() {
        let set: Vec<_> =
            set.iter().map(|setting| format!("{} = {}", setting.key, setting.value)).collect();
        text.push_str(&format!(
            "policy {}: {} (by an operator)\n",
            routing.policy_epoch,
            set.join(", ")
        ));
    }
    for (what, buckets) in
        [("requests at once", &routing.by_sequences), ("tokens of context", &routing.by_context)]
    {
        let known: Vec<_> = buckets.iter().filter(|bucket| bucket.steps > 0).map(gain).collect();
        if !known.is_empty() {
            text.push_str(&format!("speculation by {what}: {}\n", known.join(", ")));
        }
    }
    let costs: Vec<StepMs> = routing.step_costs.iter().map(StepMs::of).collect();
    text.push_str(&step_costs::line(&costs));
    text
}

fn gain(bucket: &RoutingBucket) -> String {
    let upper =
        if bucket.up_to == u32::MAX { "more".to_owned() } else { format!("to {}", bucket.up_to) };
    format!("{upper} {:.2}x", bucket.gain)
}

fn words(count: &RouteCount) -> (String, String) {
    (count.lane().word(), count.reason().word())
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_proto::v1::{Lane, PolicySetting, RouteReason};

    #[test]
    fn only_measured_routing_figures_are_shown() {
        assert_eq!(text(&RoutingStatus::default(), &MemoryStatus::default()), "");
        let setting = |key: &str, source: &str| PolicySetting {
            key: key.into(),
            value: "2".into(),
            source: source.into(),
        };
        let count = |lane: Lane, reason: RouteReason, requests| RouteCount {
            lane: lane.into(),
            reason: reason.into(),
            requests,
        };
        let bucket = |up_to, steps, gain| RoutingBucket { up_to, steps, gain };
        let cost = |rows, us, draft_us| StepCost { rows, us, draft_us };
        let routing = RoutingStatus {
            policy_epoch: 1,
            policy: vec![
                setting("routing.max_concurrent", "operator"),
                setting("routing.max_context", "configuration"),
            ],
            routes: vec![
                count(Lane::Plain, RouteReason::Concurrency, 12),
                count(Lane::Speculative, RouteReason::Benefit, 34),
            ],
            by_sequences: vec![bucket(1, 900, 1.84), bucket(4, 0, 0.0), bucket(u32::MAX, 70, 1.0)],
            by_context: vec![],
            step_costs: vec![cost(1, 7_310.0, 0.0), cost(4, 9_870.0, 1_390.0)],
        };
        let memory = MemoryStatus {
            budget_bytes: 8 << 30,
            target_bytes: 2 << 30,
            drafter_bytes: 1 << 30,
            cache_bytes: 1 << 20,
            available_bytes: 5 << 30,
            recommended_bytes: 0,
        };
        let expected = "\
memory: target 2.0 GiB, drafter 1.0 GiB, caches 1.0 MiB of 8.0 GiB; 5.0 GiB free
routes: 12 plain (concurrency), 34 speculative (benefit)
policy 1: routing.max_concurrent = 2 (by an operator)
speculation by requests at once: to 1 1.84x, more 1.00x
ms of a step by rows (+ its draft): 1 7.3, 4 9.9+1.4
";
        assert_eq!(text(&routing, &memory), expected);
        assert_eq!(memory_object(&memory)["recommended_bytes"], Value::Null);
        let bounded = MemoryStatus { recommended_bytes: 6 << 30, ..memory };
        let first = text(&routing, &bounded);
        assert!(first.starts_with("memory: target 2.0 GiB, drafter 1.0 GiB, caches 1.0 MiB of 8.0 GiB; 5.0 GiB free; working set of the GPU 6.0 GiB\n"), "{first}");
        assert_eq!(memory_object(&bounded)["recommended_bytes"], 6_u64 << 30);
        let object = object(&routing);
        assert_eq!(
            object["routes"][1],
            json!({ "lane": "speculative", "reason": "benefit", "requests": 34 })
        );
        assert_eq!(object["policy"]["settings"]["routing.max_context"]["source"], "configuration");
        assert_eq!(object["by_sequences"][0]["gain"], 1.84);
    }
}
