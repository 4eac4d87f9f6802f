//! Faults, their seeded order, and how each is carried out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use paceline_tests::Stack;
use paceline_tests::prompts::Dice;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process is killed.
    Kill(Process),
    /// The process is stopped, as if it hung.
    Freeze(Process),
    /// The process is asked to end, by a signal that its supervisor did not send.
    Terminate(Process),
    /// An operator restarts the process.
    Restart(Process),
    /// An operator swaps the drafter.
    SwapDrafter,
    /// An operator swaps the target to the same checkpoint.
    SwapTarget,
}

/// A process of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// `paceline-gateway`.
    Gateway,
    /// `paceline-supervisor`.
    Supervisor,
    /// `paceline-target`.
    Target,
    /// `paceline-drafter`.
    Drafter,
}

impl Process {
    /// Its name in the status.
    fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Supervisor => "supervisor",
            Self::Target => "target",
            Self::Drafter => "drafter",
        }
    }
}

/// All faults and their names.
const FAULTS: [(&str, Fault); 16] = {
    use Fault::{Freeze, Kill, Restart, SwapDrafter, SwapTarget, Terminate};
    use Process::{Drafter, Gateway, Supervisor, Target};
    [
        ("target killed", Kill(Target)),
        ("target frozen", Freeze(Target)),
        ("target terminated", Terminate(Target)),
        ("target restarted", Restart(Target)),
        ("target swapped", SwapTarget),
        ("supervisor killed", Kill(Supervisor)),
        ("supervisor frozen", Freeze(Supervisor)),
        ("supervisor restarted", Restart(Supervisor)),
        ("drafter killed", Kill(Drafter)),
        ("drafter frozen", Freeze(Drafter)),
        ("drafter terminated", Terminate(Drafter)),
        ("drafter restarted", Restart(Drafter)),
        ("drafter swapped", SwapDrafter),
        ("gateway killed", Kill(Gateway)),
        ("gateway frozen", Freeze(Gateway)),
        ("gateway restarted", Restart(Gateway)),
    ]
};

impl Fault {
    /// Its name in the report.
    pub fn name(self) -> &'static str {
        FAULTS.iter().find(|(_, fault)| *fault == self).expect("all have names").0
    }
}

/// The seeded order of faults.
#[derive(Debug)]
pub struct Schedule {
    dice: Dice,
    /// Faults of the round that have not been drawn.
    left: Vec<Fault>,
    /// Faults that this version can carry out.
    all: Vec<Fault>,
}

impl Schedule {
    /// The order of this seed. A swap of the target is in it if the command line has that command.
    pub fn new(stack: &Stack, seed: u64) -> Self {
        let help = stack.paceline(&["target", "--help"], "");
        let can_swap =
            help.status.success() && String::from_utf8_lossy(&help.stdout).contains("swap");
        let all = FAULTS.map(|(_, fault)| fault).into_iter();
        let all = all.filter(|fault| can_swap || *fault != Fault::SwapTarget).collect();
        Self { dice: Dice(seed), left: Vec::new(), all }
    }

    /// The time before the next fault, and that fault. Each fault comes once in a round of all.
    pub fn draw(&mut self) -> (Duration, Fault) {
        if self.left.is_empty() {
            self.left.clone_from(&self.all);
        }
        let pause = Duration::from_millis(300 + self.dice.roll(1_200));
        let at = self.dice.roll(self.left.len() as u64) as usize;
        (pause, self.left.swap_remove(at))
    }
}

/// Processes that cannot answer. Each number is odd while one of its kind is killed or frozen, and
/// is counted up before and after.
#[derive(Debug, Default)]
pub struct Absent {
    gateways: AtomicU64,
    /// Only those that are frozen: the clients wait for one that was killed.
    supervisors: AtomicU64,
}

impl Absent {
    /// The numbers of gateways and of supervisors.
    pub fn counts(&self) -> [u64; 2] {
        [&self.gateways, &self.supervisors].map(|count| count.load(Ordering::SeqCst))
    }
}

/// Carries out a fault and waits until the service serves again: a stream ends if it is disturbed
/// twice without a token between.
pub fn carry_out(stack: &Stack, fault: Fault, absent: &Absent) {
    match fault {
        Fault::Kill(Process::Gateway) => without_gateway(stack, Signal::SIGKILL, absent),
        Fault::Freeze(Process::Gateway) => without_gateway(stack, Signal::SIGSTOP, absent),
        Fault::Freeze(Process::Supervisor) => {
            absent.supervisors.fetch_add(1, Ordering::SeqCst);
            send(stack, Process::Supervisor, Signal::SIGSTOP);
            absent.supervisors.fetch_add(1, Ordering::SeqCst);
        }
        Fault::Kill(process) => send(stack, process, Signal::SIGKILL),
        Fault::Freeze(process) => send(stack, process, Signal::SIGSTOP),
        Fault::Terminate(process) => send(stack, process, Signal::SIGTERM),
        Fault::Restart(process) => order(stack, &["restart", process.name()]),
        Fault::SwapDrafter => order(stack, &["drafter", "swap"]),
        Fault::SwapTarget => swap_target(stack),
    }
    stack.wait_status("the service to serve again", |status| {
        ["target", "gateway"].iter().all(|process| status[process]["state"] == "ready")
    });
}

/// Sends a process a signal and waits for the next one. For the drafter nothing waits: there may be
/// none, because the supervisor stops one that costs more than it gains.
fn send(stack: &Stack, process: Process, signal: Signal) {
    let name = process.name();
    let Some(pid) = stack.status().and_then(|status| status[name]["pid"].as_u64()) else { return };
    // A process that is being replaced may have ended.
    let _ = kill(Pid::from_raw(pid as i32), signal);
    if process != Process::Drafter {
        stack.wait_status("the next process", |status| {
            status[name]["state"] == "ready" && status[name]["pid"] != pid
        });
    }
}

/// An order that meets a process that is down is refused.
fn order(stack: &Stack, words: &[&str]) {
    let _ = stack.paceline(words, "");
}

fn swap_target(stack: &Stack) {
    let status =
        stack.wait_status("the target's name", |status| status["target"]["model"].is_string());
    let model = status["target"]["model"].as_str().expect("waited for").to_owned();
    order(stack, &["target", "swap", "--model", &model, "--timeout", "60"]);
}

/// The streams of a gateway end with it.
fn without_gateway(stack: &Stack, signal: Signal, absent: &Absent) {
    let gateways = &absent.gateways;
    let status = stack.wait_status("a gateway", |status| status["gateway"]["pid"].is_u64());
    let old = status["gateway"]["pid"].as_u64().expect("waited for");
    gateways.fetch_add(1, Ordering::SeqCst);
    let _ = kill(Pid::from_raw(old as i32), signal);
    stack.wait_status("another gateway", |status| {
        status["gateway"]["state"] == "ready" && status["gateway"]["pid"] != old
    });
    gateways.fetch_add(1, Ordering::SeqCst);
}
