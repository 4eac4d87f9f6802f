//! Orders that a person can give, and the sentences about them.

use crate::args::Process;

/// An order to the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Restart one process.
    Restart(Process),
    /// Start the drafter that ran last, at first that of the configuration.
    StartDrafter,
    /// Stop the drafter.
    StopDrafter,
    /// Start another drafter, switch to it, stop the present one.
    SwapDrafter {
        /// Directory, name, or kind without files. Empty: the present one, read again.
        model: String,
    },
    /// Refuse new requests.
    Drain,
    /// Take requests again.
    Undrain,
}

impl Order {
    /// What happens, and the question about it.
    pub fn question(&self) -> String {
        match self {
            Order::Restart(Process::Gateway) => {
                "Restart the gateway? Running requests have 30 s to end; its addresses stay open, and new requests go to the next one."
            }
            Order::Restart(Process::Target) => {
                "Restart the target? Its weights are loaded again; running requests pause meanwhile and go on, new ones wait."
            }
            Order::Restart(Process::Drafter) => {
                "Restart the drafter? Running requests go on in the plain lane until it drafts again."
            }
            Order::Restart(Process::Supervisor) => {
                "Restart the supervisor? The workers keep running; requests pause and go on with the next supervisor."
            }
            Order::StartDrafter => {
                "Start the drafter? The one that ran last is loaded, at first that of the configuration."
            }
            Order::StopDrafter => {
                "Stop the drafter? Running requests go on in the plain lane, and its memory is given back."
            }
            Order::SwapDrafter { model } if model.is_empty() => {
                "Load the present drafter again? Its files are read anew, then requests switch over, and the earlier process stops."
            }
            Order::SwapDrafter { model } => {
                return format!(
                    "Swap the drafter for {model}? It is loaded beside the present one, which stops after the switch and stays if the load fails."
                );
            }
            Order::Drain => {
                "Drain the service? New requests are refused until the drain is undone; running requests end first."
            }
            Order::Undrain => "Undo the drain? The service takes requests again.",
        }
        .to_owned()
    }

    /// What is done, for the time until its end.
    pub fn doing(&self) -> String {
        match self {
            Order::Restart(process) => format!("restarting the {}", name(*process)),
            Order::StartDrafter => "starting the drafter".into(),
            Order::StopDrafter => "stopping the drafter".into(),
            Order::SwapDrafter { model } if model.is_empty() => "loading the drafter again".into(),
            Order::SwapDrafter { model } => format!("swapping the drafter for {model}"),
            Order::Drain => "draining".into(),
            Order::Undrain => "undoing the drain".into(),
        }
    }
}

/// The name of a process in lines.
pub fn name(process: Process) -> &'static str {
    match process {
        Process::Gateway => "gateway",
        Process::Target => "target",
        Process::Drafter => "drafter",
        Process::Supervisor => "supervisor",
    }
}
