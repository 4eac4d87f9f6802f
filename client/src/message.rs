//! Messages of a conversation, made of their parts.

use paceline_proto::v1::content_part::Part;
use paceline_proto::v1::{ContentPart, Image, Message};

/// A message of one text.
pub fn text(role: &str, text: impl Into<String>) -> Message {
    Message {
        role: role.to_owned(),
        content: vec![ContentPart { part: Some(Part::Text(text.into())) }],
        ..Default::default()
    }
}

/// An image as a part.
pub fn image(data: impl Into<bytes::Bytes>) -> ContentPart {
    ContentPart { part: Some(Part::Image(Image { data: data.into() })) }
}
