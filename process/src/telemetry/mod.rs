//! Logs: to standard error, as text or JSON. Never prompt or generated text (I9). [`trace`] has the
//! traces of requests.

pub mod trace;

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};
use crate::runtime_dir::file_error;
use crate::task;
use paceline_system::platform;

/// Interval between two checks of the size of a process's own log.
const LOG_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// A process's own log is shortened above this size.
const OWN_LOG_BYTES: u64 = 8 << 20;

/// Starts logging for this process.
pub fn start(log: &LogConfig) {
    let filter = EnvFilter::try_new(&log.level).unwrap_or_else(|_| EnvFilter::new("info"));
    // Errors of writing are not reported: `eprintln!` would report them, and panics if standard
    // error cannot be written. A full disk would then end the process.
    let builder = tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_env_filter(filter)
        .with_writer(io::stderr);
    // A second call (tests) keeps the first subscriber.
    let _ = match log.format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    std::panic::set_hook(Box::new(|info| {
        // The place, never the payload: a payload may hold what a client sent.
        let place = info.location().map_or_else(String::new, ToString::to_string);
        tracing::error!(place, thread = std::thread::current().name().unwrap_or("?"), "panic");
    }));
}

/// Writes a line to standard error, for a process that cannot start. An error of writing is
/// ignored: the exit code reports the failure too.
pub fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Opens a log file for a child's standard output and error, with mode 0600, for appending. A file
/// over `max_bytes` is renamed to `.log.1` first.
///
/// # Errors
/// The file cannot be opened.
pub fn child_log(path: &Path, max_bytes: u64) -> io::Result<File> {
    if std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() > max_bytes) {
        let aside = path.with_extension("log.1");
        std::fs::rename(path, &aside).map_err(|cause| file_error(&aside, cause))?;
    }
    use std::os::unix::fs::OpenOptionsExt;
    let opened = OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(path);
    opened.map_err(|cause| file_error(path, cause))
}

/// Keeps this process's own log file bounded (I6): if standard error is a regular file over
/// `max_bytes`, it is cut to its last `max_bytes / 2`. For processes whose standard error is a file
/// from [`child_log`].
pub fn bound_own_log(max_bytes: u64) {
    let shrink = || -> io::Result<()> {
        let mut file = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        let meta = file.metadata()?;
        let flags = OFlag::from_bits_truncate(fcntl(&file, FcntlArg::F_GETFL)?);
        // A file that a shell opened without append mode would get a hole in place of its
        // beginning.
        if !meta.is_file() || meta.len() <= max_bytes || !flags.contains(OFlag::O_APPEND) {
            return Ok(());
        }
        // Standard error may be open for writing only, so the file is opened anew for reading.
        let mut reader = File::open(platform::stderr_path()?)?;
        reader.seek(io::SeekFrom::End(-((max_bytes / 2) as i64)))?;
        let mut tail = Vec::new();
        io::Read::read_to_end(&mut reader, &mut tail)?;
        let start = tail.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        file.set_len(0)?; // append mode: the next write starts at the new end
        file.write_all(&tail[start..])
    };
    // A log that cannot be shortened must not end the service.
    let _ = shrink();
}

/// Keeps this process's own log file bounded as long as the process runs.
pub fn keep_own_log_bounded() {
    task::spawn("log", async move {
        loop {
            tokio::time::sleep(LOG_CHECK_INTERVAL).await;
            bound_own_log(OWN_LOG_BYTES);
        }
    });
}

/// The last `lines` lines of a log file, for `status` after a crash.
pub fn last_lines(path: &Path, lines: usize) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(io::SeekFrom::Start(length.saturating_sub(8192)))?;
        let mut tail = Vec::new();
        io::Read::read_to_end(&mut file, &mut tail)?;
        Ok(String::from_utf8_lossy(&tail).into_owned())
    };
    let text = read().unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set in the process that panics.
    const PANICS: &str = "PACELINE_TEST_PANICS";

    #[test]
    fn a_logged_panic_has_its_place_and_not_its_payload() {
        const SAID: &str = "zqcanaryxv";
        if std::env::var_os(PANICS).is_some() {
            start(&LogConfig::default());
            panic!("byte index 1 is not in {SAID}");
        }
        let name = "telemetry::tests::a_logged_panic_has_its_place_and_not_its_payload";
        let mut again = std::process::Command::new(std::env::current_exe().expect("a path"));
        let output = again
            .args([name, "--exact", "--nocapture"])
            .env(PANICS, "1")
            .output()
            .expect("it starts");
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(!output.status.success() && text.contains("telemetry/mod.rs"), "{text}");
        assert!(!text.contains(SAID), "{text}");
    }

    /// Set in the process whose own log is too long.
    const BOUNDS_ITS_LOG: &str = "PACELINE_TEST_BOUNDS_ITS_LOG";

    #[test]
    fn an_own_log_that_is_open_for_writing_only_is_cut_to_its_last_half() {
        if std::env::var_os(BOUNDS_ITS_LOG).is_some() {
            bound_own_log(1_000);
            return;
        }
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("supervisor.log");
        let lines: String = (0..200).map(|line| format!("line {line:04}\n")).collect();
        std::fs::write(&path, lines).expect("writable");
        // A shell's `2>>` opens a file like this, as the launchd jobs do.
        let log = OpenOptions::new().append(true).open(&path).expect("opens");
        let name =
            "telemetry::tests::an_own_log_that_is_open_for_writing_only_is_cut_to_its_last_half";
        let mut again = std::process::Command::new(std::env::current_exe().expect("a path"));
        again
            .args([name, "--exact"])
            .env(BOUNDS_ITS_LOG, "1")
            .stdout(std::process::Stdio::null())
            .stderr(log);
        assert!(again.status().expect("it starts").success());
        let left = std::fs::read_to_string(&path).expect("there");
        assert!(
            left.len() <= 500 && left.starts_with("line 0151\n") && left.ends_with("line 0199\n"),
            "{left}"
        );
    }

    /// Set in the process whose log cannot be written.
    #[cfg(target_os = "linux")]
    const FULL: &str = "PACELINE_TEST_FULL_LOG";

    #[cfg(target_os = "linux")]
    #[test]
    fn a_log_on_a_full_disk_costs_lines_and_not_the_process() {
        if std::env::var_os(FULL).is_some() {
            start(&LogConfig::default());
            complain("nobody reads this");
            tracing::warn!("nor this");
            return;
        }
        let name = "telemetry::tests::a_log_on_a_full_disk_costs_lines_and_not_the_process";
        let mut again = std::process::Command::new(std::env::current_exe().expect("a path"));
        let full = OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
        let output = again
            .args([name, "--exact", "--nocapture"])
            .env(FULL, "1")
            .stderr(full)
            .output()
            .expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{:?} {text}", output.status);
    }

    #[test]
    fn a_large_log_is_set_aside_and_the_tail_is_read() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("target.log");
        std::fs::write(&path, "one\ntwo\nthree\n").expect("writable");
        assert_eq!(last_lines(&path, 2), "two\nthree");
        let mut fresh = child_log(&path, 5).expect("opens");
        fresh.write_all(b"four\n").expect("writable");
        assert_eq!(last_lines(&path, 5), "four");
        assert_eq!(last_lines(&dir.path().join("target.log.1"), 1), "three");
    }
}
