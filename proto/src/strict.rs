//! A prost codec that refuses what prost would drop: a field number our .proto files do not know, at any depth (I5).
//!
//! prost skips unknown fields in silence. A client that sets a field of a newer contract would get an answer that ignores
//! it; here it gets INVALID_ARGUMENT that names the message and the number. Unknown enum values are kept by prost as
//! numbers and refused by whoever reads the field.

use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;
use std::sync::LazyLock;

use bytes::{Buf, Bytes};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{Message, Name};
use prost_types::field_descriptor_proto::Type;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstEncoder};

use crate::status::Reason;

/// Known field numbers of a message, and the message types below it.
#[derive(Default)]
struct Shape {
    known: HashSet<u32>,
    nested: HashMap<u32, String>,
}

static SHAPES: LazyLock<HashMap<String, Shape>> = LazyLock::new(|| {
    let set = prost_types::FileDescriptorSet::decode(crate::DESCRIPTORS).expect("our own build wrote the descriptors");
    let mut shapes = HashMap::new();
    for file in set.file {
        for message in &file.message_type {
            collect(file.package(), message, &mut shapes);
        }
    }
    shapes
});

fn collect(scope: &str, message: &prost_types::DescriptorProto, shapes: &mut HashMap<String, Shape>) {
    let name = format!("{scope}.{}", message.name());
    let mut shape = Shape::default();
    for field in &message.field {
        shape.known.insert(field.number() as u32);
        if field.r#type() == Type::Message {
            shape.nested.insert(field.number() as u32, field.type_name().trim_start_matches('.').to_owned());
        }
    }
    for inner in &message.nested_type {
        collect(&name, inner, shapes);
    }
    shapes.insert(name, shape);
}

/// Deepest nesting looked into; prost refuses at 100, our messages use at most 5.
const MAX_DEPTH: u32 = 32;

/// Checks that `wire`, a message of type `name`, has no unknown field. Broken wire data passes: decoding reports it.
fn check(name: &str, mut wire: Bytes, depth: u32) -> Result<(), String> {
    let Some(shape) = SHAPES.get(name) else { return Ok(()) };
    while wire.has_remaining() {
        let Ok((tag, wire_type)) = decode_key(&mut wire) else { return Ok(()) };
        if !shape.known.contains(&tag) {
            return Err(format!("field number {tag} of {name} is not known to this version; leave it out or update the service"));
        }
        match shape.nested.get(&tag) {
            Some(inner) if wire_type == WireType::LengthDelimited && depth < MAX_DEPTH => {
                let Ok(length) = decode_varint(&mut wire) else { return Ok(()) };
                if length > wire.remaining() as u64 {
                    return Ok(());
                }
                check(inner, wire.split_to(length as usize), depth + 1)?;
            }
            _ => {
                if skip_field(wire_type, tag, &mut wire, DecodeContext::default()).is_err() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// The codec of all our services: encodes as prost does, decodes strictly.
#[derive(Debug, Clone, Copy)]
pub struct StrictCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for StrictCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for StrictCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Name + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = StrictDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        StrictDecoder(PhantomData)
    }
}

/// Decodes one message type strictly.
#[derive(Debug, Clone, Copy)]
pub struct StrictDecoder<U>(PhantomData<U>);

impl<U: Message + Name + Default> Decoder for StrictDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, src: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let wire = src.copy_to_bytes(src.remaining());
        check(&U::full_name(), wire.clone(), 0).map_err(|what| Reason::InvalidArgument.status(what))?;
        match U::decode(wire) {
            Ok(message) => Ok(Some(message)),
            Err(error) => Err(Reason::InvalidArgument.status(format!("expected a message {}: {error}", U::full_name()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    fn request() -> Vec<u8> {
        let part = v1::ContentPart { part: Some(v1::content_part::Part::Text("hello".into())) };
        let message = v1::Message { role: "user".into(), content: vec![part], ..Default::default() };
        v1::ChatRequest { messages: vec![message], ..Default::default() }.encode_to_vec()
    }

    #[test]
    fn known_fields_pass() {
        assert_eq!(check("paceline.v1.ChatRequest", request().into(), 0), Ok(()));
    }

    #[test]
    fn an_unknown_field_is_named() {
        let mut wire = request();
        prost::encoding::uint32::encode(77, &1, &mut wire);
        let error = check("paceline.v1.ChatRequest", wire.into(), 0).expect_err("77 is unknown");
        assert!(error.contains("field number 77 of paceline.v1.ChatRequest"), "{error}");
    }

    #[test]
    fn an_unknown_field_deep_down_is_named() {
        let mut part = Vec::new();
        prost::encoding::string::encode(9, &"audio".to_owned(), &mut part);
        let mut message = Vec::new();
        prost::encoding::bytes::encode(2, &part, &mut message);
        let mut wire = Vec::new();
        prost::encoding::bytes::encode(2, &message, &mut wire);
        let error = check("paceline.v1.ChatRequest", wire.into(), 0).expect_err("9 is unknown");
        assert!(error.contains("field number 9 of paceline.v1.ContentPart"), "{error}");
    }

    #[test]
    fn broken_wire_data_is_left_to_the_decoder() {
        assert_eq!(check("paceline.v1.ChatRequest", Bytes::from_static(&[0x0a, 0xff]), 0), Ok(()));
    }
}
