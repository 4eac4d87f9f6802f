//! Messages of inference.proto as inputs of [`crate::inference`]. Only errors of the protocol
//! itself are found here: parts without a kind, enums with unknown numbers.
//!
//! Messages are taken apart by all their fields, so that a field that is added to the contract
//! cannot be dropped in silence (I5).

use paceline_proto::v1;
use paceline_text::images::Detail;
use paceline_text::json::JsonBudget;
use paceline_text::prompt::conversation::Effort;
use paceline_text::shape::AnswerShape;
use paceline_vocabulary::RouteWish;
use paceline_vocabulary::generation::TextForm;
use paceline_vocabulary::sampling::{LogitBias, SamplingWish};

use crate::effort::{self, Thoughts, Wish};
use crate::inference::bounds::SampleCount;
use crate::inference::error::{InferenceError, Result, quoted, refuse};
use crate::inference::input::{
    ContentPartInput, ConversationInput, JsonInput, MessageInput, PromptInput, RequestInput,
    ToolCallInput, ToolCallRule, ToolInput,
};
use crate::inference::params::GenerationParams;

/// A request whose tokens are counted.
pub struct CountInput {
    /// The prompt, as of any request.
    pub input: RequestInput,
    /// Whether the ids are sent as well.
    pub report_ids: bool,
}

/// The request in a Generate message.
///
/// # Errors
/// There is no prompt; an enum has an unknown number.
pub fn generate(message: v1::GenerateRequest) -> Result<RequestInput> {
    use v1::generate_request::Prompt;
    let v1::GenerateRequest {
        model,
        prompt,
        sampling,
        limits,
        route,
        report_margins,
        samples,
        logprobs,
        grammar,
    } = message;
    let prompt = match prompt {
        None => return refuse("prompt", "text or token_ids", "neither"),
        Some(Prompt::Text(text)) => PromptInput::Text(text),
        Some(Prompt::TokenIds(list)) => PromptInput::Ids(list.ids),
    };
    let (route, shape) = (route_wish(route)?, AnswerShape::of_text(text_form(grammar)?));
    let (rest, samples) = (params(sampling, limits), SampleCount::checked(samples)?);
    let params =
        GenerationParams { model, route, report_margins, samples, logprobs, shape, ..rest };
    Ok(RequestInput { prompt, params })
}

/// The request in a Chat message.
///
/// # Errors
/// A part has no known kind; an enum has an unknown number; `template_arguments` contradict
/// `reasoning_effort`.
pub fn chat(message: v1::ChatRequest) -> Result<RequestInput> {
    let v1::ChatRequest {
        model,
        messages,
        sampling,
        limits,
        route,
        report_margins,
        samples,
        logprobs,
        tools,
        template_arguments,
        grammar,
        tool_choice,
        reasoning_effort,
        thinking_budget,
    } = message;
    let (route, shape) = (route_wish(route)?, AnswerShape::of_text(text_form(grammar)?));
    let shape = AnswerShape { thinking_budget, ..shape };
    let (rest, samples) = (params(sampling, limits), SampleCount::checked(samples)?);
    let params =
        GenerationParams { model, route, report_margins, samples, logprobs, shape, ..rest };
    let messages = messages.into_iter().enumerate();
    let messages = messages.map(|(at, message)| conversation_message(at, message));
    let tool = |v1::Tool { name, description, parameters, strict }| ToolInput {
        name,
        description,
        parameters: JsonInput::Text(parameters),
        strict,
        path: String::new(),
    };
    let choice = tool_rule(tool_choice)?;
    let tools = if choice.is_some() { tools } else { Vec::new() };
    let (template_arguments, effort) = thinking(template_arguments, &reasoning_effort)?;
    let conversation = ConversationInput {
        messages: messages.collect::<Result<_, _>>()?,
        tools: tools.into_iter().map(tool).collect(),
        calls: choice.unwrap_or_default(),
        template_arguments,
        effort,
    };
    Ok(RequestInput { prompt: PromptInput::Conversation(conversation), params })
}

/// The variables of the template with what the effort sets, and the effort if the template's word
/// for it has to be found.
fn thinking(template_arguments: String, effort: &str) -> Result<(JsonInput, Option<Effort>)> {
    let template_arguments = JsonInput::Text(template_arguments);
    if effort.is_empty() {
        return Ok((template_arguments, None));
    }
    let variables = JsonBudget::default().object("template_arguments", &template_arguments)?;
    let wish = Wish::of_word(effort.to_owned());
    let Thoughts { variables, effort } = wish.thoughts(effort::REASONING_EFFORT, variables)?;
    Ok((variables.into(), effort))
}

/// The request in a CountTokens message.
///
/// # Errors
/// There is none; those of [`generate`] and [`chat`].
pub fn count(message: v1::CountTokensRequest) -> Result<CountInput> {
    use v1::count_tokens_request::Request as Kind;
    let v1::CountTokensRequest { request, report_ids } = message;
    let input = match request {
        Some(Kind::Generate(message)) => generate(message)?,
        Some(Kind::Chat(message)) => chat(message)?,
        None => return refuse("request", "generate or chat", "neither"),
    };
    Ok(CountInput { input, report_ids })
}

fn conversation_message(at: usize, message: v1::Message) -> Result<MessageInput> {
    let v1::Message { role, content, tool_calls, tool_call_id, name, reasoning } = message;
    let parts = content.into_iter().enumerate();
    let parts = parts.map(|(place, part)| content_part(at, place, part));
    let tool_call = |v1::ToolCall { id, name, arguments }| {
        let arguments = JsonInput::Text(arguments);
        ToolCallInput { id, name, arguments }
    };
    Ok(MessageInput {
        role,
        content: parts.collect::<Result<_, _>>()?,
        tool_calls: tool_calls.into_iter().map(tool_call).collect(),
        tool_call_id,
        name,
        reasoning,
    })
}

fn content_part(at: usize, place: usize, part: v1::ContentPart) -> Result<ContentPartInput> {
    use v1::content_part::Part;
    match part.part {
        Some(Part::Text(text)) => Ok(ContentPartInput::Text(text)),
        Some(Part::Image(image)) => Ok(ContentPartInput::Image(image.data)),
        Some(Part::ImageUrl(image)) => {
            Ok(ContentPartInput::ImageUrl { url: image.url, detail: Detail::Full })
        }
        None => {
            let field = format!("messages[{at}].content[{place}]");
            refuse(&field, "text, image or image_url", "a part of no known type")
        }
    }
}

fn params(sampling: Option<v1::Sampling>, limits: Option<v1::Limits>) -> GenerationParams {
    let v1::Limits { max_tokens, ignore_eos, min_tokens, stop_token_ids, stop } =
        limits.unwrap_or_default();
    let sampling = sampling.unwrap_or_default();
    GenerationParams {
        sampling: SamplingWish::from(&sampling),
        seed: sampling.seed,
        logit_bias: sampling.logit_bias.into_iter().map(LogitBias::from).collect(),
        max_tokens,
        min_tokens,
        ignore_eos,
        stop_token_ids,
        stop,
        ..Default::default()
    }
}

/// Form of the answer's text that the request demands.
fn text_form(grammar: Option<v1::Grammar>) -> Result<Option<TextForm>> {
    use v1::grammar::Kind;
    let Some(v1::Grammar { kind }) = grammar else { return Ok(None) };
    match kind {
        Some(Kind::JsonSchema(text)) => Ok(Some(TextForm::JsonSchema(text))),
        Some(Kind::JsonObject(v1::JsonObject {})) => Ok(Some(TextForm::JsonObject)),
        Some(Kind::Regex(text)) => Ok(Some(TextForm::Regex(text))),
        Some(Kind::Lark(text)) => Ok(Some(TextForm::Lark(text))),
        None => refuse("grammar", "json_schema, json_object, regex or lark", "none of them"),
    }
}

/// How the model uses the tools; `None` if they are left out.
fn tool_rule(choice: Option<v1::ToolChoice>) -> Result<Option<ToolCallRule>> {
    let Some(v1::ToolChoice { mode, name }) = choice else { return Ok(Some(ToolCallRule::Auto)) };
    let mode = v1::ToolMode::try_from(mode).map_err(|_| {
        let found = format!("the unknown number {mode}");
        InferenceError::invalid("tool_choice.mode", "a ToolMode (0 to 4)", found)
    })?;
    if mode != v1::ToolMode::Named && !name.is_empty() {
        let expected = "nothing, because the mode is not TOOL_MODE_NAMED";
        return refuse("tool_choice.name", expected, quoted(&name));
    }
    Ok(match mode {
        v1::ToolMode::Unspecified | v1::ToolMode::Auto => Some(ToolCallRule::Auto),
        v1::ToolMode::None => None,
        v1::ToolMode::Required => Some(ToolCallRule::Required),
        v1::ToolMode::Named => Some(ToolCallRule::Named(name)),
    })
}

/// The lane that a client asks for; `None` if it leaves the choice to the service.
fn route_wish(number: i32) -> Result<Option<RouteWish>> {
    let wish = v1::RouteWish::try_from(number).map_err(|_| {
        let found = format!("the unknown number {number}");
        InferenceError::invalid("route", "a RouteWish (0 to 3)", found)
    })?;
    Ok(RouteWish::try_from(wish).ok())
}

#[cfg(test)]
mod tests {
    use paceline_proto::v1::content_part::Part;
    use paceline_proto::v1::generate_request::Prompt;
    use paceline_proto::v1::grammar::Kind;
    use paceline_vocabulary::Reason;

    use super::*;

    #[track_caller]
    fn refused(outcome: Result<RequestInput, InferenceError>, field: &str, word: &str) {
        let error = outcome.expect_err("a broken message");
        assert_eq!((error.kind, error.field.as_deref()), (Reason::InvalidArgument, Some(field)));
        assert!(error.message.contains(word), "{word:?} in {error}");
    }

    #[test]
    fn a_message_without_a_prompt_or_with_unknown_enums_is_refused() {
        refused(generate(v1::GenerateRequest::default()), "prompt", "neither");
        let prompt = Some(Prompt::TokenIds(v1::TokenIds { ids: vec![5] }));
        for route in [9, -1] {
            let message =
                v1::GenerateRequest { route, prompt: prompt.clone(), ..Default::default() };
            refused(generate(message), "route", &route.to_string());
        }
        let part = |part| v1::ContentPart { part };
        let content = vec![part(Some(Part::Text("a".into()))), part(None)];
        let message = v1::Message { role: "user".into(), content, ..Default::default() };
        let chat_request = v1::ChatRequest { messages: vec![message], ..Default::default() };
        refused(chat(chat_request), "messages[0].content[1]", "no known type");
    }

    fn choice(mode: i32, name: &str) -> Option<v1::ToolChoice> {
        Some(v1::ToolChoice { mode, name: name.into() })
    }

    #[test]
    fn a_choice_of_tools_keeps_them_or_leaves_them_out() {
        let tools = vec![v1::Tool { name: "f".into(), ..Default::default() }];
        let decoded = |mode: i32, name: &str| {
            let tool_choice = choice(mode, name);
            chat(v1::ChatRequest { tools: tools.clone(), tool_choice, ..Default::default() })
        };
        let rule = |mode: v1::ToolMode, name: &str| match decoded(mode.into(), name)
            .expect("a choice")
            .prompt
        {
            PromptInput::Conversation(input) => (input.tools.len(), input.calls),
            other => panic!("{other:?}"),
        };
        assert_eq!(rule(v1::ToolMode::Auto, ""), (1, ToolCallRule::Auto));
        assert_eq!(rule(v1::ToolMode::Unspecified, ""), (1, ToolCallRule::Auto));
        assert_eq!(rule(v1::ToolMode::None, ""), (0, ToolCallRule::Auto));
        assert_eq!(rule(v1::ToolMode::Required, ""), (1, ToolCallRule::Required));
        assert_eq!(rule(v1::ToolMode::Named, "f"), (1, ToolCallRule::Named("f".into())));
        refused(decoded(7, ""), "tool_choice.mode", "7");
        refused(decoded(v1::ToolMode::Required.into(), "f"), "tool_choice.name", "f");
    }

    #[test]
    fn the_effort_is_a_variable_of_the_template_or_finds_its_word() {
        let decoded = |effort: &str, arguments: &str| {
            let (reasoning_effort, template_arguments) = (effort.into(), arguments.into());
            chat(v1::ChatRequest { reasoning_effort, template_arguments, ..Default::default() })
        };
        let set = |effort: &str, arguments: &str| match decoded(effort, arguments)
            .expect("served")
            .prompt
        {
            PromptInput::Conversation(input) => {
                (input.template_arguments.text().into_owned(), input.effort)
            }
            other => panic!("{other:?}"),
        };
        let off = "{\"enable_thinking\":false}";
        assert_eq!(set("", "{\"a\": 1}"), ("{\"a\": 1}".into(), None));
        assert_eq!(set("none", ""), (off.into(), None));
        assert_eq!(set("none", off), (off.into(), None));
        assert_eq!(set("high", "{\"a\":1}"), ("{\"a\":1}".into(), Some(Effort::High)));
        let own = "{\"reasoning_effort\":\"deep\"}";
        assert_eq!(set("deep", ""), (own.into(), None));
        refused(decoded("none", "{\"enable_thinking\": true}"), "reasoning_effort", "true");
        refused(decoded("low", own), "reasoning_effort", "deep");
        refused(decoded("low", "[]"), "template_arguments", "JSON object");
    }

    #[test]
    fn each_kind_of_grammar_is_decoded() {
        let form = |kind: Option<Kind>| {
            let prompt = Some(Prompt::TokenIds(v1::TokenIds { ids: vec![5] }));
            let grammar = Some(v1::Grammar { kind });
            generate(v1::GenerateRequest { prompt, grammar, ..Default::default() })
        };
        for (kind, expected) in [
            (Kind::JsonSchema("{}".into()), TextForm::JsonSchema("{}".into())),
            (Kind::JsonObject(v1::JsonObject {}), TextForm::JsonObject),
            (Kind::Regex("a*".into()), TextForm::Regex("a*".into())),
            (Kind::Lark("start: \"a\"".into()), TextForm::Lark("start: \"a\"".into())),
        ] {
            assert_eq!(form(Some(kind)).expect("a grammar").params.shape.text, Some(expected));
        }
        refused(form(None), "grammar", "none of them");
    }

    #[test]
    fn every_parameter_is_decoded() {
        let sampling = v1::Sampling {
            temperature: Some(0.5),
            top_k: Some(9),
            top_p: Some(0.8),
            min_p: Some(0.1),
            seed: Some(7),
            repetition_penalty: Some(1.1),
            presence_penalty: Some(0.5),
            frequency_penalty: Some(-0.5),
            logit_bias: vec![v1::LogitBias { token_id: 4095, bias: 1.5 }],
            top_a: Some(0.2),
        };
        let limits = v1::Limits {
            max_tokens: Some(3),
            ignore_eos: true,
            min_tokens: 2,
            stop_token_ids: vec![9],
            stop: vec!["end".into()],
        };
        let message = v1::ChatRequest {
            model: "m".into(),
            sampling: Some(sampling),
            limits: Some(limits),
            route: v1::RouteWish::Plain.into(),
            report_margins: true,
            samples: 4,
            logprobs: Some(3),
            grammar: Some(v1::Grammar { kind: Some(Kind::JsonObject(v1::JsonObject {})) }),
            thinking_budget: Some(2048),
            ..Default::default()
        };
        let expected = GenerationParams {
            show_special: false,
            model: "m".into(),
            sampling: SamplingWish {
                temperature: Some(0.5),
                top_k: Some(9),
                top_p: Some(0.8),
                min_p: Some(0.1),
                top_a: Some(0.2),
                repetition_penalty: Some(1.1),
                presence_penalty: Some(0.5),
                frequency_penalty: Some(-0.5),
            },
            seed: Some(7),
            logit_bias: vec![LogitBias { token_id: 4095, bias: 1.5 }],
            max_tokens: Some(3),
            lower_max_tokens: false,
            drop_oldest: false,
            min_tokens: 2,
            ignore_eos: true,
            stop_token_ids: vec![9],
            stop: vec!["end".into()],
            route: Some(RouteWish::Plain),
            report_margins: true,
            report_usage: false,
            logprobs: Some(3),
            samples: SampleCount::checked(4).expect("few"),
            shape: AnswerShape {
                text: Some(TextForm::JsonObject),
                thinking_budget: Some(2048),
                ..Default::default()
            },
        };
        assert_eq!(chat(message).expect("every enum is known").params, expected);
    }

    #[test]
    fn every_field_of_a_conversation_is_decoded() {
        let part = |part| v1::ContentPart { part: Some(part) };
        let message = v1::Message {
            role: "assistant".into(),
            content: vec![
                part(Part::Text("t".into())),
                part(Part::Image(v1::Image { data: vec![1].into() })),
                part(Part::ImageUrl(v1::ImageUrl { url: "data:,".into() })),
            ],
            tool_calls: vec![v1::ToolCall {
                id: "c".into(),
                name: "f".into(),
                arguments: "{}".into(),
            }],
            tool_call_id: "d".into(),
            name: "n".into(),
            reasoning: "r".into(),
        };
        let (name, description) = ("f".to_owned(), "d".to_owned());
        let tool = v1::Tool { name, description, parameters: "{}".into(), strict: true };
        let input = chat(v1::ChatRequest {
            messages: vec![message],
            tools: vec![tool],
            tool_choice: choice(v1::ToolMode::Named.into(), "f"),
            template_arguments: "{\"x\": 1}".into(),
            reasoning_effort: "high".into(),
            ..Default::default()
        });
        let message = MessageInput {
            role: "assistant".into(),
            content: vec![
                ContentPartInput::Text("t".into()),
                ContentPartInput::Image(vec![1].into()),
                ContentPartInput::ImageUrl { url: "data:,".into(), detail: Detail::Full },
            ],
            tool_calls: vec![ToolCallInput {
                id: "c".into(),
                name: "f".into(),
                arguments: "{}".into(),
            }],
            tool_call_id: "d".into(),
            name: "n".into(),
            reasoning: "r".into(),
        };
        let (name, description) = ("f".to_owned(), "d".to_owned());
        let parameters = "{}".into();
        let tool = ToolInput { name, description, parameters, strict: true, ..Default::default() };
        let conversation = ConversationInput {
            messages: vec![message],
            tools: vec![tool],
            calls: ToolCallRule::Named("f".into()),
            template_arguments: serde_json::json!({"x": 1}).into(),
            effort: Some(Effort::High),
        };
        let prompt = input.expect("every part is known").prompt;
        assert_eq!(prompt, PromptInput::Conversation(conversation));
    }
}
