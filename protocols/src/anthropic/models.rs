//! The served model as clients of Anthropic's API read `/v1/models`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::inference::model::ModelDescription;

/// The models of this service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MessagesModelList {
    /// The served model.
    pub data: Vec<MessagesModel>,
    /// False: there is one model.
    pub has_more: bool,
    /// Name of the first model of the list.
    pub first_id: String,
    /// Name of the last model of the list.
    pub last_id: String,
}

/// A model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MessagesModel {
    /// `model`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the model.
    pub id: String,
    /// Name of the model for people.
    pub display_name: String,
    /// When the service began to serve it (RFC 3339).
    pub created_at: String,
    /// `active`.
    pub lifecycle: String,
    /// Most tokens of a prompt.
    pub max_input_tokens: u32,
    /// Most tokens of an answer.
    pub max_tokens: u32,
}

impl MessagesModel {
    /// The served model, since this second.
    pub fn of(model: &ModelDescription, since: i64) -> Self {
        Self {
            kind: "model".to_owned(),
            id: model.name.clone(),
            display_name: model.name.clone(),
            created_at: Timestamp::from_second(since).unwrap_or_default().to_string(),
            lifecycle: "active".to_owned(),
            max_input_tokens: model.max_prompt_tokens,
            max_tokens: model.max_new_tokens,
        }
    }
}

impl MessagesModelList {
    /// The served model, since this second.
    pub fn of(model: &ModelDescription, since: i64) -> Self {
        let name = || model.name.clone();
        let data = vec![MessagesModel::of(model, since)];
        Self { data, has_more: false, first_id: name(), last_id: name() }
    }
}
