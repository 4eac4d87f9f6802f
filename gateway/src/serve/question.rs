//! Calls that generate nothing: how long a prompt is, what is served. By the code that serves
//! requests, so that the answers are what a request meets.

use paceline_process::clock::monotonic_ns;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::strict::Deferred;
use paceline_proto::v1;
use tonic::{Code, Request, Response, Status};

use super::gate::Arrival;
use super::{InferenceService, Prepared, chat_asked, generate_asked, guarded};
use crate::error::{self, invalid};
use crate::images::ReservedTokens;
use crate::record::Record;
use crate::request::{Asked, Identity, check_model};
use crate::sampling::SamplingRule;

impl InferenceService {
    /// Counts the tokens of a request's prompt.
    pub(super) async fn count(
        &self,
        request: Request<Deferred<v1::CountTokensRequest>>,
    ) -> Result<Response<v1::CountTokensResponse>, Status> {
        let (metadata, mut extensions, message) = request.into_parts();
        // Held until the end: the call counts among those inside.
        let arrival: Option<Arrival> = extensions.remove();
        let arrived_ns = arrival.as_ref().map_or_else(monotonic_ns, |arrival| arrival.at_ns);
        let request_id = paceline_proto::ids::draw_request_id();
        let mut record = Record::new("CountTokens", request_id.as_str(), arrived_ns);
        let counted = async {
            let deadline = self.deadline(&metadata, arrived_ns)?;
            let who = Identity::new(request_id.as_str(), deadline.at_ns, None);
            let counting = async {
                let (asked, report_ids) = self.decoding.read(message, count_asked).await?;
                let Prepared { serving, generation, inspected, .. } =
                    self.prepare(asked, who, &mut record).await?;
                // An image that could not be served has no number of tokens.
                self.images.verify(inspected).await?;
                Ok((generation.prompt_ids, report_ids, serving))
            };
            let (ids, report_ids, serving) = self.within(deadline, counting).await?;
            Ok(v1::CountTokensResponse {
                prompt_tokens: u32::try_from(ids.len()).unwrap_or(u32::MAX),
                context_length: serving.model.context_length,
                token_ids: if report_ids { ids } else { Vec::new() },
            })
        };
        match guarded(counted, &request_id).await {
            Ok(answer) => {
                record.ended(Code::Ok, None);
                Ok(Response::new(answer))
            }
            Err(status) => {
                record.ended(status.code(), Reason::of(&status));
                Err(error::with_request_id(status, request_id.as_str()))
            }
        }
    }

    /// The served model.
    pub(super) fn describe(&self, asked: &str) -> Result<v1::GetModelResponse, Status> {
        let model = self.standing.borrow().serving()?.model;
        check_model(asked, &model)?;
        let language = self.prompter.language();
        let template = language.template.as_ref();
        Ok(v1::GetModelResponse {
            architecture: model.architecture,
            vocab_size: model.vocab_size,
            context_length: model.context_length,
            max_prompt_tokens: self.limits.max_prompt_tokens.or(model.context_length),
            max_new_tokens: self.limits.max_new_tokens.or(model.context_length),
            chat: template.is_some(),
            tools: template.is_some_and(crate::prompt::Template::knows_tools),
            vision: model.vision && language.images.is_some(),
            default_sampling: Some(spelled_out(&language.sampling)),
            stop_token_ids: language
                .stop_ids
                .iter()
                .copied()
                .filter(|id| *id < model.vocab_size)
                .collect(),
            name: model.name,
        })
    }
}

/// Whose tokens to count, and whether the ids are wanted.
fn count_asked(
    message: v1::CountTokensRequest,
    reserved: ReservedTokens<'_>,
) -> Result<(Asked, bool), Status> {
    use v1::count_tokens_request::Request as Kind;
    let v1::CountTokensRequest { request, report_ids } = message;
    let asked = match request {
        Some(Kind::Generate(message)) => generate_asked(message, reserved)?,
        Some(Kind::Chat(message)) => chat_asked(message, reserved)?,
        None => return Err(invalid("request", "generate or chat", "neither")),
    };
    Ok((asked, report_ids))
}

/// Every field set, but for the seed, which is drawn.
fn spelled_out(rule: &SamplingRule) -> v1::Sampling {
    v1::Sampling {
        temperature: Some(rule.temperature),
        top_k: Some(rule.top_k),
        top_p: Some(rule.top_p),
        min_p: Some(rule.min_p),
        seed: None,
        repetition_penalty: Some(rule.repetition_penalty),
        presence_penalty: Some(rule.presence_penalty),
        frequency_penalty: Some(rule.frequency_penalty),
        logit_bias: Vec::new(),
    }
}
