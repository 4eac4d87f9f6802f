//! The parts of the archive: collected from the service, if one runs, and from its files.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use paceline_client::Failure;
use paceline_client::channel::{ANSWER_TIMEOUT, answered, operations};
use paceline_process::config::AUTO_COSTS;
use paceline_process::{Loaded, RuntimeDir, chain};
use paceline_proto::convert::service::ServiceStatus;
use paceline_proto::v1::{Setting, ShowSettingsRequest};
use serde_json::json;

use super::{logs, machine};
use crate::{events, status};

/// Most events.
const MOST_EVENTS: u32 = 1_000;
/// Most bytes of one log, and of the file of events if no service runs.
const MOST_LOG_BYTES: u64 = 512 << 10;
/// Most logs. A runtime directory has seven at most.
const MOST_LOGS: usize = 16;
/// Most bytes of a file of costs. The target reads no larger one.
const MOST_COST_BYTES: u64 = 1 << 20;
/// Most files of costs, the newest ones.
const MOST_COSTS: usize = 4;
/// Characters of the digest in the name of a file of costs.
const DIGEST_CHARS: usize = 64;
/// Stands in each line of a log that has text of a request: the module of the gateway that writes
/// them, if `log.prompts` is on. Each of its records is one line.
const PROMPT_MARK: &str = "inference::text_log";
/// In the place of a text with such a line.
const NO_PROMPTS: &str = "This is left out, because it has texts of requests.\n";

/// A file of the archive.
#[derive(Debug)]
pub struct Part {
    /// Path in the archive.
    pub name: String,
    /// What it is, in a few words.
    pub about: String,
    /// Content.
    pub text: String,
}

impl Part {
    fn new(name: &str, about: &str, text: String) -> Self {
        Self { name: name.to_owned(), about: about.to_owned(), text }
    }

    /// Removes a text that has lines with texts of requests.
    fn leave_out_prompts(&mut self) {
        if self.text.contains(PROMPT_MARK) {
            self.text = NO_PROMPTS.to_owned();
        }
    }
}

/// Everything that can be had. What cannot be had is a part that says why.
pub async fn collect(config: Option<&Path>) -> Vec<Part> {
    let mut parts = vec![Part::new("machine.txt", "versions and machine", machine::describe())];
    let loaded = match Loaded::find(config) {
        Ok(loaded) => loaded,
        Err(error) => {
            let text = format!("the configuration cannot be used: {}\n", chain(&error));
            parts.push(Part::new("settings.txt", "why the configuration cannot be used", text));
            return parts;
        }
    };
    let service = status::ask(config).await;
    let settings = settings(config, &loaded, service.is_ok()).await;
    parts.push(settings_part(&loaded, &settings));
    parts.extend(status_parts(&service));
    let dir = match RuntimeDir::locate(&loaded.config) {
        Ok(dir) => dir.path().to_path_buf(),
        Err(error) => {
            let text = format!("there is no runtime directory: {}\n", chain(&error));
            parts.push(Part::new("logs.txt", "why there are no logs", text));
            return parts;
        }
    };
    parts.push(events_part(config, &dir, service.is_ok()).await);
    // A reason may end with the last lines of a log.
    parts.iter_mut().for_each(Part::leave_out_prompts);
    parts.extend(log_parts(&dir));
    parts.extend(cost_parts(&loaded));
    parts
}

/// The settings in force: those of the running service, which has flags and an environment of its
/// own; without one those that it would start with.
async fn settings(config: Option<&Path>, loaded: &Loaded, is_running: bool) -> Vec<Setting> {
    let running = async {
        let (mut client, place) = operations(config).ok()?;
        let answer = answered(client.show_settings(ShowSettingsRequest {}), ANSWER_TIMEOUT, &place);
        Some(answer.await.ok()?.settings)
    };
    let running = if is_running { running.await } else { None };
    match running {
        Some(settings) => settings,
        None => loaded.shown().settings,
    }
}

fn settings_part(loaded: &Loaded, settings: &[Setting]) -> Part {
    let mut text = match &loaded.file {
        Some(file) => format!("configuration: {}\n", file.display()),
        None => "configuration: no file\n".to_owned(),
    };
    for Setting { key, value, source, .. } in settings {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{key} = {value}  # {source}");
    }
    Part::new("settings.txt", "settings with their sources, without contents of key files", text)
}

fn status_parts(service: &Result<ServiceStatus, Failure>) -> Vec<Part> {
    match service {
        Ok(status) => vec![
            Part::new("status.txt", "processes, requests, memory", status::table(status)),
            Part::new("status.json", "the same for programs", format!("{:#}\n", json!(status))),
        ],
        Err(failure) => {
            let text = format!("no service answered: {failure}\n");
            vec![Part::new("status.txt", "why there is no status", text)]
        }
    }
}

/// The last events: from the service, else from its file.
async fn events_part(config: Option<&Path>, dir: &Path, is_running: bool) -> Part {
    let about = "changes of state and their causes";
    if is_running && let Ok(events) = events::past(config, MOST_EVENTS).await {
        let text = events.iter().map(|event| format!("{}\n", events::object(event))).collect();
        return Part::new("events.jsonl", about, text);
    }
    let text = match logs::newest(&dir.join("events.jsonl"), MOST_LOG_BYTES) {
        Ok(Some(text)) => last_lines(&text, MOST_EVENTS as usize),
        Ok(None) => String::new(),
        Err(error) => format!("the file of events cannot be read: {error}\n"),
    };
    Part::new("events.jsonl", about, text)
}

fn last_lines(text: &str, most: usize) -> String {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    lines[lines.len().saturating_sub(most)..].concat()
}

fn log_parts(dir: &Path) -> Vec<Part> {
    let mut logs = files(dir, "log");
    logs.sort();
    logs.truncate(MOST_LOGS);
    if logs.is_empty() {
        let text = format!("{} has no logs\n", dir.display());
        return vec![Part::new("logs.txt", "why there are no logs", text)];
    }
    let part = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = match logs::newest(path, MOST_LOG_BYTES) {
            Ok(Some(text)) => logs::without_marked(&text, PROMPT_MARK),
            Ok(None) => "the log was removed\n".to_owned(),
            Err(error) => format!("the log cannot be read: {error}\n"),
        };
        Part::new(&format!("logs/{name}"), "newest part of a log, without texts of requests", text)
    };
    logs.iter().map(part).collect()
}

/// The newest files of measured costs.
fn cost_parts(loaded: &Loaded) -> Vec<Part> {
    let dir = match loaded.config.target.saved_costs.as_str() {
        "" => None,
        AUTO_COSTS => paceline_checkpoint::cache_dir().map(|cache| cache.join("paceline/costs")),
        path => Some(PathBuf::from(path)),
    };
    let modified = |path: PathBuf| {
        // The target names them by a digest. Other files of the directory are none of ours.
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        if stem.len() != DIGEST_CHARS || !stem.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let meta = fs::metadata(&path).ok().filter(|meta| meta.len() <= MOST_COST_BYTES)?;
        Some((meta.modified().unwrap_or(SystemTime::UNIX_EPOCH), path))
    };
    let mut found: Vec<_> =
        dir.iter().flat_map(|dir| files(dir, "json")).filter_map(modified).collect();
    found.sort();
    let newest = found.iter().rev().take(MOST_COSTS).enumerate();
    newest
        .filter_map(|(place, (_, path))| {
            let text = fs::read_to_string(path).ok()?;
            let name = format!("costs/{}.json", place + 1);
            Some(Part::new(&name, "measured costs of steps of one model", text))
        })
        .collect()
}

/// The files of a directory with this extension.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_requests_are_left_out_of_logs_and_of_reasons() {
        let dir = tempfile::tempdir().expect("a directory");
        let write =
            |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("written");
        let record = format!("2026 INFO paceline_gateway::{PROMPT_MARK}: prompt prompt=\"canary\"");
        write("gateway.log", &format!("2026 a\n{record}\n2026 b\n"));
        write("target.sock", "no log");
        let parts = log_parts(dir.path());
        assert_eq!((parts.len(), parts[0].name.as_str()), (1, "logs/gateway.log"));
        assert_eq!(parts[0].text, "2026 a\n(texts of requests are left out)\n2026 b\n");
        let mut status = Part::new("status.txt", "", format!("target: it ended\n    {record}\n"));
        status.leave_out_prompts();
        assert_eq!(status.text, NO_PROMPTS);
        let none = log_parts(&dir.path().join("nowhere"));
        assert_eq!((none.len(), none[0].name.as_str()), (1, "logs.txt"));
    }

    #[test]
    fn the_newest_costs_are_taken_and_no_other_file() {
        let dir = tempfile::tempdir().expect("a directory");
        for file in ["notes.json", "a.txt"] {
            fs::write(dir.path().join(file), "mine").expect("written");
        }
        for digit in 0..6 {
            let name = format!("{}.json", digit.to_string().repeat(DIGEST_CHARS));
            fs::write(dir.path().join(name), format!("{{\"costs\":{digit}}}")).expect("written");
        }
        let loaded = |costs: &str| {
            Loaded::from_text(&format!("[target]\nsaved_costs = {costs:?}\n"), &[])
                .expect("settings")
        };
        let parts = cost_parts(&loaded(&dir.path().display().to_string()));
        assert_eq!(parts.len(), MOST_COSTS);
        assert!(parts.iter().all(|part| part.text.contains("costs")), "{parts:?}");
        assert!(cost_parts(&loaded("")).is_empty());
    }

    #[test]
    fn the_last_lines_are_kept() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(last_lines("", 2), "");
    }
}
