//! A worker's process: starting it, signals to it, and seeing its end. Everything here is the
//! operating system's view; what to do about it is the core's.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use paceline_process::notify::MANAGER_VARIABLES;
use paceline_process::runtime_dir::WorkerRecord;
use paceline_process::{Loaded, RuntimeDir, chain, telemetry};
use paceline_supervisor_core::worker::WorkerExit;
use paceline_supervisor_core::{WorkerId, WorkerSlot};
use paceline_system::environment::env;
use paceline_system::platform;
use paceline_system::start::{PARENT_FD, RESTARTS};
use paceline_vocabulary::{Epoch, Term};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::{Child, Command};

/// Environment variable that names another program to start as the target: for tests of faults.
pub const TARGET_BIN: &str = "PACELINE_TARGET_BIN";
/// Environment variable that names another program to start as the drafter.
const DRAFTER_BIN: &str = "PACELINE_DRAFTER_BIN";

/// Bytes of a worker's log at which it is set aside.
const LOG_BYTES: u64 = 8 << 20;
/// How often a process that is not our child is looked at where the system has no better way.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Lines of the log in `status` after a fall.
const LAST_LINES: usize = 5;

/// The one process there may be of a worker, as the actor handles it. A trait so that tests can put
/// a scripted one in its place.
pub trait Host: Send + 'static {
    /// One that runs on this directory and is not ours yet; from then on it is the current one, and
    /// its end is watched.
    fn find(&mut self) -> Option<WorkerRecord>;

    /// Starts one, which becomes the current one; returns its process id. `model` is its directory,
    /// empty for the configuration's.
    ///
    /// # Errors
    /// It cannot be started.
    fn start(&mut self, epoch: Epoch, term: Term, model: &str) -> io::Result<u32>;

    /// The next process gets these environment variables, which name the models.
    fn set_models(&mut self, variables: &[(&'static str, String)]);

    /// Sends SIGTERM to the current one, or SIGKILL.
    fn signal(&mut self, hard: bool);

    /// Whether the current one is stopped by job control.
    fn is_frozen(&self) -> bool;

    /// Resolves when the current process has ended, and forgets it. Without a process it never
    /// resolves. Safe to drop and call again.
    fn exited(&mut self) -> impl Future<Output = WorkerExit> + Send;

    /// Last lines of its log.
    fn last_words(&self) -> String;
}

/// The hosts of all workers.
#[derive(Debug)]
pub struct Hosts<H> {
    /// Host of the target.
    pub target: H,
    /// Hosts of the drafters, by [`WorkerSlot::idx`].
    pub drafters: [H; 2],
}

impl<H: Host> Hosts<H> {
    /// The host of this worker.
    pub fn of(&mut self, worker: WorkerId) -> &mut H {
        match worker {
            WorkerId::Target => &mut self.target,
            WorkerId::Drafter(slot) => &mut self.drafters[slot.idx()],
        }
    }

    /// The processes that are started from now on get these environment variables.
    pub fn set_models(&mut self, variables: &[(&'static str, String)]) {
        let [first, second] = &mut self.drafters;
        for host in [&mut self.target, first, second] {
            host.set_models(variables);
        }
    }

    /// Resolves when any of them has ended. Safe to drop and call again.
    pub async fn exited(&mut self) -> (WorkerId, WorkerExit) {
        let [first, second] = &mut self.drafters;
        tokio::select! {
            biased;
            exit = self.target.exited() => (WorkerId::Target, exit),
            exit = first.exited() => (WorkerId::Drafter(WorkerSlot::First), exit),
            exit = second.exited() => (WorkerId::Drafter(WorkerSlot::Second), exit),
        }
    }
}

impl Hosts<ProcessHost> {
    /// Workers of this configuration in this directory.
    ///
    /// # Errors
    /// The system does not say where our own program is.
    pub fn new(loaded: &Loaded, dir: &RuntimeDir) -> io::Result<Self> {
        let host = |worker| ProcessHost::new(worker, loaded, dir.clone());
        let drafter = |slot| host(WorkerId::Drafter(slot));
        Ok(Self {
            target: host(WorkerId::Target)?,
            drafters: [drafter(WorkerSlot::First)?, drafter(WorkerSlot::Second)?],
        })
    }
}

/// The path of `name` in the directory where a program really lies. macOS reports the path by which
/// the program was started, which may be a symbolic link in another directory.
pub(crate) fn beside(program: &Path, name: &str) -> io::Result<PathBuf> {
    Ok(program.canonicalize()?.with_file_name(name))
}

/// The program that an environment variable names, else the one of this name beside our own.
///
/// # Errors
/// The system does not say where our own program is.
pub(crate) fn program(variable: &str, name: &str) -> io::Result<PathBuf> {
    match env(variable) {
        Some(path) => Ok(PathBuf::from(path)),
        None => beside(&std::env::current_exe()?, name),
    }
}

/// How a worker is started.
#[derive(Debug)]
pub struct ProcessHost {
    worker: WorkerId,
    program: PathBuf,
    /// Environment variables with the files and flags that this process reads.
    settings: [(&'static str, String); 4],
    /// Environment variables with the directories of the models.
    models: Vec<(&'static str, String)>,
    threads: Option<u32>,
    /// Percent of its KV budget that the target may use; `None`: all of it.
    kv_percent: Option<u8>,
    dir: RuntimeDir,
    current: Option<Current>,
}

#[derive(Debug)]
enum Current {
    /// Our child.
    Ours(Child),
    /// Another supervisor's, found by its record, and the descriptor that becomes readable at its
    /// end.
    Earlier(WorkerRecord, Option<AsyncFd<OwnedFd>>),
}

impl ProcessHost {
    /// This worker of this configuration in this directory: `paceline-target` or `paceline-drafter`
    /// beside our own program, or what [`TARGET_BIN`] or [`DRAFTER_BIN`] names.
    ///
    /// # Errors
    /// The system does not say where our own program is.
    pub fn new(worker: WorkerId, loaded: &Loaded, dir: RuntimeDir) -> io::Result<Self> {
        let (variable, name, threads) = match worker {
            WorkerId::Target => (TARGET_BIN, "paceline-target", loaded.config.target.threads),
            WorkerId::Drafter(_) => {
                (DRAFTER_BIN, "paceline-drafter", loaded.config.drafter.threads)
            }
        };
        let program = program(variable, name)?;
        let settings = loaded.variables();
        let models = loaded.config.model_variables().into();
        Ok(Self {
            worker,
            program,
            settings,
            models,
            // By default all cores, for both: the target mostly waits while its drafter works. If
            // both compute, a thread that the system does not run leaves its share of a product to
            // the other threads.
            threads: threads.given(),
            kv_percent: None,
            dir,
            current: None,
        })
    }

    /// From now on the target is started with this percent of its KV budget; `None`: all of it.
    pub fn set_kv_percent(&mut self, percent: Option<u8>) {
        self.kv_percent = percent;
    }
}

impl Host for ProcessHost {
    fn find(&mut self) -> Option<WorkerRecord> {
        let record = self.dir.record(self.worker.name()).filter(WorkerRecord::alive)?;
        let watch = |fd| {
            // SAFETY: an owned descriptor stays the same one, and open, for as long as the
            // `AsyncFd` that owns it lives.
            unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }
                .map_err(io::Error::from)
        };
        let end = platform::process_end(record.pid).and_then(watch);
        if let Err(error) = &end {
            tracing::warn!(pid = record.pid, %error, "its end cannot be waited for; it is checked at intervals");
        }
        // Checked again: only now is it certain that the process still has this number.
        if !record.alive() {
            return None;
        }
        self.current = Some(Current::Earlier(record.clone(), end.ok()));
        Some(record)
    }

    fn start(&mut self, epoch: Epoch, term: Term, model: &str) -> io::Result<u32> {
        // A file, never a pipe: a worker outlives this process for its lease, and writing to a
        // closed pipe would end it.
        let log = telemetry::child_log(&self.dir.log(self.worker.name()), LOG_BYTES)?;
        let mut command = Command::new(&self.program);
        command.args(["--epoch", &epoch.to_string(), "--term", &term.to_string()]);
        if let WorkerId::Drafter(_) = self.worker {
            command.args(["--name", self.worker.name(), "--model", model]);
        }
        if let Some(percent) = self.kv_percent {
            command.args(["--kv-percent", &percent.to_string()]);
        }
        // Set even when empty, so that the worker reads the same files as this process, whichever
        // file lies in the working directory.
        command.envs(self.settings.iter().chain(&self.models).map(|(name, value)| (name, value)));
        for ours in [PARENT_FD, RESTARTS].into_iter().chain(MANAGER_VARIABLES) {
            command.env_remove(ours);
        }
        if let Some(threads) = self.threads {
            command.env("OPENBLAS_NUM_THREADS", threads.to_string());
        }
        // glibc raises these by itself up to 32 MiB and then keeps what a worker frees; fixed,
        // large blocks go back at once. Other allocators do not know them.
        command.env("MALLOC_TRIM_THRESHOLD_", "2097152").env("MALLOC_MMAP_THRESHOLD_", "2097152");
        // MLX's caches of CUDA's graphs and plans otherwise fail a step once they have missed twice
        // as often as they have places, counted from the start: in any long life.
        command.env("MLX_ENABLE_CACHE_THRASHING_CHECK", "0");
        // On Metal, MLX's attention over many keys adds up parts. It would choose their number by
        // the number of rows, so that a row's bits depended on the rows beside it (I1).
        command.env("MLX_SDPA_BLOCKS", "64");
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(false);
        // SAFETY: setsid is async-signal-safe and nothing else runs between fork and exec. A
        // session of its own keeps the terminal's signals, and the end of our process group, away
        // from it.
        unsafe {
            command.pre_exec(|| Ok(nix::unistd::setsid().map(drop)?));
        }
        let child = command.spawn().map_err(|cause| {
            io::Error::new(
                cause.kind(),
                format!("cannot start {}: {cause}", self.program.display()),
            )
        })?;
        let pid = child.id().unwrap_or_default();
        self.current = Some(Current::Ours(child));
        // The worker writes the same record once it runs. If this process were killed before that,
        // the next supervisor would not find the worker and would start another beside it.
        if let Some(Err(error)) = WorkerRecord::of(pid, epoch.0)
            .map(|record| self.dir.write_record(self.worker.name(), &record))
        {
            tracing::warn!(
                pid,
                error = chain(&error),
                "the record of a worker that was started cannot be written; the worker writes it itself"
            );
        }
        Ok(pid)
    }

    fn set_models(&mut self, variables: &[(&'static str, String)]) {
        self.models = variables.to_vec();
    }

    fn signal(&mut self, hard: bool) {
        let signal = if hard { Signal::SIGKILL } else { Signal::SIGTERM };
        // A child's id is removed once the child is reaped, and a record is compared with the
        // process's start time. So the signal never reaches another process that got the same
        // number.
        let pid = match &self.current {
            Some(Current::Ours(child)) => child.id(),
            Some(Current::Earlier(record, _)) => record.alive().then_some(record.pid),
            None => None,
        };
        if let Some(pid) = pid
            && let Err(error) = kill(Pid::from_raw(pid as i32), signal)
        {
            tracing::warn!(pid, %signal, %error, "signal not sent");
        }
    }

    fn is_frozen(&self) -> bool {
        match &self.current {
            Some(Current::Ours(child)) => child.id().is_some_and(platform::process_stopped),
            Some(Current::Earlier(record, _)) => platform::process_stopped(record.pid),
            None => false,
        }
    }

    async fn exited(&mut self) -> WorkerExit {
        let exit = match &mut self.current {
            None => std::future::pending().await,
            Some(Current::Ours(child)) => match child.wait().await {
                Ok(status) => match (status.signal(), status.code()) {
                    (Some(signal), _) => WorkerExit::Signal(signal),
                    (None, Some(code)) => WorkerExit::Code(code),
                    (None, None) => WorkerExit::Unknown,
                },
                Err(error) => {
                    tracing::error!(%error, "a worker's end cannot be waited for");
                    WorkerExit::Unknown
                }
            },
            Some(Current::Earlier(record, end)) => {
                if let Some(end) = end {
                    // If anything else ends this wait, the record shows whether the process is
                    // gone.
                    let _ = end.readable().await;
                }
                while record.alive() {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                WorkerExit::Unknown
            }
        };
        self.current = None;
        exit
    }

    fn last_words(&self) -> String {
        telemetry::last_lines(&self.dir.log(self.worker.name()), LAST_LINES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// A host whose target is this shell script.
    fn host(temp: &Path, script: &str) -> ProcessHost {
        let (text, program) = (temp.join("target.txt"), temp.join("target.sh"));
        std::fs::write(&text, format!("#!/bin/sh\n{script}\n")).expect("writable");
        // Copied by another process. A file that this one wrote may still be open in a child that
        // another test just forked, and could not be executed then (ETXTBSY).
        assert!(
            std::process::Command::new("cp")
                .args([&text, &program])
                .status()
                .expect("cp exists")
                .success()
        );
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).expect("ours");
        let mut config = paceline_process::Config::default();
        config.supervisor.runtime_dir = temp.display().to_string();
        std::fs::set_permissions(temp, std::fs::Permissions::from_mode(0o700)).expect("ours");
        let dir = RuntimeDir::locate(&config).expect("a short path");
        dir.prepare().expect("a private directory");
        let worker = WorkerId::Target;
        ProcessHost {
            worker,
            program,
            settings: [
                ("PACELINE_CONFIG", "/etc/x.toml".to_owned()),
                ("PACELINE_SETTINGS", "/etc/x.settings.toml".to_owned()),
                ("PACELINE_FLAGS", "flags".to_owned()),
                ("PACELINE_DEFAULT_MODEL", "m".to_owned()),
            ],
            models: vec![("PACELINE_PINNED_TARGET", "/models/t".to_owned())],
            threads: Some(3),
            kv_percent: None,
            dir,
            current: None,
        }
    }

    #[test]
    fn a_worker_is_found_next_to_the_program_behind_a_symbolic_link() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let (real, linked) = (temp.path().join("real"), temp.path().join("linked"));
        for dir in [&real, &linked] {
            std::fs::create_dir(dir).expect("made");
        }
        std::fs::write(real.join("paceline-supervisor"), "").expect("writable");
        symlink(real.join("paceline-supervisor"), linked.join("paceline-supervisor"))
            .expect("linked");
        let found = beside(&linked.join("paceline-supervisor"), "paceline-target").expect("there");
        assert_eq!(found, real.canonicalize().expect("there").join("paceline-target"));
    }

    async fn end(host: &mut ProcessHost) -> WorkerExit {
        tokio::time::timeout(Duration::from_secs(30), host.exited()).await.expect("in time")
    }

    #[tokio::test]
    async fn a_target_gets_its_arguments_its_environment_and_a_session() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let script = r#"echo "$@ $PACELINE_CONFIG $PACELINE_SETTINGS $PACELINE_FLAGS $PACELINE_PINNED_TARGET $OPENBLAS_NUM_THREADS $MLX_ENABLE_CACHE_THRASHING_CHECK $MLX_SDPA_BLOCKS ${PACELINE_PARENT_FD-none}"; echo oops >&2; exit 69"#;
        let mut host = host(temp.path(), script);
        let pid = host.start(Epoch(4), Term(7), "").expect("started");
        let session =
            nix::unistd::getsid(Some(Pid::from_raw(pid as i32))).map(|session| session.as_raw());
        // It may have ended already; then there is nothing to ask.
        assert!(session.is_err() || session == Ok(pid as i32));
        assert_eq!(end(&mut host).await, WorkerExit::Code(69));
        assert_eq!(
            host.last_words(),
            "--epoch 4 --term 7 /etc/x.toml /etc/x.settings.toml flags /models/t 3 0 64 none\noops"
        );
    }

    #[tokio::test]
    async fn a_target_with_a_reduced_kv_budget_gets_its_percent() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let mut host = host(temp.path(), r#"echo "$@""#);
        host.set_kv_percent(Some(80));
        host.start(Epoch(4), Term(7), "").expect("started");
        assert_eq!(end(&mut host).await, WorkerExit::Code(0));
        assert_eq!(host.last_words(), "--epoch 4 --term 7 --kv-percent 80");
    }

    #[tokio::test]
    async fn a_drafter_gets_its_name_and_its_model() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let mut host = host(temp.path(), r#"echo "$@""#);
        host.worker = WorkerId::Drafter(WorkerSlot::Second);
        host.start(Epoch(4), Term(7), "/models/d").expect("started");
        assert_eq!(end(&mut host).await, WorkerExit::Code(0));
        assert_eq!(host.last_words(), "--epoch 4 --term 7 --name drafter-1 --model /models/d");
        assert!(temp.path().join("drafter-1.log").is_file());
    }

    #[tokio::test]
    async fn a_target_is_ended_by_signals_and_its_end_is_named() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let mut host = host(temp.path(), "exec sleep 1000");
        for (hard, exit) in [(false, WorkerExit::Signal(15)), (true, WorkerExit::Signal(9))] {
            host.start(Epoch(1), Term(1), "").expect("started");
            assert!(!host.is_frozen());
            host.signal(hard);
            assert_eq!(end(&mut host).await, exit);
        }
        // Nobody is left to be hit.
        host.signal(true);
    }

    #[tokio::test]
    async fn a_target_that_is_not_our_child_is_found_frozen_and_ended() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let mut host = host(temp.path(), "exit 0");
        assert_eq!(host.find(), None);
        let mut stranger =
            std::process::Command::new("sleep").arg("1000").spawn().expect("sleep exists");
        let record = WorkerRecord::of(stranger.id(), 3).expect("alive");
        // The same numbers in another boot were another process: neither taken over nor sent a
        // signal.
        let stale = WorkerRecord { boot: "another".to_owned(), ..record.clone() };
        host.dir.write_record("target", &stale).expect("writable");
        assert_eq!(host.find(), None);
        host.signal(true);
        assert!(record.alive());
        host.dir.write_record("target", &record).expect("writable");
        assert_eq!(host.find(), Some(record.clone()));
        kill(Pid::from_raw(record.pid as i32), Signal::SIGSTOP).expect("ours");
        while !host.is_frozen() {
            tokio::task::yield_now().await;
        }
        host.signal(true);
        assert_eq!(end(&mut host).await, WorkerExit::Unknown);
        assert_eq!(host.find(), None);
        stranger.wait().expect("ended");
    }

    #[tokio::test]
    async fn a_started_worker_is_recorded_and_found_by_the_next_supervisor() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        // It never writes a record itself.
        let mut first = host(temp.path(), "exec sleep 1000");
        let pid = first.start(Epoch(4), Term(7), "").expect("started");
        let (program, dir) = (first.program.clone(), first.dir.clone());
        let mut next = ProcessHost {
            worker: first.worker,
            program,
            settings: first.settings.clone(),
            models: vec![],
            threads: None,
            kv_percent: None,
            dir,
            current: None,
        };
        let found = next.find().expect("it is written down");
        assert_eq!(Some(&found), WorkerRecord::of(pid, 4).as_ref());
        next.signal(true);
        assert_eq!(end(&mut next).await, WorkerExit::Unknown);
        assert_eq!((end(&mut first).await, next.find()), (WorkerExit::Signal(9), None));
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_named() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let mut host = host(temp.path(), "exit 0");
        host.program = temp.path().join("nothing");
        let error = host.start(Epoch(1), Term(1), "").expect_err("there is none").to_string();
        assert!(error.contains("nothing: No such file"), "{error}");
    }
}
