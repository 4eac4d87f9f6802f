//! Kept settings: what `paceline config set` changes for good. They are in a file of their own
//! beside the configuration file, which is never rewritten: `paceline.settings.toml`. Flags and
//! environment win over them, they win over the configuration file.
//!
//! A change writes a new file and renames it over the present one, so that a reader finds one or the
//! other whole, whenever the writer is killed. Writers take turns by a lock on the directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::assignment::Assignment;
use super::layers::{check_known, typed_value};
use super::{Config, ConfigError};

/// Environment variable with the path of the file of kept settings. Set but empty means none.
pub const SETTINGS_VAR: &str = "PACELINE_SETTINGS";

/// First lines of the file.
const HEAD: &str = "\
# Written by `paceline config set` and `unset`. These settings win over paceline.toml; flags of
# `paceline serve` and PACELINE_... variables win over them. `paceline config show` has the winners.
";

/// A change of the kept settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptChange {
    /// The key has this value from now on.
    Set(Assignment),
    /// The key is no longer set here.
    Unset(String),
}

impl KeptChange {
    /// The key that is changed.
    pub fn key(&self) -> &str {
        match self {
            KeptChange::Set(assignment) => &assignment.key,
            KeptChange::Unset(key) => key,
        }
    }
}

/// The file of kept settings that goes with a configuration file.
pub(super) fn beside(config_file: &Path) -> PathBuf {
    let mut name = config_file.file_stem().unwrap_or_default().to_owned();
    name.push(".settings.toml");
    config_file.with_file_name(name)
}

/// The settings in this file; none if there is no file.
///
/// # Errors
/// It cannot be read, or is not TOML.
pub(super) fn read(path: &Path) -> Result<toml::Table, ConfigError> {
    match fs::read_to_string(path) {
        Ok(text) => text.parse().map_err(|cause| ConfigError::Syntax {
            path: path.to_path_buf(),
            cause: Box::new(cause),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(toml::Table::new()),
        Err(cause) => Err(ConfigError::Read { path: path.to_path_buf(), cause }),
    }
}

/// Changes the settings in this file. `check` gets the new settings before they are written.
///
/// # Errors
/// An unknown key, a value of another type, an error of `check`: then nothing is written. The file
/// cannot be read or written: then it is as it was.
pub(super) fn change<T>(
    path: &Path,
    changes: &[KeptChange],
    check: impl FnOnce(toml::Table) -> Result<T, ConfigError>,
) -> Result<T, ConfigError> {
    let failed = |cause: io::Error| ConfigError::Write { path: path.to_path_buf(), cause };
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    let dir = File::open(dir).map_err(failed)?;
    let dir = Flock::lock(dir, FlockArg::LockExclusive)
        .map_err(|(_, error)| failed(io::Error::from(error)))?;
    let mut table = read(path)?;
    let known = toml::Table::try_from(Config::default()).expect("the defaults are plain TOML");
    for change in changes {
        apply(&mut table, &known, change)?;
    }
    let text = toml::to_string(&table).expect("a table of settings is TOML");
    let checked = check(table)?;
    write(path, &format!("{HEAD}\n{text}"), &dir).map_err(failed)?;
    Ok(checked)
}

fn apply(
    table: &mut toml::Table,
    known: &toml::Table,
    change: &KeptChange,
) -> Result<(), ConfigError> {
    let assignment = match change {
        KeptChange::Set(assignment) => assignment.clone(),
        KeptChange::Unset(key) => Assignment::new(key, ""),
    };
    let Some((section, word)) = assignment.place() else {
        return check_known(known, &assignment, "config");
    };
    match change {
        KeptChange::Set(_) => {
            let value = typed_value(known, &assignment, "config set")?;
            let keys = table.entry(section).or_insert_with(|| toml::Table::new().into());
            if let Some(keys) = keys.as_table_mut() {
                keys.insert(word.to_owned(), value);
            }
        }
        KeptChange::Unset(_) => {
            let keys = table.get_mut(section).and_then(toml::Value::as_table_mut);
            let Some(keys) = keys.filter(|keys| keys.contains_key(word)) else {
                // A key of another version that the file has is removed; another one is a slip.
                return check_known(known, &assignment, "config unset");
            };
            keys.remove(word);
            if keys.is_empty() {
                table.remove(section);
            }
        }
    }
    Ok(())
}

/// Puts a file with this text in the place of the present one.
fn write(path: &Path, text: &str, dir: &File) -> io::Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    let new = path.with_file_name(name);
    // A writer that was killed may have left it.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    // The rename itself outlives a power cut.
    dir.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    use nix::sys::resource::{Resource, setrlimit};

    use super::*;

    fn set(key: &str, value: &str) -> [KeptChange; 1] {
        [KeptChange::Set(Assignment::new(key, value))]
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).expect("there").map(|entry| entry.expect("fine"));
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn writers_of_kept_settings_take_turns_and_lose_no_change() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let path = temp.path().join("paceline.settings.toml");
        let keys = [
            "limits.queue",
            "limits.max_new_tokens",
            "routing.max_concurrent",
            "supervisor.restarts",
        ];
        let write = |key: &str, value: u32| {
            change(&path, &set(key, &value.to_string()), |_| {
                // The file was read, and is not written yet: no other writer may be here.
                let other = File::open(temp.path()).expect("a directory");
                assert!(Flock::lock(other, FlockArg::LockExclusiveNonblock).is_err(), "no lock");
                Ok(())
            })
            .expect("written");
        };
        std::thread::scope(|scope| {
            for key in keys {
                let write = &write;
                scope.spawn(move || (1..=5).for_each(|value| write(key, value)));
            }
        });
        let table = read(&path).expect("whole");
        for key in keys {
            let (section, word) = key.split_once('.').expect("a dot");
            let value = table[section][word].to_string();
            assert_eq!(value.trim_matches('"'), "5", "{key} in {table:?}");
        }
        assert_eq!(names(temp.path()), ["paceline.settings.toml"]);
    }

    /// Set in the process that is killed while it writes: the file and the bytes that it writes.
    const KILLED: &str = "PACELINE_TEST_KILLED_WRITER";

    #[test]
    fn a_writer_that_is_killed_at_any_byte_leaves_the_earlier_settings_whole() {
        if let Some(order) = std::env::var_os(KILLED) {
            let order = order.into_string().expect("UTF-8");
            let (bytes, path) = order.split_once(' ').expect("two words");
            let bytes = bytes.parse().expect("a number");
            setrlimit(Resource::RLIMIT_FSIZE, bytes, bytes).expect("lowered");
            setrlimit(Resource::RLIMIT_CORE, 0, 0).expect("lowered");
            // SIGXFSZ kills this process at the first byte that is too many.
            let outcome = change(Path::new(path), &set("limits.queue", "2"), |_| Ok(()));
            panic!("it goes on: {outcome:?}");
        }
        let temp = tempfile::tempdir().expect("a temporary directory");
        let path = temp.path().join("paceline.settings.toml");
        change(&path, &set("limits.queue", "1"), |_| Ok(())).expect("written");
        let before = fs::read_to_string(&path).expect("there");
        let name = "config::kept::tests::a_writer_that_is_killed_at_any_byte_leaves_the_earlier_settings_whole";
        for bytes in [0, 1, HEAD.len(), before.len() - 1] {
            let mut writer = Command::new(std::env::current_exe().expect("a path"));
            writer.args([name, "--exact"]).env(KILLED, format!("{bytes} {}", path.display()));
            let output = writer.output().expect("it starts");
            assert_eq!(output.status.signal(), Some(nix::libc::SIGXFSZ), "{bytes}: {output:?}");
            assert_eq!(fs::read_to_string(&path).expect("there"), before, "killed at {bytes}");
        }
        // Its remainder keeps no later writer from writing.
        change(&path, &set("limits.queue", "3"), |_| Ok(())).expect("written");
        assert_eq!(read(&path).expect("whole")["limits"]["queue"].as_integer(), Some(3));
        assert_eq!(names(temp.path()), ["paceline.settings.toml"]);
    }
}
