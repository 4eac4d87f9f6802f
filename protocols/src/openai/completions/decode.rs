//! A request of `/v1/completions` as the middle's input.
//!
//! Requests are taken apart by all their fields, so that a field that is added to the types cannot
//! be dropped in silence (I5).

use paceline_proto::limits;
use paceline_text::prompt::Infill;

use super::request::{CompletionFields, CompletionRequest};
use crate::accepted::check;
use crate::inference::bounds::{MAX_PROMPTS, check_elements};
use crate::inference::error::{InferenceError, Result, quoted, refuse};
use crate::inference::input::{PromptInput, RequestInput};
use crate::inference::params::GenerationParams;
use crate::number::{MaxTokensOrNone, TopLogprobs};
use crate::openai::accepted;
use crate::openai::params::{Asked, Extension, FIELDS, include_usage};
use crate::paths::FieldPaths;
use crate::protocol::{AllowedToolCalls, Decoded};
use crate::values::{self, Prompt};

/// Most tokens of an answer whose request does not say. The protocol has this number.
const DEFAULT_TOKENS: u32 = 16;

/// The request in a message. `infill` says how the model fills in the middle.
/// Longer than 60 lines: all fields are taken apart in one place.
///
/// # Errors
/// A field that is not served, or not with its value.
pub(crate) fn completion(
    request: CompletionRequest,
    infill: impl FnOnce() -> Option<Infill>,
) -> Result<Decoded<Asked>> {
    let (fields, parameters) = request.split();
    let CompletionFields {
        model: _, // checked by the front
        mut prompt,
        suffix,
        stream,
        stream_options,
        max_tokens,
        best_of: _, // one, by its type
        echo,
        logprobs,
        paceline,
        rest,
    } = fields;
    check("", &rest, accepted::COMPLETIONS)?;
    let stream = stream.unwrap_or(false);
    let include_usage = include_usage(stream, stream_options)?;
    if echo == Some(true) {
        return refuse("echo", "false, the value that is served", true);
    }
    let Extension { route, template_arguments, rest } = paceline.unwrap_or_default();
    check("paceline.", &rest, Extension::ACCEPTED)?;
    if template_arguments.is_some() {
        let field = "paceline.template_arguments";
        return refuse(field, "nothing, because no template is used for a text", "variables");
    }
    let mut parameters = parameters?;
    if let Some(suffix) = suffix.filter(|suffix| !suffix.is_empty()) {
        let infill = infill().ok_or_else(|| {
            let expected = "no text, because this model's tokenizer has no markers for the middle";
            InferenceError::invalid("suffix", expected, quoted(&suffix))
        })?;
        prompt = filled(prompt, &suffix, &infill)?;
        parameters.stop_token_ids.extend(infill.stop_ids());
    }
    let params = GenerationParams {
        max_tokens: match max_tokens {
            None => Some(DEFAULT_TOKENS.max(parameters.min_tokens)),
            Some(most) => MaxTokensOrNone::get(most),
        },
        logprobs: logprobs.map(TopLogprobs::get),
        route: route.map(|word| values::route(&word)).transpose()?,
        ..parameters
    };
    let input = |prompt| RequestInput { prompt, params: params.clone() };
    let mut inputs = prompts(prompt)?.into_iter().map(input);
    let no_prompt = || InferenceError::invalid("prompt", "at least one prompt", "none");
    Ok(Decoded {
        input: inputs.next().ok_or_else(no_prompt)?,
        more: inputs.collect(),
        writer: Asked { include_usage },
        stream,
        calls: AllowedToolCalls::All,
        paths: FieldPaths::new(FIELDS),
    })
}

/// A prompt whose answer stands before `suffix`. Several prompts would each repeat it.
fn filled(prompt: Prompt, suffix: &str, infill: &Infill) -> Result<Prompt> {
    let refused = |found| {
        refuse("prompt", "one text, because the answer stands between it and the suffix", found)
    };
    match prompt {
        Prompt::Text(text) => Ok(Prompt::Text(infill.prompt(&text, suffix))),
        Prompt::Texts(texts) => match &texts[..] {
            [text] => Ok(Prompt::Text(infill.prompt(text, suffix))),
            _ => refused("several"),
        },
        Prompt::Tokens(_) | Prompt::TokenLists(_) => refused("token ids"),
    }
}

/// The prompts of a request.
fn prompts(prompt: Prompt) -> Result<Vec<PromptInput>> {
    match prompt {
        Prompt::Text(text) => Ok(vec![PromptInput::Text(text)]),
        Prompt::Tokens(ids) => Ok(vec![prompt_ids("prompt", ids)?]),
        Prompt::Texts(texts) => {
            check_elements("prompt", texts.len(), MAX_PROMPTS)?;
            Ok(texts.into_iter().map(PromptInput::Text).collect())
        }
        Prompt::TokenLists(lists) => {
            check_elements("prompt", lists.len(), MAX_PROMPTS)?;
            let ids = |(at, ids)| prompt_ids(&format!("prompt[{at}]"), ids);
            lists.into_iter().enumerate().map(ids).collect()
        }
    }
}

/// A prompt of these token ids.
fn prompt_ids(field: &str, ids: Vec<u32>) -> Result<PromptInput> {
    check_elements(field, ids.len(), limits::MAX_TOKEN_IDS)?;
    Ok(PromptInput::Ids(ids))
}
