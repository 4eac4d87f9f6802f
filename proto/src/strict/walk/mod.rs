//! Reads a message's keys and lengths, and nothing else: which fields it has, and how many
//! elements. Allocates nothing unless it refuses.

use std::collections::HashMap;
use std::sync::LazyLock;

use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

use crate::limits::{FIELDS, MAX_ELEMENTS, MAX_NUMBERS};

/// Deepest nesting of messages. Ours use at most 5 levels; prost refuses at 100.
const MAX_DEPTH: u32 = 32;
/// Repeated fields of one message type, at most; a message of ours has at most 6.
const MAX_REPEATED: usize = 16;

/// Why a message is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// A field number that the message type does not have.
    Unknown { number: u32, message: String },
    /// Messages in messages.
    TooDeep { field: String, limit: u32 },
    /// More elements than a repeated field may have.
    TooMany { field: String, limit: u32, found: u64 },
    /// More elements than all repeated fields of a message may have together.
    TooManyInAll { field: String, kind: &'static str, limit: u32 },
}

impl Problem {
    /// Moves the problem into the field `parent` of another message.
    fn inside(mut self, parent: &WireField, index: u32) -> Self {
        match &mut self {
            Problem::Unknown { .. } => {}
            Problem::TooDeep { field, .. }
            | Problem::TooMany { field, .. }
            | Problem::TooManyInAll { field, .. } => {
                let parent = match parent.repeated {
                    Some(_) => format!("{}[{index}]", parent.name),
                    None => parent.name.clone(),
                };
                *field = if field.is_empty() { parent } else { format!("{parent}.{field}") };
            }
        }
        self
    }
}

/// Content of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Varint,
    Fixed32,
    Fixed64,
    /// Text or bytes.
    Text,
    /// A message: its place in [`Contract::types`].
    Message(usize),
}

impl Kind {
    /// How many elements are in `packed`, the content of a packed repeated field.
    fn count(self, packed: &[u8]) -> usize {
        match self {
            // The last byte of a varint is the one without the highest bit.
            Kind::Varint => packed.iter().filter(|byte| **byte < 0x80).count(),
            Kind::Fixed32 => packed.len() / 4,
            Kind::Fixed64 => packed.len() / 8,
            Kind::Text | Kind::Message(_) => 1,
        }
    }

    fn is_number(self) -> bool {
        matches!(self, Kind::Varint | Kind::Fixed32 | Kind::Fixed64)
    }
}

/// A repeated field's counter among those of its message, and its limit.
#[derive(Clone, Copy, Debug)]
struct Repeated {
    slot: usize,
    limit: u32,
}

#[derive(Debug)]
struct WireField {
    name: String,
    kind: Kind,
    repeated: Option<Repeated>,
}

/// A message type. Fields are found by their numbers, which are small in our files.
#[derive(Debug)]
struct MessageType {
    name: String,
    fields: Vec<Option<WireField>>,
}

/// All message types of our .proto files.
struct Contract {
    types: Vec<MessageType>,
    by_name: HashMap<String, usize>,
}

static CONTRACT: LazyLock<Contract> = LazyLock::new(|| {
    let set =
        FileDescriptorSet::decode(crate::DESCRIPTORS).expect("our own build wrote the descriptors");
    let mut found = Vec::new();
    for file in &set.file {
        for message in &file.message_type {
            collect(file.package(), message, &mut found);
        }
    }
    let by_name: HashMap<String, usize> =
        found.iter().enumerate().map(|(at, (name, _))| (name.clone(), at)).collect();
    let limits: HashMap<(&str, &str), u32> =
        FIELDS.iter().map(|(message, field, limit)| ((*message, *field), *limit)).collect();
    let types = found
        .iter()
        .map(|(name, message)| message_type(name, message, &by_name, &limits))
        .collect();
    Contract { types, by_name }
});

fn collect<'a>(
    scope: &str,
    message: &'a DescriptorProto,
    found: &mut Vec<(String, &'a DescriptorProto)>,
) {
    let name = format!("{scope}.{}", message.name());
    for inner in &message.nested_type {
        collect(&name, inner, found);
    }
    found.push((name, message));
}

fn message_type(
    name: &str,
    message: &DescriptorProto,
    by_name: &HashMap<String, usize>,
    limits: &HashMap<(&str, &str), u32>,
) -> MessageType {
    let mut fields = Vec::new();
    let mut slots = 0..MAX_REPEATED;
    for field in &message.field {
        let number = field.number() as usize;
        if fields.len() <= number {
            fields.resize_with(number + 1, || None);
        }
        let repeated = (field.label() == Label::Repeated).then(|| {
            let slot = slots.next().expect("a test counts the repeated fields of each message");
            Repeated {
                slot,
                limit: limits.get(&(name, field.name())).copied().unwrap_or(MAX_ELEMENTS),
            }
        });
        fields[number] =
            Some(WireField { name: field.name().to_owned(), kind: kind(field, by_name), repeated });
    }
    MessageType { name: name.to_owned(), fields }
}

fn kind(field: &FieldDescriptorProto, by_name: &HashMap<String, usize>) -> Kind {
    match field.r#type() {
        Type::Fixed32 | Type::Sfixed32 | Type::Float => Kind::Fixed32,
        Type::Fixed64 | Type::Sfixed64 | Type::Double => Kind::Fixed64,
        Type::String | Type::Bytes => Kind::Text,
        Type::Message | Type::Group => {
            let name = field.type_name().trim_start_matches('.');
            Kind::Message(*by_name.get(name).expect("the compiler resolved all names"))
        }
        _ => Kind::Varint,
    }
}

/// Checks that `wire`, a message of type `name`, has no unknown field and no more elements than it
/// may have. Broken wire data passes: decoding reports it.
pub(super) fn check(name: &str, wire: &[u8]) -> Result<(), Problem> {
    let contract = &*CONTRACT;
    let Some(at) = contract.by_name.get(name) else { return Ok(()) };
    Walk { contract, elements: 0, numbers: 0 }.message(&contract.types[*at], wire, 0)
}

/// One message and what was counted in it so far.
struct Walk<'a> {
    contract: &'a Contract,
    elements: u32,
    numbers: u32,
}

impl Walk<'_> {
    fn message(&mut self, of: &MessageType, whole: &[u8], depth: u32) -> Result<(), Problem> {
        let mut counts = [0u32; MAX_REPEATED];
        let mut wire = whole;
        while !wire.is_empty() {
            let Ok((number, wire_type)) = decode_key(&mut wire) else { return Ok(()) };
            let Some(field) = of.fields.get(number as usize).and_then(Option::as_ref) else {
                return Err(Problem::Unknown { number, message: of.name.clone() });
            };
            let content = if wire_type == WireType::LengthDelimited {
                let Some(content) = delimited(&mut wire) else { return Ok(()) };
                Some(content)
            } else {
                if skip_field(wire_type, number, &mut wire, DecodeContext::default()).is_err() {
                    return Ok(());
                }
                None
            };
            let index = match field.repeated {
                None => 0,
                Some(repeated) => {
                    let found = content.map_or(1, |content| field.kind.count(content));
                    let count = &mut counts[repeated.slot];
                    *count = count.saturating_add(u32::try_from(found).unwrap_or(u32::MAX));
                    if *count > repeated.limit {
                        let found = count_all(number, field.kind, whole);
                        return Err(Problem::TooMany {
                            field: field.name.clone(),
                            limit: repeated.limit,
                            found,
                        });
                    }
                    self.count_in_all(field, found)?;
                    count.saturating_sub(1)
                }
            };
            if let (Kind::Message(at), Some(content)) = (field.kind, content) {
                if depth >= MAX_DEPTH {
                    return Err(Problem::TooDeep { field: field.name.clone(), limit: MAX_DEPTH });
                }
                let contract = self.contract;
                self.message(&contract.types[at], content, depth + 1)
                    .map_err(|problem| problem.inside(field, index))?;
            }
        }
        Ok(())
    }

    /// Counts elements of a repeated field among those of the whole message.
    fn count_in_all(&mut self, field: &WireField, found: usize) -> Result<(), Problem> {
        let (count, limit, kind) = match field.kind.is_number() {
            true => (&mut self.numbers, MAX_NUMBERS, "numbers"),
            false => (&mut self.elements, MAX_ELEMENTS, "elements"),
        };
        *count = count.saturating_add(u32::try_from(found).unwrap_or(u32::MAX));
        match *count > limit {
            true => Err(Problem::TooManyInAll { field: field.name.clone(), kind, limit }),
            false => Ok(()),
        }
    }
}

/// The content of a field with a length; `None` where the data ends before it does.
fn delimited<'a>(wire: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(decode_varint(wire).ok()?).ok()?;
    let (content, rest) = wire.split_at_checked(length)?;
    *wire = rest;
    Some(content)
}

/// All elements of the field `number` in a message, for the words of a refusal.
fn count_all(number: u32, kind: Kind, mut wire: &[u8]) -> u64 {
    let mut found = 0;
    while let Ok((key, wire_type)) = decode_key(&mut wire) {
        let content = if wire_type == WireType::LengthDelimited {
            let Some(content) = delimited(&mut wire) else { break };
            kind.count(content)
        } else {
            if skip_field(wire_type, key, &mut wire, DecodeContext::default()).is_err() {
                break;
            }
            1
        };
        if key == number {
            found += content as u64;
        }
    }
    found
}

#[cfg(test)]
mod tests;
