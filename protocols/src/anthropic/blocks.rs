//! Blocks that stand in several kinds of messages: texts, images and documents.

use paceline_proto::limits;
use paceline_text::images::{Detail, decode_base64};
use serde_json::{Map, Value};

use super::types::{
    BrowserStateBlock, ContentBlock, ContentSource, DocumentBlock, DocumentSource, ImageBlock,
    ImageFile, ImageSource, ImageUrl, KeptFile, SearchResultBlock, SystemBlock, TextBlock,
};
use crate::accepted::{Rest, check};
use crate::files::{FileSource, Turn, file, image_elsewhere, with_head};
use crate::inference::bounds::check_elements;
use crate::inference::error::{InferenceError, Result};
use crate::inference::images::ImageError;
use crate::inference::input::ContentPartInput;
use crate::values::TextOr;

/// The text of a block.
pub(super) fn text(path: &str, block: TextBlock) -> Result<String> {
    let TextBlock { text, rest } = block;
    check(&format!("{path}."), &rest, TextBlock::ACCEPTED)?;
    Ok(text)
}

/// The image of a block.
pub(super) fn image(path: &str, block: ImageBlock, turn: Turn) -> Result<ContentPartInput> {
    let ImageBlock { source, rest } = block;
    check(&format!("{path}."), &rest, ImageBlock::ACCEPTED)?;
    match source {
        ImageSource::Url(ImageUrl { url, rest }) => {
            check(&format!("{path}.source."), &rest, ImageUrl::ACCEPTED)?;
            Ok(ContentPartInput::ImageUrl { url, detail: Detail::Full })
        }
        ImageSource::File(KeptFile { file_id: _, rest }) => {
            check(&format!("{path}.source."), &rest, KeptFile::ACCEPTED)?;
            image_elsewhere(&format!("{path}.source.file_id"), turn)
        }
        // The file's own beginning says what it is.
        ImageSource::Base64(ImageFile { media_type: _, data, rest }) => {
            check(&format!("{path}.source."), &rest, ImageFile::ACCEPTED)?;
            let file = decode_base64(&data).map_err(|problem| {
                let field = format!("{path}.source.data");
                InferenceError::from(ImageError::Bad { field, problem })
            })?;
            Ok(ContentPartInput::Image(file.into()))
        }
    }
}

/// A part of a message that a block becomes, and its path in the body.
pub(super) type PlacedPart = (String, ContentPartInput);

/// The parts of a document.
pub(super) fn document(path: &str, block: DocumentBlock, turn: Turn) -> Result<Vec<PlacedPart>> {
    let DocumentBlock { source, title, context, rest } = block;
    check(&format!("{path}."), &rest, DocumentBlock::ACCEPTED)?;
    let (title, head) = (title.as_deref(), [("Context", context.as_deref())]);
    let of_source = |rest: &Rest, table| check(&format!("{path}.source."), rest, table);
    let (name, shown) = match &source {
        DocumentSource::Content(_) => ("content", FileSource::Text("")),
        DocumentSource::Text(ImageFile { media_type: _, data, rest }) => {
            of_source(rest, ImageFile::ACCEPTED)?;
            ("data", FileSource::Text(data))
        }
        DocumentSource::Base64(ImageFile { media_type: _, data, rest }) => {
            of_source(rest, ImageFile::ACCEPTED)?;
            ("data", FileSource::Encoded(data))
        }
        DocumentSource::Url(ImageUrl { url, rest }) => {
            of_source(rest, ImageUrl::ACCEPTED)?;
            ("url", FileSource::at(url))
        }
        DocumentSource::File(KeptFile { file_id: _, rest }) => {
            of_source(rest, KeptFile::ACCEPTED)?;
            ("file_id", FileSource::Elsewhere)
        }
    };
    let field = format!("{path}.source.{name}");
    let content = match source {
        DocumentSource::Content(content) => content,
        _ => return Ok(vec![(path.to_owned(), file(&field, title, &head, shown, turn)?)]),
    };
    let ContentSource { content, rest } = content;
    of_source(&rest, ContentSource::ACCEPTED)?;
    match content {
        TextOr::Text(text) => {
            Ok(vec![(field, ContentPartInput::Text(with_head(title, &head, &text)))])
        }
        TextOr::List(blocks) => {
            check_elements(&field, blocks.len(), limits::MAX_PARTS)?;
            let head = with_head(title, &head, "");
            let head =
                (!head.is_empty()).then_some((path.to_owned(), ContentPartInput::Text(head)));
            let block = |(at, block): (usize, ContentBlock)| {
                let path = format!("{field}[{at}]");
                let part = match block {
                    ContentBlock::Text(block) => ContentPartInput::Text(text(&path, block)?),
                    ContentBlock::Image(block) => image(&path, block, turn)?,
                };
                Ok::<PlacedPart, InferenceError>((path, part))
            };
            head.map(Ok).into_iter().chain(blocks.into_iter().enumerate().map(block)).collect()
        }
    }
}

/// The text of what a search found.
pub(super) fn search_result(path: &str, block: SearchResultBlock) -> Result<ContentPartInput> {
    let SearchResultBlock { title, source, content, rest } = block;
    check(&format!("{path}."), &rest, SearchResultBlock::ACCEPTED)?;
    check_elements(&format!("{path}.content"), content.len(), limits::MAX_PARTS)?;
    let texts = content
        .into_iter()
        .enumerate()
        .map(|(at, SystemBlock::Text(block))| text(&format!("{path}.content[{at}]"), block));
    let texts = texts.collect::<Result<Vec<_>, _>>()?.join("\n");
    let head = [("Source", Some(source.as_str()))];
    Ok(ContentPartInput::Text(with_head(Some(&title), &head, &texts)))
}

/// The tabs of a browser as text: an object of JSON with what the client sent of them.
pub(super) fn browser_state(path: &str, block: BrowserStateBlock) -> Result<ContentPartInput> {
    let BrowserStateBlock { tabs, state_changes, rest } = block;
    check(&format!("{path}."), &rest, BrowserStateBlock::ACCEPTED)?;
    let tabs = ("tabs".to_owned(), tabs.0);
    let changes = state_changes.map(|changes| ("state_changes".to_owned(), changes.0));
    let state = Map::from_iter([tabs].into_iter().chain(changes));
    Ok(ContentPartInput::Text(Value::Object(state).to_string()))
}
