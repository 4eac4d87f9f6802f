//! The events of actions that only log.

use paceline_supervisor_core::drafter::RefusedDrafter;
use paceline_supervisor_core::{Action, WorkerId};

use super::Change;

/// The event of an action that only logs; `None` for every other action.
pub(crate) fn logged(action: Action) -> Option<Change> {
    Some(match action {
        Action::LogPolicy { epoch, key, from, to, cause } => {
            let (subject, cause) = (key.to_owned(), cause.to_owned());
            Change { kind: "policy", subject, epoch, from, to, cause }
        }
        Action::LogLink { slot, generation, to, cause } => Change {
            kind: "link",
            subject: WorkerId::Drafter(slot).to_string(),
            epoch: generation,
            from: String::new(),
            to: to.to_owned(),
            cause,
        },
        Action::LogRefusal { refused: RefusedDrafter { model, reason }, next } => Change {
            kind: "drafter",
            subject: model,
            to: "refused".to_owned(),
            cause: format!("{reason}; {next} is tried in its place"),
            ..Change::default()
        },
        Action::LogService { from, to, cause } => Change {
            kind: "service",
            subject: "service".to_owned(),
            epoch: 0,
            from: from.to_owned(),
            to: to.to_owned(),
            cause: cause.to_owned(),
        },
        Action::LogGateway { epoch, from, to, cause } => Change {
            kind: "gateway",
            subject: "gateway".to_owned(),
            epoch: epoch.0,
            from: from.word().to_owned(),
            to: to.word().to_owned(),
            cause: cause.to_owned(),
        },
        _ => return None,
    })
}

/// The event of an operator's order.
pub(crate) fn ordered(subject: &str, to: String) -> Change {
    let cause = "an operator orders it".to_owned();
    Change { kind: "order", subject: subject.to_owned(), to, cause, ..Change::default() }
}
