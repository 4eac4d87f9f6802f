//! Documents, found texts, and blocks that another service or its tools made.

use serde::Deserialize;
use utoipa::ToSchema;

use super::{ImageBlock, ImageFile, ImageUrl, KeptFile, SystemBlock, TextBlock};
use crate::front::http::accepted::Rest;
use crate::front::http::json::AnyJson;
use crate::front::http::values::TextOr;

/// A document.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesDocumentBlock)]
pub struct DocumentBlock {
    /// Content of the document.
    pub source: DocumentSource,
    /// Title of the document. The model is shown it before the text.
    pub title: Option<String>,
    /// A text about the document. The model is shown it before the text.
    pub context: Option<String>,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// The content of a document.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = MessagesDocumentSource)]
pub enum DocumentSource {
    /// A file in base64. A file of text is served.
    Base64(ImageFile),
    /// A text, which is `data` as it is.
    Text(ImageFile),
    /// A text, or blocks.
    Content(ContentSource),
    /// An address. Only an address that contains a file of text is served.
    Url(ImageUrl),
    /// A file that Anthropic's service keeps.
    File(KeptFile),
}

/// The content of a document in blocks.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesContentSource)]
pub struct ContentSource {
    /// A text, or blocks.
    pub content: TextOr<ContentBlock>,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// A block of a document.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = MessagesContentBlock)]
pub enum ContentBlock {
    /// Text.
    Text(TextBlock),
    /// An image.
    Image(ImageBlock),
}

/// What a search found.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesSearchResultBlock)]
pub struct SearchResultBlock {
    /// Title of the place. The model is shown it before the text.
    pub title: String,
    /// Address of the place. The model is shown it before the text.
    pub source: String,
    /// The found texts.
    pub content: Vec<SystemBlock>,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// A summary of earlier messages, which Anthropic's service made.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesCompactionBlock)]
pub struct CompactionBlock {
    /// The summary, which the model is shown as a text of its own; nothing if it failed.
    pub content: Option<String>,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// A mark that Anthropic's service left in a message.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesProviderMarkBlock)]
pub struct ProviderMarkBlock {
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}

/// The tabs of the client's browser after a tool call.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[schema(as = MessagesBrowserStateBlock)]
pub struct BrowserStateBlock {
    /// All open tabs.
    #[schema(value_type = Vec<Object>)]
    pub tabs: AnyJson,
    /// Opened tabs and downloads.
    #[schema(value_type = Option<Vec<Object>>)]
    pub state_changes: Option<AnyJson>,
    /// Fields that no other member takes; `accepted` refuses those without a place in its table.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Rest,
}
