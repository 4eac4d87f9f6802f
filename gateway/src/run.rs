//! Tasks of a gateway's process, and the end of the process.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use paceline_process::clock::Clock;
use paceline_process::{Config, Exit, Notifier, RuntimeDir, lifecycle, socket, task, telemetry};
use paceline_text::prompt::Language;
use paceline_vocabulary::Epoch;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::Setup;
use crate::ending::{Action, Ending, Event};
use crate::front::connection::listener::Listeners;
use crate::front::decoding::Decoding;
use crate::front::grpc::{self, GrpcWire};
use crate::front::http::aliases::Aliases;
use crate::front::http::sse::KEEP_ALIVE;
use crate::front::http::{self, Cors, HttpFront, HttpWire, Sites};
use crate::guard::Guard;
use crate::images::ImagePipeline;
use crate::images::store::ImageStore;
use crate::inference::Inference;
use crate::inference::admission::{ByteBudget, RequestSlots};
use crate::inference::standing::Standing;
use crate::inference::upstream::Upstream;
use crate::inference::upstream::attach::{Attachment, GatewayProcess};
use crate::overview::Overview;
use crate::prompter::Prompter;

/// Connections wait this long at most for the first attachment. Afterwards requests are refused
/// because there is no supervisor.
const ATTACH_TIMEOUT: Duration = Duration::from_millis(500);
/// Connections may take this long to close once no request runs.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The listening sockets.
struct Sockets {
    grpc: Socket,
    /// `None` if there is no HTTP.
    http: Option<Socket>,
}

impl Sockets {
    /// Their addresses, for people.
    fn addresses(&self) -> String {
        match &self.http {
            Some(http) => format!("{} (gRPC) and {} (HTTP)", self.grpc.address, http.address),
            None => self.grpc.address.to_string(),
        }
    }
}

/// One listening socket.
struct Socket {
    listener: tokio::net::TcpListener,
    address: SocketAddr,
}

impl Socket {
    fn of(listener: std::net::TcpListener) -> io::Result<Self> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        Ok(Self { address: listener.local_addr()?, listener })
    }

    /// Whether only this machine reaches it.
    fn is_loopback(&self) -> bool {
        self.address.ip().to_canonical().is_loopback()
    }
}

/// State that the tasks of a gateway share.
struct Gateway {
    epoch: Epoch,
    standing: watch::Sender<Standing>,
    slots: RequestSlots,
    /// Cancelled to end every running request.
    cancel: CancellationToken,
    /// Cancelled to close every connection.
    closing: CancellationToken,
}

/// Serves until asked to end, by `events` or by the supervisor's order.
pub async fn run(setup: Setup, events: mpsc::Receiver<Event>) -> Exit {
    // The lock is held until the end, so that no other gateway removes this one's files as left
    // ones.
    let Setup { config, language, runtime_dir, lock: _lock, epoch, listener, http_listener, guard } =
        setup;
    let sockets = Socket::of(listener)
        .and_then(|grpc| Ok(Sockets { grpc, http: http_listener.map(Socket::of).transpose()? }));
    let sockets = match sockets {
        Ok(sockets) => sockets,
        Err(error) => {
            tracing::error!(%error, "a listening socket cannot be used");
            return Exit::Bug;
        }
    };
    let clock = Clock::start();
    let gateway = Gateway {
        epoch: Epoch(epoch),
        standing: watch::Sender::default(),
        slots: RequestSlots::new(config.target.max_sequences, config.limits.queue),
        cancel: CancellationToken::new(),
        closing: CancellationToken::new(),
    };
    gateway.log_addresses(&sockets, &guard);
    let listening = sockets.addresses();
    let supervisor = socket::channel(runtime_dir.socket("supervisor"));
    let (orders, ordered) = mpsc::channel(8);
    let keys = guard.follow_keys();
    let inference = gateway.inference(&config, language, &runtime_dir, supervisor.clone());
    let server = gateway.serve(&config, inference, sockets, guard);
    let attachment = Attachment {
        supervisor,
        process: GatewayProcess { epoch: gateway.epoch, restarts: lifecycle::restarts() },
        standing: gateway.standing.clone(),
        running: gateway.slots.watch(),
        orders,
    }
    .start();

    telemetry::keep_own_log_bounded();
    let notifier = Notifier::inherited();
    notifier.ready(&format!("listening on {listening}"));
    let exit = gateway.until_end(&clock, &notifier, events, ordered).await;
    gateway.closing.cancel();
    if tokio::time::timeout(CLOSE_TIMEOUT, server).await.is_err() {
        tracing::warn!("connections that did not close in time are cut");
    }
    attachment.abort();
    if let Some(keys) = keys {
        keys.abort();
    }
    exit
}

impl Gateway {
    fn log_addresses(&self, sockets: &Sockets, guard: &Guard) {
        let (tls, keys) = (guard.tls.is_some(), guard.has_keys());
        let http = sockets.http.as_ref().map(|socket| ("http", socket));
        for (protocol, socket) in std::iter::once(("grpc", &sockets.grpc)).chain(http) {
            let address = socket.address;
            tracing::info!(%address, protocol, epoch = self.epoch.0, "gateway listens");
            if !socket.is_loopback() {
                tracing::warn!(%address, protocol, tls, keys, "the service can be reached from other machines");
            }
        }
    }

    fn inference(
        &self,
        config: &Config,
        language: Arc<Language>,
        runtime_dir: &RuntimeDir,
        supervisor: Channel,
    ) -> Arc<Inference> {
        let store = ImageStore::new(runtime_dir, self.epoch.0);
        Arc::new(Inference {
            prompter: Prompter::new(language, cores()),
            images: ImagePipeline::new(store, &config.limits),
            limits: config.limits.clone(),
            standing: self.standing.subscribe(),
            backlog: Arc::default(),
            budget: ByteBudget::new(config.limits.body_bytes),
            upstream: Upstream::new(supervisor, self.epoch),
            journals: Arc::default(),
            cancel: self.cancel.clone(),
            metrics: Arc::default(),
        })
    }

    /// Data of the status page, collected until the process ends.
    fn overview(&self, inference: &Inference) -> Arc<Overview> {
        let overview = Arc::new(Overview::new(inference.upstream.clone()));
        overview.sample(Arc::clone(&inference.metrics), self.slots.watch());
        inference.upstream.follow_events(self.standing.subscribe(), overview.event_log());
        overview
    }

    /// Serves clients until the connections are to be closed.
    fn serve(
        &self,
        config: &Config,
        inference: Arc<Inference>,
        sockets: Sockets,
        guard: Guard,
    ) -> tokio::task::JoinHandle<()> {
        let Sockets { grpc: grpc_socket, http: http_socket } = sockets;
        let decoding = Decoding::new(cores() / 2);
        let budget = inference.budget.clone();
        let listeners = Listeners::new(guard, &config.limits, budget, self.closing.clone());
        let http = http_socket.map(|socket| {
            let names = config.gateway.model_aliases.clone();
            let front = HttpFront {
                inference: Arc::clone(&inference),
                calls: self.slots.clone(),
                standing: self.standing.subscribe(),
                decoding: decoding.clone(),
                aliases: Aliases { names, is_loopback: socket.is_loopback() },
                overview: self.overview(&inference),
                guard: listeners.guard(),
                keep_alive: KEEP_ALIVE,
            };
            let settings = &config.gateway;
            let sites = Sites::new(&settings.hosts, Cors::new(&settings.cors_origins));
            let wire = HttpWire::new(http::router(Arc::new(front)), sites);
            listeners.clone().serve(socket.listener, wire)
        });
        let (slots, standing) = (self.slots.clone(), self.standing.subscribe());
        let routes = grpc::routes(inference, slots, standing, decoding, self.closing.clone());
        let grpc = listeners.serve(grpc_socket.listener, GrpcWire::new(routes));
        let mut attached = self.standing.subscribe();
        task::spawn("serve", async move {
            // The sockets may be older than this process. Clients that wait at them are not refused
            // during the moments until the gateway is attached.
            let _ = tokio::time::timeout(ATTACH_TIMEOUT, attached.wait_for(Standing::knows)).await;
            let http = async {
                if let Some(http) = http {
                    http.await;
                }
            };
            tokio::join!(grpc, http);
        })
    }

    /// Hands events and orders to [`Ending`], and does what it decides, until the process ends.
    async fn until_end(
        &self,
        clock: &Clock,
        notifier: &Notifier,
        mut events: mpsc::Receiver<Event>,
        mut orders: mpsc::Receiver<Event>,
    ) -> Exit {
        let (mut beats, mut running) = (beats(notifier), self.slots.watch());
        let mut ending = Ending::default();
        loop {
            let tick = async {
                match ending.next_deadline() {
                    Some(when) => tokio::time::sleep(clock.until(when)).await,
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                biased;
                Some(event) = events.recv() => event,
                Some(event) = orders.recv() => event,
                _ = running.wait_for(|count| *count == 0), if ending.begun() => Event::Idle,
                () = tick => Event::Tick,
                Some(()) = beats.recv() => {
                    notifier.alive();
                    continue;
                }
            };
            let action = ending.on_event(event, clock.now());
            if action.is_some() {
                let running = *self.slots.watch().borrow();
                tracing::info!(?event, ?action, running, "gateway ending");
            }
            match action {
                Some(Action::Refuse) => {
                    notifier.stopping();
                    self.standing.send_modify(|standing| standing.ending = true);
                }
                Some(Action::Cancel) => self.cancel.cancel(),
                Some(Action::End(exit)) => return exit,
                None => {}
            }
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The signs of life that a service manager expects, if it expects any. They go from a task on the
/// threads that serve connections to the loop that decides when this ends, so that a sign means
/// that both run.
fn beats(notifier: &Notifier) -> mpsc::Receiver<()> {
    let (sender, beats) = mpsc::channel(1);
    if let Some(period) = notifier.beat() {
        let mut ticks = tokio::time::interval(period);
        task::spawn("beats", async move {
            loop {
                ticks.tick().await;
                if sender.send(()).await.is_err() {
                    return;
                }
            }
        });
    }
    beats
}
