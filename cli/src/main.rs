//! See the library.

fn main() -> std::process::ExitCode {
    paceline_cli::main(std::env::args_os())
}
