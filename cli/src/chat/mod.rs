//! `paceline chat`: a conversation. A terminal has a line editor with a history; another input is
//! read line by line, one line a turn. Ctrl-C ends the answer that runs, and what was said of it
//! stays in the conversation. `paceline run` without a question is the same conversation, with a
//! model that it names.
//!
//! ```text
//!  editor, or lines of a pipe ──▶ typing ──▶ command ──▶ session ──▶ the service
//!                                                    ├─▶ settings (/set)
//!                                                    └─▶ record (/save)
//! ```

mod command;
mod editor;
mod record;
mod session;
mod settings;
mod typing;

use std::io::{BufRead as _, ErrorKind, IsTerminal as _};

use paceline_client::Screen;
use paceline_client::answer::Answer;
use paceline_client::channel::Service;
use paceline_client::failure::{Failure, UNREACHABLE};
use rustyline::error::ReadlineError;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::args::ChatArgs;
use crate::harmless::harmless;
use command::ChatCommand;
use editor::{LineEditor, path};
use session::ChatSession;
use typing::{ChatText, Typing};

/// What a person is told who presses Ctrl-C while no answer runs.
const HOW_TO_LEAVE: &str = "Ctrl-D or /bye ends the conversation";

/// Runs the command until its input ends.
///
/// # Errors
/// The service cannot be reached; or, where the input is no terminal, the last turn that failed.
pub async fn run(args: &ChatArgs, screen: &mut Screen) -> Result<(), Failure> {
    converse(Service::find(&args.service).await?, args, screen).await
}

/// Talks with this service until the input ends.
///
/// # Errors
/// As [`run`].
pub async fn converse(
    service: Service,
    args: &ChatArgs,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let mut session = ChatSession::begin(service, args).await?;
    let mut input = MessageSource::open(!args.no_history, screen);
    if screen.err_is_terminal() {
        screen.note(&greeting(&mut session).await);
    }
    let is_edited = input.is_edited;
    tokio::select! {
        outcome = talk(&mut session, &mut input, screen) => outcome,
        () = ended(), if is_edited => Err(Failure::interrupted()),
    }
}

/// Model and use of the conversation, in a line.
async fn greeting(session: &mut ChatSession) -> String {
    // Without a model that is ready, the first turn says why.
    let model = session.ask_model("").await.map(|model| harmless(&model) + ". ");
    format!(
        "{}/help shows the commands; a line that ends with \\ goes on; Ctrl-C ends an answer, Ctrl-D the conversation",
        model.unwrap_or_default()
    )
}

/// Waits for a signal that ends the process, so that the modes of an edited terminal are restored.
/// SIGINT ends answers alone.
async fn ended() {
    let watched = |kind| signal(kind).ok();
    let (terminate, hangup) = (SignalKind::terminate(), SignalKind::hangup());
    let signals = (watched(terminate), watched(hangup), watched(SignalKind::interrupt()));
    match signals {
        (Some(mut terminate), Some(mut hangup), Some(_)) => {
            tokio::select! { _ = terminate.recv() => {}, _ = hangup.recv() => {} }
        }
        // The system has no handler left: its own one ends the process.
        _ => std::future::pending().await,
    }
}

async fn talk(
    session: &mut ChatSession,
    input: &mut MessageSource,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let person = input.is_typed;
    let mut failed = None;
    loop {
        let message = match input.next(screen).await {
            Ok(message) => message,
            Err(NoLine::Dropped(why)) => {
                screen.note(why);
                continue;
            }
            Err(NoLine::Ended) => break,
        };
        let command = ChatCommand::of(&message, person);
        if command == ChatCommand::Leave {
            break;
        }
        let shows_figures = person && screen.err_is_terminal();
        match carry_out(command, session, screen).await {
            Ok(Some(answer)) if shows_figures => {
                let (dim, bright) =
                    if input.is_edited { ("\x1b[2m", "\x1b[22m") } else { ("", "") };
                screen.note(&format!("{dim}{}{bright}", answer.summary()));
            }
            Ok(_) => {}
            Err(failure) => {
                screen.complain(&failure.to_string());
                let gone = failure.exit == UNREACHABLE;
                // Shown now, so not again at the end.
                failed = Some(Failure { message: String::new(), ..failure });
                if gone && !person {
                    break;
                }
            }
        }
    }
    match failed {
        Some(failure) if !person => Err(failure),
        _ => Ok(()),
    }
}

/// Carries out a command. Returns the answer, if it got a whole one.
async fn carry_out(
    command: ChatCommand<'_>,
    session: &mut ChatSession,
    screen: &mut Screen,
) -> Result<Option<Answer>, Failure> {
    match command {
        ChatCommand::Ask(text) => return session.turn(text, screen).await,
        ChatCommand::Retry => return session.retry(screen).await,
        ChatCommand::Nothing | ChatCommand::Leave => {}
        ChatCommand::Help => screen.note(&command::help()),
        ChatCommand::Unknown(text) => screen.note(&command::unknown(text)),
        ChatCommand::Reset => session.reset(),
        ChatCommand::Set("") => screen.note(&settings::shown(&session.talk)),
        ChatCommand::Set(assignment) => {
            let (talk, note) = settings::set(&session.talk, assignment)?;
            session.talk = talk;
            screen.note(&note);
        }
        ChatCommand::Model(name) => {
            let model = session.ask_model(name).await?;
            screen.note(&harmless(&model));
        }
        ChatCommand::Image(file) => {
            let note = session.show(&path(file))?;
            screen.note(&note);
        }
        ChatCommand::Save { path: file, replaces } => {
            record::save(&session.conversation(), &path(file), replaces)?;
            screen.note(&format!("the conversation is in {file}"));
        }
    }
    Ok(None)
}

/// Where messages come from: a line editor, or lines of standard input.
struct MessageSource {
    /// Whether a terminal has an editor.
    is_edited: bool,
    /// The editor; none while a line is read.
    editor: Option<Box<LineEditor>>,
    lines: mpsc::Receiver<String>,
    /// Whether a person types them.
    is_typed: bool,
}

/// Why there is no line.
enum NoLine {
    /// It was dropped, for this reason.
    Dropped(&'static str),
    /// The input has ended.
    Ended,
}

impl MessageSource {
    fn open(keeps_history: bool, screen: &mut Screen) -> Self {
        let editor = LineEditor::open(keeps_history, screen).map(Box::new);
        let is_edited = editor.is_some();
        let lines = if is_edited { mpsc::channel(1).1 } else { lines_of_input() };
        Self { is_edited, editor, lines, is_typed: std::io::stdin().is_terminal() }
    }

    /// The next message.
    async fn next(&mut self, screen: &mut Screen) -> Result<ChatText, NoLine> {
        let mut typing = Typing::default();
        loop {
            let text = self.line(typing.prompt(), screen).await?;
            if !self.is_typed {
                return Ok(ChatText { text, is_quoted: false });
            }
            if let Some(message) = typing.add(&text) {
                if let Some(editor) = &mut self.editor {
                    editor.remember(&message.typed(), screen);
                }
                return Ok(message);
            }
        }
    }

    /// What is typed before Enter.
    async fn line(&mut self, prompt: &'static str, screen: &mut Screen) -> Result<String, NoLine> {
        if let Some(editor) = self.editor.take() {
            let (editor, typed) = editor.read(prompt).await;
            self.editor = Some(Box::new(editor));
            return typed.map_err(|error| match error {
                ReadlineError::Interrupted => NoLine::Dropped(HOW_TO_LEAVE),
                ReadlineError::Io(error) if error.kind() == ErrorKind::InvalidData => {
                    NoLine::Dropped("expected UTF-8, found other bytes: they are dropped")
                }
                _ => NoLine::Ended,
            });
        }
        screen.prompt(prompt);
        tokio::select! {
            line = self.lines.recv() => line.ok_or(NoLine::Ended),
            _ = tokio::signal::ctrl_c() => {
                screen.prompt("\n");
                Err(if self.is_typed { NoLine::Dropped(HOW_TO_LEAVE) } else { NoLine::Ended })
            }
        }
    }
}

/// Lines of standard input, read by a thread of their own: a read of a terminal cannot be given up.
fn lines_of_input() -> mpsc::Receiver<String> {
    let (tx, rx) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if tx.blocking_send(line).is_err() {
                return;
            }
        }
    });
    rx
}
