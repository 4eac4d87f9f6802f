//! Orders of operators by the status page, and what became of the last ones.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A process that can be restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ProcessWord)]
#[expect(missing_docs, reason = "they are what they are called")]
pub enum RestartedProcess {
    Gateway,
    Supervisor,
    Target,
    Drafter,
}

impl RestartedProcess {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Gateway, Self::Supervisor, Self::Target, Self::Drafter];

    /// Name of the process, as `paceline restart` has it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Supervisor => "supervisor",
            Self::Target => "target",
            Self::Drafter => "drafter",
        }
    }
}

/// An operator's order. An empty model is the one that the supervisor knows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "`model` is as above")]
pub enum ServiceOrder {
    /// A drafter is to run.
    StartDrafter { model: String },
    /// No drafter is to run.
    StopDrafter,
    /// Another drafter is to take over.
    SwapDrafter { model: String },
    /// The service takes no new requests, and the order is done when none runs.
    Drain,
    /// The service takes requests again.
    Undrain,
    /// A process is to end and be started again.
    Restart(RestartedProcess),
}

impl ServiceOrder {
    /// The order's word in the page's requests.
    pub fn word(&self) -> &'static str {
        match self {
            Self::StartDrafter { .. } => "drafter_start",
            Self::StopDrafter => "drafter_stop",
            Self::SwapDrafter { .. } => "drafter_swap",
            Self::Drain => "drain",
            Self::Undrain => "undrain",
            Self::Restart(_) => "restart",
        }
    }

    /// The subject of the order.
    pub fn subject(&self) -> OrderSubject {
        match self {
            Self::StartDrafter { .. } | Self::StopDrafter | Self::SwapDrafter { .. } => {
                OrderSubject::Process(RestartedProcess::Drafter)
            }
            Self::Restart(process) => OrderSubject::Process(*process),
            Self::Drain => OrderSubject::Drain,
            Self::Undrain => OrderSubject::Undrain,
        }
    }

    /// The model that the order names, if it names one.
    pub fn model(&self) -> Option<&str> {
        match self {
            Self::StartDrafter { model } | Self::SwapDrafter { model } => {
                (!model.is_empty()).then_some(model)
            }
            _ => None,
        }
    }
}

/// What may have one order at a time: a process, or the service. A drain that waits for requests is
/// undone by an order beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are what they are called")]
pub enum OrderSubject {
    Process(RestartedProcess),
    Drain,
    Undrain,
}

impl OrderSubject {
    /// Number of subjects.
    pub const COUNT: usize = 6;

    /// Place in a table of [`OrderSubject::COUNT`] rows.
    pub fn index(self) -> usize {
        match self {
            Self::Process(RestartedProcess::Gateway) => 0,
            Self::Process(RestartedProcess::Supervisor) => 1,
            Self::Process(RestartedProcess::Target) => 2,
            Self::Process(RestartedProcess::Drafter) => 3,
            Self::Drain => 4,
            Self::Undrain => 5,
        }
    }

    /// The process, or `service`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Process(process) => process.word(),
            Self::Drain | Self::Undrain => "service",
        }
    }
}

/// An order of the status page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct OrderReport {
    /// Number of the order in this gateway's life, from 1.
    pub number: u64,
    /// `drafter_start`, `drafter_stop`, `drafter_swap`, `drain`, `undrain` or `restart`.
    pub order: &'static str,
    /// `gateway`, `supervisor`, `target`, `drafter` or `service`.
    pub process: &'static str,
    /// Directory of the model that the order names; null if it names none.
    pub model: Option<String>,
    /// `running`, `done` or `failed`.
    pub state: &'static str,
    /// When it was given, in seconds since 1970.
    pub began: i64,
    /// When it ended, in seconds since 1970; null while it runs.
    pub ended: Option<i64>,
    /// Why it failed; at most 1,000 characters.
    pub message: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_subject_has_a_row_of_its_own() {
        let mut subjects: Vec<_> =
            RestartedProcess::ALL.into_iter().map(OrderSubject::Process).collect();
        subjects.extend([OrderSubject::Drain, OrderSubject::Undrain]);
        let rows: Vec<_> = subjects.iter().map(|subject| subject.index()).collect();
        assert_eq!(rows, (0..OrderSubject::COUNT).collect::<Vec<_>>());
    }

    #[test]
    fn an_order_names_a_model_only_if_it_has_one() {
        let named = ServiceOrder::SwapDrafter { model: "/d".into() };
        assert_eq!((named.word(), named.model()), ("drafter_swap", Some("/d")));
        assert_eq!(ServiceOrder::StartDrafter { model: String::new() }.model(), None);
        assert_eq!(ServiceOrder::Drain.model(), None);
    }
}
