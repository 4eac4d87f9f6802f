//! Which schemas apply to one value: a schema itself, the targets of its references, and the members
//! of its `allOf`. Branches of `anyOf` and `oneOf` apply only where they are chosen.
//!
//! References stay inside the schema. A target that no keyword holds is checked when a reference
//! leads to it.

use paceline_vocabulary::grammar::MAX_LEVELS;
use serde_json::{Map, Value};

use super::GrammarError;
use super::schema::{Check, asserts};
use super::text::brief;

/// Schemas that are read while references are followed, in all of a schema: a list of references to
/// lists of references grows by the power of its levels. 65,536 take 40 ms.
const MAX_READS: usize = 65_536;

/// A schema and the places to which its references lead.
#[derive(Debug)]
pub(super) struct References<'a> {
    root: &'a Value,
    check: Check,
    reads: usize,
}

impl<'a> References<'a> {
    /// The references of a schema that `check` has passed.
    pub(super) fn new(root: &'a Value, check: Check) -> Self {
        Self { root, check, reads: 0 }
    }

    /// The path of a list of `oneOf`, for errors.
    pub(super) fn path_of(&self, list: &Value) -> &str {
        self.check.path_of(list)
    }

    /// Counts schemas that are read.
    ///
    /// # Errors
    /// There are more than [`MAX_READS`].
    pub(super) fn read(&mut self, count: usize) -> Result<(), GrammarError> {
        self.reads += count;
        if self.reads <= MAX_READS {
            return Ok(());
        }
        let expected = format!("at most {MAX_READS} schemas once references are followed");
        Err(GrammarError::new(expected, "more"))
    }

    /// The schemas that apply to the same value as `schema`, itself first. A boolean has none.
    ///
    /// # Errors
    /// A reference leads to no schema, or to itself.
    pub(super) fn pieces(
        &mut self,
        schema: &'a Value,
    ) -> Result<Vec<&'a Map<String, Value>>, GrammarError> {
        let mut pieces = vec![];
        self.gather(schema, 0, &mut pieces)?;
        Ok(pieces)
    }

    fn gather(
        &mut self,
        schema: &'a Value,
        level: usize,
        pieces: &mut Vec<&'a Map<String, Value>>,
    ) -> Result<(), GrammarError> {
        self.read(1)?;
        if level > MAX_LEVELS {
            return Err(endless());
        }
        let Value::Object(members) = schema else { return Ok(()) };
        pieces.push(members);
        if let Some(reference) = members.get("$ref") {
            let target = self.target(reference)?;
            self.gather(target, level + 1, pieces)?;
        }
        for member in list(members, "allOf") {
            self.gather(member, level + 1, pieces)?;
        }
        Ok(())
    }

    /// Where a schema leads that says nothing but a reference; `None` for any other schema.
    ///
    /// # Errors
    /// A reference leads to no schema, or to itself.
    pub(super) fn end_of(
        &mut self,
        schema: &'a Map<String, Value>,
    ) -> Result<Option<&'a Value>, GrammarError> {
        let (mut schema, mut end) = (schema, None);
        for _ in 0..=MAX_LEVELS {
            let Some(reference) = only_reference(schema, 0) else { return Ok(end) };
            let target = self.target(reference)?;
            end = Some(target);
            let Value::Object(next) = target else { return Ok(end) };
            schema = next;
        }
        Err(endless())
    }

    /// The schema to which a reference leads.
    ///
    /// # Errors
    /// It leads out of the schema, to nothing, or to what is no schema.
    pub(super) fn target(&mut self, reference: &Value) -> Result<&'a Value, GrammarError> {
        let Some(text) = reference.as_str() else {
            return Err(GrammarError::new("a text in every $ref", brief(&reference.to_string())));
        };
        let within = "a reference to a place in the schema (#/…)";
        let Some(pointer) = text.strip_prefix('#').filter(|rest| is_pointer(rest)) else {
            return Err(GrammarError::new(within, format!("$ref {:?}", brief(text))));
        };
        let pointer = decoded(pointer);
        let target = match pointer.as_str() {
            "/" => self.root.pointer("/").or(Some(self.root)),
            pointer => self.root.pointer(pointer),
        };
        let Some(target) = target else {
            let found = format!("$ref {:?}, where nothing is", brief(text));
            return Err(GrammarError::new(within, found));
        };
        if !self.check.has_passed(target) {
            let mut path = pointer.split('/').skip(1).map(str::to_owned).collect();
            self.check.schema(target, &mut path)?;
        }
        Ok(target)
    }
}

/// The schemas in a list.
pub(super) fn list<'a>(members: &'a Map<String, Value>, name: &str) -> &'a [Value] {
    members.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Whether the target of a reference applies to the same value as this schema, or a branch of it.
pub(super) fn refers(schema: &Map<String, Value>) -> bool {
    let within = |name| list(schema, name).iter().filter_map(Value::as_object).any(refers);
    schema.contains_key("$ref") || ["allOf", "anyOf", "oneOf"].into_iter().any(within)
}

/// The reference of a schema that says nothing else. Older versions of pydantic wrap it in `allOf`.
fn only_reference(schema: &Map<String, Value>, level: usize) -> Option<&Value> {
    let mut said = schema.iter().filter(|(name, _)| asserts(name));
    let (Some((name, value)), None) = (said.next(), said.next()) else { return None };
    match (name.as_str(), value) {
        ("$ref", reference) => Some(reference),
        ("allOf", Value::Array(all)) if all.len() == 1 && level < MAX_LEVELS => {
            only_reference(all[0].as_object()?, level + 1)
        }
        _ => None,
    }
}

fn is_pointer(text: &str) -> bool {
    text.is_empty() || text.starts_with('/')
}

/// Decodes `%25` and the like in a fragment of an address. Text that is no such code stays.
fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let code = part.get(..2).filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend(&part.as_bytes()[2..]);
            }
            None => {
                bytes.push(b'%');
                bytes.extend(part.as_bytes());
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// The error of references that lead to themselves without a value between.
pub(super) fn endless() -> GrammarError {
    let expected = format!("references that end within {MAX_LEVELS} levels");
    GrammarError::new(expected, "a reference that leads to itself, or more levels")
}
