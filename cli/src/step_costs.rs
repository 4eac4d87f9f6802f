//! Costs of a step of one request by its rows, for `status` and `selftest`.

use paceline_proto::v1::StepCost;
use serde::Serialize;

/// Cost of a step of one request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepMs {
    /// The last chosen token and the drafted ones that it verifies.
    pub rows: u32,
    /// Duration of the step in milliseconds.
    pub ms: f64,
    /// Milliseconds of a draft of `rows` rows, if one was measured.
    pub draft_ms: Option<f64>,
}

impl StepMs {
    /// As the status has it.
    pub fn of(cost: &StepCost) -> Self {
        let draft_ms = (cost.draft_us > 0.0).then_some(cost.draft_us / 1e3);
        Self { rows: cost.rows, ms: cost.us / 1e3, draft_ms }
    }
}

/// All of them in one line; empty if nothing was measured.
pub fn line(costs: &[StepMs]) -> String {
    if costs.is_empty() {
        return String::new();
    }
    let point = |cost: &StepMs| {
        let draft = cost.draft_ms.map_or(String::new(), |ms| format!("+{ms:.1}"));
        format!("{} {:.1}{draft}", cost.rows, cost.ms)
    };
    let points: Vec<_> = costs.iter().map(point).collect();
    format!("ms of a step by rows (+ its draft): {}\n", points.join(", "))
}
