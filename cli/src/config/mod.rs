//! `paceline config`

use paceline_client::{Failure, Screen};

use crate::args::ConfigArgs;

/// Runs the command.
///
/// # Errors
/// To be written.
pub async fn run(_args: &ConfigArgs, _screen: &mut Screen) -> Result<(), Failure> {
    Err(Failure::not_yet("paceline config"))
}
