//! Units of systemd: their texts from deploy/systemd, and the orders of `systemctl`.

use super::facts::{Facts, SYSTEM_USER, ServiceKind};
use super::orders::Order;
use super::plan::{MARK, PlannedFile};

/// The supervisor's unit.
pub const SUPERVISOR: &str = "paceline-supervisor.service";
/// The gateway's unit.
pub const GATEWAY: &str = "paceline-gateway.service";
/// The unit of the socket of gRPC.
pub const GRPC: &str = "paceline-gateway.socket";
/// The unit of the socket of HTTP.
pub const HTTP: &str = "paceline-gateway-http.socket";
/// All units, sockets before the processes that get them.
pub const UNITS: [&str; 4] = [GRPC, HTTP, SUPERVISOR, GATEWAY];
/// File from which systemd-sysusers makes the account of the machine's service.
pub const SYSUSERS: &str = "/etc/sysusers.d/paceline.conf";

const SUPERVISOR_TEXT: &str = include_str!("../../../deploy/systemd/paceline-supervisor.service");
const GATEWAY_TEXT: &str = include_str!("../../../deploy/systemd/paceline-gateway.service");
const GRPC_TEXT: &str = include_str!("../../../deploy/systemd/paceline-gateway.socket");
const HTTP_TEXT: &str = include_str!("../../../deploy/systemd/paceline-gateway-http.socket");
const SYSTEM_TEXT: &str = include_str!("../../../deploy/systemd/system-service.conf");
const SYSUSERS_TEXT: &str = include_str!("../../../deploy/systemd/sysusers.conf");

/// The files of a service.
pub fn files(facts: &Facts) -> Vec<PlannedFile> {
    let mut units = vec![
        (GRPC, socket(GRPC_TEXT, &facts.grpc.to_string())),
        (SUPERVISOR, service(SUPERVISOR_TEXT, facts)),
        (GATEWAY, service(GATEWAY_TEXT, facts)),
    ];
    if let Some(http) = &facts.http {
        units.insert(1, (HTTP, socket(HTTP_TEXT, &http.to_string())));
    }
    let file = |(name, text): (&str, String)| PlannedFile {
        path: facts.files_dir.join(name),
        text: marked(&text),
    };
    let mut files: Vec<_> = units.into_iter().map(file).collect();
    if facts.kind == ServiceKind::SystemdSystem {
        files.push(PlannedFile { path: SYSUSERS.into(), text: marked(SYSUSERS_TEXT) });
    }
    files
}

fn marked(text: &str) -> String {
    format!("# {MARK} An edit is lost at the next install; `systemctl edit` is not.\n{text}")
}

fn socket(text: &str, address: &str) -> String {
    let lines = text.lines().map(|line| match line.starts_with("ListenStream=") {
        true => format!("ListenStream={address}\n"),
        false => format!("{line}\n"),
    });
    lines.collect()
}

fn service(text: &str, facts: &Facts) -> String {
    let system = facts.kind == ServiceKind::SystemdSystem;
    let mut out = String::new();
    for line in text.lines() {
        match line.split_once('=') {
            Some(("ExecStart", program)) => out += &format!("ExecStart={}\n", exec(program, facts)),
            Some(("WantedBy", _)) if system => out += "WantedBy=multi-user.target\n",
            Some(("Also", _)) if facts.http.is_none() => out += &format!("Also={GRPC}\n"),
            _ => out += &format!("{line}\n"),
        }
        if line == "[Service]" {
            if system {
                out += SYSTEM_TEXT;
            }
            for (name, value) in &facts.variables {
                out += &format!("Environment=\"{name}={}\"\n", value.replace('%', "%%"));
            }
        }
    }
    match system {
        true => out.replace("A user unit: ~/.config/systemd/user (", "The machine's unit ("),
        false => out,
    }
}

/// The program of an `ExecStart=` in the directory of the installed programs.
fn exec(program: &str, facts: &Facts) -> String {
    let Some(dir) = &facts.programs else { return program.to_owned() };
    let name = program.rsplit('/').next().unwrap_or(program);
    let path = format!("{dir}/{name}").replace('%', "%%");
    if path.contains(' ') { format!("\"{path}\"") } else { path }
}

/// Environment variables of an installed unit.
pub fn variables(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("Environment="));
    let pairs = lines.filter_map(|line| line.trim_matches('"').split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.replace("%%", "%"))).collect()
}

/// An order of `systemctl` about these units.
pub fn systemctl(kind: ServiceKind, verb: &[&str], units: &[&str]) -> Order {
    let scope: &[&str] = if kind == ServiceKind::SystemdUser { &["--user"] } else { &[] };
    Order::new(&[&["systemctl"], scope, verb, units].concat())
}

/// Orders after files were written: makes the account, and has the units start with the machine or
/// with the session.
pub fn enable(kind: ServiceKind, units: &[&str]) -> Vec<Order> {
    let mut orders = Vec::new();
    if kind == ServiceKind::SystemdSystem {
        orders.push(Order::new(&["systemd-sysusers", SYSUSERS]));
    }
    orders.push(systemctl(kind, &["daemon-reload"], &[]));
    orders.push(systemctl(kind, &["enable"], units));
    orders
}

/// Orders after these units were removed: nothing of them stays in the manager.
pub fn forget(kind: ServiceKind, units: &[&str]) -> Vec<Order> {
    let mut orders = vec![
        systemctl(kind, &["daemon-reload"], &[]),
        // A unit that did not fail is none that it knows.
        systemctl(kind, &["reset-failed"], units).may_fail(),
    ];
    if kind == ServiceKind::SystemdSystem {
        // Models stay. Their owner must be none that a later account may get the number of.
        let keep = ["/var/cache/paceline", "/var/lib/paceline"];
        orders.push(Order::new(&[&["chown", "-R", "root:root"], &keep[..]].concat()).may_fail());
        orders.push(Order::new(&["userdel", SYSTEM_USER]).may_fail());
    }
    orders
}

/// The order that shows the state of the units, for [`report`].
pub fn show(kind: ServiceKind) -> Order {
    let properties = "--property=Id,LoadState,UnitFileState,ActiveState,SubState,MainPID,NRestarts,Result,StatusText";
    systemctl(kind, &["show", properties], &UNITS)
}

/// The order that shows the log.
pub fn logs(kind: ServiceKind, follow: bool, lines: u32) -> Order {
    let lines = format!("--lines={lines}");
    let mut words = vec!["journalctl"];
    words.extend((kind == ServiceKind::SystemdUser).then_some("--user"));
    words.extend(["--unit", SUPERVISOR, "--unit", GATEWAY, &lines]);
    words.extend(follow.then_some("--follow"));
    Order::new(&words)
}

/// State of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitState {
    /// Its name.
    pub id: String,
    /// `active`, `failed`, …
    pub active: String,
    /// A line for people.
    pub line: String,
}

/// The states of units from the answer to [`show`]: blocks of `Key=value`.
pub fn report(answer: &str) -> Vec<UnitState> {
    let blocks = answer.split("\n\n").filter(|block| !block.trim().is_empty());
    let state = |block: &str| {
        let get = |key: &str| {
            let mut lines = block.lines().filter_map(|line| line.split_once('='));
            lines.find(|(found, _)| *found == key).map_or("", |(_, value)| value)
        };
        let id = get("Id").to_owned();
        let mut line = match get("LoadState") {
            "not-found" => format!("{id}: not installed"),
            _ => format!("{id}: {} ({})", get("ActiveState"), get("SubState")),
        };
        for (key, before) in
            [("UnitFileState", ", "), ("MainPID", ", pid "), ("NRestarts", ", restarts ")]
        {
            if !["", "0"].contains(&get(key)) {
                line += &format!("{before}{}", get(key));
            }
        }
        if !["", "success"].contains(&get("Result")) {
            line += &format!(", result {}", get("Result"));
        }
        if !get("StatusText").is_empty() {
            line += &format!("; {}", get("StatusText"));
        }
        UnitState { id, active: get("ActiveState").to_owned(), line }
    };
    blocks.map(state).collect()
}
