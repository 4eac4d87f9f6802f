//! How `status` shows routing and memory.

use paceline_client::print::bytes;
use paceline_proto::convert::service::{MemoryReport, RoutingReport, ServedRoute};
use paceline_proto::v1::RoutingBucket;

use crate::step_costs::{self, StepMs};

/// For people: lines of what is not as it always is.
pub(super) fn text(routing: &RoutingReport, memory: &MemoryReport) -> String {
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
        if let Some(recommended) = memory.recommended_bytes.flatten() {
            text.push_str(&format!("; working set of the GPU {}", bytes(recommended)));
        }
        text.push('\n');
    }
    if !routing.routes.is_empty() {
        let route = |route: &ServedRoute| {
            format!("{} {} ({})", route.requests, route.lane.word(), route.reason.word())
        };
        text.push_str(&format!(
            "routes: {}\n",
            routing.routes.iter().map(route).collect::<Vec<_>>().join(", ")
        ));
    }
    let policy = &routing.policy;
    let set: Vec<_> =
        policy.settings.iter().filter(|setting| setting.source == "operator").collect();
    if !set.is_empty() {
        let set: Vec<_> =
            set.iter().map(|setting| format!("{} = {}", setting.key, setting.value)).collect();
        let set = set.join(", ");
        text.push_str(&format!("policy {}: {set} (by an operator)\n", policy.epoch));
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

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_proto::convert::service::PolicyReport;
    use paceline_proto::v1::{Lane, PolicySetting, RouteReason, StepCost};
    use serde_json::{Value, json};

    #[test]
    fn only_measured_routing_figures_are_shown() {
        assert_eq!(text(&RoutingReport::default(), &MemoryReport::default()), "");
        let setting = |key: &str, source: &str| PolicySetting {
            key: key.into(),
            value: "2".into(),
            source: source.into(),
        };
        let route = |lane, reason, requests| ServedRoute { lane, reason, requests };
        let bucket = |up_to, steps, gain| RoutingBucket { up_to, steps, gain };
        let cost = |rows, us, draft_us| StepCost { rows, us, draft_us };
        let routing = RoutingReport {
            policy: PolicyReport {
                epoch: 1,
                settings: vec![
                    setting("routing.max_concurrent", "operator"),
                    setting("routing.max_context", "configuration"),
                ],
            },
            routes: vec![
                route(Lane::Plain, RouteReason::Concurrency, 12),
                route(Lane::Speculative, RouteReason::Benefit, 34),
            ],
            by_sequences: vec![bucket(1, 900, 1.84), bucket(4, 0, 0.0), bucket(u32::MAX, 70, 1.0)],
            by_context: vec![],
            step_costs: vec![cost(1, 7_310.0, 0.0), cost(4, 9_870.0, 1_390.0)],
        };
        let memory = MemoryReport {
            budget_bytes: 8 << 30,
            target_bytes: 2 << 30,
            drafter_bytes: 1 << 30,
            cache_bytes: 1 << 20,
            available_bytes: 5 << 30,
            recommended_bytes: Some(None),
        };
        let expected = "\
memory: target 2.0 GiB, drafter 1.0 GiB, caches 1.0 MiB of 8.0 GiB; 5.0 GiB free
routes: 12 plain (concurrency), 34 speculative (benefit)
policy 1: routing.max_concurrent = 2 (by an operator)
speculation by requests at once: to 1 1.84x, more 1.00x
ms of a step by rows (+ its draft): 1 7.3, 4 9.9+1.4
";
        assert_eq!(text(&routing, &memory), expected);
        assert_eq!(json!(memory).get("recommended_bytes"), Some(&Value::Null));
        let bounded = MemoryReport { recommended_bytes: Some(Some(6 << 30)), ..memory };
        let first = text(&routing, &bounded);
        assert!(first.starts_with("memory: target 2.0 GiB, drafter 1.0 GiB, caches 1.0 MiB of 8.0 GiB; 5.0 GiB free; working set of the GPU 6.0 GiB\n"), "{first}");
        assert_eq!(json!(bounded)["recommended_bytes"], 6_u64 << 30);
        let object = json!(routing);
        assert_eq!(
            object["routes"][1],
            json!({ "lane": "speculative", "reason": "benefit", "requests": 34 })
        );
        assert_eq!(object["policy"]["settings"]["routing.max_context"]["source"], "configuration");
        assert_eq!(object["by_sequences"][0]["gain"], 1.84);
    }
}
