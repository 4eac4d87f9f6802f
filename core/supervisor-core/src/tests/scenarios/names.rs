//! Actions and states as words of a scenario.

use std::fmt::Write as _;

use crate::tests::testing::*;

fn route(permit: &Permit) -> String {
    let lane = permit.lane.word();
    let reason = permit.reason.word();
    let draft =
        if permit.max_draft == 0 { String::new() } else { format!("={}", permit.max_draft) };
    let policy =
        if permit.policy_epoch == 0 { String::new() } else { format!(" p{}", permit.policy_epoch) };
    format!("{lane}{draft} {reason}{policy}")
}

fn denied(denial: &Denial) -> String {
    let retry = match denial {
        Denial::Outage { retry_ms, .. } | Denial::Gone { retry_ms, .. } => {
            format!(" retry={retry_ms}")
        }
        Denial::DeadlinePassed { waited_ms } | Denial::QueueWait { waited_ms } => {
            format!(" waited={waited_ms}")
        }
        _ => String::new(),
    };
    format!("{}{retry}", denial.reason().word())
}

fn worker_action(action: &worker::Action) -> String {
    match action {
        worker::Action::Spawn { model } if model.is_empty() => "spawn".into(),
        worker::Action::Spawn { model } => format!("spawn {model}"),
        worker::Action::ReadWired => "read_wired".into(),
        worker::Action::LookAtFiles { .. } => "look".into(),
        worker::Action::AskStop { epoch, .. } => format!("ask_stop e{epoch}"),
        worker::Action::Terminate { epoch } => format!("terminate e{epoch}"),
        worker::Action::Kill { epoch } => format!("kill e{epoch}"),
        worker::Action::Describe { epoch } => format!("describe e{epoch}"),
        worker::Action::Clear => "clear".into(),
        worker::Action::Abandon { epoch, .. } => format!("abandon e{epoch}"),
        worker::Action::LogPhase { from, to, .. } => format!("phase {from}->{to}"),
        worker::Action::Surprise { phase, event } => format!("surprise {phase}/{event}"),
    }
}

/// An action as a scenario writes it.
pub(crate) fn name_of(action: &Action) -> String {
    match action {
        Action::Worker(WorkerId::Target, action) => worker_action(action),
        Action::Worker(WorkerId::Drafter(slot), action) => {
            format!("d{} {}", slot.idx(), worker_action(action))
        }
        Action::Connect { generation, slot, ends } => {
            format!(
                "connect g={} d{} e{}/e{}",
                generation & 0xFFFF_FFFF,
                slot.idx(),
                ends.target,
                ends.drafter
            )
        }
        Action::Repermit { epoch, changes } => {
            let changes: Vec<_> = changes
                .iter()
                .map(|(ticket, permit)| format!("r{} {}", ticket.0, route(permit)))
                .collect();
            format!("repermit e{epoch} {}", changes.join(", "))
        }
        Action::PushPolicy { epoch, policy } => format!("push e{epoch} p{}", policy.epoch),
        Action::LogPolicy { epoch, key, from, to, .. } => {
            format!("policy p{epoch} {key} {from}->{to}")
        }
        Action::LogRoute { ticket, decision } => {
            let again = if decision.again { " again" } else { "" };
            format!("log r{}{again} {}", ticket.0, route(&decision.permit))
        }
        Action::Answer { order_id, outcome } => match outcome {
            Ok(()) => format!("answer order={} done", order_id.0),
            Err(refused) => format!("answer order={} {}", order_id.0, refused.reason.word()),
        },
        Action::LogLink { slot, generation, to, .. } => {
            format!("link g={} d{} {to}", generation & 0xFFFF_FFFF, slot.idx())
        }
        Action::LogRefusal { refused, next } => format!("refused {} next {next}", refused.model),
        Action::Admit { ticket, epoch, permit, queued_ms } => {
            format!("admit r{} e{epoch} {} queued={queued_ms}", ticket.0, route(permit))
        }
        Action::Deny { ticket, denial } => format!("deny r{} {}", ticket.0, denied(denial)),
        Action::Abort { epoch, denial } => format!("abort e{epoch} {}", denied(denial)),
        Action::Announce(notice) => match &notice.outage {
            None if notice.leaving => "announce leaving".into(),
            None => "announce serving".into(),
            Some(outage) => format!("announce {}", outage.reason.word()),
        },
        Action::Overslept { ms } => format!("overslept {ms}"),
        Action::LogService { from, to, .. } => format!("service {from}->{to}"),
        Action::LogGateway { from, to, .. } => format!("gateway {}->{}", from.word(), to.word()),
        Action::TargetSwapped { model } => format!("swapped {model}"),
        Action::LogOrder { subject, to } => format!("order {subject}: {to}"),
        Action::RestartGateway { attachment, grace_ms: None } => {
            format!("restart_gateway a{attachment}")
        }
        Action::RestartGateway { attachment, grace_ms: Some(ms) } => {
            format!("restart_gateway a{attachment} grace={ms}")
        }
        Action::Exit { restart: false } => "exit".into(),
        Action::Exit { restart: true } => "leave".into(),
    }
}

pub(super) fn show(core: &Supervisor, now: Millis) -> String {
    let target = core.target();
    let admission = core.admission();
    let mut text = format!(
        "{} restarts={} active={} queued={} reserved={}",
        target.phase().name(),
        target.restarts(),
        admission.active(),
        admission.queued(),
        admission.reserved_bytes()
    );
    let reason = target.reason(now).replace('\n', " | ").replace(';', ",");
    if !reason.is_empty() {
        write!(text, " [{reason}]").expect("writing to a string");
    }
    text
}

pub(super) fn show_drafter(core: &Supervisor, now: Millis) -> String {
    let drafters = core.drafters();
    let state = drafters.process_state().word();
    let reason = drafters.reason(now).replace('\n', " | ").replace(';', ",");
    let mut text =
        format!("{state} {} restarts={} [{reason}]", drafters.model(), drafters.restarts());
    // The reason of the current one stands above.
    for refused in drafters.refused().iter().filter(|refused| refused.model != drafters.model()) {
        write!(text, " refused {} [{}]", refused.model, refused.reason)
            .expect("writing to a string");
    }
    text
}
