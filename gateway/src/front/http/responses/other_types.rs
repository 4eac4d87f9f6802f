//! Files, sounds, and items of tools that only OpenAI's models know by their own types.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::front::http::accepted::Rest;
use crate::front::http::json::{AnyJson, ResentArguments};

/// A file.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = ResponsesFilePart)]
pub struct FilePart {
    /// The file in base64, or a `data:` URL with it.
    pub file_data: Option<String>,
    /// Address of the file. Only an address that contains the file is served.
    pub file_url: Option<String>,
    /// Id of a file that another service keeps.
    pub file_id: Option<String>,
    /// Name of the file. The model is shown it before the text.
    pub filename: Option<String>,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// A sound.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = ResponsesAudioPart)]
pub struct AudioPart {
    /// The sound.
    #[schema(value_type = Object)]
    pub input_audio: AnyJson,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// A call of a tool that only OpenAI's models know by its own type of item.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = ResponsesShellCallItem)]
pub struct ShellCallItem {
    /// Id of the tool call.
    pub call_id: Option<String>,
    /// Id of the item, which is the tool call's in items without `call_id`.
    pub id: Option<String>,
    /// Arguments of the tool call.
    #[schema(value_type = Option<Object>)]
    pub action: Option<ResentArguments>,
    /// Arguments of `apply_patch`.
    #[schema(value_type = Option<Object>)]
    pub operation: Option<ResentArguments>,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// The answer of such a tool.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = ResponsesShellOutputItem)]
pub struct ShellOutputItem {
    /// Id of the tool call that it answers.
    pub call_id: Option<String>,
    /// The same in items without `call_id`.
    pub id: Option<String>,
    /// A text, or a list that the model is shown as JSON.
    #[serde(default)]
    #[schema(value_type = Option<Vec<Object>>)]
    pub output: AnyJson,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// An item that asks for what this service does not do.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = ResponsesRefusedItem)]
pub struct RefusedItem {
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}
