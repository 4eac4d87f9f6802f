//! The Python packages of `tests/http_clients`, in environments of their own in the target
//! directory.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Output};

use crate::{programs, repository, skip};

/// Exit code of `scripts/http-clients.sh` if the registry could not be reached.
const NO_REGISTRY: i32 = 75;

/// A list of packages that fit together.
#[derive(Clone, Copy, Debug)]
pub enum Packages {
    /// The packages of the protocols' owners, and a fuzzer.
    Vendors,
    /// Frameworks that use the newest of the vendors' packages.
    Frameworks,
    /// Packages that need an older one.
    LiteLlm,
    /// An agent that pins all that it uses.
    Aider,
    /// The router `smg`, and the definition of the service that it calls.
    Smg,
    /// The router `vllm-router`.
    VllmRouter,
    /// Ollama's package for JavaScript.
    OllamaJs,
    /// Coding agents for Node.
    Agents,
}

impl Packages {
    /// The list's file in `tests/http_clients`, without its ending.
    fn list(self) -> &'static str {
        match self {
            Self::Vendors => "requirements",
            Self::Frameworks => "frameworks",
            Self::LiteLlm => "litellm",
            Self::Aider => "aider",
            Self::Smg => "smg",
            Self::VllmRouter => "vllm_router",
            Self::OllamaJs => "ollama_js",
            Self::Agents => "agents",
        }
    }
}

/// A Python interpreter with the clients of other people.
#[derive(Clone, Debug)]
pub struct Clients {
    python: PathBuf,
}

impl Clients {
    /// The environment of the vendors' packages.
    ///
    /// # Panics
    /// Those of [`Clients::with`].
    pub fn installed(test: &str) -> Option<Self> {
        Self::with(Packages::Vendors, test)
    }

    /// The environment of these packages, made at the first use. `None` if this test is to be
    /// skipped, because the package registry could not be reached.
    ///
    /// # Panics
    /// The environment cannot be made for another reason.
    pub fn with(packages: Packages, test: &str) -> Option<Self> {
        let list = packages.list();
        if let Some(reason) = skip::clients_reason(list) {
            skip::skipped(test, &reason);
            return None;
        }
        let parent = programs().join("http-clients");
        std::fs::create_dir_all(&parent).unwrap();
        // Tests of one executable may run at the same time.
        let lock = File::create(parent.join(format!("{list}.lock"))).unwrap();
        lock.lock().unwrap();
        let script = repository().join("scripts/http-clients.sh");
        let made = Command::new("sh").arg(script).arg(&parent).arg(list).output().unwrap();
        let errors = String::from_utf8_lossy(&made.stderr);
        if made.status.code() == Some(NO_REGISTRY) {
            skip::skipped(test, errors.trim());
            return None;
        }
        assert!(made.status.success(), "{errors}");
        Some(Self { python: parent.join(list).join("bin/python") })
    }

    /// The program of this list for JavaScript, in the folder of its packages. `None` as for
    /// [`Clients::with`].
    ///
    /// # Panics
    /// Those of [`Clients::with`].
    pub fn javascript(packages: Packages, test: &str) -> Option<Command> {
        Self::with(packages, test)?;
        let mut command = Command::new("node");
        command.arg("program.mjs");
        command.current_dir(programs().join("http-clients").join(packages.list()));
        Self::clear_environment(&mut command);
        Some(command)
    }

    /// The directory of the coding agents for Node. `None` as for [`Clients::with`].
    ///
    /// # Panics
    /// Those of [`Clients::with`].
    pub fn agents(test: &str) -> Option<PathBuf> {
        Self::with(Packages::Agents, test)?;
        Some(programs().join("http-clients/agents/node_modules/.bin"))
    }

    /// Python with these arguments, in `tests/http_clients`. It writes nothing there.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.python);
        command.arg("-B").args(arguments).current_dir(repository().join("tests/http_clients"));
        Self::clear_environment(&mut command);
        command
    }

    /// The directory of the programs that packages installed.
    pub fn programs(&self) -> PathBuf {
        let parent = self.python.parent();
        parent.expect("it is in the environment").to_owned()
    }

    /// A program that a package installed.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs().join(name));
        Self::clear_environment(&mut command);
        command
    }

    /// A proxy, or a key of the developer's own, is not for this service.
    fn clear_environment(command: &mut Command) {
        for (name, _) in std::env::vars_os() {
            let lower = name.to_string_lossy().to_ascii_lowercase();
            let foreign = ["openai_", "anthropic_"].iter().any(|vendor| lower.starts_with(vendor));
            if foreign || lower.ends_with("_proxy") {
                command.env_remove(name);
            }
        }
    }

    /// Runs a command to its end, and prints what it printed.
    ///
    /// # Panics
    /// It fails; the message has all that it printed.
    #[expect(clippy::print_stdout, reason = "figures of a run, beside what it asserts")]
    pub fn passes(command: &mut Command) {
        let Output { status, stdout, stderr } = command.output().unwrap();
        let (printed, errors) =
            (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "{command:?} ended with {status}\n{printed}\n{errors}");
        println!("{printed}");
    }
}
