//! `paceline generate`: one request, its answer as text or as one JSON object.

use std::io::Read as _;
use std::path::Path;

use paceline_proto::v1::generate_request::Prompt;
use paceline_proto::v1::{self, ChatRequest, ContentPart, GenerateRequest, GenerateResponse, Message};
use tonic::Streaming;

use crate::answer::Answer;
use crate::args::{GenerateArgs, HowArgs};
use crate::client;
use crate::failure::Failure;
use crate::messages;
use crate::screen::Screen;

/// Runs the command.
///
/// # Errors
/// Why there is no whole answer. With `--json` it has been printed as an object too.
pub async fn run(args: &GenerateArgs, screen: &mut Screen) -> Result<(), Failure> {
    let outcome = tokio::select! {
        outcome = answer(args, screen) => outcome,
        // Dropping the request cancels it.
        _ = tokio::signal::ctrl_c() => Err(Failure::interrupted()),
    };
    match (outcome, args.json) {
        (Ok(answer), true) => {
            let object = serde_json::to_string(&answer).expect("an answer is plain JSON");
            screen.text(&format!("{object}\n")).map_err(|_| Failure::nobody_reads())
        }
        (Ok(answer), false) => {
            end_line(screen, &answer.text);
            if args.verbose || screen.err_is_terminal() {
                screen.note(&answer.summary());
            }
            Ok(())
        }
        (Err(failure), json) => {
            if json {
                screen.line(&failure.object().to_string());
            }
            Err(failure)
        }
    }
}

async fn answer(args: &GenerateArgs, screen: &mut Screen) -> Result<Answer, Failure> {
    let request = Ask::from_args(args)?;
    let service = client::Service::find(&args.service)?;
    let mut client = service.connect().await?;
    let address = service.address;
    let mut stream = request.send(&mut client, &address).await?;
    let mut shown = String::new();
    let outcome = Answer::read(&mut stream, |text| {
        if args.json {
            return Ok(());
        }
        shown = text.to_owned();
        screen.text(text)
    })
    .await;
    if outcome.is_err() && !shown.is_empty() {
        end_line(screen, &shown);
    }
    outcome
}

/// Ends the line the text stands on, so that what follows begins its own.
fn end_line(screen: &mut Screen, text: &str) {
    if !text.ends_with('\n') {
        screen.line("");
    }
}

/// A request, ready to be sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// A prompt as it is.
    Continue(GenerateRequest),
    /// A conversation.
    Chat(ChatRequest),
}

impl Ask {
    /// The request the arguments describe; reads the files they name.
    ///
    /// # Errors
    /// A file cannot be used, or a flag's feature is not there yet.
    pub fn from_args(args: &GenerateArgs) -> Result<Self, Failure> {
        check_served(&args.how)?;
        let model = args.service.model.clone().unwrap_or_default();
        let pictures = args.image.iter().map(|path| read_picture(path)).collect::<Result<Vec<_>, _>>()?;
        let how = &args.how;
        let as_it_is = |prompt| {
            Self::Continue(GenerateRequest {
                model: model.clone(),
                prompt: Some(prompt),
                sampling: Some(sampling(how)),
                limits: Some(limits(how)),
                route: v1::RouteWish::from(how.route).into(),
                report_margins: args.margins,
                ..Default::default()
            })
        };
        let mut conversation = match (&args.input.prompt, &args.input.message, &args.input.messages, &args.input.token_ids) {
            (Some(text), ..) if pictures.is_empty() => return Ok(as_it_is(Prompt::Text(text.clone()))),
            (Some(text), ..) | (_, Some(text), ..) => vec![messages::text("user", text.clone())],
            (_, _, Some(path), _) => read_messages(path)?,
            (_, _, _, Some(ids)) => return Ok(as_it_is(Prompt::TokenIds(v1::TokenIds { ids: ids.0.clone() }))),
            _ => return Err(Failure::usage("expected one of --prompt, --messages, --message, --token-ids")),
        };
        messages::show(&mut conversation, pictures).map_err(Failure::usage)?;
        Ok(Self::Chat(chat(model, conversation, how, args.margins)))
    }

    /// Sends it; returns when the first token is there.
    ///
    /// # Errors
    /// The service's refusal, or that it cannot be reached.
    pub async fn send(self, client: &mut client::Client, address: &str) -> Result<Streaming<GenerateResponse>, Failure> {
        let response = match self {
            Self::Continue(request) => client.generate(request).await,
            Self::Chat(request) => client.chat(request).await,
        };
        response.map(tonic::Response::into_inner).map_err(|status| Failure::before_answer(&status, address))
    }
}

/// A conversation as a request.
pub fn chat(model: String, messages: Vec<Message>, how: &HowArgs, report_margins: bool) -> ChatRequest {
    ChatRequest {
        model,
        messages,
        sampling: Some(sampling(how)),
        limits: Some(limits(how)),
        route: v1::RouteWish::from(how.route).into(),
        report_margins,
        ..Default::default()
    }
}

/// Refuses flags of the contract whose feature is not there yet.
///
/// # Errors
/// Names the flag.
pub fn check_served(how: &HowArgs) -> Result<(), Failure> {
    if how.logprobs != 0 {
        return Err(Failure::not_yet("--logprobs other than 0"));
    }
    Ok(())
}

fn sampling(how: &HowArgs) -> v1::Sampling {
    let HowArgs { temperature, top_k, top_p, min_p, seed, repetition_penalty, .. } = *how;
    v1::Sampling { temperature, top_k, top_p, min_p, seed, repetition_penalty, ..Default::default() }
}

fn limits(how: &HowArgs) -> v1::Limits {
    v1::Limits { max_tokens: how.max_tokens, ignore_eos: how.ignore_eos, ..Default::default() }
}

fn read_picture(path: &Path) -> Result<ContentPart, Failure> {
    let data =
        std::fs::read(path).map_err(|error| Failure::usage(format!("--image: cannot read {}: {error}", path.display())))?;
    Ok(messages::picture(data))
}

fn read_messages(path: &Path) -> Result<Vec<Message>, Failure> {
    let read = || {
        if path != Path::new("-") {
            return std::fs::read_to_string(path);
        }
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    };
    let text = read().map_err(|error| Failure::usage(format!("--messages: cannot read {}: {error}", path.display())))?;
    messages::parse(&text).map_err(|error| Failure::usage(format!("--messages {}: {error}", path.display())))
}
