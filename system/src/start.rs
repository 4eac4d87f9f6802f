//! Start of a process: limits, signals that would end it, and what its parent hands over.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::environment::env;
use crate::platform;

/// Ignores a signal.
pub fn ignore(which: nix::sys::signal::Signal) {
    // SAFETY: SIG_IGN runs no code of ours in signal context.
    let outcome = unsafe { nix::sys::signal::signal(which, nix::sys::signal::SigHandler::SigIgn) };
    outcome.expect("these signals may be ignored");
}

/// Descriptors that a process of ours may use at once. The gateway needs the most: 512 connections,
/// 256 of them still opening, their streams to the supervisor, and images.
pub const OPEN_FILES: u64 = 4096;

/// Raises the soft limit of open files to [`OPEN_FILES`] if the hard limit allows it. macOS starts
/// programs with 256.
fn raise_open_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        let wanted = OPEN_FILES.min(hard);
        if soft < wanted { setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) } else { Ok(()) }
    });
    // A process with few descriptors still serves few clients; `accept` logs its own failures.
    let _ = raised;
}

/// The first call of every process of ours. Afterwards SIGPIPE and SIGXFSZ do not end it, and it
/// has enough descriptors. It writes no core files, because they would hold prompts. Other
/// processes of this user cannot read its memory (see [`DEBUGGABLE`]).
pub fn settle() {
    ignore(nix::sys::signal::Signal::SIGPIPE);
    ignore(nix::sys::signal::Signal::SIGXFSZ);
    // A limit that cannot be lowered is no reason not to serve.
    let _ = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_CORE, 0, 0);
    raise_open_files();
    if env(DEBUGGABLE).as_deref() != Some("1") {
        platform::deny_memory_access();
    }
}

/// Environment variable that, set to 1, leaves a process open to debuggers and tracers of the same
/// user. Meant for people who look for a bug, and for tests that count descriptors without being
/// root. Core files stay off.
pub const DEBUGGABLE: &str = "PACELINE_DEBUGGABLE";

/// Environment variable with the descriptor by which a child notices that its parent is gone.
pub const PARENT_FD: &str = "PACELINE_PARENT_FD";

/// Environment variable with the number of restarts, set by the parent that restarts a process.
pub const RESTARTS: &str = "PACELINE_RESTARTS";

/// How often this process was restarted without an order, by [`RESTARTS`]; 0 if it is not set.
pub fn restarts() -> u32 {
    env(RESTARTS).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Takes over the inherited descriptor that the variable `name` has the number of; `None` without
/// that variable. Our own children do not inherit it.
///
/// # Errors
/// The variable names no descriptor of ours.
pub fn inherited_fd(name: &str) -> io::Result<Option<OwnedFd>> {
    let Some(text) = env(name) else { return Ok(None) };
    let bad = || {
        io::Error::other(format!(
            "{name}={text}: expected the number of an inherited descriptor; unset it"
        ))
    };
    let raw: i32 = text.parse().ok().filter(|raw| *raw > 2).ok_or_else(bad)?;
    // SAFETY: asks only whether the number names an open descriptor.
    if unsafe { libc::fcntl(raw, libc::F_GETFD) } < 0 {
        return Err(bad());
    }
    // SAFETY: the parent passed the number for this purpose, and nothing else in this process uses
    // it.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    // Its other end belongs to our parent, not to a parent of our children.
    fcntl(&fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok(Some(fd))
}

#[cfg(test)]
mod tests {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    use super::*;

    /// Set in the process that settles; its value is what that test needs.
    const SETTLES: &str = "PACELINE_TEST_SETTLES";

    /// The output of a test that is started again as a process of its own, with these variables.
    fn started_again(test: &str, variables: &[(&str, &str)]) -> String {
        let mut again = std::process::Command::new(std::env::current_exe().expect("a path"));
        again.args([&format!("start::tests::{test}"), "--exact", "--nocapture"]);
        let output = again.env_remove(DEBUGGABLE).envs(variables.iter().copied()).output();
        let output = output.expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        text
    }

    #[test]
    fn the_limit_of_open_files_is_raised_as_far_as_allowed_and_never_lowered() {
        if let Some(limits) = env(SETTLES) {
            let (soft, hard) = limits.split_once('/').expect("256/4096");
            let number = |text: &str| text.parse::<u64>().expect("a number");
            setrlimit(Resource::RLIMIT_NOFILE, number(soft), number(hard)).expect("lowered");
            settle();
            println!("\nsoft limit {}", getrlimit(Resource::RLIMIT_NOFILE).expect("known").0);
            return;
        }
        let test = "the_limit_of_open_files_is_raised_as_far_as_allowed_and_never_lowered";
        for (limits, expected) in
            [("256/5000", "4096"), ("256/1000", "1000"), ("4500/5000", "4500")]
        {
            let text = started_again(test, &[(SETTLES, limits)]);
            let found = text.lines().find_map(|line| line.strip_prefix("soft limit "));
            assert_eq!(found, Some(expected), "{limits}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_settled_process_is_not_dumpable_unless_it_is_to_be_debugged() {
        if env(SETTLES).is_some() {
            settle();
            // SAFETY: reads a flag of this process.
            let dumpable = unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) };
            // It still finds itself, and its own descriptors.
            let found = platform::process_start(std::process::id()).is_some()
                && std::fs::File::open("/dev/fd/1").is_ok();
            println!("dumpable={dumpable} found={found}");
            return;
        }
        let test = "a_settled_process_is_not_dumpable_unless_it_is_to_be_debugged";
        let settled =
            |more: &[(&str, &str)]| started_again(test, &[&[(SETTLES, "1")], more].concat());
        assert!(settled(&[]).contains("dumpable=0 found=true"), "{}", settled(&[]));
        assert!(settled(&[(DEBUGGABLE, "1")]).contains("dumpable=1"));
        assert!(settled(&[(DEBUGGABLE, "yes")]).contains("dumpable=0"), "only 1 counts");
    }
}
