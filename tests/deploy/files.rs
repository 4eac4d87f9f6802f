//! The files: parsed, and checked for what the processes rely on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use paceline_process::Config;
use paceline_process::lifecycle::supervisor_stop;
use paceline_process::listen::Front;
use paceline_tests::repository;
use plist::Value;

pub(super) fn file(name: &str) -> PathBuf {
    repository().join("deploy").join(name)
}

/// A unit: section, then key, then its values in order.
pub(super) type Unit = BTreeMap<String, BTreeMap<String, Vec<String>>>;

/// A unit of Paceline's own.
fn unit(name: &str) -> Unit {
    read_unit(&file("systemd").join(name))
}

/// Reads a unit file strictly: sections, `Key=value` lines, comments, and nothing else.
pub(super) fn read_unit(path: &Path) -> Unit {
    let name = path.display();
    let text = std::fs::read_to_string(path).expect("it is there");
    let mut unit = Unit::new();
    let mut section = None;
    for (number, line) in text.lines().enumerate() {
        let place = format!("{name}:{}: {line:?}", number + 1);
        match line {
            "" => {}
            _ if line.starts_with('#') => {}
            _ if line.starts_with('[') => {
                let title = line
                    .strip_prefix('[')
                    .and_then(|rest| rest.strip_suffix(']'))
                    .unwrap_or_else(|| panic!("{place}"));
                assert!(unit.insert(title.to_owned(), BTreeMap::new()).is_none(), "{place}: twice");
                section = Some(title.to_owned());
            }
            _ => {
                let (key, value) =
                    line.split_once('=').unwrap_or_else(|| panic!("{place}: expected Key=value"));
                assert!(
                    !key.is_empty() && key.chars().all(char::is_alphanumeric),
                    "{place}: a strange key"
                );
                assert!(!value.is_empty() && value.trim() == value, "{place}: a strange value");
                let section =
                    section.as_ref().unwrap_or_else(|| panic!("{place}: before any section"));
                unit.get_mut(section)
                    .expect("made above")
                    .entry(key.to_owned())
                    .or_default()
                    .push(value.to_owned());
            }
        }
    }
    unit
}

#[track_caller]
pub(super) fn says(unit: &Unit, section: &str, lines: &[(&str, &str)]) {
    for (key, value) in lines {
        let found = unit.get(section).and_then(|section| section.get(*key));
        assert_eq!(found, Some(&vec![(*value).to_owned()]), "{key} of [{section}]");
    }
}

/// 30 s for running requests, then they are cancelled.
const GATEWAY_STOP_S: u64 = 40;

const UNITS: [&str; 4] = [
    "paceline-supervisor.service",
    "paceline-gateway.service",
    "paceline-gateway.socket",
    "paceline-gateway-http.socket",
];

#[test]
// More than 60 lines: a list of settings, each with its reason.
fn the_systemd_units_have_the_settings_that_the_processes_need() {
    for name in &UNITS[..2] {
        let unit = unit(name);
        let program =
            format!("%h/.local/bin/{}", name.strip_suffix(".service").expect("a service"));
        says(
            &unit,
            "Service",
            &[
                ("Type", "notify"),
                ("ExecStart", &program),
                // Else a stop, or a crash, would take the workers with it, which live on a lease.
                ("KillMode", "process"),
                // 75 is "restart me"; 0 stays.
                ("Restart", "on-failure"),
                ("SuccessExitStatus", "75"),
                ("RestartForceExitStatus", "75"),
                ("RuntimeDirectory", "paceline"),
                ("RuntimeDirectoryMode", "0700"),
                // Both units have the same directory: the first that stops must not remove it.
                ("RuntimeDirectoryPreserve", "yes"),
                ("UMask", "0077"),
                ("LimitCORE", "0"),
                ("NoNewPrivileges", "yes"),
            ],
        );
        // Neither's life is tied to the other's.
        let other = if name.contains("gateway") { "supervisor" } else { "gateway.service" };
        for tie in [
            "Requires",
            "Requisite",
            "BindsTo",
            "PartOf",
            "Upholds",
            "Wants",
            "Conflicts",
            "PropagatesStopTo",
        ] {
            for value in unit["Unit"].get(tie).into_iter().flatten() {
                assert!(!value.contains(other), "{name}: {tie}={value}");
            }
        }
        assert!(
            unit["Service"]["RestartPreventExitStatus"][0].split(' ').any(|code| code == "64"),
            "{name}"
        );
        // The supervisor's is longer than its drain and the end of its workers, the gateway's than
        // its drain.
        let stop: u64 = unit["Service"]["TimeoutStopSec"][0].parse().expect("seconds");
        let needs = if name.contains("supervisor") {
            supervisor_stop(false).as_secs()
        } else {
            GATEWAY_STOP_S
        };
        assert!(stop >= needs, "{name}: {stop}, it may need {needs}");
    }
    let supervisor = unit(UNITS[0]);
    says(&supervisor, "Service", &[("OOMPolicy", "continue"), ("NotifyAccess", "main")]);
    // A gateway that drains beside its successor is not the main process, and becomes it again.
    says(&unit(UNITS[1]), "Service", &[("NotifyAccess", "all")]);
    assert!(
        !supervisor["Service"].contains_key("MemoryDenyWriteExecute"),
        "MLX makes code as it runs"
    );
    says(&unit(UNITS[1]), "Unit", &[("Requires", "paceline-gateway.socket")]);
    let gateway = Config::default().gateway;
    for (name, address, front) in
        [(UNITS[2], &gateway.grpc, Front::Grpc), (UNITS[3], &gateway.http, Front::Http)]
    {
        let unit = unit(name);
        says(&unit, "Socket", &[("ListenStream", address), ("FileDescriptorName", front.name())]);
        assert!(
            !unit["Socket"].contains_key("Accept"),
            "{name}: the listening socket is handed down, not connections"
        );
    }
    // Its name is not the service's, so that it has to say whose it is.
    says(&unit(UNITS[3]), "Socket", &[("Service", "paceline-gateway.service")]);
}

/// systemd's own opinion.
#[cfg(target_os = "linux")]
#[test]
fn systemd_finds_nothing_to_complain_about() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    // It checks that the program exists.
    let bin = paceline_tests::programs().display().to_string();
    let copies = UNITS.map(|name| {
        let text = std::fs::read_to_string(file("systemd").join(name)).expect("it is there");
        let copy = dir.path().join(name);
        std::fs::write(&copy, text.replace("%h/.local/bin", &bin)).expect("writable");
        copy
    });
    let verify = |files: &[PathBuf]| {
        let mut command = Command::new("systemd-analyze");
        command.args(["--user", "verify"]).args(files).env("XDG_RUNTIME_DIR", dir.path());
        command.output()
    };
    let output = verify(&copies).unwrap_or_else(|error| {
        panic!("cannot run systemd-analyze, which is expected to check the units: {error}; it comes with systemd, in Debian: apt-get install systemd")
    });
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    // It may complain about other units of the machine. Complaints about ours contain their names.
    let ours: Vec<&str> = words.lines().filter(|line| line.contains("paceline")).collect();
    assert!(output.status.success() && ours.is_empty(), "{words}");

    // And it does complain where there is reason to: a check that cannot fail is none.
    let text = std::fs::read_to_string(&copies[1]).expect("there");
    std::fs::write(&copies[1], text.replace("KillMode=process", "KillMode=proces"))
        .expect("writable");
    let output = verify(&copies).expect("it ran before");
    assert!(String::from_utf8_lossy(&output.stderr).contains("kill mode"), "{output:?}");
}

fn job(name: &str) -> plist::Dictionary {
    let path = file("launchd").join(format!("dev.paceline.{name}.plist"));
    let value =
        Value::from_file(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    value.into_dictionary().expect("a job is a dictionary")
}

#[test]
// More than 60 lines: a list of settings, each with its reason.
fn the_launchd_jobs_have_the_settings_that_the_processes_need() {
    // Killed before its time the supervisor leaves workers that would have given their memory back.
    for (name, stop) in
        [("supervisor", supervisor_stop(true).as_secs()), ("gateway", GATEWAY_STOP_S)]
    {
        let job = job(name);
        let text = |key: &str| {
            job.get(key).and_then(Value::as_string).unwrap_or_else(|| panic!("{name}: {key}"))
        };
        let number = |key: &str| {
            job.get(key)
                .and_then(Value::as_signed_integer)
                .unwrap_or_else(|| panic!("{name}: {key}"))
        };
        assert_eq!(text("Label"), format!("dev.paceline.{name}"));
        // The programs have no other arguments than these, and the last word of the shell is
        // theirs: it becomes the program.
        let words: Vec<_> = job["ProgramArguments"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(Value::as_string)
            .collect();
        assert_eq!(words[..2], ["/bin/sh", "-c"]);
        assert_eq!(words.len(), 3);
        assert!(
            words[2].contains(&format!("; exec \"$HOME/.local/bin/paceline-{name}\" >>")),
            "{}",
            words[2]
        );
        // 0 is an answer to a stop and stays; 75 and every crash come again.
        let alive = job["KeepAlive"].as_dictionary().expect("conditions");
        assert_eq!(
            (alive.len(), alive.get("SuccessfulExit").and_then(Value::as_boolean)),
            (1, Some(false)),
            "{name}"
        );
        assert_eq!(number("ThrottleInterval"), 10);
        assert!(
            number("ExitTimeOut") >= stop as i64,
            "{name}: {}, it may need {stop}",
            number("ExitTimeOut")
        );
        assert_eq!(text("ProcessType"), "Interactive");
        assert_eq!(
            job.get("AbandonProcessGroup").and_then(Value::as_boolean),
            Some(true),
            "{name}"
        );
        assert_eq!(text("Umask"), "077");
        let known = [
            "Label",
            "ProgramArguments",
            "WorkingDirectory",
            "KeepAlive",
            "ThrottleInterval",
            "ExitTimeOut",
            "ProcessType",
            "AbandonProcessGroup",
            "Sockets",
            "Umask",
            "SoftResourceLimits",
        ];
        assert_eq!(
            job.keys().find(|key| !known.contains(&key.as_str())),
            None,
            "{name}: launchd passes over what it does not know"
        );
    }
    assert!(!job("supervisor").contains_key("Sockets"), "its socket is in the runtime directory");
    // Sockets by the names the gateway asks for, at the addresses of the configuration.
    let job = job("gateway");
    let sockets = job["Sockets"].as_dictionary().expect("by name");
    assert_eq!(sockets.keys().collect::<Vec<_>>(), ["Grpc", "Http"]);
    let gateway = Config::default().gateway;
    for (name, address) in [("Grpc", gateway.grpc), ("Http", gateway.http)] {
        let socket = sockets[name].as_dictionary().expect("one socket");
        let text = |key: &str| socket.get(key).and_then(Value::as_string).unwrap_or_default();
        assert_eq!(format!("{}:{}", text("SockNodeName"), text("SockServiceName")), address);
        // Without a family launchd binds both, and hands down two sockets.
        assert_eq!((text("SockFamily"), text("SockType")), ("IPv4", "stream"), "{name}");
    }
}

/// The shell of a job, run for real: it becomes the program, with its log beside the others.
#[test]
fn the_shell_of_a_job_becomes_its_program() {
    for name in ["supervisor", "gateway"] {
        let home = tempfile::tempdir().expect("a temporary directory");
        let bin = home.path().join(".local/bin");
        std::fs::create_dir_all(&bin).expect("made");
        let program = bin.join(format!("paceline-{name}"));
        let script = "#!/bin/sh\necho pid $$\necho trouble >&2\nexit 75\n";
        // Written by another process: see ETXTBSY.
        let write = format!("printf '%s' \"$1\" > '{0}' && chmod 755 '{0}'", program.display());
        assert!(
            Command::new("sh").args(["-c", &write, "sh", script]).status().expect("sh").success()
        );
        let job = job(name);
        let words: Vec<_> = job["ProgramArguments"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(Value::as_string)
            .collect();
        let mut seen = String::new();
        for _ in 0..2 {
            let child = Command::new(words[0])
                .args(&words[1..])
                .env("HOME", home.path())
                .spawn()
                .expect("it starts");
            let pid = child.id();
            assert_eq!(
                child.wait_with_output().expect("it ends").status.code(),
                Some(75),
                "{name}"
            );
            seen.push_str(&format!("pid {pid}\ntrouble\n"));
        }
        let log = home.path().join(format!("Library/Logs/Paceline/{name}.log"));
        assert_eq!(
            std::fs::read_to_string(log).expect("written"),
            seen,
            "one process, and its log is kept"
        );
    }
}
