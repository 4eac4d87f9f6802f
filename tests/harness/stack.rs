//! One service: `paceline serve` with a directory, a runtime directory, a port and a configuration
//! of its own.

use std::fs::File;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;
use paceline_proto::internal::v1::target_client::TargetClient;
use paceline_proto::internal::v1::{Stamp, StatsResponse};
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::operations_client::OperationsClient;
use paceline_proto::v1::{StatusRequest, StatusResponse};
use paceline_system::clock::monotonic_ns;
use paceline_system::start::DEBUGGABLE;
use serde_json::Value;
use tokio::runtime::{Handle, Runtime};
use tokio::task::AbortHandle;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::ask::{Answer, Ask, Live, Terms};
use crate::probe::TargetProbe;
use crate::procs::{self, MARK, Process};
use crate::wait::{is_late, is_linked, wait, wait_at};

/// A service under test. Dropping it kills what is left of it.
pub struct Stack {
    dir: tempfile::TempDir,
    programs: PathBuf,
    port: u16,
    http_port: u16,
    serve: Option<Child>,
    /// Environment of the next `serve`.
    environment: Vec<(String, String)>,
    runtime: Runtime,
    channel: Channel,
}

/// A request that runs beside others.
pub struct Pending {
    ended: std::sync::mpsc::Receiver<EndedRequest>,
    task: AbortHandle,
    tokens: Arc<AtomicU32>,
}

/// A request that is over.
#[derive(Debug)]
pub struct EndedRequest {
    /// Answer, whole or as far as it came.
    pub answer: Answer,
    /// How it ended.
    pub outcome: Result<(), Status>,
    /// When it was sent, in nanoseconds of the machine's clock.
    pub begun_ns: i64,
    /// When its end was there.
    pub ended_ns: i64,
}

impl Pending {
    /// Tokens that have come so far.
    pub fn tokens(&self) -> u32 {
        self.tokens.load(Ordering::Relaxed)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// The status it ended with.
    pub fn finish(self) -> Result<Answer, Status> {
        let (seen, outcome) = self.finish_partial();
        outcome.map(|()| seen)
    }

    /// Waits for its end: what had come until then, and how it ended.
    pub fn finish_partial(self) -> (Answer, Result<(), Status>) {
        let EndedRequest { answer, outcome, .. } = self.ended();
        (answer, outcome)
    }

    /// Waits for its end.
    pub fn ended(self) -> EndedRequest {
        self.ended.recv_timeout(Duration::from_secs(120)).expect("a request ends")
    }

    /// Hangs up. What there was to see of it, if it is over already.
    pub fn hang_up(self) -> Option<EndedRequest> {
        self.task.abort();
        self.ended.try_recv().ok()
    }
}

impl Stack {
    /// A service with this configuration over the test's own (a short lease), not started yet.
    /// `settings` is TOML of further sections and keys, written as `section.key = value` lines.
    pub fn new(settings: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("pl").tempdir().unwrap();
        let (port, http_port) = (free_port(), free_port());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let address = format!("http://127.0.0.1:{port}");
        let channel = {
            let _inside = runtime.enter();
            Endpoint::from_shared(address).unwrap().connect_lazy()
        };
        let stack = Self {
            programs: crate::programs(),
            dir,
            port,
            http_port,
            serve: None,
            environment: vec![],
            runtime,
            channel,
        };
        let lease =
            if settings.contains("supervisor.lease_s") { "" } else { "supervisor.lease_s = 2\n" };
        let http = if settings.contains("gateway.http") {
            String::new()
        } else {
            format!("gateway.http = \"127.0.0.1:{http_port}\"\n")
        };
        // No test begins with what another one measured.
        let costs =
            if settings.contains("saved_costs") { "" } else { "target.saved_costs = \"\"\n" };
        let own = format!(
            "gateway.grpc = \"127.0.0.1:{port}\"\n{http}supervisor.runtime_dir = {:?}\n{lease}{costs}",
            stack.run_dir()
        );
        std::fs::write(stack.config(), own + settings).unwrap();
        stack
    }

    /// Adds an environment variable, for the next start.
    pub fn env(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Adds settings, for the next start.
    pub fn set(&self, settings: &str) {
        let mut file = File::options().append(true).open(self.config()).unwrap();
        file.write_all(settings.as_bytes()).unwrap();
    }

    /// A service that answers requests.
    pub fn ready(settings: &str) -> Self {
        let mut stack = Self::new(settings);
        stack.serve();
        stack.wait_ready();
        stack
    }

    /// Directory of everything that is this stack's.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Configuration file.
    pub fn config(&self) -> PathBuf {
        self.path("paceline.toml")
    }

    /// Runtime directory.
    pub fn run_dir(&self) -> PathBuf {
        self.path("run")
    }

    /// `host:port` of the gRPC service.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// `host:port` of the HTTP service.
    pub fn http_address(&self) -> String {
        format!("127.0.0.1:{}", self.http_port)
    }

    /// Runs the command line with this stack's configuration to its end.
    pub fn paceline(&self, words: &[&str], input: &str) -> Output {
        let mut child = self.begin(words);
        // The command may end without reading; that is its right.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    /// Starts the command line with this stack's configuration; its input, output and error are
    /// pipes.
    pub fn begin(&self, words: &[&str]) -> Child {
        self.command(words).spawn().unwrap()
    }

    /// The command line with this stack's configuration, not started; its input, output and error
    /// are pipes.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join("paceline"));
        command.args(words).arg("--config").arg(self.config());
        clear_settings(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A line as users type it, in a shell that finds our programs first and this stack's
    /// configuration; its input, output and error are pipes. It runs in the repository, because
    /// documents name files from there, and its processes are this stack's.
    pub fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places = [self.programs.clone()].into_iter().chain(std::env::split_paths(&path));
        clear_settings(&mut command);
        self.mark_process(&mut command);
        command
            .args(["-c", line])
            .env("PATH", std::env::join_paths(places).expect("no colon in a directory of PATH"))
            .env("PACELINE_CONFIG", self.config())
            .current_dir(crate::repository());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// How another program of ours is started on this stack's configuration, as one of its
    /// processes: program, arguments, environment. `shell` is put before it where something has to
    /// be known of the process itself: "A=$$ exec" sets A to its process id.
    pub fn program(&self, name: &str, shell: &str) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("{shell} \"$@\""), "sh"])
            .arg(self.programs.join(name))
            .arg("--config")
            .arg(self.config());
        clear_settings(&mut command);
        self.mark_process(&mut command);
        command.stdin(Stdio::null());
        command
    }

    /// Starts `paceline serve`.
    pub fn serve(&mut self) {
        assert!(self.serve.is_none(), "serve runs already");
        self.serve = Some(self.another_serve());
    }

    /// Starts one more `paceline serve` on the same configuration; its output is appended to
    /// `serve.log`.
    pub fn another_serve(&self) -> Child {
        let log = File::options().create(true).append(true).open(self.path("serve.log")).unwrap();
        let mut command = Command::new(self.programs.join("paceline"));
        command.arg("serve").arg("--config").arg(self.config());
        clear_settings(&mut command);
        self.mark_process(&mut command);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        command.spawn().unwrap()
    }

    /// Output of `serve` so far.
    pub fn serve_log(&self) -> String {
        std::fs::read_to_string(self.path("serve.log")).unwrap_or_default()
    }

    /// Waits until a request would be served, by status and by health.
    pub fn wait_ready(&self) -> Value {
        let status = self.wait_status("target and gateway ready", |status| {
            status["target"]["state"] == "ready" && status["gateway"]["state"] == "ready"
        });
        wait("health SERVING", || self.healthy().then_some(()));
        status
    }

    /// A service with its drafter linked.
    pub fn drafting(settings: &str) -> Self {
        let stack = Self::ready(settings);
        stack.wait_linked();
        stack
    }

    /// Waits until drafts can come.
    pub fn wait_linked(&self) -> Value {
        self.wait_status("the drafter to be linked", |status| {
            is_linked(status) && (status["drafter"]["state"] == "ready" || is_late(status))
        })
    }

    /// `paceline drafter` with these words.
    ///
    /// # Panics
    /// It fails.
    pub fn drafter(&self, words: &[&str]) {
        let output = self.paceline(&[&["drafter"], words].concat(), "");
        assert!(output.status.success(), "drafter {words:?}: {output:?}");
    }

    /// Whether a request would be served now, by the health service.
    pub fn healthy(&self) -> bool {
        self.serves("")
    }

    /// Whether this service is SERVING, by the health service.
    pub fn serves(&self, service: &str) -> bool {
        use tonic_health::pb::health_check_response::ServingStatus;
        let mut health = tonic_health::pb::health_client::HealthClient::new(self.channel.clone());
        let request = tonic_health::pb::HealthCheckRequest { service: service.to_owned() };
        self.runtime
            .block_on(health.check(request))
            .is_ok_and(|response| response.get_ref().status() == ServingStatus::Serving)
    }

    /// The object of `paceline status --json`; `None` if no supervisor answers.
    pub fn status(&self) -> Option<Value> {
        let output = self.paceline(&["status", "--json"], "");
        let object = serde_json::from_slice::<Value>(&output.stdout);
        output
            .status
            .success()
            .then(|| object.unwrap_or_else(|error| panic!("status --json: {error}: {output:?}")))
    }

    /// Waits until the status is as wanted, and returns it.
    ///
    /// # Panics
    /// It does not come to be so, or `serve` ended meanwhile.
    pub fn wait_status(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = None;
        wait_at(Duration::from_millis(100), what, || {
            last = self.status();
            last.clone().filter(&wanted)
        })
    }

    /// The supervisor's snapshot, without the command line between.
    ///
    /// # Errors
    /// Nobody answers.
    pub fn snapshot(&self) -> Result<StatusResponse, Status> {
        let path = self.run_dir().join("supervisor.sock");
        self.runtime.block_on(async {
            let mut client = OperationsClient::new(paceline_process::socket::channel(path));
            client.status(StatusRequest {}).await.map(tonic::Response::into_inner)
        })
    }

    /// The target's own figures, asked as its supervisor would.
    ///
    /// # Panics
    /// It does not answer.
    pub fn target_stats(&self) -> StatsResponse {
        self.probe_target().stats()
    }

    /// A connection to the target itself, for figures that are newer than its last heartbeat.
    ///
    /// # Panics
    /// There is no target.
    pub fn probe_target(&self) -> TargetProbe<'_> {
        let status = self.snapshot().unwrap();
        let stamp =
            Some(Stamp { term: status.term, epoch: status.target.unwrap_or_default().epoch });
        let path = self.run_dir().join("target.sock");
        let client = self
            .runtime
            .block_on(async { TargetClient::new(paceline_process::socket::channel(path)) });
        TargetProbe { runtime: &self.runtime, client, stamp }
    }

    /// Bytes held by running requests.
    pub fn held_bytes(&self) -> u64 {
        self.snapshot().unwrap().kv.unwrap_or_default().held_bytes
    }

    /// Waits until requests hold no memory: it is given back after an answer's last message.
    ///
    /// # Panics
    /// Some memory stays.
    pub fn wait_memory_back(&self) {
        wait("all memory to be given back", || (self.held_bytes() == 0).then_some(()));
    }

    /// Id of a process as status has it, without the command line between.
    ///
    /// # Panics
    /// There is no such process, or no supervisor answers.
    pub fn pid(&self, process: &str) -> u32 {
        let status = self.snapshot().unwrap();
        let reported = match process {
            "gateway" => status.gateway,
            "supervisor" => status.supervisor,
            "target" => status.target,
            "drafter" => status.drafter,
            _ => panic!("expected the name of a process in the status, found {process:?}"),
        };
        let pid = reported.unwrap_or_default().pid;
        assert_ne!(pid, 0, "no {process} runs");
        pid
    }

    /// Id of `serve`.
    pub fn serve_pid(&self) -> u32 {
        self.serve.as_ref().expect("serve runs").id()
    }

    /// A client's channel to the service.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// The threads that clients run on.
    pub(crate) fn runtime(&self) -> Handle {
        self.runtime.handle().clone()
    }

    /// Waits for a future of a client.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Sends a request; returns when its first token is there.
    ///
    /// # Errors
    /// The service's refusal.
    pub fn open(&self, ask: Ask) -> Result<Live, Status> {
        self.open_on(ask, Terms::default())
    }

    /// As [`Stack::open`], under this API key.
    ///
    /// # Errors
    /// The service's refusal.
    pub fn open_as(&self, key: &str, ask: Ask) -> Result<Live, Status> {
        self.open_on(ask, Terms { key: Some(key), ..Terms::default() })
    }

    fn open_on(&self, ask: Ask, terms: Terms<'_>) -> Result<Live, Status> {
        let client =
            InferenceClient::new(self.channel.clone()).max_encoding_message_size(usize::MAX);
        let stream = self.runtime.block_on(ask.send(client, terms))?;
        Ok(Live::new(stream, self.runtime()))
    }

    /// Sends a request and reads its whole answer.
    ///
    /// # Errors
    /// The status it ended with.
    pub fn ask(&self, ask: Ask) -> Result<Answer, Status> {
        self.open(ask)?.finish()
    }

    /// Sends a request that runs beside what follows.
    pub fn start(&self, ask: Ask) -> Pending {
        self.start_on(ask, None, None)
    }

    /// As [`Stack::start`], with a deadline.
    pub fn start_within(&self, ask: Ask, within: Option<Duration>) -> Pending {
        self.start_on(ask, within, None)
    }

    /// As [`Stack::start`], under this API key.
    pub fn start_as(&self, key: &str, ask: Ask) -> Pending {
        self.start_on(ask, None, Some(key.to_owned()))
    }

    fn start_on(&self, ask: Ask, within: Option<Duration>, key: Option<String>) -> Pending {
        let (tx, ended) = std::sync::mpsc::sync_channel(1);
        let client = InferenceClient::new(self.channel.clone());
        let runtime = self.runtime();
        let tokens = Arc::new(AtomicU32::new(0));
        let come = Arc::clone(&tokens);
        let task = self.runtime.spawn(async move {
            let begun_ns = monotonic_ns();
            let (answer, outcome) =
                match ask.send(client, Terms { within, key: key.as_deref() }).await {
                    Ok(stream) => Live::new(stream, runtime).finish_partial(&come).await,
                    Err(status) => (Answer::default(), Err(status)),
                };
            // A test that gave up does not read it.
            let _ = tx.send(EndedRequest { answer, outcome, begun_ns, ended_ns: monotonic_ns() });
        });
        Pending { ended, task: task.abort_handle(), tokens }
    }

    /// Living processes of this stack.
    pub fn processes(&self) -> Vec<Process> {
        procs::marked(&self.mark())
    }

    /// Has a process and all it starts be found by [`Stack::processes`], and its descriptors and
    /// memory be counted. Root may look at every process; for others ours have to be open to
    /// debuggers.
    fn mark_process(&self, command: &mut Command) {
        command.env(MARK, self.mark());
        if !nix::unistd::geteuid().is_root() {
            command.env(DEBUGGABLE, "1");
        }
    }

    fn mark(&self) -> String {
        self.dir.path().display().to_string()
    }

    /// Sends `serve` a signal.
    pub fn signal_serve(&self, signal: Signal) {
        procs::signal(self.serve_pid(), signal);
    }

    /// Waits for the end of `serve` and returns its exit code; `None` if a signal ended it.
    pub fn serve_ended(&mut self) -> Option<i32> {
        let mut child = self.serve.take().expect("serve runs");
        wait("the end of serve", || child.try_wait().unwrap()).code()
    }

    /// Stops the service as a person would, checks its exit code and that nothing is left.
    pub fn stop(mut self) {
        self.signal_serve(Signal::SIGTERM);
        let code = self.serve_ended();
        assert_eq!(code, Some(0), "exit code of serve: {}", self.serve_log());
        self.sweep();
    }

    /// Waits until no process is left, and checks that no socket file and no shared memory is.
    pub fn sweep(&self) {
        let mut left = Vec::new();
        wait(&format!("the end of all processes of {}", self.mark()), || {
            left = self.processes();
            left.is_empty().then_some(())
        });
        assert_eq!(self.sockets(), Vec::<PathBuf>::new(), "socket files are left");
        assert_eq!(shared_memory(), Vec::<String>::new(), "shared memory is left");
    }

    /// Socket files in the runtime directory.
    pub fn sockets(&self) -> Vec<PathBuf> {
        use std::os::unix::fs::FileTypeExt as _;
        let entries =
            std::fs::read_dir(self.run_dir()).into_iter().flatten().filter_map(Result::ok);
        entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()))
            .map(|entry| entry.path())
            .collect()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "serve printed:\n{}", self.serve_log());
            for name in ["supervisor", "gateway", "target", "drafter-0", "drafter-1"] {
                let log = paceline_process::telemetry::last_lines(
                    &self.run_dir().join(format!("{name}.log")),
                    20,
                );
                let _ = writeln!(std::io::stderr(), "{name} logged:\n{log}");
            }
        }
        if let Some(mut serve) = self.serve.take() {
            let _ = serve.kill();
            let _ = serve.wait();
        }
        for process in self.processes() {
            process.signal(Signal::SIGKILL);
        }
    }
}

/// A free port below those that the system gives to outgoing connections, so that none of them
/// takes it first.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = (std::process::id() % 1_000) as u16 * 10;
    loop {
        let port = 20_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Removes the caller's settings: a test's are in its file. The default model need not be here.
fn clear_settings(command: &mut Command) {
    let names = std::env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| name.to_string_lossy().starts_with("PACELINE_")) {
        command.env_remove(name);
    }
    command.env(paceline_process::config::DEFAULT_MODEL_VAR, "demo-target");
}

/// Shared memory of ours that has a name.
fn shared_memory() -> Vec<String> {
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().filter_map(Result::ok);
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains("paceline"))
        .collect()
}
