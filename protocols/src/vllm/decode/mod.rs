//! Messages of the engine protocol as inputs of [`crate::inference`].
//!
//! Messages are taken apart by all their fields, so that a field that is added to the contract
//! cannot be dropped in silence (I5). What is not served is refused by the name that it has in the
//! protocol.

use std::collections::HashMap;

use paceline_proto::smg::grpc::common::Modality;
use paceline_proto::vllm::grpc::engine as vllm;
use paceline_text::grammar::{AnswerForm, one_of};
use paceline_text::images::{Detail, EncodedImage, ImageSource};
use paceline_text::shape::AnswerShape;
use paceline_vocabulary::generation::TextForm;
use paceline_vocabulary::sampling::{LogitBias, SamplingWish};
use vllm::sampling_params::Constraint;

use crate::inference::bounds::SampleCount;
use crate::inference::error::{InferenceError, Result, refuse};
use crate::inference::input::{PromptInput, RequestInput};
use crate::inference::params::GenerationParams;

/// Longest name that a router may give a request, in bytes. Routers use identifiers of 36 to 64.
const MAX_NAME_BYTES: usize = 256;
/// Sign of a rule in GBNF, which Lark does not have.
const GBNF_SIGN: &str = "::=";

/// How a router wants the answer to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerWish {
    /// The router's name of the request.
    pub name: String,
    /// Whether the answer comes in pieces.
    pub in_pieces: bool,
    /// Ids that end the answer besides the model's own.
    pub stop_token_ids: Vec<u32>,
    /// Most probable tokens that are reported at each token.
    pub logprobs: Option<u32>,
}

/// The request in a Generate message.
///
/// # Errors
/// The first field that is not served.
pub fn generate(message: vllm::GenerateRequest) -> Result<(RequestInput, AnswerWish)> {
    use vllm::generate_request::Input;
    let vllm::GenerateRequest {
        request_id: name,
        input,
        sampling_params,
        stream: in_pieces,
        kv_transfer_params,
        mm_inputs,
        kv_transfer_params_json,
        data_parallel_rank,
        media_refs,
        extra_mm_inputs,
    } = message;
    check_name(&name)?;
    let hands_over = kv_transfer_params.is_some() || kv_transfer_params_json.is_some();
    check_absent(
        hands_over,
        "kv_transfer_params",
        "nothing: prefill and decoding are one service here",
    )?;
    let has_tensors = mm_inputs.is_some() || !extra_mm_inputs.is_empty();
    check_absent(has_tensors, "mm_inputs", "media_refs: this service reads images itself")?;
    check_rank("data_parallel_rank", data_parallel_rank)?;
    let images = media_refs.map(images).transpose()?;
    let prompt = match (input, images) {
        (None, _) => {
            return refuse("input", "tokenized or text", "neither");
        }
        (Some(Input::Text(text)), None) => PromptInput::Text(text),
        (Some(Input::Text(_)), Some(_)) => {
            return refuse("input", "tokenized, with a placeholder for each of media_refs", "text");
        }
        // `original_text` is for the logs of others: the ids are the prompt.
        (Some(Input::Tokenized(vllm::TokenizedInput { input_ids, original_text: _ })), None) => {
            PromptInput::Ids(input_ids)
        }
        (Some(Input::Tokenized(tokenized)), Some(images)) => {
            PromptInput::IdsWithImages { ids: tokenized.input_ids, images }
        }
    };
    let params = sampling_params.map(params).transpose()?.unwrap_or_default();
    let wish = AnswerWish {
        name,
        in_pieces,
        stop_token_ids: params.stop_token_ids.clone(),
        logprobs: params.logprobs,
    };
    // A router knows neither the length of the context that is left nor the tokens of an image.
    let params = GenerationParams { lower_max_tokens: true, report_usage: true, ..params };
    Ok((RequestInput { prompt, params }, wish))
}

/// Checks a number of a replica: there is one.
pub fn check_rank(field: &str, rank: Option<i32>) -> Result<()> {
    match rank {
        None | Some(0) => Ok(()),
        Some(rank) => refuse(field, "0: this service is one replica", rank),
    }
}

/// Checks a router's name of a request.
pub fn check_name(name: &str) -> Result<()> {
    if name.len() <= MAX_NAME_BYTES {
        return Ok(());
    }
    refuse("request_id", format!("at most {MAX_NAME_BYTES} bytes"), name.len())
}

/// Refuses a field that is set.
fn check_absent(is_set: bool, field: &str, expected: &str) -> Result<()> {
    if is_set { refuse(field, expected, "a value") } else { Ok(()) }
}

fn images(refs: vllm::MediaRefs) -> Result<Vec<EncodedImage>> {
    let image = |(at, vllm::MediaRef { modality, url }): (usize, vllm::MediaRef)| {
        let is_image = modality == Modality::Image as i32 || modality == 0;
        if !is_image {
            let field = format!("media_refs.items[{at}].modality");
            return refuse(&field, "IMAGE", format!("the number {modality}"));
        }
        let (field, source) = (format!("media_refs.items[{at}]"), ImageSource::Address(url));
        Ok(EncodedImage { field, source, detail: Detail::Full })
    };
    refs.items.into_iter().enumerate().map(image).collect()
}

/// Longer than 60 lines: all fields are taken apart in one place.
fn params(params: vllm::SamplingParams) -> Result<GenerationParams> {
    let vllm::SamplingParams {
        temperature,
        top_p,
        top_k,
        min_p,
        frequency_penalty,
        presence_penalty,
        repetition_penalty,
        max_tokens,
        min_tokens,
        stop,
        stop_token_ids,
        skip_special_tokens,
        // Both are about the text, which the router makes.
        spaces_between_special_tokens: _,
        include_stop_str_in_output: _,
        ignore_eos,
        n,
        logprobs,
        prompt_logprobs,
        seed,
        logit_bias: biases,
        truncate_prompt_tokens,
        grammar_from_first_token,
        constraint,
    } = params;
    check_absent(prompt_logprobs.is_some(), "prompt_logprobs", "nothing: they are not served")?;
    let expected = "nothing: send the ids that the prompt is to have";
    check_absent(truncate_prompt_tokens.is_some(), "truncate_prompt_tokens", expected)?;
    let off = |number: f32| if number == 0.0 { 1.0 } else { number };
    let sampling = SamplingWish {
        temperature,
        top_p: Some(off(top_p)),
        top_k: Some(top_k),
        min_p: Some(min_p),
        frequency_penalty: Some(frequency_penalty),
        presence_penalty: Some(presence_penalty),
        repetition_penalty: Some(off(repetition_penalty)),
        ..SamplingWish::default()
    };
    let counted = |count: i32| {
        u32::try_from(count)
            .map_err(|_| InferenceError::invalid("sampling_params.logprobs", "0 to 20", count))
    };
    let shape = constraint.map(shape).transpose()?.unwrap_or_default();
    Ok(GenerationParams {
        sampling,
        // As programs write a negative seed of 64 bits; -1 is the engine's word for none.
        seed: seed.filter(|seed| *seed != -1).map(|seed| i64::from(seed) as u64),
        logit_bias: logit_bias(biases)?,
        max_tokens,
        min_tokens,
        ignore_eos,
        show_special: !skip_special_tokens,
        stop_token_ids,
        stop,
        logprobs: logprobs.map(counted).transpose()?,
        samples: SampleCount::checked(n)?,
        shape: AnswerShape { after_thought: !grammar_from_first_token, ..shape },
        ..GenerationParams::default()
    })
}

fn logit_bias(biases: HashMap<i32, f32>) -> Result<Vec<LogitBias>> {
    let mut biases: Vec<(i32, f32)> = biases.into_iter().collect();
    // The order of a map is none; errors name the same entry each time.
    biases.sort_by_key(|(id, _)| *id);
    let bias = |(id, bias): (i32, f32)| match u32::try_from(id) {
        Ok(token_id) => Ok(LogitBias { token_id, bias }),
        Err(_) => refuse("sampling_params.logit_bias", "token ids", id),
    };
    biases.into_iter().map(bias).collect()
}

/// What a constraint asks of the answer.
fn shape(constraint: Constraint) -> Result<AnswerShape> {
    let text = match constraint {
        Constraint::StructuralTag(tag) => {
            let channels = AnswerForm::of_structural_tag("sampling_params.structural_tag", &tag)?;
            return Ok(AnswerShape { channels: Some(channels), ..AnswerShape::default() });
        }
        Constraint::JsonSchema(text) => Ok(TextForm::JsonSchema(text)),
        Constraint::Regex(text) => Ok(TextForm::Regex(text)),
        Constraint::JsonObject(true) => Ok(TextForm::JsonObject),
        Constraint::JsonObject(false) => refuse("sampling_params.json_object", "true", "false"),
        Constraint::Grammar(text) if text.contains(GBNF_SIGN) => {
            let expected = "a grammar in Lark syntax, whose rules are written NAME: …";
            refuse("sampling_params.grammar", expected, "::=, which is GBNF")
        }
        Constraint::Grammar(text) => Ok(TextForm::Lark(text)),
        Constraint::Choice(vllm::ChoiceConstraint { choices }) if choices.is_empty() => {
            refuse("sampling_params.choice", "at least one text", "none")
        }
        Constraint::Choice(vllm::ChoiceConstraint { choices }) => Ok(one_of(&choices)),
    };
    Ok(AnswerShape::of_text(Some(text?)))
}

#[cfg(test)]
mod tests;
