//! `paceline chat`: a conversation, one line of standard input a turn. `/image F` shows an image
//! with the next turn, `/reset` begins anew, `/bye`, `/quit` or the end of input ends it. Ctrl-C ends
//! the answer that runs; what was said of it stays in the conversation, as it does on the screen.
//! `paceline run` without a question is the same conversation, with a model that it names.

use std::io::{BufRead as _, IsTerminal as _};
use std::path::Path;

use paceline_client::answer::Answer;
use paceline_client::channel::{Client, Service};
use paceline_client::failure::{Failure, UNREACHABLE};
use paceline_client::{Screen, message};
use paceline_proto::v1::{ChatRequest, ContentPart, GenerateResponse, Message};
use tokio::sync::mpsc;

use crate::args::{ChatArgs, HowArgs};
use crate::generate::{self, Ask};

/// Runs the command until its input ends.
///
/// # Errors
/// The service cannot be reached; or, where the input is no terminal, the last turn that failed.
pub async fn run(args: &ChatArgs, screen: &mut Screen) -> Result<(), Failure> {
    let service = Service::find(&args.service).await?;
    let name = args.service.model.as_deref();
    let name = name.map(|name| format!("{name}: ")).unwrap_or_default();
    converse(service, &name, args, screen).await
}

/// Talks with this service until the input ends. `head` stands before the line that greets.
///
/// # Errors
/// As [`run`].
pub async fn converse(
    service: Service,
    head: &str,
    args: &ChatArgs,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let mut session = ChatSession::begin(service, args).await?;
    if screen.err_is_terminal() {
        screen.note(&format!(
            "{head}one line is one turn; /image F shows an image with it, /reset begins anew, /bye ends, Ctrl-C ends an answer"
        ));
    }
    let person = std::io::stdin().is_terminal();
    let mut lines = lines_of_input();
    let mut failed = None;
    loop {
        screen.prompt("> ");
        let line = tokio::select! {
            line = lines.recv() => line,
            _ = tokio::signal::ctrl_c() => None,
        };
        let outcome = match line.as_deref().map(str::trim) {
            None | Some("/bye" | "/quit") => break,
            Some("") => Ok(()),
            Some("/reset") => {
                session.reset();
                Ok(())
            }
            Some(line) if is_image(line) => session.show(line).map(|note| screen.note(&note)),
            Some(command) if command.starts_with('/') && !command.contains(char::is_whitespace) => {
                screen.note(&format!(
                    "unknown command {command}; there are /image F, /reset and /bye"
                ));
                Ok(())
            }
            Some(text) => session.turn(text, screen).await,
        };
        if let Err(failure) = outcome {
            screen.complain(&failure.to_string());
            let gone = failure.exit == UNREACHABLE;
            // Shown now, so not again at the end.
            failed = Some(Failure { message: String::new(), ..failure });
            if gone && !person {
                break;
            }
        }
    }
    match failed {
        Some(failure) if !person => Err(failure),
        _ => Ok(()),
    }
}

struct ChatSession {
    client: Client,
    address: String,
    model: String,
    how: HowArgs,
    template_arguments: String,
    reasoning_effort: String,
    messages: Vec<Message>,
    /// Messages that `/reset` keeps.
    kept: usize,
    /// Images that go with the next turn.
    images: Vec<ContentPart>,
}

/// Whether a line is the command that shows an image.
fn is_image(line: &str) -> bool {
    line.strip_prefix("/image")
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

impl ChatSession {
    /// Connects to the service.
    async fn begin(service: Service, args: &ChatArgs) -> Result<Self, Failure> {
        let client = service.connect().await?;
        let system = args.system.iter().map(|text| message::text("system", text.clone()));
        Ok(Self {
            client,
            address: service.address,
            model: args.service.model.clone().unwrap_or_default(),
            how: args.how.clone(),
            template_arguments: args.template_arguments.clone().unwrap_or_default(),
            reasoning_effort: args.reasoning_effort.clone().unwrap_or_default(),
            messages: system.collect(),
            kept: args.system.iter().count(),
            images: vec![],
        })
    }

    /// Begins anew.
    fn reset(&mut self) {
        self.messages.truncate(self.kept);
        self.images.clear();
    }

    /// Reads the image that a line names, for the next turn. Returns a note for the person.
    fn show(&mut self, line: &str) -> Result<String, Failure> {
        let path = line.trim_start_matches("/image").trim();
        if path.is_empty() {
            return Err(Failure::usage("/image: expected a file after it, found none"));
        }
        let data = generate::read_image("/image", Path::new(path))?;
        let note = format!("{path} ({} bytes) goes with the next message", data.len());
        self.images.push(message::image(data));
        Ok(match self.images.len() {
            1 => note,
            count => format!("{note}, with {} before it", count - 1),
        })
    }

    /// One turn. A turn that failed leaves the conversation as it was.
    async fn turn(&mut self, text: &str, screen: &mut Screen) -> Result<(), Failure> {
        let before = self.messages.len();
        let mut said = message::text("user", text);
        said.content.splice(0..0, self.images.iter().cloned());
        self.messages.push(said);
        let request = ChatRequest {
            template_arguments: self.template_arguments.clone(),
            reasoning_effort: self.reasoning_effort.clone(),
            ..generate::chat(self.model.clone(), self.messages.clone(), &self.how)
        };
        let mut said = Said::default();
        let outcome = tokio::select! {
            outcome = self.answer(request, screen, &mut said) => outcome,
            _ = tokio::signal::ctrl_c() => Ok(false),
        };
        if !said.text.is_empty() || !said.reasoning.is_empty() {
            screen.line("");
        }
        match outcome {
            Ok(whole) if whole || !said.text.is_empty() => {
                let Said { text, reasoning } = said;
                self.messages.push(Message { reasoning, ..message::text("assistant", text) });
                self.images.clear();
            }
            // Its images are dropped as well: one that is refused would be refused with every
            // turn to come.
            Err(_) => {
                self.messages.truncate(before);
                if !self.images.is_empty() {
                    screen.note("the message's images are dropped with it");
                    self.images.clear();
                }
            }
            Ok(_) => self.messages.truncate(before),
        }
        outcome.map(|_| ())
    }

    /// True when the answer is whole.
    async fn answer(
        &mut self,
        request: ChatRequest,
        screen: &mut Screen,
        said: &mut Said,
    ) -> Result<bool, Failure> {
        let mut stream = Ask::Chat(request).send(&mut self.client, &self.address).await?;
        let on_message = |message: &GenerateResponse| {
            // Reasoning comes before the text, in parentheses.
            if !message.reasoning.is_empty() {
                if said.reasoning.is_empty() {
                    screen.text("(")?;
                }
                said.reasoning.push_str(&message.reasoning);
                screen.text(&message.reasoning)?;
            }
            if !message.text.is_empty() {
                if said.text.is_empty() && !said.reasoning.is_empty() {
                    screen.text(")\n\n")?;
                }
                said.text.push_str(&message.text);
                screen.text(&message.text)?;
            }
            Ok(())
        };
        Answer::read(&mut stream, on_message).await.map(|_| true)
    }
}

/// Text and reasoning of the assistant in a turn.
#[derive(Default)]
struct Said {
    text: String,
    reasoning: String,
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
