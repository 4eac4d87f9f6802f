//! Tasks of a gateway's process, and the end of the process.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use paceline_process::{Config, Notifier, RuntimeDir, socket, task, telemetry};
use paceline_protocols::aliases::Aliases;
use paceline_protocols::sse::KEEP_ALIVE;
use paceline_service_core::ending::{Action, Ending, Event, Replacement};
use paceline_system::clock::Clock;
use paceline_system::start;
use paceline_vocabulary::Epoch;
use paceline_vocabulary::Exit;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::front::connection::listener::{Ends, Listeners};
use crate::front::decoding::Decoding;
use crate::front::grpc::{self, GrpcWire};
use crate::front::http::{self, Cors, HttpFront, HttpWire, Sites};
use crate::front::vllm;
use crate::guard::Guard;
use crate::images::ImagePipeline;
use crate::images::store::ImageStore;
use crate::inference::Inference;
use crate::inference::admission::{ByteBudget, RequestSlots};
use crate::inference::languages::Languages;
use crate::inference::loads::LoadQuestion;
use crate::inference::standing::Standing;
use crate::inference::upstream::Upstream;
use crate::inference::upstream::attach::{Attachment, GatewayProcess};
use crate::metrics::Metrics;
use crate::metrics::history::INTERVAL;
use crate::overview::Overview;
use crate::prompter::Prompter;
use crate::successor::Successor;
use crate::{FrontListeners, Setup};

/// Connections, and the predecessor of this gateway, wait this long at most for the first
/// attachment. Afterwards requests are refused because there is no supervisor.
const ATTACH_TIMEOUT: Duration = Duration::from_millis(500);
/// Connections may take this long to close once no request runs.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The listening sockets.
struct Sockets {
    grpc: Socket,
    /// `None` if there is no HTTP.
    http: Option<Socket>,
    /// `None` if Ollama's API has no address of its own.
    ollama: Option<Socket>,
}

impl Sockets {
    fn of(listeners: FrontListeners) -> io::Result<Self> {
        let FrontListeners { grpc, http, ollama, are_held: _ } = listeners;
        Ok(Self {
            grpc: Socket::of(grpc)?,
            http: http.map(Socket::of).transpose()?,
            ollama: ollama.map(Socket::of).transpose()?,
        })
    }

    /// All of them, with the names of their protocols.
    fn all(&self) -> impl Iterator<Item = (&'static str, &Socket)> {
        let further = [("HTTP", &self.http), ("Ollama", &self.ollama)];
        let further =
            further.into_iter().filter_map(|(name, socket)| Some((name, socket.as_ref()?)));
        std::iter::once(("gRPC", &self.grpc)).chain(further)
    }

    /// Their addresses, for people.
    fn addresses(&self) -> String {
        let address = |(name, socket): (_, &Socket)| format!("{} ({name})", socket.address);
        self.all().map(address).collect::<Vec<_>>().join(", ")
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
    /// The ends of the connections.
    ends: Ends,
}

/// Parts of a gateway that its end needs.
struct Running {
    notifier: Notifier,
    successor: Successor,
    /// Whether another process holds the listening sockets.
    are_held: bool,
    /// The task that serves connections.
    server: JoinHandle<()>,
}

/// Serves until asked to end, by `events` or by the supervisor's order.
pub async fn run(setup: Setup, events: mpsc::Receiver<Event>) -> Exit {
    // The life lasts until the end, so that no other gateway removes this one's files as left ones.
    let Setup { config, languages, runtime_dir, life, listeners, guard } = setup;
    let (notifier, are_held) = (Notifier::inherited(), listeners.are_held);
    let successor = Successor::new(notifier.clone(), &listeners);
    let sockets = successor.and_then(|successor| Ok((successor, Sockets::of(listeners)?)));
    let (successor, sockets) = match sockets {
        Ok(sockets) => sockets,
        Err(error) => {
            tracing::error!(%error, "a listening socket cannot be used");
            return Exit::Bug;
        }
    };
    let clock = Clock::start();
    let gateway = Gateway {
        epoch: Epoch(life.epoch()),
        standing: watch::Sender::default(),
        slots: RequestSlots::new(config.target.max_sequences, config.limits.queue),
        cancel: CancellationToken::new(),
        ends: Ends::default(),
    };
    gateway.log_addresses(&sockets, &guard);
    let listening = sockets.addresses();
    let supervisor = socket::channel(runtime_dir.socket("supervisor"));
    let (orders, ordered) = mpsc::channel(8);
    let keys = guard.follow_keys();
    let inference = gateway.inference(&config, languages.clone(), &runtime_dir, supervisor.clone());
    let attachment = Attachment {
        supervisor,
        process: GatewayProcess { epoch: gateway.epoch, restarts: start::restarts() },
        standing: gateway.standing.clone(),
        running: gateway.slots.watch(),
        orders,
        languages,
        limits: config.limits.clone(),
    }
    .start();
    // The sockets may be older than this process. Clients that wait at them are not refused during
    // the moments until the gateway is attached.
    let mut attached = gateway.standing.subscribe();
    let _ = tokio::time::timeout(ATTACH_TIMEOUT, attached.wait_for(Standing::knows)).await;
    let server = gateway.serve(&config, inference, sockets, guard);
    telemetry::keep_own_log_bounded();
    life.keep_up(&runtime_dir);
    notifier.ready(&format!("listening on {listening}"));
    let mut running = Running { notifier, successor, are_held, server };
    let exit = gateway.until_end(&clock, &mut running, events, ordered).await;
    gateway.ends.closing.cancel();
    let server = running.server;
    if !server.is_finished() && tokio::time::timeout(CLOSE_TIMEOUT, server).await.is_err() {
        tracing::warn!("connections that did not close in time are cut");
    }
    attachment.abort();
    keys.inspect(JoinHandle::abort);
    exit
}

impl Gateway {
    fn log_addresses(&self, sockets: &Sockets, guard: &Guard) {
        let (tls, keys) = (guard.tls.is_some(), guard.has_keys());
        for (protocol, socket) in sockets.all() {
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
        languages: Languages,
        runtime_dir: &RuntimeDir,
        supervisor: Channel,
    ) -> Arc<Inference> {
        let store = ImageStore::new(runtime_dir, self.epoch.0);
        Arc::new(Inference {
            prompter: Prompter::new(cores()),
            languages,
            images: ImagePipeline::new(store, &config.limits)
                .with_text_alone(!config.target.vision),
            limits: config.limits.clone(),
            thinking_budget: config.gateway.thinking_budget,
            logs_texts: config.log.prompts,
            standing: self.standing.subscribe(),
            backlog: Arc::default(),
            budget: ByteBudget::new(config.limits.body_bytes),
            upstream: Upstream::new(supervisor, self.epoch),
            journals: Arc::default(),
            cancel: self.cancel.clone(),
            metrics: Arc::default(),
            load_question: LoadQuestion::default(),
        })
    }

    /// Takes samples for the history of the metrics until the process ends.
    fn sample(&self, metrics: Arc<Metrics>) {
        let (clock, requests) = (Clock::start(), self.slots.watch());
        task::spawn("samples", async move {
            loop {
                metrics.sample(*requests.borrow(), clock.now());
                tokio::time::sleep(INTERVAL).await;
            }
        });
    }

    /// Data of the page, collected until the process ends.
    fn overview(&self, inference: &Inference) -> Arc<Overview> {
        let overview = Arc::new(Overview::new(inference.upstream.clone()));
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
    ) -> JoinHandle<()> {
        self.sample(Arc::clone(&inference.metrics));
        let Sockets { grpc: grpc_socket, http: http_socket, ollama: ollama_socket } = sockets;
        let decoding = Decoding::new(cores() / 2);
        let budget = inference.budget.clone();
        let listeners = Listeners::new(guard, &config.limits, budget, self.ends.clone());
        let http = http_socket.map(|socket| {
            let names = config.gateway.model_aliases.clone();
            let front = HttpFront {
                inference: Arc::clone(&inference),
                calls: self.slots.clone(),
                standing: self.standing.subscribe(),
                decoding: decoding.clone(),
                aliases: Aliases {
                    names,
                    is_loopback: [Some(&socket), ollama_socket.as_ref()]
                        .into_iter()
                        .flatten()
                        .all(Socket::is_loopback),
                },
                overview: self.overview(&inference),
                guard: listeners.guard(),
                keep_alive: KEEP_ALIVE,
            };
            let settings = &config.gateway;
            let sites = Sites::new(&settings.hosts, Cors::new(&settings.cors_origins));
            let ollama = settings.ollama.is_served();
            let wire = HttpWire::new(http::router(Arc::new(front), ollama), sites);
            let sockets = std::iter::once(socket).chain(ollama_socket);
            let serve = |socket: Socket| listeners.clone().serve(socket.listener, wire.clone());
            join_all(sockets.map(serve).collect::<Vec<_>>())
        });
        let (slots, standing) = (self.slots.clone(), self.standing.subscribe());
        let leaving = self.ends.leaving.clone();
        let routes = grpc::routes(
            Arc::clone(&inference),
            slots.clone(),
            standing.clone(),
            decoding.clone(),
            leaving.clone(),
        );
        let routes = vllm::add(routes, inference, slots, standing, decoding, leaving);
        let grpc = listeners.serve(grpc_socket.listener, GrpcWire::new(routes));
        task::spawn("serve", async move {
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
        running: &mut Running,
        mut events: mpsc::Receiver<Event>,
        mut orders: mpsc::Receiver<Event>,
    ) -> Exit {
        let (mut beats, mut requests) = (beats(&running.notifier), self.slots.watch());
        let replacement = match running.successor.is_possible() {
            true => Replacement::Beside,
            false if running.are_held => Replacement::Afterwards,
            false => Replacement::WithSockets,
        };
        let mut ending = Ending::new(replacement);
        let mut failed = None;
        loop {
            let tick = async {
                match ending.next_deadline() {
                    Some(when) => tokio::time::sleep(clock.until(when)).await,
                    None => std::future::pending().await,
                }
            };
            let server = &mut running.server;
            let idle = async {
                // This gateway owns the sender, so the wait ends by the condition alone.
                let _ = requests.wait_for(|count| *count == 0).await;
                if self.ends.leaving.is_cancelled() && !server.is_finished() {
                    // A panic of the task ends the process.
                    let _ = server.await;
                }
            };
            let event = tokio::select! {
                biased;
                Some(event) = std::future::ready(failed.take()) => event,
                Some(event) = events.recv() => event,
                Some(event) = orders.recv() => event,
                event = running.successor.next() => event,
                () = idle, if ending.begun() => Event::Idle,
                () = tick => Event::Tick,
                Some(()) = beats.recv() => {
                    running.notifier.alive();
                    continue;
                }
            };
            let action = ending.on_event(event, clock.now());
            if action.is_some() {
                let running = *self.slots.watch().borrow();
                tracing::info!(?event, ?action, running, "gateway ending");
            }
            match action {
                Some(Action::End(exit)) => return exit,
                Some(other) => failed = self.perform(other, event, running),
                None => {}
            }
        }
    }

    /// Does what [`Ending`] decided after `event`; an event if that fails at once.
    fn perform(&self, action: Action, event: Event, running: &mut Running) -> Option<Event> {
        match action {
            Action::AskForSuccessor => return running.successor.ask(),
            Action::Stay => {
                tracing::warn!("there is no next gateway; this one goes on, and the order is void");
            }
            Action::Leave => {
                if event != Event::SuccessorReady {
                    running.successor.abandon();
                    running.notifier.stopping();
                }
                self.standing.send_modify(|standing| standing.leaving = true);
                self.ends.leaving.cancel();
            }
            Action::Refuse => {
                running.successor.abandon();
                running.notifier.stopping();
                self.standing.send_modify(|standing| standing.ending = true);
            }
            Action::Cancel => self.cancel.cancel(),
            Action::End(_) => {}
        }
        None
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
