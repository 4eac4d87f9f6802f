//! `paceline generate`: one request, its answer as text or as one JSON object.

use std::io::{IsTerminal as _, Read as _};
use std::path::Path;

use paceline_client::answer::Answer;
use paceline_client::channel::{Client, Service, sent};
use paceline_client::{Failure, Screen, message, program};
use paceline_proto::v1::generate_request::Prompt;
use paceline_proto::v1::{self, ChatRequest, GenerateRequest, GenerateResponse, Message};
use tonic::Streaming;

use crate::args::{GenerateArgs, HowArgs};
use crate::messages::{self, Conversation};
use crate::piped;

/// Largest file that is read as an image. What the service takes is its own to say
/// (limits.max_message_bytes); this only keeps a slip of the hand from filling memory.
const MAX_IMAGE_BYTES: u64 = 256 << 20;

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
    let answers = program::show_object(outcome, args.json, screen)?;
    if args.json {
        // One answer is the object; several are in one.
        let object = match answers.as_slice() {
            [answer] => serde_json::to_string(answer),
            answers => serde_json::to_string(&serde_json::json!({ "samples": answers })),
        };
        let object = object.expect("an answer is plain JSON");
        return screen.text(&format!("{object}\n"));
    }
    for (at, answer) in answers.iter().enumerate() {
        if answers.len() > 1 {
            let heading = format!("--- {} of {}\n", at + 1, answers.len());
            screen.answer(&(heading + &answer.text))?;
        }
        end_line(screen, &answer.text);
        if answer.text.is_empty() && args.input.prompt.is_some() {
            screen.note(
                "the model ended its answer at once: --prompt is sent as it is; --message puts the text through the model's chat template",
            );
        }
        if args.verbose || screen.err_is_terminal() {
            screen.note(&answer.summary());
        }
    }
    Ok(())
}

async fn answer(args: &GenerateArgs, screen: &mut Screen) -> Result<Vec<Answer>, Failure> {
    let request = Ask::from_args(args)?;
    let service = Service::find(&args.service).await?;
    let mut client = service.connect().await?;
    let address = service.address;
    let mut stream = request.send(&mut client, &address).await?;
    let mut shown = String::new();
    let samples = args.samples.max(1);
    // Pieces of several come mixed: those are shown at the end.
    let outcome = Answer::read_samples(&mut stream, samples, |message| {
        if args.json || samples > 1 || message.text.is_empty() {
            return Ok(());
        }
        shown.clone_from(&message.text);
        screen.answer(&message.text)
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
    /// A file cannot be used.
    pub fn from_args(args: &GenerateArgs) -> Result<Self, Failure> {
        let model = args.service.model.clone().unwrap_or_default();
        let images = args.image.iter().map(|path| read_image("--image", path).map(message::image));
        let images = images.collect::<Result<Vec<_>, _>>()?;
        let how = &args.how;
        let as_it_is = |prompt| {
            Self::Continue(GenerateRequest {
                model: model.clone(),
                prompt: Some(prompt),
                sampling: Some(sampling(how)),
                limits: Some(limits(how)),
                route: v1::RouteWish::from(how.route).into(),
                report_margins: args.margins,
                logprobs: args.logprobs,
                samples: args.samples,
                grammar: None,
            })
        };
        let mut conversation = match (
            &args.input.prompt,
            &args.input.message,
            &args.input.messages,
            &args.input.token_ids,
        ) {
            (Some(text), ..) if images.is_empty() => {
                return Ok(as_it_is(Prompt::Text(text.clone())));
            }
            (Some(text), ..) | (_, Some(text), ..) => {
                Conversation { messages: vec![message::text("user", text.clone())], tools: vec![] }
            }
            (_, _, Some(path), _) => read_messages(path)?,
            (_, _, _, Some(ids)) => {
                return Ok(as_it_is(Prompt::TokenIds(v1::TokenIds { ids: ids.0.clone() })));
            }
            _ => {
                let text = typed_or_piped(args.input.text.as_deref())?;
                Conversation { messages: vec![message::text("user", text)], tools: vec![] }
            }
        };
        messages::show(&mut conversation.messages, images)
            .map_err(|error| Failure::usage(error.message))?;
        let template_arguments = args.template_arguments.clone().unwrap_or_default();
        let reasoning_effort = args.reasoning_effort.clone().unwrap_or_default();
        let request = chat(model, conversation.messages, how);
        let (report_margins, logprobs, samples) = (args.margins, args.logprobs, args.samples);
        Ok(Self::Chat(ChatRequest {
            tools: conversation.tools,
            template_arguments,
            reasoning_effort,
            samples,
            report_margins,
            logprobs,
            ..request
        }))
    }

    /// Sends it; returns when the first token is there.
    ///
    /// # Errors
    /// The service's refusal, or that it cannot be reached.
    pub async fn send(
        self,
        client: &mut Client,
        address: &str,
    ) -> Result<Streaming<GenerateResponse>, Failure> {
        let response = sent(async || match &self {
            Self::Continue(request) => client.generate(request.clone()).await,
            Self::Chat(request) => client.chat(request.clone()).await,
        })
        .await;
        response
            .map(tonic::Response::into_inner)
            .map_err(|status| Failure::before_answer(&status, address))
    }
}

/// The text of the command line, then the piped one after a blank line.
fn typed_or_piped(typed: Option<&str>) -> Result<String, Failure> {
    let input = std::io::stdin();
    let piped = if input.is_terminal() { String::new() } else { piped::read(input.lock())? };
    let parts = typed.into_iter().chain([piped.as_str()]);
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    match parts.is_empty() {
        false => Ok(parts.join("\n\n")),
        true => Err(Failure::usage(
            "expected a text, as in `paceline generate \"Why is the sky blue?\"`, one on standard input, or one of --prompt, --messages, --message, --token-ids, found none",
        )),
    }
}

/// A conversation as a request.
pub fn chat(model: String, messages: Vec<Message>, how: &HowArgs) -> ChatRequest {
    ChatRequest {
        model,
        messages,
        sampling: Some(sampling(how)),
        limits: Some(limits(how)),
        route: v1::RouteWish::from(how.route).into(),
        ..Default::default()
    }
}

fn sampling(how: &HowArgs) -> v1::Sampling {
    let HowArgs { temperature, top_k, top_p, min_p, top_a, seed, .. } = *how;
    let HowArgs { repetition_penalty, presence_penalty, frequency_penalty, .. } = *how;
    let logit_bias = how
        .logit_bias
        .iter()
        .map(|one| v1::LogitBias { token_id: one.id, bias: one.bias })
        .collect();
    v1::Sampling {
        temperature,
        top_k,
        top_p,
        min_p,
        top_a,
        seed,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        logit_bias,
    }
}

fn limits(how: &HowArgs) -> v1::Limits {
    v1::Limits {
        max_tokens: how.max_tokens,
        ignore_eos: how.ignore_eos,
        min_tokens: how.min_tokens.unwrap_or(0),
        stop_token_ids: how.stop_token_id.clone(),
        stop: how.stop.clone(),
    }
}

/// The bytes of an image's file, which `what` names.
///
/// # Errors
/// It cannot be read, or does not end.
pub fn read_image(what: &str, path: &Path) -> Result<Vec<u8>, Failure> {
    let refuse =
        |why: String| Failure::usage(format!("{what}: cannot read {}: {why}", path.display()));
    let mut data = Vec::new();
    let file = std::fs::File::open(path)
        .and_then(|file| file.take(MAX_IMAGE_BYTES + 1).read_to_end(&mut data));
    match file {
        Ok(_) if data.len() as u64 > MAX_IMAGE_BYTES => {
            Err(refuse(format!("expected at most {} MiB, found more", MAX_IMAGE_BYTES >> 20)))
        }
        Ok(_) => Ok(data),
        Err(error) => Err(refuse(error.to_string())),
    }
}

fn read_messages(path: &Path) -> Result<Conversation, Failure> {
    let read = || {
        if path != Path::new("-") {
            return std::fs::read_to_string(path);
        }
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    };
    let text = read().map_err(|error| {
        Failure::usage(format!("--messages: cannot read {}: {error}", path.display()))
    })?;
    messages::parse(&text)
        .map_err(|error| Failure::usage(format!("--messages {}: {error}", path.display())))
}
