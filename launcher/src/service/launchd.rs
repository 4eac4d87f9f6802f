//! Jobs of launchd: their texts from deploy/launchd, and the orders of `launchctl`.

use std::net::SocketAddr;
use std::path::Path;

use super::facts::Facts;
use super::orders::Order;
use super::plan::{MARK, PlannedFile};

/// Labels of the jobs.
pub const LABELS: [&str; 2] = ["dev.paceline.supervisor", "dev.paceline.gateway"];
const TEXTS: [&str; 2] = [
    include_str!("../../../deploy/launchd/dev.paceline.supervisor.plist"),
    include_str!("../../../deploy/launchd/dev.paceline.gateway.plist"),
];
/// The directory of the programs, in the shell line of a job.
const PROGRAMS: &str = "$HOME/.local/bin/";
/// The line after which variables are named.
const AFTER_DIRECTORY: &str = "\t<key>WorkingDirectory</key>\n\t<string>/</string>\n";

/// Name of a job's file.
pub fn file_name(label: &str) -> String {
    format!("{label}.plist")
}

/// The files of a service.
pub fn files(facts: &Facts) -> Vec<PlannedFile> {
    let files = LABELS.iter().zip(TEXTS).map(|(label, text)| PlannedFile {
        path: facts.files_dir.join(file_name(label)),
        text: job(text, facts),
    });
    files.collect()
}

fn job(text: &str, facts: &Facts) -> String {
    let mut text = text.to_owned();
    if let Some(dir) = &facts.programs {
        text = text.replace(PROGRAMS, &format!("{dir}/"));
    }
    if !facts.variables.is_empty() {
        let mut lines = "\t<key>EnvironmentVariables</key>\n\t<dict>\n".to_owned();
        for (name, value) in &facts.variables {
            lines += &format!("\t\t<key>{name}</key>\n\t\t<string>{value}</string>\n");
        }
        text = text.replace(AFTER_DIRECTORY, &format!("{AFTER_DIRECTORY}{lines}\t</dict>\n"));
    }
    text = with_socket(&text, "Grpc", Some(&facts.grpc));
    text = with_socket(&text, "Http", facts.http.as_ref());
    // In XML a comment stands after the declaration.
    text.replacen("<plist", &format!("<!-- {MARK} -->\n<plist"), 1)
}

/// The job with the socket `key` at this address, or without it.
fn with_socket(text: &str, key: &str, address: Option<&SocketAddr>) -> String {
    const END: &str = "\t\t</dict>\n";
    let begin = text.find(&format!("\t\t<key>{key}</key>\n"));
    let Some((begin, length)) = begin.and_then(|begin| Some((begin, text[begin..].find(END)?)))
    else {
        return text.to_owned();
    };
    let block = address.map_or_else(String::new, |address| {
        let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        let lines = [
            ("SockNodeName", host.as_str()),
            ("SockServiceName", &port),
            ("SockFamily", family),
            ("SockType", "stream"),
        ]
        .map(|(key, value)| format!("\t\t\t<key>{key}</key>\n\t\t\t<string>{value}</string>\n"));
        format!("\t\t<key>{key}</key>\n\t\t<dict>\n{}{END}", lines.concat())
    });
    format!("{}{block}{}", &text[..begin], &text[begin + length + END.len()..])
}

/// Environment variables of an installed job.
pub fn variables(text: &str) -> Vec<(String, String)> {
    let Some((_, rest)) = text.split_once("<key>EnvironmentVariables</key>") else { return vec![] };
    let body = rest.split_once("</dict>").map_or("", |(body, _)| body);
    let between = |line: &str, tag: &str| {
        let line = line.trim().strip_prefix(&format!("<{tag}>"))?;
        Some(line.strip_suffix(&format!("</{tag}>"))?.to_owned())
    };
    let lines: Vec<&str> = body.lines().collect();
    let pairs = lines
        .windows(2)
        .filter_map(|pair| Some((between(pair[0], "key")?, between(pair[1], "string")?)));
    pairs.collect()
}

fn domain(uid: u32) -> String {
    format!("gui/{uid}")
}

fn target(uid: u32, label: &str) -> String {
    format!("gui/{uid}/{label}")
}

/// The order that fails while launchd does not know a job.
pub fn print(uid: u32, label: &str) -> Order {
    Order::new(&["launchctl", "print", &target(uid, label)])
}

/// Orders that load and start a job.
pub fn load(uid: u32, label: &str, file: &Path) -> [Order; 2] {
    let file = file.display().to_string();
    [enable(uid, label), Order::new(&["launchctl", "bootstrap", &domain(uid), &file])]
}

/// Has a job start with the session.
pub fn enable(uid: u32, label: &str) -> Order {
    Order::new(&["launchctl", "enable", &target(uid, label)])
}

/// Starts a job that is loaded.
pub fn kickstart(uid: u32, label: &str) -> Order {
    Order::new(&["launchctl", "kickstart", &target(uid, label)])
}

/// Ends a job in order, with its sockets. launchd answers before it is gone.
pub fn unload(uid: u32, label: &str) -> Order {
    Order::new(&["launchctl", "bootout", &target(uid, label)]).may_fail()
}

/// The order that shows the log.
pub fn logs(home: &Path, follow: bool, lines: u32) -> Order {
    let file = |name| home.join(format!("Library/Logs/Paceline/{name}.log"));
    Order::tail(&["supervisor", "gateway"].map(file), follow, lines)
}

/// A line for people from the answer to [`print`].
pub fn report(label: &str, answer: &str) -> String {
    // The job's own lines have one tab; those of its parts have more.
    let get = |key: &str| {
        let mut lines =
            answer.lines().filter_map(|line| line.strip_prefix('\t')?.split_once(" = "));
        lines.find(|(found, _)| *found == key).map(|(_, value)| value)
    };
    let mut line = format!("{label}: {}", get("state").unwrap_or("loaded"));
    for (key, shown) in [("pid", "pid"), ("runs", "runs"), ("last exit code", "last exit code")] {
        if let Some(value) = get(key) {
            line += &format!(", {shown} {value}");
        }
    }
    line
}
