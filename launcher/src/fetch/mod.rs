//! Models that are named and not on this machine, and the default one: fetched before a service
//! starts.
//!
//! 1. [`missing`] lists them.
//! 2. `paceline-pull --plan` finds out what each takes on disk ([`plan`]).
//! 3. [`memory`] computes what each takes in memory, by what the hub says of its files.
//! 4. A line for each shows both, and whether it fits. What does not fit is refused before a byte is
//!    fetched.
//! 5. `paceline-pull` fetches, with its own progress on standard error.

mod memory;
pub mod plan;

use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use command_fds::{CommandFdExt as _, FdMapping};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use paceline_checkpoint::{ModelPlaces, ModelRef, SMOLLM2, known_model};
use paceline_client::failure::{INTERRUPTED, RUN, UNREACHABLE, USAGE};
use paceline_client::print::bytes;
use paceline_client::program::beside;
use paceline_client::{Failure, Screen};
use paceline_process::config::{AUTO_DRAFTER, Config, Device, Source, WITHOUT_DIRECTORY};
use paceline_process::{Loaded, chain};
use paceline_proto::report::DeviceReport;
use paceline_system::platform;
use paceline_system::start::PARENT_FD;
use tokio::process::{Child, Command};

use self::memory::ModelMemory;
use self::plan::PullPlan;
use crate::device;

/// Key of the served model.
const TARGET: &str = "target.model";
/// Key of the drafters.
const DRAFTER: &str = "drafter.model";
/// Descriptor in the pull by which it notices the end of this process.
const PIPE_FD: i32 = 3;
/// Longest wait for a plan. The pull's own timeouts for a hub that does not answer are shorter.
const PLAN_TIMEOUT: Duration = Duration::from_secs(300);
/// Longest wait for the worker that reports device and memory.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(30);

/// A model that is to be served and not on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingModel {
    /// Key of the setting that names it.
    pub key: &'static str,
    /// Name of the model, as a pull takes it.
    pub name: String,
    /// Whether nothing starts without it. A drafter of the configuration costs speed alone, and the
    /// embedded model stands in for the default one.
    pub is_required: bool,
}

/// A model that is to be fetched.
struct Planned {
    model: MissingModel,
    plan: PullPlan,
}

/// The models that this configuration needs, that a pull can fetch, and that are not on this machine.
/// Of several drafters, those before the first one that is there. The drafter of a known model is
/// fetched with it.
pub fn missing(places: &ModelPlaces, loaded: &Loaded) -> Vec<MissingModel> {
    let mut missing: Vec<MissingModel> = vec![];
    let absent = |text: &str| {
        let model = ModelRef::parse(text);
        let name = match &model {
            ModelRef::Smollm2 => Some(SMOLLM2.to_owned()),
            model => model.hub_name().map(|name| name.to_string()),
        };
        name.filter(|_| places.locate(&model).is_err())
    };
    let is_required = !loaded.has_stand_in();
    let target = if is_required { &loaded.config.target.model } else { SMOLLM2 };
    let name = absent(target);
    missing.extend(name.map(|name| MissingModel { key: TARGET, name, is_required }));
    let of_target = known_model(&ModelRef::parse(target)).filter(|_| !missing.is_empty());
    let of_target = of_target.and_then(|known| absent(&known.hub_drafter()?.to_string()));
    let is_required = loaded.source(DRAFTER) == Source::Flag;
    for text in loaded.config.drafter.model.names() {
        if text == AUTO_DRAFTER {
            let drafter = of_target.clone();
            let auto = |name| MissingModel { key: DRAFTER, name, is_required: false };
            missing.extend(drafter.map(auto));
        }
        let is_built_in =
            text.is_empty() || text == AUTO_DRAFTER || WITHOUT_DIRECTORY.contains(&text.as_str());
        if is_built_in || places.locate(&ModelRef::parse(text)).is_ok() {
            break;
        }
        let name = absent(text).filter(|name| missing.iter().all(|other| other.name != *name));
        missing.extend(name.map(|name| MissingModel { key: DRAFTER, name, is_required }));
    }
    missing
}

/// Fetches the models that this configuration needs and that are not on this machine. `stop` resolves
/// when a person asks to stop. Returns a clause on why the default model could not be fetched; it is
/// empty if it was, or if another is named.
///
/// # Errors
/// A model that is required cannot be fetched, does not fit, or must not be fetched (`offline`); the
/// person stopped it.
pub async fn fetch_missing(
    loaded: &Loaded,
    offline: bool,
    screen: &mut Screen,
    mut stop: impl AsyncFnMut(),
) -> Result<String, Failure> {
    let missing = missing(&ModelPlaces::of_user(), loaded);
    if missing.is_empty() {
        return Ok(String::new());
    }
    if offline {
        return match missing.iter().find(|model| model.is_required) {
            None => Ok(", and --offline forbids to fetch it".to_owned()),
            Some(MissingModel { key, name, .. }) => Err(Failure::measuring(
                RUN,
                format!(
                    "{key}: {name} is not on this machine, and --offline forbids to fetch it; run `paceline pull {name}` with a network"
                ),
            )),
        };
    }
    let fetch = async {
        let mut unfetched = String::new();
        let planned = plan_all(missing, loaded, screen, &mut unfetched).await?;
        for Planned { model, .. } in &planned {
            let outcome = pull(&model.name).await;
            unfetched += &unless_optional(model, outcome, screen)?;
        }
        Ok(unfetched)
    };
    tokio::select! {
        biased;
        outcome = fetch => outcome,
        // The pull ends with the pipe that is dropped with it.
        () = stop() => Err(Failure::interrupted()),
    }
}

/// The models that are fetched: all that are required, and of the others those that can be. `unfetched`
/// gets the clause about the default model.
async fn plan_all(
    missing: Vec<MissingModel>,
    loaded: &Loaded,
    screen: &mut Screen,
    unfetched: &mut String,
) -> Result<Vec<Planned>, Failure> {
    let config = &loaded.config;
    let device = device_report(loaded).await;
    let mut planned: Vec<Planned> = vec![];
    // Memory of the models that are here already counts, too.
    let mut taken = present_bytes(&missing, config, &device).await;
    for model in missing {
        let asked = match same_directory(&model) {
            None => plan::ask(&model.name, PLAN_TIMEOUT).await,
            Some(failure) => Err(failure),
        };
        let plan = match asked {
            Ok(plan) => plan,
            Err(failure) => {
                *unfetched += &unless_optional(&model, Err(failure), screen)?;
                continue;
            }
        };
        let memory = match model.key {
            TARGET => ModelMemory::of_target(&plan, config, &device),
            _ => ModelMemory::of_drafter(&plan, config, &device),
        };
        let memory = match memory {
            Ok(memory) => memory,
            Err(error) => {
                let MissingModel { key, name, .. } = &model;
                let why = format!(
                    "{key}: {name} cannot be served: {}; nothing was fetched",
                    chain(&error)
                );
                *unfetched += &unless_optional(&model, Err(Failure::measuring(RUN, why)), screen)?;
                continue;
            }
        };
        let before: u64 = planned.iter().map(|one| one.plan.fetch_bytes).sum();
        let refusal = refusal(&model, &plan, &memory, taken, before, device.usable_bytes);
        screen.note(&announcement(&model, &plan, &memory, &device, refusal.is_none()));
        match refusal {
            None => {
                taken = taken.saturating_add(memory.total());
                planned.push(Planned { model, plan });
            }
            Some(why) => {
                *unfetched += &unless_optional(&model, Err(Failure::measuring(RUN, why)), screen)?;
            }
        }
    }
    Ok(planned)
}

/// The failure of a name that a directory here has, too. Such a name means the model of the hub, and
/// who wrote it most likely meant the directory.
fn same_directory(model: &MissingModel) -> Option<Failure> {
    let MissingModel { key, name, .. } = model;
    (name != SMOLLM2 && Path::new(name).is_dir()).then(|| {
        Failure::usage(format!(
            "{key}: {name} is the name of a model of a hub that is not on this machine, and of a directory here; write ./{name} for the directory, or run `paceline pull {name}` for the model"
        ))
    })
}

/// The failure of a model that is required. If the service can do without it, a clause on why the
/// default model is not there, or a note about a drafter.
fn unless_optional(
    model: &MissingModel,
    outcome: Result<(), Failure>,
    screen: &mut Screen,
) -> Result<String, Failure> {
    match outcome {
        Err(failure) if !model.is_required && failure.exit != INTERRUPTED => {
            let (name, why) = (&model.name, failure.message);
            if model.key == TARGET {
                return Ok(format!(" and could not be fetched: {why}"));
            }
            screen.note(&format!("warning: {why}; requests are served without the drafter {name}"));
            Ok(String::new())
        }
        outcome => outcome.map(|()| String::new()),
    }
}

/// Bytes in memory of the target, if it is on this machine.
async fn present_bytes(missing: &[MissingModel], config: &Config, device: &DeviceReport) -> u64 {
    if missing.iter().any(|model| model.key == TARGET) {
        return 0;
    }
    ModelMemory::of_local(config, device).await.map_or(0, |memory| memory.total())
}

/// The lines about a model before it is fetched.
fn announcement(
    model: &MissingModel,
    plan: &PullPlan,
    memory: &ModelMemory,
    device: &DeviceReport,
    fits: bool,
) -> String {
    let MissingModel { key, name, .. } = model;
    let free = plan.free_bytes.map_or_else(|| "unknown".to_owned(), bytes);
    let usable = device.usable_bytes.map_or_else(|| "unknown".to_owned(), bytes);
    let kv = match memory.kv_bytes {
        0 => String::new(),
        kv => format!(" and {} of KV for a conversation", bytes(kv)),
    };
    let place = if device.on_gpu { "GPU" } else { "CPU" };
    let verdict = if fits { "fits" } else { "does not fit" };
    format!(
        "{name} is not on this machine ({key}); it is fetched from {}\n  disk    {} to fetch in {} files, {free} free\n  memory  about {} of weights ({}){kv}; {usable} can be used now\n  {verdict} this machine ({place})",
        plan.hub,
        bytes(plan.fetch_bytes),
        plan.files.len(),
        bytes(memory.weight_bytes),
        memory.form,
    )
}

/// Why a model is not fetched; `None` if it fits. `taken`: bytes in memory of the other models;
/// `before`: bytes that are fetched before it.
fn refusal(
    model: &MissingModel,
    plan: &PullPlan,
    memory: &ModelMemory,
    taken: u64,
    before: u64,
    usable: Option<u64>,
) -> Option<String> {
    let MissingModel { key, name, .. } = model;
    let on_disk = plan.fetch_bytes.saturating_add(before);
    if !plan.has_room || plan.free_bytes.is_some_and(|free| on_disk > free) {
        return Some(format!(
            "{key}: {name} does not fit the disk: {} are to be fetched into {}, where {} are free; nothing was fetched. Make room, or set XDG_CACHE_HOME to another file system",
            bytes(on_disk),
            plan.directory,
            bytes(plan.free_bytes.unwrap_or(0)),
        ));
    }
    let usable = usable?;
    let needed = memory.total().saturating_add(taken);
    let others = match taken {
        0 => String::new(),
        taken => format!(", beside {} of the other model", bytes(taken)),
    };
    (needed > usable).then(|| {
        format!(
            "{key}: {name} does not fit this machine: it takes about {} of memory ({}){others}, of which {} can be used now; nothing was fetched. Choose a smaller model or one with fewer bits, or end other programs",
            bytes(memory.total()),
            memory.form,
            bytes(usable),
        )
    })
}

/// The device as the worker finds it; without it by the configuration and the system's own figures.
pub async fn device_report(loaded: &Loaded) -> DeviceReport {
    let asked = tokio::time::timeout(DEVICE_TIMEOUT, device::ask(loaded, None, None)).await;
    if let Ok(Ok(report)) = asked {
        return report;
    }
    let on_gpu = match loaded.config.target.device {
        Device::Gpu => true,
        Device::Cpu => false,
        Device::Auto => cfg!(target_os = "macos"),
    };
    DeviceReport {
        on_gpu,
        // The project's kernels are there on each Linux; only which ones is not known.
        instructions: (cfg!(target_os = "linux") && !on_gpu).then(|| "unknown".to_owned()),
        usable_bytes: platform::available_memory(),
        drafter: None,
    }
}

/// A pull with these words, and the pipe by which it notices the end of this process.
fn pull_command(words: &[&str]) -> Result<(Command, io::PipeWriter), Failure> {
    let program = beside("paceline-pull")?;
    let (read_end, write_end) = io::pipe().map_err(cannot_pull)?;
    let mut command = std::process::Command::new(program);
    command.args(words).stdin(Stdio::null()).env(PARENT_FD, PIPE_FD.to_string());
    let pipe = FdMapping { parent_fd: read_end.into(), child_fd: PIPE_FD };
    command.fd_mappings(vec![pipe]).map_err(|error| cannot_pull(io::Error::other(error)))?;
    Ok((command.into(), write_end))
}

fn cannot_pull(error: io::Error) -> Failure {
    Failure::refused_here(format!("cannot start paceline-pull: {error}"))
}

/// Fetches a model. Its progress goes to standard error.
async fn pull(name: &str) -> Result<(), Failure> {
    let (mut command, _pipe) = pull_command(&[name])?;
    let child = command.stdout(Stdio::null()).spawn().map_err(cannot_pull)?;
    let mut pull = RunningPull(child);
    let status = pull.0.wait().await.map_err(cannot_pull)?;
    ended(name, status)
}

/// A pull that is ended with this value, as by a Ctrl-C of its own: what it fetched is kept.
struct RunningPull(Child);

impl Drop for RunningPull {
    fn drop(&mut self) {
        // No id once its end was read.
        if let Some(pid) = self.0.id() {
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGTERM);
        }
    }
}

fn ended(name: &str, status: ExitStatus) -> Result<(), Failure> {
    use std::os::unix::process::ExitStatusExt as _;
    let message = format!("{name} could not be fetched, for the reason above");
    let as_signal = |signal: Signal| Some(signal as i32);
    match status.code() {
        Some(0) => Ok(()),
        Some(code) if code == i32::from(USAGE) => Err(Failure::usage(message)),
        Some(code) if code == i32::from(UNREACHABLE) => Err(Failure::unreachable(message)),
        Some(_) => Err(Failure::measuring(RUN, message)),
        // A terminal sends Ctrl-C to the pull, too.
        None if [Signal::SIGINT, Signal::SIGTERM].map(as_signal).contains(&status.signal()) => {
            Err(Failure::interrupted())
        }
        None => Err(Failure::measuring(RUN, format!("{name} could not be fetched: {status}"))),
    }
}

#[cfg(test)]
mod tests;
