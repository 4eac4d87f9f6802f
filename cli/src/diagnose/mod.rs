//! `paceline diagnose`

use paceline_client::{Failure, Screen};

use crate::args::DiagnoseArgs;

/// Runs the command.
///
/// # Errors
/// To be written.
pub async fn run(_args: &DiagnoseArgs, _screen: &mut Screen) -> Result<(), Failure> {
    Err(Failure::not_yet("paceline diagnose"))
}
