//! `paceline events`: what changed state and why, line by line, as a table or as JSON; with
//! `--follow` also what comes, also from the supervisor that takes this one's place.

use std::path::Path;
use std::time::Duration;

use paceline_client::channel::{ANSWER_TIMEOUT, answered, operations};
use paceline_client::{Failure, Screen};
use paceline_proto::status::ReasonStatus as _;
use paceline_proto::v1::{Event, EventsRequest};
use paceline_system::Clock;
use serde_json::{Value, json};
use tonic::Streaming;

use crate::args::EventsArgs;

/// How long the next supervisor is waited for, and how often it is looked for.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);
const RECONNECT_POLL: Duration = Duration::from_millis(100);
/// Most events that are read again after a change of supervisor.
const CATCH_UP_EVENTS: u32 = 1_000;

/// Runs the command.
///
/// # Errors
/// No supervisor answers, none takes the place of one that was followed, or the configuration
/// cannot be used.
pub async fn run(args: &EventsArgs, screen: &mut Screen) -> Result<(), Failure> {
    let config = args.config.config.as_deref();
    let mut events = open(config, args.follow, args.last).await?;
    // Where we are: of each supervisor's life events are numbered.
    let mut seen = (0, 0);
    loop {
        let ended = match events.message().await {
            Ok(Some(event)) => {
                let at = (event.term, event.number);
                if at > seen {
                    seen = at;
                    let text =
                        if args.json { format!("{}\n", object(&event)) } else { line(&event) };
                    screen.text(&text)?;
                }
                continue;
            }
            Ok(None) => None,
            Err(status) => Some(status),
        };
        match ended {
            None if !args.follow => return Ok(()),
            // Ours, about this stream: we were too slow.
            Some(status) if paceline_proto::status::Reason::of(&status).is_some() => {
                return Err(Failure::refused(&status));
            }
            Some(status) if !args.follow => return Err(Failure::refused(&status)),
            _ => events = next(config).await?,
        }
    }
}

/// The supervisor has ended: the one in its place.
async fn next(config: Option<&Path>) -> Result<Streaming<Event>, Failure> {
    let clock = Clock::start();
    loop {
        match open(config, true, CATCH_UP_EVENTS).await {
            Err(_) if clock.now().0 < RECONNECT_TIMEOUT.as_millis() as u64 => {
                tokio::time::sleep(RECONNECT_POLL).await
            }
            opened => return opened,
        }
    }
}

/// The past events, oldest first, `last` at most.
///
/// # Errors
/// No supervisor answers, the stream breaks, or the configuration cannot be used.
pub async fn past(config: Option<&Path>, last: u32) -> Result<Vec<Event>, Failure> {
    let mut stream = open(config, false, last).await?;
    let mut events = Vec::new();
    while let Some(event) = stream.message().await.map_err(|status| Failure::refused(&status))? {
        events.push(event);
    }
    Ok(events)
}

async fn open(config: Option<&Path>, follow: bool, last: u32) -> Result<Streaming<Event>, Failure> {
    let (mut client, place) = operations(config)?;
    let request = EventsRequest { follow, last: Some(last) };
    answered(client.events(request), ANSWER_TIMEOUT, &place).await
}

/// JSON object of an event for `--json`, as its line in the file has it.
pub fn object(event: &Event) -> Value {
    let Event { time, term, number, kind, subject, epoch, from, to, cause } = event;
    json!({
        "time": time, "term": term, "number": number, "kind": kind, "subject": subject, "epoch": epoch,
        "from": from, "to": to, "cause": cause,
    })
}

fn line(event: &Event) -> String {
    format!("{} {}\n", event.time, change(event).replace('\n', "\n    "))
}

/// The change and its cause, without the time.
pub fn change(event: &Event) -> String {
    let life = if event.epoch == 0 { String::new() } else { format!(" {}", event.epoch) };
    let what = match (event.from.as_str(), event.to.as_str()) {
        ("", to) => to.to_owned(),
        (from, to) => format!("{from} -> {to}"),
    };
    let subject = match event.kind.as_str() {
        "link" => format!("link of {}", event.subject),
        "drafter" => format!("drafter {}", event.subject),
        _ => format!("{}{life}", event.subject),
    };
    let cause = if event.cause.is_empty() { String::new() } else { format!(": {}", event.cause) };
    format!("{subject} {what}{cause}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_for_people_and_one_object_for_programs() {
        let event = Event {
            time: "2026-01-02T03:04:05.678Z".into(),
            term: 3,
            number: 7,
            kind: "phase".into(),
            subject: "target".into(),
            epoch: 4,
            from: "ready".into(),
            to: "starting".into(),
            cause: "signal 9 (SIGKILL)".into(),
        };
        assert_eq!(
            line(&event),
            "2026-01-02T03:04:05.678Z target 4 ready -> starting: signal 9 (SIGKILL)\n"
        );
        let link = Event {
            kind: "link".into(),
            subject: "drafter-0".into(),
            from: String::new(),
            to: "up".into(),
            ..event.clone()
        };
        assert_eq!(
            line(&link),
            "2026-01-02T03:04:05.678Z link of drafter-0 up: signal 9 (SIGKILL)\n"
        );
        let refused = Event {
            kind: "drafter".into(),
            subject: "/d".into(),
            from: String::new(),
            to: "refused".into(),
            cause: "other sizes".into(),
            epoch: 0,
            ..event.clone()
        };
        assert_eq!(line(&refused), "2026-01-02T03:04:05.678Z drafter /d refused: other sizes\n");
        let keys: Vec<_> = object(&event).as_object().expect("an object").keys().cloned().collect();
        assert_eq!(keys.join(" "), "time term number kind subject epoch from to cause");
    }
}
