//! The service of a test: `paceline serve` on ports of its own, in a private runtime directory
//! that is made and removed here. Nothing of it outlives the test: the service notices the closing
//! of a pipe even if this process was killed.

use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use command_fds::{CommandFdExt as _, FdMapping};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use paceline_process::config::Config;
use paceline_process::listen::{self, Front};
use paceline_process::notify::MANAGER_VARIABLES;
use paceline_process::{RuntimeDir, telemetry};
use paceline_system::Clock;
use paceline_system::environment::env_os;
use paceline_system::start::PARENT_FD;
use tokio::process::Child;

use super::settings::Settings;
use crate::failure::Failure;
use crate::program::{beside, within};

/// Not in $TMPDIR: on macOS that path is long, and a socket's path may have about 100 bytes.
const STAGE_PREFIX: &str = "/tmp/paceline-";
/// Environment variable with the directory of the service, which the service removes if the program
/// that started it is gone.
const STAGE_DIR: &str = "PACELINE_STAGE_DIR";
/// Descriptor of the pipe in the service, after those of the listeners of gRPC and HTTP.
const PIPE_FD: i32 = listen::FIRST_FD + 2;
/// Waits after the first SIGTERM (drain), the second (cancel) and the third (kill). The first is
/// long because the teardown of a large model takes long.
const STOP_TIMEOUTS: [Duration; 3] =
    [Duration::from_secs(60), Duration::from_secs(20), Duration::from_secs(10)];
/// Lines of the service's output that are shown when it failed.
const LAST_LINES: usize = 8;

/// The running service.
pub(super) struct Stage {
    /// Reason of its failures.
    command: &'static str,
    place: StageDir,
    pub(super) dir: RuntimeDir,
    /// `host:port`.
    pub(super) address: String,
    child: Child,
    /// Never used: the service ends when it is closed.
    parent: Option<OwnedFd>,
    ended: bool,
}

/// A directory that is removed with this value.
struct StageDir(PathBuf);

impl Drop for StageDir {
    fn drop(&mut self) {
        // A missing directory is as good as a removed one.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Removes the directory that this service was given by a program that is gone. Another service has
/// none.
pub fn remove_own_dir() {
    let dir = env_os(STAGE_DIR).map(PathBuf::from);
    let is_ours = |dir: &PathBuf| {
        let name = dir.to_string_lossy();
        name.strip_prefix(STAGE_PREFIX).is_some_and(|rest| !rest.contains('/'))
    };
    if let Some(dir) = dir.filter(is_ours) {
        drop(StageDir(dir));
    }
}

impl Stage {
    /// Starts a service with these settings over those of their files. `command` is the reason of
    /// its failures, and a part of the directory's name.
    ///
    /// # Errors
    /// The system refuses, or `paceline` is not where the settings say.
    pub(super) fn start(command: &'static str, settings: &Settings) -> Result<Self, Failure> {
        let Settings { config, files, programs } = settings;
        let refused = move |what: String| Failure::measuring(command, what);
        let cannot =
            |what: &'static str| move |error: io::Error| refused(format!("cannot {what}: {error}"));
        let program = match programs {
            Some(dir) => within(dir, "paceline"),
            None => beside("paceline"),
        };
        let program = program.map_err(|failure| refused(failure.message))?;
        let name = command.to_lowercase();
        let place = nix::unistd::mkdtemp(format!("{STAGE_PREFIX}{name}.XXXXXX").as_str())
            .map_err(io::Error::from)
            .map_err(cannot("make a directory in /tmp"))?;
        let place = StageDir(place);
        let mut config = config.clone();
        config.supervisor.runtime_dir = place.0.join("run").display().to_string();
        let dir = RuntimeDir::locate(&config)?;
        let (grpc, address) = free_port().map_err(cannot("listen on a port of 127.0.0.1"))?;
        let (http, http_address) = free_port().map_err(cannot("listen on a port of 127.0.0.1"))?;
        let log = File::create(place.0.join("serve.log")).map_err(cannot("make a file in /tmp"))?;
        let (read_end, write_end) = io::pipe().map_err(cannot("make a pipe"))?;

        let mut serve = Command::new(program);
        // A model that is to be fetched was fetched before.
        serve.args(["serve", "--offline"]).stdin(Stdio::null());
        serve.env(STAGE_DIR, &place.0);
        serve.stdout(log.try_clone().map_err(cannot("use a file in /tmp"))?).stderr(log);
        set_environment(&mut serve, &config, files, [&address, &http_address]);
        let fds = vec![
            FdMapping { parent_fd: grpc.into(), child_fd: listen::FIRST_FD },
            FdMapping { parent_fd: http.into(), child_fd: listen::FIRST_FD + 1 },
            FdMapping { parent_fd: read_end.into(), child_fd: PIPE_FD },
        ];
        serve
            .fd_mappings(fds)
            .map_err(|error| cannot("hand down a descriptor")(io::Error::other(error)))?;
        // A terminal's Ctrl-C then reaches this process alone, which stops the service in order.
        std::os::unix::process::CommandExt::process_group(&mut serve, 0);
        let child = tokio::process::Command::from(serve)
            .spawn()
            .map_err(cannot("start `paceline serve`"))?;
        Ok(Self {
            command,
            place,
            dir,
            address,
            child,
            parent: Some(write_end.into()),
            ended: false,
        })
    }

    /// Waits until it ends by itself, which is a failure. The wait may be dropped and begun again.
    pub(super) async fn end(&mut self) -> Failure {
        let outcome = self.child.wait().await;
        self.ended = true;
        let how = match outcome.map(|status| (status.code(), status.signal())) {
            Ok((Some(code), _)) => format!("exit code {code}"),
            Ok((None, signal)) => format!("signal {}", signal.unwrap_or(0)),
            Err(error) => error.to_string(),
        };
        Failure::measuring(
            self.command,
            format!("the service ended with {how}{}", self.last_words()),
        )
    }

    /// The last lines that the service printed, indented, on lines of their own; empty if it
    /// printed none.
    fn last_words(&self) -> String {
        let words = telemetry::last_lines(&self.place.0.join("serve.log"), LAST_LINES);
        if words.is_empty() { words } else { format!("\n    {}", words.replace('\n', "\n    ")) }
    }

    /// Stops the service and waits until it is gone. `hurry` resolves each time the person at the
    /// terminal asks again.
    pub(super) async fn stop(mut self, mut hurry: impl AsyncFnMut()) {
        for timeout in STOP_TIMEOUTS {
            if self.ended {
                break;
            }
            self.signal(Signal::SIGTERM);
            tokio::select! {
                _ = self.child.wait() => self.ended = true,
                () = tokio::time::sleep(timeout) => {}
                () = hurry() => {}
            }
        }
        if !self.ended {
            self.signal(Signal::SIGKILL);
            let _ = self.child.wait().await;
            self.ended = true;
        }
        self.sweep();
    }

    fn signal(&self, signal: Signal) {
        // No id once its end was read.
        if let Some(pid) = self.child.id() {
            let _ = kill(Pid::from_raw(pid as i32), signal);
        }
    }

    /// Kills workers, which would outlive a killed service for the time of their lease.
    fn sweep(&self) {
        for (_, worker) in self.dir.records().into_iter().filter(|(_, worker)| worker.alive()) {
            let _ = kill(Pid::from_raw(worker.pid as i32), Signal::SIGKILL);
        }
    }
}

/// The settings over those of `file`, the listeners, and the parent's pipe.
fn set_environment(
    serve: &mut Command,
    config: &Config,
    files: &[(&'static str, String)],
    fronts: [&str; 2],
) {
    serve.envs(files.iter().map(|(name, value)| (name, value)));
    serve.env("PACELINE_SUPERVISOR__RUNTIME_DIR", &config.supervisor.runtime_dir);
    serve.env("PACELINE_GATEWAY__GRPC", fronts[0]).env("PACELINE_GATEWAY__HTTP", fronts[1]);
    // Only this process uses it, on this machine: it has no keys and no TLS.
    for setting in ["API_KEYS_FILE", "TLS_CERT", "TLS_KEY"] {
        serve.env(format!("PACELINE_GATEWAY__{setting}"), "");
    }
    // Each request asks for its lane; an operator's override would win over it.
    serve.env("PACELINE_ROUTING__FORCE", "auto").env("PACELINE_DRAFTER__START", "eager");
    serve.env("PACELINE_TARGET__MODEL", &config.target.model);
    serve.env("PACELINE_KV__PREFIX_CACHE", config.kv.prefix_cache.to_string());
    serve.env("PACELINE_DRAFTER__MODEL", config.drafter.model.to_string());
    for word in MANAGER_VARIABLES {
        serve.env_remove(word);
    }
    serve.envs(listen::variables(&[Front::Grpc, Front::Http]));
    serve.env(PARENT_FD, PIPE_FD.to_string());
}

fn free_port() -> io::Result<(TcpListener, String)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    Ok((listener, address))
}

impl Drop for Stage {
    /// Does nothing after [`Stage::stop`]. After a panic it closes the pipe, by which the service
    /// stops, and waits.
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        self.parent = None;
        let clock = Clock::start();
        let timeout_ms = STOP_TIMEOUTS[0].as_millis() as u64;
        while matches!(self.child.try_wait(), Ok(None)) && clock.now().0 < timeout_ms {
            std::thread::sleep(Duration::from_millis(50));
        }
        self.signal(Signal::SIGKILL);
        self.sweep();
    }
}
