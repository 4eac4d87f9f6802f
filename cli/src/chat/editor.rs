//! The line editor of a terminal: keys, the history in the user's cache directory, and completion.
//! A read of a terminal cannot be given up, so it has a thread of its own; the terminal's modes are
//! restored when the read is no longer awaited.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use paceline_checkpoint::{cache_dir, home_dir};
use paceline_client::Screen;
use rustyline::completion::Completer;
use rustyline::config::BellStyle;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, Helper};

use super::command::COMMANDS;
use super::settings;

/// Most lines of the history.
const MOST_LINES: usize = 1_000;
/// Longest line of the history: a pasted document does not belong there. With [`MOST_LINES`] the
/// file has at most 10 MB.
const MOST_LINE_BYTES: usize = 10_000;
/// Terminals that cannot move their cursor.
const PLAIN_TERMINALS: [&str; 4] = ["", "dumb", "cons25", "emacs"];

/// The editor, between two reads.
pub struct LineEditor {
    editor: Editor<TabCompletion, FileHistory>,
    /// File of the history; none if it is not kept.
    history: Option<PathBuf>,
}

impl LineEditor {
    /// The editor of this process's terminal. `None` if input or output is no terminal, or one that
    /// cannot move its cursor.
    pub fn open(keeps_history: bool, screen: &mut Screen) -> Option<Self> {
        let terminal = paceline_system::environment::env("TERM").unwrap_or_default();
        let has_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        if !has_terminal || PLAIN_TERMINALS.contains(&terminal.as_str()) {
            return None;
        }
        let config = Config::builder()
            .max_history_size(MOST_LINES)
            .and_then(|config| config.history_ignore_dups(true))
            .ok()?
            .history_ignore_space(true)
            .completion_type(CompletionType::List)
            .bell_style(BellStyle::None)
            .build();
        let mut editor = Self { editor: Editor::with_config(config).ok()?, history: None };
        editor.editor.set_helper(Some(TabCompletion));
        editor.history = cache_dir().filter(|_| keeps_history).and_then(|cache| {
            let path = cache.join("paceline/chat_history");
            let made = std::fs::create_dir_all(cache.join("paceline"));
            let loaded = made.map_err(ReadlineError::from).and_then(|()| match path.exists() {
                true => editor.editor.load_history(&path),
                false => Ok(()),
            });
            kept(path, loaded, screen)
        });
        Some(editor)
    }

    /// Reads what is typed before Enter, on a thread of its own. The terminal's modes are restored
    /// if the future is dropped; the thread then ends with the process.
    pub async fn read(mut self, prompt: &'static str) -> (Self, Result<String, ReadlineError>) {
        let modes = TerminalModes::now();
        let read = tokio::task::spawn_blocking(move || {
            let _ = stop_signal().thread_unblock();
            let typed = self.editor.readline(prompt);
            (self, typed)
        });
        let outcome = read.await.expect("the editor does not panic");
        drop(modes);
        outcome
    }

    /// Adds a line to the history, unless it is long, begins with a space or is the last one again.
    pub fn remember(&mut self, line: &str, screen: &mut Screen) {
        if line.len() <= MOST_LINE_BYTES && matches!(self.editor.add_history_entry(line), Ok(true))
        {
            self.history = self.history.take().and_then(|path| {
                let appended = self.editor.append_history(&path);
                kept(path, appended, screen)
            });
        }
    }
}

/// The file of the history, if it could be used.
fn kept(path: PathBuf, used: Result<(), ReadlineError>, screen: &mut Screen) -> Option<PathBuf> {
    used.map_err(|error| {
        screen.note(&format!("the history is not kept: {}: {error}", path.display()));
    })
    .map(|()| path)
    .ok()
}

/// Path of a file that a person typed: `~` is the home directory.
pub fn path(typed: &str) -> PathBuf {
    match (typed.strip_prefix("~/"), home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(typed),
    }
}

/// Modes of the terminal, restored when this value is dropped. Until then Ctrl-Z is for the editor's
/// thread: the editor restores the modes, stops the process, and sets its own again. Another thread
/// that took the signal would let the editor set them before the process has stopped.
struct TerminalModes(Option<Termios>);

impl TerminalModes {
    fn now() -> Self {
        let _ = stop_signal().thread_block();
        Self(tcgetattr(std::io::stdin()).ok())
    }
}

/// The signal of Ctrl-Z.
fn stop_signal() -> SigSet {
    SigSet::from(Signal::SIGTSTP)
}

impl Drop for TerminalModes {
    fn drop(&mut self) {
        let _ = stop_signal().thread_unblock();
        let Some(modes) = &self.0 else { return };
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(std::io::stdin(), SetArg::TCSANOW, modes);
        // Pasted text comes without marks again.
        let mut out = std::io::stdout();
        let _ = out.write_all(b"\x1b[?2004l").and_then(|()| out.flush());
    }
}

/// Completes commands, names of `/set`, and paths.
struct TabCompletion;

impl Completer for TabCompletion {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(completed(&line[..position]))
    }
}

impl Hinter for TabCompletion {
    type Hint = String;
}

impl Highlighter for TabCompletion {}
impl Validator for TabCompletion {}
impl Helper for TabCompletion {}

/// Where the last word of a line begins, and the words that it may become.
fn completed(line: &str) -> (usize, Vec<String>) {
    let Some((command, rest)) = line.split_once(' ') else {
        let commands = COMMANDS.iter().map(|(name, argument, _)| match *argument {
            "" => (*name).to_owned(),
            _ => format!("{name} "),
        });
        let is_command = line.starts_with('/');
        return (0, commands.filter(|name| is_command && name.starts_with(line)).collect());
    };
    let argument = rest.trim_start().trim_start_matches("--force ");
    let words = match command {
        "/set" => settings::names().into_iter().map(|name| name + "=").collect(),
        "/image" | "/save" => files(argument),
        _ => vec![],
    };
    let words = words.into_iter().filter(|word| word.starts_with(argument));
    (line.len() - argument.len(), words.collect())
}

/// Paths of the files beside a path.
fn files(typed: &str) -> Vec<String> {
    let dir = typed.rfind('/').map_or("", |end| &typed[..=end]);
    let place = if dir.is_empty() { PathBuf::from(".") } else { path(dir) };
    let entries = std::fs::read_dir(place).into_iter().flatten().filter_map(Result::ok);
    let files = entries.filter_map(|entry| {
        let end = if entry.path().is_dir() { "/" } else { "" };
        entry.file_name().to_str().map(|name| format!("{dir}{name}{end}"))
    });
    let mut files: Vec<String> = files.collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_names_and_paths_are_completed() {
        let at = |line: &str| completed(line);
        assert_eq!(at("/re"), (0, vec!["/retry".to_owned(), "/reset".to_owned()]));
        assert_eq!(at("/im"), (0, vec!["/image ".to_owned()]));
        assert_eq!(at("/set tem").1, ["template_arguments=", "temperature="]);
        assert_eq!(at("/set tem").0, 5);
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(dir.path().join("an image.png"), "").expect("written");
        std::fs::create_dir(dir.path().join("and more")).expect("made");
        let place = dir.path().display().to_string();
        let found = [format!("{place}/an image.png"), format!("{place}/and more/")];
        assert_eq!(at(&format!("/image {place}/an")), (7, found.to_vec()));
        assert_eq!(at(&format!("/save --force {place}/an ")), (14, found[..1].to_vec()));
        for nothing in ["", "what", "what is", "/reset x", "/image /nowhere/x"] {
            assert_eq!(at(nothing).1, [""; 0], "{nothing:?}");
        }
    }
}
