//! The supervisor's side: snapshots, events and orders, by its Operations service.

use std::path::PathBuf;
use std::time::Duration;

use paceline_client::Failure;
use paceline_client::args::ConfigArg;
use paceline_client::channel::{ANSWER_TIMEOUT, answered, operations};
use paceline_process::task;
use paceline_proto::v1::{Event, EventsRequest};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::order::Order;
use super::state::Input;
use super::throughput::Throughput;
use crate::args::{DrafterChange, DrafterCommand, DrainArgs, RestartArgs, WaitArgs};
use crate::gateway_http::GatewayHttp;
use crate::{drafter, drain, events, restart, status};

/// Time between two snapshots.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two questions to the gateway, which has a number for every 2 s.
const THROUGHPUT_INTERVAL: Duration = Duration::from_secs(2);
/// Time between two tries to follow the events.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);
/// Past events that are read: enough to know whether the service was drained.
const PAST_EVENTS: u32 = 1_000;

/// The configuration file of the service, as the flag names it.
pub type ConfigFile = Option<PathBuf>;

/// The past events, oldest first.
///
/// # Errors
/// No supervisor answers, the configuration cannot be used, or the stream breaks.
pub async fn past_events(config: &ConfigFile) -> Result<Vec<Event>, Failure> {
    events::past(config.as_deref(), PAST_EVENTS).await
}

/// Sends snapshots, events and throughput to `to` until the tasks are aborted.
pub fn follow(
    config: &ConfigFile,
    gateway: GatewayHttp,
    to: &mpsc::Sender<Input>,
) -> Vec<JoinHandle<()>> {
    vec![
        task::spawn("snapshots", send_snapshots(config.clone(), to.clone())),
        task::spawn("events", send_events(config.clone(), to.clone())),
        task::spawn("throughput", send_throughput(gateway, to.clone())),
    ]
}

async fn send_snapshots(config: ConfigFile, to: mpsc::Sender<Input>) {
    loop {
        let status = status::ask(config.as_deref()).await;
        let status = status.map(Box::new).map_err(|failure| failure.to_string());
        if to.send(Input::Status(status)).await.is_err() {
            return;
        }
        tokio::time::sleep(STATUS_INTERVAL).await;
    }
}

async fn send_events(config: ConfigFile, to: mpsc::Sender<Input>) {
    loop {
        // Why there is none is said by the snapshots.
        let _ = send_events_once(&config, &to).await;
        if to.is_closed() {
            return;
        }
        tokio::time::sleep(RECONNECT_INTERVAL).await;
    }
}

async fn send_events_once(config: &ConfigFile, to: &mpsc::Sender<Input>) -> Result<(), Failure> {
    let (mut client, place) = operations(config.as_deref())?;
    let request = EventsRequest { follow: true, last: Some(PAST_EVENTS) };
    let mut stream = answered(client.events(request), ANSWER_TIMEOUT, &place).await?;
    if to.send(Input::EventsBegin).await.is_err() {
        return Ok(());
    }
    while let Ok(Some(event)) = stream.message().await {
        if to.send(Input::Changed(Box::new(event))).await.is_err() {
            break;
        }
    }
    Ok(())
}

async fn send_throughput(gateway: GatewayHttp, to: mpsc::Sender<Input>) {
    while to.send(Input::Throughput(Throughput::ask(&gateway).await)).await.is_ok() {
        tokio::time::sleep(THROUGHPUT_INTERVAL).await;
    }
}

/// Carries an order out, and returns a line about its end.
///
/// # Errors
/// Why it was not carried out, in words.
pub async fn carry_out(order: Order, config: ConfigFile) -> Result<String, String> {
    let wait = WaitArgs { timeout: None, config: ConfigArg { config } };
    let change = |model: Option<String>| DrafterChange { model, wait: wait.clone() };
    let named = |model: String| Some(model).filter(|model| !model.is_empty());
    let line = match order {
        Order::Restart(process) => {
            restart::carry_out(&RestartArgs { process, now: false, drain: false, wait }).await
        }
        Order::StartDrafter => drafter::carry_out(&DrafterCommand::Start(change(None))).await,
        Order::StopDrafter => drafter::carry_out(&DrafterCommand::Stop(wait)).await,
        Order::SwapDrafter { model } => {
            drafter::carry_out(&DrafterCommand::Swap(change(named(model)))).await
        }
        Order::Drain => drain::carry_out(&DrainArgs { undo: false, wait }).await.map(str::to_owned),
        Order::Undrain => {
            drain::carry_out(&DrainArgs { undo: true, wait }).await.map(str::to_owned)
        }
    };
    line.map_err(|failure| failure.to_string())
}
