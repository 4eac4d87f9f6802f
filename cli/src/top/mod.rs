//! `paceline top`: a page in the terminal that shows the service every second, and gives orders by
//! keys, each after a question. A client of the supervisor's Operations; the throughput is the
//! gateway's. Not here: what an order does.
//!
//! ```text
//!  supervisor, gateway ── Input ──▶ state ──▶ view ──▶ draw ──▶ terminal
//!  terminal ── Key ──▶ dialog ──▶ state ── Action ──▶ supervisor
//! ```
//!
//! `state`, `dialog`, `view` and `draw` are pure; this file is the loop around them.

mod dialog;
mod draw;
mod key;
mod order;
mod rates;
mod state;
mod supervisor;
mod terminal;
mod throughput;
mod view;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use paceline_client::channel::OwnAddresses;
use paceline_client::{Failure, Screen};
use paceline_process::{Loaded, RuntimeDir, Signals, task};
use paceline_system::Clock;
use tokio::sync::mpsc;

use crate::args::{FrameSize, TopArgs};
use crate::gateway_http::GatewayHttp;
use crate::status;
use state::{Action, Input, State};
use supervisor::ConfigFile;
use terminal::{Page, TerminalEvent};
use throughput::Throughput;
use view::View;

/// Inputs on their way to the page. A full queue delays the next snapshot and nothing else.
const MOST_INPUTS: usize = 256;
/// Longest time between two drawings: the ages of figures and orders are in seconds.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);

/// Runs the command.
///
/// # Errors
/// The configuration cannot be used; there is no terminal; with `--once`: no supervisor answers.
pub async fn run(args: &TopArgs, screen: &mut Screen) -> Result<(), Failure> {
    let config = args.config.config.clone();
    // A configuration that cannot be used is reported before the terminal changes.
    let loaded = Loaded::find(config.as_deref())?;
    RuntimeDir::locate(&loaded.config)?;
    let gateway = GatewayHttp::of(&OwnAddresses::find(&loaded).await);
    if args.once {
        return once(&config, &gateway, args.size, screen).await;
    }
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(Failure::usage(
            "expected a terminal as standard input and output, found a file or a pipe; \
             `paceline status` prints the figures, `paceline top --once` prints one frame",
        ));
    }
    watch(&config, gateway).await
}

/// Prints one frame.
async fn once(
    config: &ConfigFile,
    gateway: &GatewayHttp,
    size: FrameSize,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let clock = Clock::start();
    let mut state = State::default();
    let status = status::ask(config.as_deref()).await?;
    state.on(Input::Status(Ok(Box::new(status))), clock.now());
    for event in supervisor::past_events(config).await? {
        state.on(Input::Changed(Box::new(event)), clock.now());
    }
    state.on(Input::Throughput(Throughput::ask(gateway).await), clock.now());
    screen.text(&draw::page_text(&View::of(&state, clock.now()), size.width, size.height))
}

/// Shows the page until a person or a signal ends it. An order that runs then remains in force.
async fn watch(config: &ConfigFile, gateway: GatewayHttp) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::usage(format!("the terminal cannot be used: {error}"));
    let mut signals = Signals::interactive().map_err(failed)?;
    let clock = Clock::start();
    let mut state = State::default();
    let (to, mut inputs) = mpsc::channel(MOST_INPUTS);
    let mut page = Page::open().map_err(failed)?;
    let mut keys = terminal::read_keys().map_err(failed)?;
    let tasks = supervisor::follow(config, gateway, &to);
    let ended = loop {
        if let Err(error) = page.draw(&View::of(&state, clock.now())) {
            break Err(failed(error));
        }
        let first = tokio::select! {
            input = inputs.recv() => input,
            event = keys.recv() => match event {
                Some(TerminalEvent::Key(key)) => Some(Input::Key(key)),
                Some(TerminalEvent::Resized) => None,
                Some(TerminalEvent::Gone) | None => break Ok(()),
            },
            () = signals.next() => break Ok(()),
            () = tokio::time::sleep(REDRAW_INTERVAL) => None,
        };
        // Past events come in a burst: one drawing is enough for all that wait.
        let mut action = first.and_then(|input| state.on(input, clock.now()));
        while action.is_none()
            && let Ok(input) = inputs.try_recv()
        {
            action = state.on(input, clock.now());
        }
        match action {
            None => {}
            Some(Action::Quit) => break Ok(()),
            Some(Action::Send { number, order }) => {
                let (config, to) = (config.clone(), to.clone());
                task::spawn("order", async move {
                    let outcome = supervisor::carry_out(order, config).await;
                    // The page may be over.
                    let _ = to.send(Input::Ended { number, outcome }).await;
                });
            }
        }
    };
    tasks.iter().for_each(|task| task.abort());
    ended
}
