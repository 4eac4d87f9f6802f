//! Commands of the contract that this version parses and does not serve.

use crate::args::{Command, DrafterCommand};
use crate::failure::Failure;

/// Says which command is not there yet.
pub fn refuse(command: &Command) -> Failure {
    Failure::not_yet(match command {
        Command::Top(_) => "`paceline top`; `paceline status` shows one moment",
        Command::Events(_) => "`paceline events`; `paceline status` shows one moment",
        Command::Drafter(args) => match args.command {
            DrafterCommand::Start(_) => "`paceline drafter start`",
            DrafterCommand::Stop(_) => "`paceline drafter stop`",
            DrafterCommand::Swap(_) => "`paceline drafter swap`",
        },
        Command::Restart(_) => "`paceline restart`; stop and start `paceline serve` instead",
        Command::Selftest(_) => "`paceline selftest`",
        Command::Bench(_) => "`paceline bench`",
        Command::Serve(_) | Command::Generate(_) | Command::Chat(_) | Command::Status(_) => "this command",
    })
}
