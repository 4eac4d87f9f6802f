//! `paceline top`

use paceline_client::{Failure, Screen};

use crate::args::TopArgs;

/// Runs the command.
///
/// # Errors
/// To be written.
pub async fn run(_args: &TopArgs, _screen: &mut Screen) -> Result<(), Failure> {
    Err(Failure::not_yet("paceline top"))
}
