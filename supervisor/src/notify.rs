//! Messages to the service manager while the supervisor runs: ready, a line of state, and a sign of
//! life only while the actor answers.

use std::time::Duration;

use paceline_process::Notifier;
use paceline_proto::v1::{ProcessState, ProcessStatus, StatusResponse};

use crate::handle::ActorHandle;

/// Longest pause between two updates of the line of state.
const UPDATE_INTERVAL: Duration = Duration::from_secs(2);

/// Updates the manager until the actor has ended. An actor that hangs keeps this waiting, and the
/// manager gets no sign of life.
pub async fn attend(notifier: Notifier, handle: ActorHandle) {
    let mut updates = tokio::time::interval(
        notifier.beat().map_or(UPDATE_INTERVAL, |beat| beat.min(UPDATE_INTERVAL)),
    );
    updates.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut sent = String::new();
    loop {
        updates.tick().await;
        let Ok(snapshot) = handle.status().await else { return };
        notifier.alive();
        if snapshot
            .supervisor
            .as_ref()
            .is_some_and(|supervisor| supervisor.state() == ProcessState::Draining)
        {
            notifier.stopping();
        }
        let now = line(&snapshot);
        if now != sent {
            notifier.status(&now);
            sent = now;
        }
    }
}

/// The state in a line.
fn line(snapshot: &StatusResponse) -> String {
    let part = |name: &str, process: &Option<ProcessStatus>| {
        let state = process.clone().unwrap_or_default();
        let word = state.state().word();
        match (state.state(), state.reason.lines().next()) {
            (ProcessState::Ready | ProcessState::Absent, _) | (_, None) => format!("{name} {word}"),
            (_, Some(reason)) => format!("{name} {word} ({reason})"),
        }
    };
    let requests = snapshot.requests.unwrap_or_default();
    let parts = [
        part("target", &snapshot.target),
        part("drafter", &snapshot.drafter),
        part("gateway", &snapshot.gateway),
        format!("{} requests, {} waiting", requests.active, requests.queued),
    ];
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use paceline_process::{Config, RuntimeDir, task};

    use super::*;
    use crate::handle;
    use crate::mailbox::Mail;

    fn received(socket: &UnixDatagram) -> Option<String> {
        let mut buffer = [0; 1024];
        let length = socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    /// Time here is tokio's and goes on when nothing else can.
    #[tokio::test(start_paused = true)]
    async fn only_an_actor_that_answers_is_a_sign_of_life() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("bound");
        manager.set_nonblocking(true).expect("set");
        let mut config = Config::default();
        config.supervisor.runtime_dir = dir.path().display().to_string();
        let runtime_dir = RuntimeDir::locate(&config).expect("a short path");
        let (handle, mut mailbox, _kept) = handle::played(&runtime_dir);
        let notifier =
            Notifier::to(&path.display().to_string(), Some(Duration::from_secs(2))).expect("there");
        let attending = task::spawn("attend", attend(notifier, handle));

        let Some(Mail::Status { reply }) = mailbox.recv().await else {
            panic!("it asks the actor")
        };
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        assert_eq!(received(&manager), None, "the actor has not answered yet");
        let requests =
            Some(paceline_proto::v1::RequestsStatus { active: 2, queued: 1, ..Default::default() });
        reply.send(StatusResponse { requests, ..StatusResponse::default() }).expect("awaited");
        // The next question comes after the notification.
        let Some(Mail::Status { .. }) = mailbox.recv().await else { panic!("it asks again") };
        assert_eq!(received(&manager).as_deref(), Some("WATCHDOG=1"));
        assert!(received(&manager).is_some_and(|words| words.ends_with("2 requests, 1 waiting")));
        assert_eq!(received(&manager), None);
        drop(mailbox);
        attending.await.expect("it ends with the actor");
    }

    #[test]
    fn the_line_names_each_process_and_why_it_is_not_ready() {
        let process = |state: ProcessState, reason: &str| {
            Some(ProcessStatus {
                state: state.into(),
                reason: reason.into(),
                ..ProcessStatus::default()
            })
        };
        let snapshot = StatusResponse {
            target: process(ProcessState::Ready, ""),
            drafter: process(ProcessState::BackingOff, "killed by signal 9\nlast words"),
            gateway: process(ProcessState::Stopped, ""),
            ..StatusResponse::default()
        };
        let expected = "target ready, drafter backing_off (killed by signal 9), gateway stopped, 0 requests, 0 waiting";
        assert_eq!(line(&snapshot), expected);
    }
}
