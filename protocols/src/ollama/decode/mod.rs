//! Requests of Ollama's API as the middle's input.
//!
//! Requests are taken apart by all their fields, so that a field that is added to the types cannot
//! be dropped in silence (I5).

use paceline_proto::limits;
use paceline_text::images::decode_base64;
use paceline_text::prompt::Infill;
use paceline_text::shape::AnswerShape;
use paceline_vocabulary::generation::TextForm;
use paceline_vocabulary::sampling::SamplingWish;
use serde_json::Value;

use super::request::{
    Cut, KeepLoaded, OllamaCalledFunction, OllamaChatRequest, OllamaFunction,
    OllamaGenerateRequest, OllamaMessage, OllamaOptions, OllamaTool, OllamaToolCall,
};
use crate::accepted::check;
use crate::effort::{Thoughts, Wish};
use crate::inference::bounds::check_elements;
use crate::inference::error::{InferenceError, Result, quoted, refuse};
use crate::inference::images::ImageError;
use crate::inference::input::{
    ContentPartInput, ConversationInput, JsonInput, MessageInput, PromptInput, RequestInput,
    ToolCallInput, ToolInput,
};
use crate::inference::params::GenerationParams;
use crate::json::AnyJson;
use crate::number::TopLogprobs;
use crate::openai::chat::request::Think;
use crate::paths::{FieldName, FieldPaths, MessagePath};
use crate::protocol::{AllowedToolCalls, Decoded, Extension};
use crate::values::{self, TextOr, ToolKind};

/// The protocol's names of the fields of the middle's input.
const FIELDS: &[FieldName] = &[
    FieldName { inner: "text", outer: "prompt" },
    FieldName { inner: "template_arguments", outer: "paceline.template_arguments" },
    FieldName { inner: "sampling.repetition_penalty", outer: "options.repeat_penalty" },
    FieldName { inner: "sampling", outer: "options" },
    FieldName { inner: "seed", outer: "options.seed" },
    FieldName { inner: "limits.max_tokens", outer: "options.num_predict" },
    FieldName { inner: "limits.stop", outer: "options.stop" },
    FieldName { inner: "messages[].reasoning", outer: "messages[].thinking" },
    FieldName {
        inner: "messages[].tool_calls[].name",
        outer: "messages[].tool_calls[].function.name",
    },
    FieldName {
        inner: "messages[].tool_calls[].arguments",
        outer: "messages[].tool_calls[].function.arguments",
    },
    FieldName { inner: "grammar", outer: "format" },
    FieldName { inner: "logprobs", outer: "top_logprobs" },
    FieldName { inner: "tools[].name", outer: "tools[].function.name" },
    FieldName { inner: "tools[].description", outer: "tools[].function.description" },
    FieldName { inner: "tools[].parameters", outer: "tools[].function.parameters" },
];

/// The type of tools.
const KINDS: &[ToolKind] =
    &[ToolKind { name: "function", path: &["function", "name"], accepted: &[] }];

/// Whether a request asks nothing of the model, and then whether it unloads it.
pub(super) fn is_empty(keep_alive: Option<KeepLoaded>, asks: bool) -> Option<KeepLoaded> {
    (!asks).then(|| keep_alive.unwrap_or(KeepLoaded::Yes))
}

/// The request in a body of `/api/chat`. Longer than 60 lines: all fields are taken apart in one
/// place.
///
/// # Errors
/// A field that is not served, or not with its value.
pub fn chat(request: OllamaChatRequest) -> Result<Decoded<()>> {
    let OllamaChatRequest {
        model: _, // checked by the front
        messages,
        tools,
        tool_choice,
        format,
        options,
        stream,
        think,
        keep_alive: _,
        logprobs,
        top_logprobs,
        temperature,
        top_p,
        max_output_tokens,
        paceline,
        rest,
    } = request;
    check("", &rest, OllamaChatRequest::ACCEPTED)?;
    let (messages, tools) = (messages.unwrap_or_default(), tools.unwrap_or_default());
    check_elements("messages", messages.len(), limits::MAX_TURNS)?;
    check_elements("tools", tools.len(), limits::MAX_TOOLS)?;
    let mut options = options.unwrap_or_default();
    options.temperature = options.temperature.or(temperature);
    options.top_p = options.top_p.or(top_p);
    options.num_predict = options.num_predict.or(max_output_tokens);
    let mut turns = OllamaTurns::default();
    for (at, message) in messages.into_iter().enumerate() {
        turns.add(at, message)?;
    }
    let OllamaTurns { messages, paths, .. } = turns;
    let tools = tools.into_iter().enumerate().map(|(at, one)| tool(at, one));
    let tools: Vec<ToolInput> = tools.collect::<Result<_, _>>()?;
    let choice = tool_choice.map(|choice| choice.rule(KINDS, Some("allowed_tools"), |_| false));
    let (tools, calls) = choice.transpose()?.unwrap_or_default().applied(tools, str::to_owned)?;
    let paths = FieldPaths { messages: paths, ..FieldPaths::new(FIELDS).of_tools(&tools) };
    let Wishes { params, thoughts: Thoughts { variables, effort } } =
        wishes(options, format, think, reported(logprobs, top_logprobs), paceline)?;
    let template_arguments = variables.into();
    let prompt = ConversationInput { messages, tools, calls, template_arguments, effort };
    let input = RequestInput { prompt: PromptInput::Conversation(prompt), params };
    Ok(decoded(input, stream, paths))
}

/// The request in a body of `/api/generate`. `infill` says how the model fills in the middle.
/// Longer than 60 lines: all fields are taken apart in one place.
///
/// # Errors
/// A field that is not served, or not with its value.
pub fn generate(
    request: OllamaGenerateRequest,
    infill: impl FnOnce() -> Option<Infill>,
) -> Result<Decoded<()>> {
    let OllamaGenerateRequest {
        model: _, // checked by the front
        prompt,
        suffix,
        images,
        system,
        raw,
        format,
        options,
        stream,
        think,
        keep_alive: _,
        logprobs,
        top_logprobs,
        paceline,
        rest,
    } = request;
    check("", &rest, OllamaGenerateRequest::ACCEPTED)?;
    let suffix = suffix.filter(|suffix| !suffix.is_empty());
    let system = system.filter(|system| !system.is_empty());
    let images = images.unwrap_or_default();
    let (prompt, raw) = (prompt.unwrap_or_default(), raw.unwrap_or(false));
    let reported = reported(logprobs, top_logprobs);
    let Wishes { mut params, thoughts: Thoughts { variables, effort } } =
        wishes(options.unwrap_or_default(), format, think, reported, paceline)?;
    let mut paths = FieldPaths::new(FIELDS);
    let prompt = if raw || suffix.is_some() {
        let given = [("images", !images.is_empty()), ("system", system.is_some())];
        if let Some((field, _)) = given.into_iter().find(|(_, given)| *given) {
            let expected = "nothing, because no template is used with raw or a suffix";
            return refuse(field, expected, "a value");
        }
        PromptInput::Text(match suffix {
            None => prompt,
            Some(suffix) => {
                let infill = infill().ok_or_else(|| {
                    let expected =
                        "no text, because this model's tokenizer has no markers for the middle";
                    InferenceError::invalid("suffix", expected, quoted(&suffix))
                })?;
                params.stop_token_ids.extend(infill.stop_ids());
                infill.prompt(&prompt, &suffix)
            }
        })
    } else {
        let mut messages = Vec::new();
        if let Some(system) = system {
            let content = vec![ContentPartInput::Text(system)];
            messages.push(MessageInput { role: "system".into(), content, ..Default::default() });
            paths.messages.push(place("system", 0, "", ""));
        }
        paths.messages.push(place("prompt", images.len(), "images", "prompt"));
        let mut content = shown("images", images)?;
        content.push(ContentPartInput::Text(prompt));
        messages.push(MessageInput { role: "user".into(), content, ..Default::default() });
        let template_arguments = variables.into();
        let conversation =
            ConversationInput { messages, template_arguments, effort, ..Default::default() };
        PromptInput::Conversation(conversation)
    };
    Ok(decoded(RequestInput { prompt, params }, stream, paths))
}

/// A request of either path. Ollama streams unless the client refuses it.
fn decoded(input: RequestInput, stream: Option<bool>, paths: FieldPaths) -> Decoded<()> {
    Decoded {
        input,
        more: Vec::new(),
        writer: (),
        stream: stream.unwrap_or(true),
        calls: AllowedToolCalls::All,
        paths,
    }
}

/// Parts of a request that both paths have.
struct Wishes {
    params: GenerationParams,
    thoughts: Thoughts,
}

fn wishes(
    options: OllamaOptions,
    format: Option<AnyJson>,
    think: Option<Think>,
    logprobs: Option<u32>,
    paceline: Option<Extension>,
) -> Result<Wishes> {
    let Extension { route, template_arguments, rest } = paceline.unwrap_or_default();
    check("paceline.", &rest, Extension::ACCEPTED)?;
    let variables = template_arguments.unwrap_or_default().0;
    let wish = think.map(|think| match think {
        Think::Switch(false) => Wish::Off,
        Think::Switch(true) => Wish::On,
        Think::Effort(word) => Wish::of_word(word),
    });
    let thoughts = match wish {
        None => Thoughts { variables, effort: None },
        Some(wish) => wish.thoughts("think", variables)?,
    };
    let params = GenerationParams {
        // The answer ends where the context is full, as Ollama's does.
        lower_max_tokens: true,
        route: route.map(|word| values::route(&word)).transpose()?,
        logprobs,
        shape: AnswerShape::of_text(text_form(format)?),
        ..of_options(options)?
    };
    Ok(Wishes { params, thoughts })
}

/// The parameters that the options of a request set.
fn of_options(options: OllamaOptions) -> Result<GenerationParams> {
    let OllamaOptions {
        num_predict,
        temperature,
        top_k,
        top_p,
        min_p,
        seed,
        stop,
        repeat_penalty,
        presence_penalty,
        frequency_penalty,
        rest,
    } = options;
    check("options.", &rest, OllamaOptions::ACCEPTED)?;
    Ok(GenerationParams {
        sampling: SamplingWish {
            temperature,
            top_k: top_k.map(|top_k| top_k.positive().unwrap_or(0)),
            top_p,
            min_p,
            // A factor of 0 comes from litellm, which means that there is no penalty.
            repetition_penalty: repeat_penalty
                .map(|factor| if factor == 0.0 { 1.0 } else { factor }),
            presence_penalty,
            frequency_penalty,
            ..Default::default()
        },
        seed: seed.filter(|seed| seed.0 != -1).map(|seed| seed.0.cast_unsigned()),
        max_tokens: num_predict.and_then(Cut::positive),
        stop: match stop {
            None => Vec::new(),
            Some(TextOr::Text(stop)) => vec![stop],
            Some(TextOr::List(stops)) => stops,
        },
        ..Default::default()
    })
}

/// How many of the most probable tokens are reported; `None` if no log-probabilities are.
fn reported(logprobs: Option<bool>, top: Option<TopLogprobs>) -> Option<u32> {
    let top = top.map(TopLogprobs::get);
    (logprobs == Some(true) || top.is_some_and(|top| top > 0)).then(|| top.unwrap_or(0))
}

/// Form of the answer's text that the request demands.
fn text_form(format: Option<AnyJson>) -> Result<Option<TextForm>> {
    match format.map(|AnyJson(format)| format) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(word)) if word.is_empty() => Ok(None),
        Some(Value::String(word)) if word == "json" => Ok(Some(TextForm::JsonObject)),
        Some(schema @ Value::Object(_)) => Ok(Some(TextForm::JsonSchema(schema.to_string()))),
        Some(other) => refuse("format", "\"json\" or a JSON schema", quoted(&other.to_string())),
    }
}

/// Images in base64, which are the list at `path` of the body.
fn shown(path: &str, images: Vec<String>) -> Result<Vec<ContentPartInput>> {
    check_elements(path, images.len(), limits::MAX_PARTS)?;
    let image = |(at, data): (usize, String)| {
        let file = decode_base64(&data).map_err(|problem| {
            let field = format!("{path}[{at}]");
            InferenceError::from(ImageError::Bad { field, problem })
        })?;
        Ok(ContentPartInput::Image(file.into()))
    };
    images.into_iter().enumerate().map(image).collect()
}

/// Where a message with this number of images stands, and where its images and its text do.
fn place(path: &str, images: usize, shown: &str, text: &str) -> MessagePath {
    let mut place = MessagePath::new(path);
    for at in 0..images {
        place.record(format!("content[{at}]"), format!("{shown}[{at}]"));
    }
    if !text.is_empty() {
        place.record(format!("content[{images}]"), text);
    }
    place
}

/// A conversation in the making.
#[derive(Debug, Default)]
struct OllamaTurns {
    messages: Vec<MessageInput>,
    paths: Vec<MessagePath>,
    /// Calls of the assistant's last turn that no message has answered, with their ids.
    open: Vec<OpenCall>,
    /// Calls so far.
    calls: usize,
}

/// A tool call that waits for its result.
#[derive(Debug)]
struct OpenCall {
    id: String,
    name: String,
}

impl OllamaTurns {
    /// Adds the message at this index of the body.
    fn add(&mut self, at: usize, message: OllamaMessage) -> Result<()> {
        let OllamaMessage {
            role,
            content,
            images,
            tool_calls,
            tool_name,
            tool_call_id,
            thinking,
            rest,
        } = message;
        let path = format!("messages[{at}]");
        check(&format!("{path}."), &rest, OllamaMessage::ACCEPTED)?;
        let images = images.unwrap_or_default();
        let mut place =
            place(&path, images.len(), &format!("{path}.images"), &format!("{path}.content"));
        let mut message =
            MessageInput { role, reasoning: thinking.unwrap_or_default(), ..Default::default() };
        place.record("reasoning", format!("{path}.thinking"));
        let given = [tool_call_id, tool_name].map(Option::unwrap_or_default);
        if message.role == "tool" {
            [message.tool_call_id, message.name] = self.answered(given);
        } else if let Some((field, value)) = ["tool_call_id", "tool_name"]
            .into_iter()
            .zip(given)
            .find(|(_, value)| !value.is_empty())
        {
            let expected = "nothing, as only tool turns have it";
            return refuse(&format!("{path}.{field}"), expected, quoted(&value));
        }
        message.content = shown(&format!("{path}.images"), images)?;
        for (index, call) in tool_calls.unwrap_or_default().into_iter().enumerate() {
            let call = self.call(&format!("{path}.tool_calls[{index}]."), call)?;
            let inner = format!("tool_calls[{index}]");
            for field in ["name", "arguments"] {
                place
                    .record(format!("{inner}.{field}"), format!("{path}.{inner}.function.{field}"));
            }
            message.tool_calls.push(call);
        }
        if message.role == "assistant" {
            let call =
                |call: &ToolCallInput| OpenCall { id: call.id.clone(), name: call.name.clone() };
            self.open = message.tool_calls.iter().map(call).collect();
        }
        let text = content.unwrap_or_default();
        // Clients leave an empty text out.
        if !text.is_empty() || (message.content.is_empty() && message.tool_calls.is_empty()) {
            message.content.push(ContentPartInput::Text(text));
        }
        self.messages.push(message);
        self.paths.push(place);
        Ok(())
    }

    /// A call of the assistant. One without an id gets one.
    fn call(&mut self, path: &str, call: OllamaToolCall) -> Result<ToolCallInput> {
        let OllamaToolCall { id, function, rest } = call;
        check(path, &rest, OllamaToolCall::ACCEPTED)?;
        let OllamaCalledFunction { name, arguments, rest } = function;
        check(&format!("{path}function."), &rest, OllamaCalledFunction::ACCEPTED)?;
        let number = self.calls;
        self.calls += 1;
        let id = id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("call_{number}"));
        Ok(ToolCallInput { id, name, arguments: arguments.input() })
    }

    /// Id and name of the call that a tool's message answers, from those that the message has. Some
    /// clients keep neither, and one replaces ids, so that the next call without a result is meant.
    fn answered(&mut self, [id, name]: [String; 2]) -> [String; 2] {
        let of_id = self.open.iter().position(|call| !id.is_empty() && call.id == id);
        let of_name = || self.open.iter().position(|call| !name.is_empty() && call.name == name);
        let next = || (name.is_empty() && !self.open.is_empty()).then_some(0);
        match of_id.or_else(of_name).or_else(next) {
            Some(at) => {
                let OpenCall { id, name } = self.open.remove(at);
                [id, name]
            }
            None => [id, name],
        }
    }
}

fn tool(at: usize, tool: OllamaTool) -> Result<ToolInput> {
    let OllamaTool { kind, function, rest } = tool;
    let path = format!("tools[{at}]");
    if let Some(other) = kind.filter(|kind| kind != "function") {
        return refuse(
            &format!("{path}.type"),
            "function, the type that is served",
            quoted(&other),
        );
    }
    check(&format!("{path}."), &rest, OllamaTool::ACCEPTED)?;
    let OllamaFunction { name, description, parameters, rest } = function;
    check(&format!("{path}.function."), &rest, OllamaFunction::ACCEPTED)?;
    Ok(ToolInput {
        name,
        description: description.unwrap_or_default(),
        parameters: parameters.map(JsonInput::from).unwrap_or_default(),
        strict: false,
        path,
    })
}

#[cfg(test)]
mod tests;
