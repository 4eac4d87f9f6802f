//! Parts of a message or of a tool's answer.

use paceline_proto::limits;

use super::types::{AudioPart, FilePart, ImagePart, RefusalPart, ResponsesPart, TextPart};
use crate::accepted::check;
use crate::files::{FileSource, Turn, file, image_elsewhere, sound};
use crate::inference::bounds::check_elements;
use crate::inference::error::{Result, refuse};
use crate::inference::input::ContentPartInput;
use crate::paths::MessagePath;
use crate::values::{TextOr, detail_of};

/// A text as a part.
pub(super) fn said(text: String) -> ContentPartInput {
    ContentPartInput::Text(text)
}

/// The parts of a message, which stand at `path`; at least an empty text.
pub(super) fn parts(
    place: &mut MessagePath,
    path: &str,
    content: Option<TextOr<ResponsesPart>>,
    turn: Turn,
) -> Result<Vec<ContentPartInput>> {
    let list = match content {
        Some(TextOr::List(list)) if !list.is_empty() => list,
        other => {
            place.record("content[0]", path);
            let text = match other {
                Some(TextOr::Text(text)) => text,
                _ => String::new(),
            };
            return Ok(vec![said(text)]);
        }
    };
    check_elements(path, list.len(), limits::MAX_PARTS)?;
    let part = |(at, part): (usize, ResponsesPart)| {
        place.record(format!("content[{at}]"), format!("{path}[{at}]"));
        let path = format!("{path}[{at}].");
        match part {
            ResponsesPart::InputText(TextPart { text, rest })
            | ResponsesPart::OutputText(TextPart { text, rest }) => {
                check(&path, &rest, TextPart::ACCEPTED)?;
                Ok(said(text))
            }
            ResponsesPart::Refusal(RefusalPart { refusal, rest }) => {
                check(&path, &rest, RefusalPart::ACCEPTED)?;
                Ok(said(refusal))
            }
            ResponsesPart::InputImage(image) => image_part(&path, image, turn),
            ResponsesPart::InputFile(file) => file_part(&path, file, turn),
            ResponsesPart::InputAudio(AudioPart { input_audio: _, rest }) => {
                check(&path, &rest, AudioPart::ACCEPTED)?;
                sound(&format!("{path}input_audio"), turn)
            }
        }
    };
    list.into_iter().enumerate().map(part).collect()
}

fn image_part(path: &str, image: ImagePart, turn: Turn) -> Result<ContentPartInput> {
    let ImagePart { image_url, file_id, detail, rest } = image;
    check(path, &rest, ImagePart::ACCEPTED)?;
    let detail = detail_of(&format!("{path}detail"), detail)?;
    match (image_url, file_id) {
        (Some(url), None) => Ok(ContentPartInput::ImageUrl { url, detail }),
        (None, Some(_)) => image_elsewhere(&format!("{path}file_id"), turn),
        (Some(_), Some(_)) => {
            let expected = "nothing, because the part has an image already";
            refuse(&format!("{path}file_id"), expected, "another")
        }
        (None, None) => refuse(&format!("{path}image_url"), "an address", "none"),
    }
}

fn file_part(path: &str, part: FilePart, turn: Turn) -> Result<ContentPartInput> {
    let FilePart { file_data, file_url, file_id, filename, rest } = part;
    check(path, &rest, FilePart::ACCEPTED)?;
    let (name, source) = match (&file_data, &file_url, &file_id) {
        (Some(data), None, None) => ("file_data", FileSource::Encoded(data)),
        (None, Some(url), None) => ("file_url", FileSource::at(url)),
        (None, None, Some(_)) => ("file_id", FileSource::Elsewhere),
        _ => {
            let expected = "one of file_data, file_url and file_id";
            return refuse(&format!("{path}file_data"), expected, "none or several");
        }
    };
    file(&format!("{path}{name}"), filename.as_deref(), &[], source, turn)
}
