//! Commands of the contract that this version parses and does not serve.

use crate::args::Command;
use crate::failure::Failure;

/// The failure of a command that is not served yet.
pub fn refuse(command: &Command) -> Failure {
    Failure::not_yet(match command {
        Command::Top(_) => "`paceline top`; `paceline status` shows one moment",
        Command::Serve(_)
        | Command::Generate(_)
        | Command::Chat(_)
        | Command::Status(_)
        | Command::Drafter(_)
        | Command::Policy(_)
        | Command::Routes(_)
        | Command::Events(_)
        | Command::Restart(_)
        | Command::Drain(_)
        | Command::Key(_)
        | Command::Pull(_)
        | Command::Models(_)
        | Command::Inspect(_)
        | Command::Selftest(_)
        | Command::Bench(_) => "this command",
    })
}
