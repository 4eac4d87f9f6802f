//! A request of `/v1/chat/completions` as the middle's input.
//!
//! Requests are taken apart by all their fields, so that a field that is added to the types cannot
//! be dropped in silence (I5).

use paceline_proto::limits;
use paceline_text::shape::AnswerShape;
use paceline_vocabulary::generation::TextForm;

use super::request::{
    CalledFunction, ChatCompletionRequest, ChatFields, ChatFile, ChatFunction, ChatMessage,
    ChatPart, ChatTool, ChatToolCall, ImageAddress, ImageSource, NamedSchema, ResponseFormat,
    UsageSwitch,
};
use super::thinking::{ThinkingFields, budget, thoughts};
use crate::accepted::check;
use crate::effort::Thoughts;
use crate::files::{self, FileSource, Turn};
use crate::inference::bounds::check_elements;
use crate::inference::error::{InferenceError, Result, quoted, refuse};
use crate::inference::input::{
    ContentPartInput, ConversationInput, JsonInput, MessageInput, PromptInput, RequestInput,
    ToolCallInput, ToolInput,
};
use crate::inference::params::GenerationParams;
use crate::number::{MaxTokensOrNone, OrNone, TopLogprobs};
use crate::openai::accepted;
use crate::openai::params::{Asked, Extension, FIELDS, include_usage};
use crate::paths::FieldPaths;
use crate::protocol::{AllowedToolCalls, Decoded};
use crate::values::{self, TextOr, ToolKind, detail_of, thought};

/// The type of tools.
const KINDS: &[ToolKind] =
    &[ToolKind { name: "function", path: &["function", "name"], accepted: &[] }];

/// The request in a message. Longer than 60 lines: all fields are taken apart in one place.
///
/// # Errors
/// A field that is not served, or not with its value.
pub(crate) fn chat(request: ChatCompletionRequest) -> Result<Decoded<Asked>> {
    let (fields, parameters) = request.split();
    let ChatFields {
        model: _, // checked by the front
        messages,
        tools,
        tool_choice,
        parallel_tool_calls,
        response_format,
        stream,
        stream_options,
        max_completion_tokens,
        max_tokens,
        logprobs,
        top_logprobs,
        reasoning_effort,
        enable_thinking,
        think,
        thinking,
        reasoning,
        usage,
        chat_template_kwargs,
        paceline,
        rest,
    } = fields;
    check("", &rest, accepted::CHAT)?;
    check_elements("messages", messages.len(), limits::MAX_TURNS)?;
    check_elements("tools", tools.as_ref().map_or(0, Vec::len), limits::MAX_TOOLS)?;
    let stream = stream.unwrap_or(false);
    let include_usage = include_usage(stream, stream_options)? || asks_for_usage(usage)?;
    let text = text_form(response_format)?;
    let Extension { route, template_arguments, rest } = paceline.unwrap_or_default();
    check("paceline.", &rest, Extension::ACCEPTED)?;
    let thinking = ThinkingFields {
        template_arguments,
        chat_template_kwargs,
        reasoning_effort,
        enable_thinking,
        think,
        thinking,
        reasoning,
    };
    let thinking_budget = budget(&thinking)?;
    let shape = AnswerShape { thinking_budget, ..AnswerShape::of_text(text) };
    let Thoughts { variables, effort } = thoughts(thinking)?;
    let begins_turn = |one: &ChatMessage| ["user", "assistant"].contains(&one.role.as_str());
    let newest = messages.iter().rposition(begins_turn).unwrap_or(0);
    let messages = messages.into_iter().enumerate();
    let messages = messages.map(|(at, one)| message(at, one, Turn::of(at, newest)));
    let messages = messages.collect::<Result<_, _>>()?;
    let tools = tools.unwrap_or_default().into_iter().enumerate().map(|(at, one)| tool(at, one));
    let tools: Vec<ToolInput> = tools.collect::<Result<_, _>>()?;
    let choice = tool_choice.map(|choice| choice.rule(KINDS, Some("allowed_tools"), |_| false));
    let choice = choice.transpose()?.unwrap_or_default();
    let (tools, calls) = choice.applied(tools, str::to_owned)?;
    let template_arguments = variables.into();
    let paths = FieldPaths::new(FIELDS).of_tools(&tools);
    let conversation = ConversationInput { messages, tools, calls, template_arguments, effort };
    let params = GenerationParams {
        max_tokens: most_tokens(max_completion_tokens, max_tokens)?,
        logprobs: reported(logprobs, top_logprobs)?.map(TopLogprobs::get),
        route: route.map(|word| values::route(&word)).transpose()?,
        shape,
        ..parameters?
    };
    let input = RequestInput { prompt: PromptInput::Conversation(conversation), params };
    Ok(Decoded {
        input,
        more: Vec::new(),
        writer: Asked { include_usage },
        stream,
        calls: AllowedToolCalls::one_if(parallel_tool_calls == Some(false)),
        paths,
    })
}

/// Form of the answer's text that the request demands.
fn text_form(format: Option<ResponseFormat>) -> Result<Option<TextForm>> {
    const FIELD: &str = "response_format.json_schema";
    let Some(ResponseFormat { kind, json_schema, rest }) = format else { return Ok(None) };
    check("response_format.", &rest, ResponseFormat::ACCEPTED)?;
    match (kind.as_str(), json_schema) {
        ("text", None) => Ok(None),
        ("json_object", None) => Ok(Some(TextForm::JsonObject)),
        ("json_schema", Some(NamedSchema { name: _, description: _, schema, strict: _, rest })) => {
            check(&format!("{FIELD}."), &rest, NamedSchema::ACCEPTED)?;
            match schema {
                Some(schema) => Ok(Some(TextForm::JsonSchema(schema.text()))),
                None => refuse(&format!("{FIELD}.schema"), "a JSON schema", "none"),
            }
        }
        ("json_schema", None) => refuse(FIELD, "a schema", "none"),
        ("text" | "json_object", Some(_)) => {
            refuse(FIELD, format!("nothing with the type {kind}"), "a schema")
        }
        (other, _) => {
            refuse("response_format.type", "text, json_object or json_schema", quoted(other))
        }
    }
}

/// Whether OpenRouter's field asks for the request's tokens. An answer that is whole has them anyway.
fn asks_for_usage(usage: Option<UsageSwitch>) -> Result<bool> {
    let Some(UsageSwitch { include, rest }) = usage else { return Ok(false) };
    check("usage.", &rest, UsageSwitch::ACCEPTED)?;
    Ok(include.unwrap_or(false))
}

fn most_tokens(
    newer: Option<MaxTokensOrNone>,
    older: Option<MaxTokensOrNone>,
) -> Result<Option<u32>> {
    match (newer.and_then(OrNone::get), older.and_then(OrNone::get)) {
        (Some(newer), Some(older)) if newer != older => {
            refuse("max_tokens", format!("{newer}, as max_completion_tokens has it"), older)
        }
        (newer, older) => Ok(newer.or(older)),
    }
}

fn reported(logprobs: Option<bool>, top: Option<TopLogprobs>) -> Result<Option<TopLogprobs>> {
    match (logprobs.unwrap_or(false), top) {
        (true, top) => Ok(Some(top.unwrap_or_default())),
        (false, None) => Ok(None),
        (false, Some(top)) if top.get() == 0 => Ok(None),
        (false, Some(top)) => {
            refuse("top_logprobs", "0, because `logprobs` is not true", top.get())
        }
    }
}

fn message(at: usize, message: ChatMessage, turn: Turn) -> Result<MessageInput> {
    let ChatMessage {
        role,
        content,
        name,
        tool_calls,
        tool_call_id,
        reasoning_content,
        thinking,
        reasoning,
        refusal,
        rest,
    } = message;
    let path = format!("messages[{at}].");
    check(&path, &rest, ChatMessage::ACCEPTED)?;
    let tool_calls = tool_calls.unwrap_or_default().into_iter().enumerate();
    let tool_calls: Vec<ToolCallInput> =
        tool_calls.map(|(place, call)| tool_call(&path, place, call)).collect::<Result<_, _>>()?;
    let has_no_content = match &content {
        None => true,
        Some(TextOr::Text(text)) => text.is_empty(),
        Some(TextOr::List(parts)) => parts.is_empty(),
    };
    let refusal = refusal.filter(|text| !text.is_empty());
    if refusal.is_some() && !has_no_content {
        return refuse(&format!("{path}refusal"), "nothing beside content", "a text");
    }
    let content = match content {
        // Clients store messages without a text: the model said nothing, or it refused.
        None | Some(TextOr::List(_))
            if has_no_content
                && tool_calls.is_empty()
                && (content.is_some() || role == "assistant" || role == "tool") =>
        {
            vec![ContentPartInput::Text(refusal.unwrap_or_default())]
        }
        _ if refusal.is_some() => {
            vec![ContentPartInput::Text(refusal.unwrap_or_default())]
        }
        None => Vec::new(),
        // An answer of tool calls alone has an empty text.
        Some(TextOr::Text(text)) if text.is_empty() && !tool_calls.is_empty() => Vec::new(),
        Some(TextOr::Text(text)) => vec![ContentPartInput::Text(text)],
        Some(TextOr::List(parts)) => {
            let parts = parts.into_iter().enumerate();
            let parts = parts.map(|(place, part)| content_part(&path, place, part, turn));
            parts.collect::<Result<_, _>>()?
        }
    };
    let reasoning = thought(&path, &role, [reasoning_content, thinking, reasoning])?;
    Ok(MessageInput {
        role,
        content,
        tool_calls,
        tool_call_id: tool_call_id.unwrap_or_default(),
        name: name.unwrap_or_default(),
        reasoning,
    })
}

fn content_part(path: &str, place: usize, part: ChatPart, turn: Turn) -> Result<ContentPartInput> {
    let ChatPart { kind, text, refusal, image_url, image, url, detail, file, input_audio, rest } =
        part;
    let path = format!("{path}content[{place}].");
    let field = |name: &str| format!("{path}{name}");
    let text = match (kind.as_str(), text, refusal) {
        ("refusal", None, refusal) => refusal,
        (_, text, None) => text,
        (_, _, Some(_)) => {
            let expected = "nothing, because the part is of another type";
            return refuse(&field("refusal"), expected, "a text");
        }
    };
    check(&path, &rest, ChatPart::ACCEPTED)?;
    let images = ImageFields { image_url, image, url: url.map(ImageSource::Address), detail };
    match (kind.as_str(), text) {
        ("file", None) if images.is_none() && input_audio.is_none() => {
            file_part(&field("file"), file, turn)
        }
        ("input_audio", None) if images.is_none() && file.is_none() => {
            files::sound(&field("input_audio"), turn)
        }
        (kind, _) if file.is_some() || input_audio.is_some() => {
            let other = if file.is_some() { "file" } else { "input_audio" };
            Err(alone(&field(other), kind))
        }
        ("text" | "refusal", Some(text)) if images.is_none() => Ok(ContentPartInput::Text(text)),
        ("image_url" | "input_image" | "image", None) => images.part(&path, &kind),
        (kind @ ("text" | "refusal"), _) => Err(alone(&field(kind), kind)),
        (kind @ ("image_url" | "input_image" | "image" | "file" | "input_audio"), _) => {
            Err(alone(&field("text"), kind))
        }
        (other, _) => {
            let expected = "text, image_url, input_image, image or file, the types that are served";
            refuse(&field("type"), expected, quoted(other))
        }
    }
}

/// The file of a part, which is at `path`.
fn file_part(path: &str, file: Option<ChatFile>, turn: Turn) -> Result<ContentPartInput> {
    let ChatFile { file_data, file_id, filename, rest } = file.unwrap_or_default();
    check(&format!("{path}."), &rest, ChatFile::ACCEPTED)?;
    let (name, source) = match (&file_data, &file_id) {
        (Some(data), None) => ("file_data", FileSource::Encoded(data)),
        (None, Some(_)) => ("file_id", FileSource::Elsewhere),
        _ => return Err(alone(&format!("{path}.file_data"), "file_data or file_id")),
    };
    files::file(&format!("{path}.{name}"), filename.as_deref(), &[], source, turn)
}

fn alone(field: &str, kind: &str) -> InferenceError {
    let expected = format!("a part with its {kind} alone, as its type says");
    InferenceError::invalid(field, expected, "another field or none")
}

/// Fields of a part that have an image. Each type has names of its own for it, and clients mix them.
struct ImageFields {
    image_url: Option<ImageSource>,
    image: Option<ImageSource>,
    url: Option<ImageSource>,
    detail: Option<String>,
}

impl ImageFields {
    fn is_none(&self) -> bool {
        self.image_url.is_none()
            && self.image.is_none()
            && self.url.is_none()
            && self.detail.is_none()
    }

    /// The image of a part of this type, which is at `path`.
    ///
    /// # Errors
    /// No image, two of them, or one under a name that the type has not.
    fn part(self, path: &str, kind: &str) -> Result<ContentPartInput> {
        let Self { image_url, image, url, detail } = self;
        let all = [("image_url", image_url), ("image", image), ("url", url)];
        let mut given = all.into_iter().filter_map(|(name, source)| Some((name, source?)));
        // Templates of chats have parts of type `image` with any of these.
        let is_name_of = |name: &str| name == "image_url" || kind == "image";
        let usual = if kind == "image" { "image" } else { "image_url" };
        let (name, source) = match (given.next(), given.next()) {
            (Some((name, source)), None) if is_name_of(name) => (name, source),
            (Some((name, _)), None) => return Err(alone(&format!("{path}{name}"), usual)),
            (_, Some((name, _))) => {
                let expected = "nothing, because the part has an image already";
                return refuse(&format!("{path}{name}"), expected, "another");
            }
            (None, None) => return Err(alone(&format!("{path}{usual}"), usual)),
        };
        let field = format!("{path}{name}");
        let (url, own, place) = match source {
            ImageSource::Address(url) => (url, None, format!("{path}detail")),
            ImageSource::Object(ImageAddress { url, detail, rest }) => {
                check(&format!("{field}."), &rest, ImageAddress::ACCEPTED)?;
                (url, detail, format!("{field}.detail"))
            }
        };
        let place = if own.is_some() { place } else { format!("{path}detail") };
        let detail = detail_of(&place, own.or(detail))?;
        Ok(ContentPartInput::ImageUrl { url, detail })
    }
}

fn tool_call(path: &str, place: usize, call: ChatToolCall) -> Result<ToolCallInput> {
    let ChatToolCall { id, kind, function, rest } = call;
    let path = format!("{path}tool_calls[{place}].");
    check(&path, &rest, ChatToolCall::ACCEPTED)?;
    let CalledFunction { name, arguments, rest } = function;
    check(&format!("{path}function."), &rest, CalledFunction::ACCEPTED)?;
    check_kind(&format!("{path}type"), kind.as_deref().unwrap_or("function"))?;
    Ok(ToolCallInput { id, name, arguments: arguments.input() })
}

fn tool(at: usize, tool: ChatTool) -> Result<ToolInput> {
    let ChatTool { kind, function, rest } = tool;
    let tool = format!("tools[{at}]");
    let path = format!("{tool}.");
    check_kind(&format!("{path}type"), &kind)?;
    check(&path, &rest, ChatTool::ACCEPTED)?;
    let Some(ChatFunction { name, description, parameters, strict, rest }) = function else {
        return refuse(&format!("{path}function"), "a function", "none");
    };
    check(&format!("{path}function."), &rest, ChatFunction::ACCEPTED)?;
    Ok(ToolInput {
        name,
        description: description.unwrap_or_default(),
        parameters: parameters.map(JsonInput::from).unwrap_or_default(),
        strict: strict.unwrap_or(false),
        path: tool,
    })
}

fn check_kind(field: &str, kind: &str) -> Result<()> {
    match kind {
        "function" => Ok(()),
        other => refuse(field, "function, the type that is served", quoted(other)),
    }
}

#[cfg(test)]
mod tests;
