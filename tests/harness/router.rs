//! Routers of other people before one or more stacks, unmodified, as their packages install them.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::http::{self, Events, HttpAnswer};
use crate::python::{Clients, Packages};
use crate::stack::free_port;
use crate::{Stack, wait};

/// A router that runs. Dropping it kills it, and prints its log if the test fails.
#[derive(Debug)]
pub struct Router {
    child: Child,
    port: u16,
    dir: tempfile::TempDir,
}

/// Kind of the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `smg launch`, with gRPC to its workers.
    Smg,
    /// `vllm-router`, with HTTP to its workers.
    VllmRouter,
}

impl Kind {
    /// The packages that have it. `None` if this test is to be skipped.
    pub fn installed(self, test: &str) -> Option<Clients> {
        Clients::with(
            match self {
                Self::Smg => Packages::Smg,
                Self::VllmRouter => Packages::VllmRouter,
            },
            test,
        )
    }

    /// The address of a stack as this router is told it.
    pub fn worker(self, stack: &Stack) -> String {
        match self {
            Self::Smg => format!("grpc://{}", stack.address()),
            Self::VllmRouter => format!("http://{}", stack.http_address()),
        }
    }
}

impl Router {
    /// Starts a router before these stacks, with these words besides those that give it its
    /// addresses, and waits until it is ready.
    ///
    /// # Panics
    /// It ends, or it is not ready in time.
    pub fn start(kind: Kind, clients: &Clients, stacks: &[&Stack], words: &[&str]) -> Self {
        // Their own pace is a minute for the health of a worker, and half of one at the start.
        let mut all: Vec<String> =
            ["--health-check-interval-secs", "1", "--worker-startup-check-interval", "1"]
                .map(str::to_owned)
                .into();
        all.extend(words.iter().map(|word| (*word).to_owned()));
        all.push("--worker-urls".to_owned());
        all.extend(stacks.iter().map(|stack| kind.worker(stack)));
        Self::start_with(kind, clients, &all, stacks.len() as u64)
    }

    /// Starts a router with these words besides those of its own addresses, and waits until it has
    /// as many workers as `workers` says.
    ///
    /// # Panics
    /// Those of [`Router::start`].
    pub fn start_with(kind: Kind, clients: &Clients, words: &[String], workers: u64) -> Self {
        let dir = tempfile::Builder::new().prefix("plr").tempdir().unwrap();
        let (port, figures) = (free_port(), free_port());
        let mut command = match kind {
            Kind::Smg => {
                let mut command = clients.program("smg");
                command.arg("launch");
                command
            }
            Kind::VllmRouter => clients.program("vllm-router"),
        };
        let log = File::create(dir.path().join("log")).unwrap();
        command
            .args(["--host", "127.0.0.1", "--port", &port.to_string()])
            .args(["--prometheus-port", &figures.to_string()])
            .args(words)
            .current_dir(dir.path());
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let mut router = Self { child: command.spawn().unwrap(), port, dir };
        wait("the router to be ready", || {
            let ended = router.child.try_wait().unwrap();
            assert!(ended.is_none(), "the router ended: {ended:?}");
            (router.ready_workers()? == workers).then_some(())
        });
        router
    }

    /// `host:port` of the router.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// How many workers it would send requests to. `None` if it does not answer yet, or if it is
    /// not ready.
    pub fn ready_workers(&self) -> Option<u64> {
        let answer = self.ask("GET", "/readiness", "");
        let report: Value = serde_json::from_str(&answer?.body).ok()?;
        if report["status"] != "ready" {
            return None;
        }
        report["healthy_workers"].as_u64()
    }

    /// Sends a request. `None` if no answer comes.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> Option<HttpAnswer> {
        http::ask(&self.address(), method, path, body).ok()
    }

    /// Posts JSON and reads the whole answer.
    ///
    /// # Panics
    /// None comes.
    pub fn json(&self, path: &str, body: &Value) -> HttpAnswer {
        http::json(&self.address(), path, body).expect("an answer of the router")
    }

    /// Posts JSON. The answer's events are still to be read.
    ///
    /// # Panics
    /// No answer begins.
    pub fn events(&self, path: &str, body: &Value) -> Events {
        http::events(&self.address(), path, body).expect("an answer of the router")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        // It has no child processes.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = paceline_process::telemetry::last_lines(&self.log(), 60);
            let _ = writeln!(std::io::stderr(), "the router logged:\n{log}");
        }
    }
}
