//! `paceline` without MLX: the command line, and under other names the supervisor, the gateway and the bench. One program
//! has them all, so that the code they share is compiled, linked and installed once. A link beside it has each name
//! (`build.rs`, scripts/install.sh); the system calls the process by the name it was started with.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let name = words.first().map(Path::new);
    match name.and_then(Path::file_name).and_then(|name| name.to_str()) {
        Some("paceline-supervisor") => paceline_supervisor::program::main(words),
        Some("paceline-gateway") => paceline_gateway::program::main(words),
        Some("paceline-bench") => paceline_bench::main(words),
        _ => paceline_cli::main(words),
    }
}
