//! `paceline service`, against a manager that a script plays: the installed files are what it
//! starts, and after `uninstall` nothing is left.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use paceline_tests::{programs, repository};
use plist::Value;

/// The embedded target, and half the time to start.
const NO_DRAFTER: &str = "[target]\nmodel = \"demo-target\"\n[drafter]\nmodel = \"\"\n";

/// A user with a home and a runtime directory, whose `systemctl` and `launchctl` are the test's.
struct Home {
    dir: tempfile::TempDir,
    ports: [u16; 2],
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").port()
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("pl").tempdir().expect("a temporary directory");
        for part in ["home/.config/paceline", "run/systemd", "bin", "manager"] {
            fs::create_dir_all(dir.path().join(part)).expect("made");
        }
        for name in ["systemctl", "launchctl"] {
            let script = repository().join("tests/deploy/fake_manager.py");
            std::os::unix::fs::symlink(script, dir.path().join("bin").join(name)).expect("linked");
        }
        // A journal that names its order.
        let journal = dir.path().join("bin/journalctl");
        fs::write(&journal, "#!/bin/sh\necho \"journalctl $*\"\n").expect("written");
        fs::set_permissions(journal, fs::Permissions::from_mode(0o755)).expect("set");
        let home = Self { dir, ports: [free_port(), free_port()] };
        let [grpc, http] = home.ports;
        home.configure(&format!(
            "[gateway]\ngrpc = \"127.0.0.1:{grpc}\"\nhttp = \"127.0.0.1:{http}\"\n{NO_DRAFTER}"
        ));
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn configure(&self, text: &str) {
        fs::write(self.path("home/.config/paceline/paceline.toml"), text).expect("written");
    }

    /// `paceline` as this user runs it.
    fn paceline(&self, line: &str) -> Output {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut path: Vec<PathBuf> = std::env::split_paths(&path).collect();
        path.insert(0, self.path("bin"));
        let mut command = Command::new(programs().join("paceline"));
        command
            .args(line.split(' '))
            .current_dir(self.path("home"))
            .env("PATH", std::env::join_paths(path).expect("no colon"))
            .env("HOME", self.path("home"))
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("FAKE_MANAGER", self.path("manager"));
        for name in
            ["XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "PACELINE_CONFIG"]
        {
            command.env_remove(name);
        }
        command.output().expect("it starts")
    }

    /// Its standard output; it has to succeed.
    #[track_caller]
    fn works(&self, line: &str) -> String {
        let output = self.paceline(line);
        assert!(output.status.success(), "{line}: {output:?}\n{}", self.logs());
        String::from_utf8(output.stdout).expect("text")
    }

    /// Its complaint; it has to fail.
    #[track_caller]
    fn fails(&self, line: &str) -> String {
        let output = self.paceline(line);
        assert!(!output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stderr).expect("text")
    }

    fn logs(&self) -> String {
        let files = fs::read_dir(self.path("manager")).into_iter().flatten().flatten();
        let logs =
            files.map(|file| file.path()).filter(|path| path.extension() == Some("log".as_ref()));
        logs.map(|path| fs::read_to_string(path).unwrap_or_default()).collect()
    }

    /// Orders to the manager so far.
    fn orders(&self) -> String {
        fs::read_to_string(self.path("manager/orders")).unwrap_or_default()
    }

    /// Everything in home and runtime directory, but for the cache, which other commands have too.
    fn files(&self) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        let mut rest = vec![self.path("home"), self.path("run")];
        while let Some(dir) = rest.pop() {
            for entry in fs::read_dir(dir).expect("there").flatten() {
                let path = entry.path();
                if path.ends_with("home/.cache") {
                    continue;
                }
                if entry.file_type().expect("known").is_dir() {
                    rest.push(path.clone());
                }
                found.insert(path);
            }
        }
        found
    }
}

impl Drop for Home {
    /// Ends what a failed test left.
    fn drop(&mut self) {
        let files = fs::read_dir(self.path("manager")).into_iter().flatten().flatten();
        for path in
            files.map(|file| file.path()).filter(|path| path.extension() == Some("pid".as_ref()))
        {
            if let Some(pid) = fs::read_to_string(path).ok().and_then(|text| text.parse().ok()) {
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(pid),
                    nix::sys::signal::Signal::SIGTERM,
                );
            }
        }
    }
}

/// The files that `install --dry-run` prints.
#[cfg(target_os = "linux")]
fn dry_run(home: &Home, flags: &str) -> Vec<(String, String)> {
    let text = home.works(&format!("service install --dry-run{flags}"));
    let (files, _) = text.split_once("== run\n").expect("files, then orders");
    let sections = files.split("== ").filter(|section| !section.is_empty());
    let file = |section: &str| {
        let (head, text) = section.split_once(": write\n").expect("a new file");
        (head.to_owned(), text.trim_end().to_owned() + "\n")
    };
    sections.map(file).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn installed_units_pass_the_check_of_systemd_for_users_and_for_the_machine() {
    let home = Home::new();
    let verify = |scope: &str, files: &[(String, String)]| {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let units = files.iter().filter(|(path, _)| !path.ends_with(".conf"));
        let units: Vec<PathBuf> = units
            .map(|(path, text)| {
                let place =
                    dir.path().join(std::path::Path::new(path).file_name().expect("a name"));
                fs::write(&place, text).expect("written");
                place
            })
            .collect();
        let mut command = Command::new("systemd-analyze");
        command.args([scope, "verify"]).args(&units).env("XDG_RUNTIME_DIR", dir.path());
        let output = command.output().expect("systemd-analyze, which the files' test asks for too");
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        let ours: Vec<&str> = words.lines().filter(|line| line.contains("paceline")).collect();
        assert!(output.status.success() && ours.is_empty(), "{words}");
        units.len()
    };
    assert_eq!(verify("--user", &dry_run(&home, "")), 4);
    assert_eq!(verify("--system", &dry_run(&home, " --system")), 4);
    home.configure("[gateway]\ngrpc = \"[::1]:7001\"\nhttp = \"\"\n");
    let config = home.path("home/.config/paceline/paceline.toml");
    let flags = format!(" --config {}", config.display());
    let units = dry_run(&home, &flags);
    assert!(units.iter().any(|(_, text)| text.contains("PACELINE_CONFIG=")), "{units:?}");
    assert_eq!(verify("--user", &units), 3);
}

#[test]
// More than 60 lines: one service, which takes seconds to start, is taken through all commands.
fn a_service_of_systemd_is_installed_restarted_moved_and_removed_with_nothing_left() {
    let home = Home::new();
    let before = home.files();
    let flags = " --manager systemd";
    let text = home.works(&format!("service install{flags}"));
    for line in
        ["ready", &format!("clients: gRPC at 127.0.0.1:{}", home.ports[0]), "configuration: "]
    {
        assert!(text.lines().any(|found| found.starts_with(line)), "{line}: {text}");
    }
    let orders = home.orders();
    assert!(
        orders.starts_with("systemctl --user daemon-reload\nsystemctl --user enable "),
        "{orders}"
    );
    let unit =
        fs::read_to_string(home.path("home/.config/systemd/user/paceline-supervisor.service"));
    let program = programs().canonicalize().expect("there").join("paceline-supervisor");
    assert!(unit.expect("written").contains(&format!("ExecStart={}\n", program.display())));

    let status = home.works(&format!("service status{flags}"));
    assert!(status.contains("paceline-gateway.socket: active"), "{status}");
    assert!(status.contains("demo-target") || status.contains("target"), "{status}");
    let logs = home.works(&format!("service logs --follow{flags}"));
    assert!(logs.starts_with("journalctl --user --unit paceline-supervisor"), "{logs}");
    assert!(logs.ends_with(" --follow\n"), "{logs}");
    let answer = home.works("generate --prompt One,two,three --max-tokens 4 --json");
    assert!(answer.contains("\"completion_tokens\":4"), "{answer}");

    // As after an update of the programs.
    let pid =
        |name: &str| fs::read_to_string(home.path(&format!("manager/{name}"))).expect("it runs");
    let both = ["paceline-supervisor.service.pid", "paceline-gateway.service.pid"];
    let first = both.map(pid);
    home.works(&format!("service restart{flags}"));
    let second = both.map(pid);
    assert!(first[0] != second[0] && first[1] != second[1], "{first:?} {second:?}");

    // Another address: the sockets are bound anew, the supervisor and its model stay until their restart.
    let port = free_port();
    home.configure(&format!("[gateway]\ngrpc = \"127.0.0.1:{port}\"\nhttp = \"\"\n{NO_DRAFTER}"));
    let text = home.works(&format!("service install{flags}"));
    assert!(text.contains("removed ") && text.contains("http.socket"), "{text}");
    let answer = home.works("generate --prompt One,two,three --max-tokens 4 --json");
    assert!(answer.contains("\"completion_tokens\":4"), "{answer}");

    home.works(&format!("service stop{flags}"));
    assert!(home.fails(&format!("service restart{flags}")).contains("service start"));
    home.works(&format!("service start{flags}"));

    let text = home.works(&format!("service uninstall{flags}"));
    assert!(text.contains("the configuration (") && text.contains("stay"), "{text}");
    assert_eq!(home.files(), before, "left");
    let records = fs::read_dir(home.path("manager")).expect("there").flatten();
    let running: Vec<_> =
        records.filter(|file| file.path().extension() == Some("pid".as_ref())).collect();
    assert!(running.is_empty(), "{running:?}");
    let again = home.works(&format!("service uninstall{flags}"));
    assert!(again.starts_with("nothing to remove"), "{again}");
}

#[test]
fn a_service_of_launchd_is_installed_and_removed_with_nothing_left() {
    let home = Home::new();
    let before = home.files();
    let flags = " --manager launchd";
    // On Linux the runtime directory of the test's processes, as with systemd; launchd has no such variable.
    let text = home.works(&format!("service install{flags}"));
    assert!(text.lines().any(|line| line == "ready"), "{text}");
    let jobs = home.path("home/Library/LaunchAgents");
    let job = Value::from_file(jobs.join("dev.paceline.gateway.plist")).expect("it parses");
    let sockets = job.as_dictionary().expect("a job")["Sockets"].as_dictionary().expect("by name");
    for (name, port) in [("Grpc", home.ports[0]), ("Http", home.ports[1])] {
        let socket = sockets[name].as_dictionary().expect("a socket");
        let text = |key: &str| socket[key].as_string().expect("a text").to_owned();
        assert_eq!(text("SockNodeName"), "127.0.0.1");
        assert_eq!(text("SockServiceName"), port.to_string());
    }
    let status = home.works(&format!("service status{flags}"));
    assert!(status.contains("dev.paceline.supervisor: running, pid "), "{status}");
    home.works(&format!("service uninstall{flags}"));
    // The runtime directory of launchd's service is in the cache; this one is of Linux.
    fs::remove_dir_all(home.path("run/paceline")).expect("the processes made it");
    let mut left = home.files();
    left.retain(|path| !before.contains(path));
    let dirs = ["home/Library", "home/Library/LaunchAgents", "home/Library/Logs"]
        .map(|dir| home.path(dir));
    assert!(left.iter().all(|path| dirs.contains(path)), "{left:?}");
}

#[test]
fn units_of_others_are_in_the_way_and_are_never_removed() {
    let home = Home::new();
    let dir = home.path("home/.config/systemd/user");
    fs::create_dir_all(&dir).expect("made");
    let foreign = dir.join("paceline-gateway.service");
    fs::write(&foreign, "[Service]\nExecStart=/bin/true\n").expect("written");
    let complaint = home.fails("service install --manager systemd --no-start");
    assert!(
        complaint.contains("--force") && complaint.contains("paceline-gateway.service"),
        "{complaint}"
    );
    assert_eq!(fs::read_dir(&dir).expect("there").count(), 1, "nothing was written");
    let text = home.works("service uninstall --manager systemd");
    assert!(text.starts_with("nothing to remove") && foreign.is_file(), "{text}");
    let text = home.works("service install --manager systemd --no-start --force");
    assert!(text.contains("enabled, not started"), "{text}");
    assert!(!home.orders().contains(" start "), "{}", home.orders());
    assert!(fs::read_to_string(&foreign).expect("there").contains("paceline-gateway\n"));
    home.works("service uninstall --manager systemd");
    assert!(!dir.exists(), "the last file is gone, and so is the directory");
}

#[test]
fn what_cannot_be_installed_is_refused_before_a_file_is_written() {
    let home = Home::new();
    let before = home.files();
    for (config, complaint) in [
        ("[gateway]\ngrpc = \"127.0.0.1:0\"\n", "gateway.grpc"),
        ("[gateway]\nno_such_key = 1\n", "no_such_key"),
        ("[target]\nmodel = \"./models/a\"\n", "target.model: expected an absolute path"),
    ] {
        home.configure(config);
        let found = home.fails("service install --manager systemd");
        assert!(found.contains(complaint), "{config}: {found}");
    }
    home.configure("");
    fs::remove_dir(home.path("run/systemd")).expect("removed");
    let found = home.fails("service install --manager systemd");
    assert!(found.contains("user manager") && found.contains("paceline serve"), "{found}");
    fs::create_dir(home.path("run/systemd")).expect("made");
    assert_eq!(home.files(), before);
    let found = home.fails("service status --manager systemd");
    assert!(found.contains("paceline service install"), "{found}");
}
