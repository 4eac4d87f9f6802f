//! A pull that another program of ours runs ends with that program. What was fetched is kept.

use std::fs::File;
use std::io::{self, Read as _};

use paceline_system::exit_at_once;
use paceline_system::start::{PARENT_FD, inherited_fd};
use paceline_vocabulary::Exit;

/// Ends this process once the inherited pipe is closed; without one nothing is watched.
///
/// # Errors
/// The variable names no descriptor of ours, or there is no thread for it.
pub(crate) fn watch() -> io::Result<()> {
    let Some(pipe) = inherited_fd(PARENT_FD)? else { return Ok(()) };
    let watch = move || {
        // Nothing is ever written, so the read returns when the parent is gone.
        let _ = File::from(pipe).read(&mut [0]);
        exit_at_once(Exit::Unavailable);
    };
    std::thread::Builder::new().name("parent".to_owned()).spawn(watch).map(drop)
}
