//! A worker's life from its command line to its exit code.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use paceline_proto::internal::v1::WorkerPhase;
use paceline_proto::internal::v1::worker_server::WorkerServer;
use tokio::sync::oneshot;
use tonic::service::RoutesBuilder;

use super::{Gate, Progress, Pulse, StopOrder, WorkerService};
use crate::runtime_dir::WorkerRecord;
use crate::{
    Clock, Config, Exit, Loaded, RuntimeDir, Signals, lifecycle, platform, socket, task, telemetry,
};

/// How long a worker that cannot load waits for somebody to hear why.
const FAREWELL: Duration = Duration::from_secs(2);

/// How often an engine that is to end is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// What the supervisor says to every worker it starts.
#[derive(Clone, Debug)]
pub struct Args {
    /// Name in the runtime directory: of socket, record, log.
    pub name: String,
    /// Number of this life.
    pub epoch: u64,
    /// Number of the supervisor's life that starts it.
    pub term: u64,
    /// Configuration file.
    pub config: Option<PathBuf>,
}

/// What a worker's parts are made from.
#[derive(Clone, Debug)]
pub struct Post {
    /// Everything that is set.
    pub config: Config,
    /// The runtime directory, prepared.
    pub dir: RuntimeDir,
    /// Stamps are checked by it.
    pub gate: Gate,
    /// Where the engine says what it does.
    pub progress: Arc<Progress>,
    /// Heartbeats.
    pub pulse: Pulse,
    /// The clock of this process.
    pub clock: Clock,
}

/// The engine: runs on a thread of its own until it is asked to stop, and says how it ended.
pub type Engine = Box<dyn FnOnce() -> Exit + Send>;

/// What one kind of worker consists of.
pub struct Parts {
    /// Its own services, beside `Worker`.
    pub services: RoutesBuilder,
    /// Asks its engine to stop.
    pub stop: StopOrder,
    /// Loads the model and runs it.
    pub engine: Engine,
}

/// Runs a worker to its end. `parts` is called once, before anything is loaded. Does not return
/// where the engine was to end and did not: then the process exits with [`Exit::Bug`].
pub fn run(args: &Args, parts: impl FnOnce(&Post) -> Result<Parts, Exit>) -> Exit {
    run_with(args, platform::TEARDOWN, parts)
}

fn run_with(
    args: &Args,
    patience: Duration,
    parts: impl FnOnce(&Post) -> Result<Parts, Exit>,
) -> Exit {
    lifecycle::settle();
    let loaded = match Loaded::find(args.config.as_deref()) {
        Ok(loaded) => loaded,
        Err(error) => {
            telemetry::start(&Config::default().log);
            tracing::error!(%error, "configuration refused");
            return Exit::Config;
        }
    };
    telemetry::start(&loaded.config.log);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(live(args, loaded.config, patience, parts)),
        Err(error) => {
            tracing::error!(%error, "no runtime");
            Exit::Bug
        }
    }
}

async fn live(
    args: &Args,
    config: Config,
    patience: Duration,
    parts: impl FnOnce(&Post) -> Result<Parts, Exit>,
) -> Exit {
    let prepared = RuntimeDir::locate(&config).and_then(|dir| dir.prepare().map(|()| dir));
    let (dir, mut signals) = match (prepared, Signals::child()) {
        (Ok(dir), Ok(signals)) => (dir, signals),
        (Err(error), _) => {
            tracing::error!(%error, "no runtime directory");
            return Exit::Config;
        }
        (_, Err(error)) => {
            tracing::error!(%error, "no signals");
            return Exit::Bug;
        }
    };
    if let Some(pid) = living_namesake(&dir, args) {
        tracing::error!(
            pid,
            "expected no other living process as {}, found one in its record; stop that process",
            args.name
        );
        return Exit::Unavailable;
    }
    // Before anything that takes time: a supervisor must find us while we load.
    let listener = match socket::bind(&dir.socket(&args.name)) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "cannot listen");
            return Exit::Unavailable;
        }
    };
    let record = WorkerRecord::of(std::process::id(), args.epoch);
    if let Some(Err(error)) = record.map(|record| dir.write_record(&args.name, &record)) {
        tracing::error!(%error, "cannot write down who we are");
        return Exit::Unavailable;
    }

    let clock = Clock::start();
    let progress = Arc::new(Progress::default());
    progress.set_phase(WorkerPhase::Loading);
    // The pulse begins before there is an engine to stop.
    let (lease_tx, mut lease_over) = oneshot::channel();
    let lease = Duration::from_secs(config.supervisor.lease_s);
    let pulse = Pulse::start(progress.clone(), args.epoch, lease, move || {
        // Nobody listens only if the process is ending by other means.
        let _ = lease_tx.send(());
    });
    let gate = Gate::new(args.epoch, args.term);
    let post = Post { config, dir, gate, progress, pulse, clock };
    let Parts { mut services, stop, engine } = match parts(&post) {
        Ok(parts) => parts,
        Err(exit) => return exit,
    };
    services.add_service(WorkerServer::new(WorkerService {
        gate: post.gate.clone(),
        pulse: post.pulse.clone(),
        stop: stop.clone(),
    }));
    let serving = socket::server()
        .add_routes(services.routes())
        .serve_with_incoming(socket::accept_unix(listener));
    task::spawn("serve", async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "the socket failed");
        }
    });

    let (ended, mut end) = oneshot::channel();
    let on_thread = move || {
        // Nobody listens only if the process is ending by other means.
        let _ = ended.send(engine());
    };
    if let Err(error) = std::thread::Builder::new().name("engine".into()).spawn(on_thread) {
        tracing::error!(%error, "no engine thread");
        return Exit::Bug;
    }
    let ended = tokio::select! {
        biased;
        exit = &mut end => Some(or_abort(exit)),
        () = signals.next() => {
            tracing::info!("asked to stop by signal");
            None
        }
        _ = &mut lease_over => {
            tracing::warn!("the lease is over: no supervisor has come back");
            None
        }
    };
    let clear = || {
        if post.dir.record(&args.name).is_some_and(|record| record.epoch == args.epoch) {
            post.dir.clear(&args.name);
        }
    };
    let exit = match ended {
        Some(exit) => exit,
        None => see_out(&mut end, &stop, &post.progress, patience).await.unwrap_or_else(|| {
            clear();
            lifecycle::exit_at_once(Exit::Bug)
        }),
    };
    if exit != Exit::Asked {
        // So that the supervisor hears why; it need not be listening.
        post.pulse.now();
        let failed = post.progress.phase() == WorkerPhase::Failed;
        tokio::time::sleep(if failed { FAREWELL } else { Duration::ZERO }).await;
    }
    // Streams end in their last message; give the runtime the moment it needs to write it.
    tokio::time::sleep(Duration::from_millis(20)).await;
    clear();
    tracing::info!(?exit, "ended");
    exit
}

/// A panic on the engine's thread drops the sender: its state is unknown, so is ours.
fn or_abort(exit: Result<Exit, oneshot::error::RecvError>) -> Exit {
    exit.unwrap_or_else(|_| std::process::abort())
}

/// The pid of another life's process that still runs, by the record of this worker's name. Its
/// socket may refuse connections all the same: macOS refuses them while a backlog is full. A record
/// of this epoch is of this life, also where the supervisor started a script that started this
/// process.
fn living_namesake(dir: &RuntimeDir, args: &Args) -> Option<u32> {
    let other =
        dir.record(&args.name).filter(|record| record.epoch != args.epoch && record.alive());
    other.map(|record| record.pid)
}

/// Orders the engine to end, until it takes the order, and waits for its end. `None`: for
/// `patience` it got no further with its teardown. No process is left behind, ever: one whose
/// engine hangs, or reads a large model, has nobody else to end it.
async fn see_out(
    end: &mut oneshot::Receiver<Exit>,
    stop: &StopOrder,
    progress: &Progress,
    patience: Duration,
) -> Option<Exit> {
    let (mut taken, mut left, mut waited) = (stop(0), progress.teardown(), Duration::ZERO);
    while waited < patience {
        if let Ok(exit) = tokio::time::timeout(LOOK, &mut *end).await {
            return Some(or_abort(exit));
        }
        waited += LOOK;
        taken = taken || stop(0);
        let now = progress.teardown();
        if now != left {
            (left, waited) = (now, Duration::ZERO);
        }
    }
    let (phase, waited_s) = (progress.phase(), patience.as_secs_f64());
    tracing::error!(
        ?phase,
        taken,
        ?left,
        waited_s,
        "the engine was ordered to end and gets no further; exiting without it"
    );
    None
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use super::super::{Refused, mailbox};
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn taken() -> StopOrder {
        Arc::new(|_| true)
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_does_not_end_is_not_waited_for_without_end_whatever_else_it_does() {
        let progress = Arc::new(Progress::default());
        let (_running, mut end) = oneshot::channel();
        let at_most = PATIENCE + LOOK;
        for phase in [WorkerPhase::Loading, WorkerPhase::Decode, WorkerPhase::Stopping] {
            progress.set_phase(phase);
            let busy = progress.clone();
            let at_work = task::spawn("engine", async move {
                for count in 0.. {
                    busy.set_load(count, u64::MAX);
                    busy.step_done(0, 1, 1);
                    tokio::time::sleep(LOOK).await;
                }
            });
            let outcome =
                tokio::time::timeout(at_most, see_out(&mut end, &taken(), &progress, PATIENCE))
                    .await;
            assert_eq!(outcome, Ok(None), "{phase:?}");
            at_work.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_teardown_that_gets_further_is_waited_for() {
        let progress = Arc::new(Progress::default());
        let (ended, mut end) = oneshot::channel();
        let engine = progress.clone();
        task::spawn("engine", async move {
            for left in (0..3).rev() {
                tokio::time::sleep(PATIENCE - LOOK).await;
                engine.set_phase(WorkerPhase::Stopping);
                engine.set_sequences(left);
            }
            tokio::time::sleep(PATIENCE - LOOK).await;
            ended.send(Exit::Asked).expect("it is waited for");
        });
        assert_eq!(see_out(&mut end, &taken(), &progress, PATIENCE).await, Some(Exit::Asked));
    }

    #[tokio::test(start_paused = true)]
    async fn an_order_that_found_the_mailbox_full_is_given_again_and_once() {
        let (mail, inbox) = mailbox(1).expect("descriptors");
        mail.try_send("work").expect("room");
        let refused = Arc::new(AtomicU32::new(0));
        let stop: StopOrder = {
            let refused = refused.clone();
            Arc::new(move |_| match mail.try_send("stop") {
                Ok(()) => true,
                Err(why) => {
                    assert_eq!(why, Refused::Full);
                    refused.fetch_add(1, SeqCst);
                    false
                }
            })
        };
        let (ended, mut end) = oneshot::channel();
        task::spawn("engine", async move {
            tokio::time::sleep(PATIENCE / 2).await;
            let mut read = vec![];
            for _ in 0..10 {
                read.extend(inbox.try_recv());
                tokio::time::sleep(LOOK).await;
            }
            assert_eq!(read, ["work", "stop"]);
            ended.send(Exit::Asked).expect("it is waited for");
        });
        assert_eq!(
            see_out(&mut end, &stop, &Progress::default(), PATIENCE).await,
            Some(Exit::Asked)
        );
        assert!(refused.load(SeqCst) > 1);
    }

    /// Set in the process that is such a worker.
    const WEDGED: &str = "PACELINE_TEST_WEDGED";

    #[test]
    fn a_worker_whose_engine_never_ends_exits_by_itself_and_leaves_nothing() {
        if std::env::var_os(WEDGED).is_some() {
            let args = Args { name: "target".into(), epoch: 1, term: 1, config: None };
            // As good as never: a bound, for the day it is waited for.
            let engine = || {
                std::thread::sleep(Duration::from_secs(30));
                Exit::Asked
            };
            let parts = |_: &Post| {
                Ok(Parts {
                    services: RoutesBuilder::default(),
                    stop: taken(),
                    engine: Box::new(engine),
                })
            };
            let exit = run_with(&args, 3 * LOOK, parts);
            panic!("it returned {exit:?}");
        }
        let temp = tempfile::tempdir().expect("a temporary directory");
        let run = temp.path().join("run");
        let name = "worker::life::tests::a_worker_whose_engine_never_ends_exits_by_itself_and_leaves_nothing";
        let mut again = std::process::Command::new(std::env::current_exe().expect("a path"));
        again.args([name, "--exact", "--nocapture"]).env(WEDGED, "1").env("PACELINE_CONFIG", "");
        again
            .env("PACELINE_SUPERVISOR__RUNTIME_DIR", &run)
            .env("PACELINE_SUPERVISOR__LEASE_S", "1");
        let output = again.output().expect("it starts");
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert_eq!(output.status.code(), Some(70), "{text}");
        assert!(text.contains("gets no further") && text.contains("phase=Loading"), "{text}");
        assert_eq!(std::fs::read_dir(run).expect("there").count(), 0);
    }

    /// Set in the process that is such a worker.
    const NAMESAKE: &str = "PACELINE_TEST_NAMESAKE";

    #[test]
    fn a_worker_leaves_the_socket_of_a_living_namesake_alone_even_if_it_refuses_connections() {
        if std::env::var_os(NAMESAKE).is_some() {
            let args = Args { name: "target".into(), epoch: 2, term: 1, config: None };
            let parts = |_: &Post| {
                let engine = Box::new(|| Exit::Asked);
                Ok(Parts { services: RoutesBuilder::default(), stop: taken(), engine })
            };
            println!("\nexit {:?}", run_with(&args, 3 * LOOK, parts));
            return;
        }
        let temp = tempfile::tempdir().expect("a temporary directory");
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(temp.path(), private).expect("the test's own");
        let socket = temp.path().join("target.sock");
        // A socket that refuses connections, as on macOS that of a process with a full backlog.
        drop(std::os::unix::net::UnixListener::bind(&socket).expect("bound"));
        let mut stuck =
            std::process::Command::new("sleep").arg("1000").spawn().expect("sleep exists");
        let record = WorkerRecord::of(stuck.id(), 1).expect("it lives");
        std::fs::write(
            temp.path().join("target.json"),
            serde_json::to_vec(&record).expect("plain"),
        )
        .expect("writable");
        let start = || {
            let name = "worker::life::tests::a_worker_leaves_the_socket_of_a_living_namesake_alone_even_if_it_refuses_connections";
            let mut again = std::process::Command::new(std::env::current_exe().expect("a path"));
            again
                .args([name, "--exact", "--nocapture"])
                .env(NAMESAKE, "1")
                .env("PACELINE_CONFIG", "");
            again.env("PACELINE_SUPERVISOR__RUNTIME_DIR", temp.path());
            let output = again.output().expect("it starts");
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
        };
        let (beside_it, left) = (start(), socket.exists());
        stuck.kill().expect("ours");
        stuck.wait().expect("ended");
        let after_it = start();
        assert!(
            beside_it.contains("exit Unavailable") && beside_it.contains(&stuck.id().to_string()),
            "{beside_it}"
        );
        assert!(left, "the socket of a living process was removed");
        assert!(
            after_it.contains("exit Asked"),
            "the socket of a dead process is replaced: {after_it}"
        );
    }
}
