//! Versions of programs and libraries, and the machine.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use paceline_client::print::bytes;
use paceline_client::program::beside;
use paceline_system::platform;

/// The program that links MLX's library.
const MLX_PROGRAM: &str = "paceline-target";

/// Lines of facts. An unknown one says so.
pub fn describe() -> String {
    let mut text = String::new();
    let mut fact = |name: &str, value: Option<String>| {
        let value = value.filter(|value| !value.is_empty());
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name}: {}", value.as_deref().unwrap_or("unknown"));
    };
    fact("paceline", Some(env!("CARGO_PKG_VERSION").into()));
    fact("built for", Some(format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS)));
    fact("program", std::env::current_exe().ok().map(|path| path.display().to_string()));
    fact("MLX's library", mlx_library());
    fact("system", system::release());
    fact("kernel", output("uname", &["-srm"]));
    fact("CPU", system::cpu());
    let cores = std::thread::available_parallelism().ok();
    fact("cores", cores.map(|cores| cores.to_string()));
    fact("memory", system::memory_bytes().map(bytes));
    fact("memory that can be used now", platform::available_memory().map(bytes));
    fact("GPU", system::gpu());
    text
}

/// The path of MLX's library as the dynamic linker finds it. In packages and wheels it contains the
/// version.
fn mlx_library() -> Option<String> {
    let program = beside(MLX_PROGRAM).ok()?.display().to_string();
    let (tool, flags) = system::LINKED;
    let flags: Vec<&str> = flags.iter().copied().chain([program.as_str()]).collect();
    let linked = output(tool, &flags)?;
    let line = linked.lines().find(|line| line.contains("libmlx."))?;
    Some(line.split(" (").next().unwrap_or(line).trim().to_owned())
}

/// The standard output of a short program of the system.
fn output(program: &str, words: &[&str]) -> Option<String> {
    let output = Command::new(program).args(words).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// The value of the first line `key SEPARATOR value` of a file.
#[cfg_attr(target_os = "macos", expect(dead_code, reason = "macOS has no such files"))]
fn value(path: &str, key: &str, separator: char) -> Option<String> {
    let text = std::fs::read_to_string(Path::new(path)).ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once(separator));
    let (_, value) = lines.find(|(name, _)| name.trim() == key)?;
    Some(value.trim().trim_matches('"').to_owned())
}

#[cfg(target_os = "linux")]
mod system {
    use super::value;

    /// The program that lists linked libraries, with its flags.
    pub(super) const LINKED: (&str, &[&str]) = ("ldd", &[]);

    pub(super) fn release() -> Option<String> {
        value("/etc/os-release", "PRETTY_NAME", '=')
    }

    pub(super) fn cpu() -> Option<String> {
        let known = value("/proc/cpuinfo", "model name", ':');
        known.or_else(|| value("/proc/cpuinfo", "CPU part", ':').map(|part| format!("part {part}")))
    }

    pub(super) fn memory_bytes() -> Option<u64> {
        let text = value("/proc/meminfo", "MemTotal", ':')?;
        let kib: u64 = text.split_whitespace().next()?.parse().ok()?;
        kib.checked_mul(1024)
    }

    pub(super) fn gpu() -> Option<String> {
        let driver = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
        let driver = driver.and_then(|text| text.lines().next().map(str::to_owned));
        Some(driver.unwrap_or_else(|| "no driver of NVIDIA".into()))
    }
}

#[cfg(target_os = "macos")]
mod system {
    use super::output;

    /// The program that lists linked libraries, with its flags.
    pub(super) const LINKED: (&str, &[&str]) = ("otool", &["-L"]);

    pub(super) fn release() -> Option<String> {
        output("sw_vers", &["-productVersion"]).map(|version| format!("macOS {version}"))
    }

    pub(super) fn cpu() -> Option<String> {
        output("sysctl", &["-n", "machdep.cpu.brand_string"])
    }

    pub(super) fn memory_bytes() -> Option<u64> {
        output("sysctl", &["-n", "hw.memsize"])?.parse().ok()
    }

    pub(super) fn gpu() -> Option<String> {
        Some("that of the chip".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_known_by_version_kernel_and_memory() {
        let text = describe();
        let fact = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(known, _)| *known == name).map(|(_, value)| value).expect(name)
        };
        assert_eq!(fact("paceline"), env!("CARGO_PKG_VERSION"));
        for name in ["kernel", "memory", "cores", "system"] {
            assert_ne!(fact(name), "unknown", "{text}");
        }
    }
}
