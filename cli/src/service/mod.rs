//! `paceline service`

use paceline_client::{Failure, Screen};

use crate::args::ServiceCommandArgs;

/// Runs the command.
///
/// # Errors
/// To be written.
pub async fn run(_args: &ServiceCommandArgs, _screen: &mut Screen) -> Result<(), Failure> {
    Err(Failure::not_yet("paceline service"))
}
