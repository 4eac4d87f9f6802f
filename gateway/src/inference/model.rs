//! The facts of the served model that clients may know.

use paceline_protocols::inference::error::Result;
use paceline_protocols::inference::model::ModelDescription;
use paceline_text::prompt::{Infill, Template};

use super::fit::check_model;
use super::{Inference, Served};
use crate::images::limits_of;

impl Inference {
    /// The served model, if it is the one that a client asks for.
    ///
    /// # Errors
    /// Another model is served, or none now.
    pub fn model(&self, asked: &str) -> Result<ModelDescription> {
        let Served { serving, language } = self.served()?;
        let (model, language) = (serving.model, language.language);
        check_model(asked, &model)?;
        let template = language.template.as_ref();
        let stop_ids = language.stop_ids.iter().copied();
        Ok(ModelDescription {
            architecture: model.architecture,
            vocab_size: model.vocab_size,
            context_length: model.context_length,
            max_prompt_tokens: self.limits.max_prompt_tokens.or(model.context_length),
            max_new_tokens: self.limits.max_new_tokens.or(model.context_length),
            weight_bytes: model.weight_bytes,
            chat: template.is_some(),
            tools: template.is_some_and(Template::knows_tools),
            thinks: template.is_some_and(|template| template.answer_format().thoughts),
            infills: Infill::of(&language.tokens).is_some(),
            images: language
                .images
                .as_deref()
                .filter(|_| model.vision)
                .map(|processor| limits_of(processor, &self.limits)),
            default_sampling: language.sampling,
            stop_token_ids: stop_ids.filter(|id| *id < model.vocab_size).collect(),
            name: model.name,
        })
    }
}
