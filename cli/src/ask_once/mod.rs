//! `paceline run`

use paceline_client::{Failure, Screen};

use crate::args::RunArgs;

/// Runs the command.
///
/// # Errors
/// To be written.
pub async fn run(_args: &RunArgs, _screen: &mut Screen) -> Result<(), Failure> {
    Err(Failure::not_yet("paceline run"))
}
