//! Whether no value matches two branches of a `oneOf`. Then it is an `anyOf`, which the compiler
//! serves. Branches exclude one another by their types, by their values, or by a member that one of
//! them requires: by its values (a discriminator), by its types, or because the other one excludes it.
//!
//! An answer has to match one branch, and no other, by the client's own validator. It knows nothing of
//! closed objects: an answer of one branch may match another one as that stands. It does not if the
//! other one requires a member that the closed branch has not.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::GrammarError;
use super::references::{References, list};

/// Types as a set of bits.
pub(super) type Kinds = u8;
/// All types.
pub(super) const EVERY: Kinds = 0b11_1111;
const NULL: Kinds = 1;
const BOOLEAN: Kinds = 2;
const NUMBER: Kinds = 4;
const STRING: Kinds = 8;
const ARRAY: Kinds = 16;
const OBJECT: Kinds = 32;
/// Choices within a branch of which the types are read, one within another.
const MAX_CHOICES: usize = 8;

/// Known values of a schema.
#[derive(Debug, Default)]
struct Known<'a> {
    kinds: Kinds,
    /// All values, if they are written out.
    values: Option<HashSet<Key<'a>>>,
}

/// Known values of a branch.
#[derive(Debug, Default)]
struct Branch<'a> {
    own: Known<'a>,
    required: HashSet<&'a str>,
    members: HashMap<&'a str, Known<'a>>,
    /// The schemas that exclude all members but their own.
    closed: Vec<&'a Map<String, Value>>,
    /// All members of its answers, if they are closed.
    answers: Option<&'a Map<String, Value>>,
}

/// A value by which equal values are equal: 1 and 1.0 are one number.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Key<'a> {
    Null,
    Bool(bool),
    Number(u64),
    Text(&'a str),
}

/// Whether no answer matches two of the branches, of values of these types. `answers` has the members
/// of each branch's answers, if these are closed. The comparisons are bounded by the size of a schema:
/// 256 branches with 80 members each take 0.2 s.
///
/// # Errors
/// Those of references.
pub(super) fn exclude_one_another<'a: 'b, 'b>(
    references: &mut References<'a>,
    branches: &'a [Value],
    outer: Kinds,
    answers: &'b [Option<Map<String, Value>>],
) -> Result<bool, GrammarError> {
    let mut known = Vec::with_capacity(branches.len());
    for (branch, answers) in branches.iter().zip(answers) {
        let mut branch: Branch<'b> = branch_of(references, branch)?;
        branch.own.kinds &= outer;
        branch.answers = answers.as_ref();
        known.push(branch);
    }
    let rest = |at: usize| known.get(at + 1..).unwrap_or_default();
    Ok(known.iter().enumerate().all(|(at, one)| rest(at).iter().all(|other| one.excludes(other))))
}

/// The types that a schema names; all if it names none.
pub(super) fn named_kinds(schema: &Map<String, Value>) -> Kinds {
    let kind = |name: &Value| match name.as_str() {
        Some("null") => NULL,
        Some("boolean") => BOOLEAN,
        Some("integer" | "number") => NUMBER,
        Some("string") => STRING,
        Some("array") => ARRAY,
        Some("object") => OBJECT,
        _ => 0,
    };
    match schema.get("type") {
        None => EVERY,
        Some(Value::Array(types)) => types.iter().fold(0, |all, name| all | kind(name)),
        Some(name) => kind(name),
    }
}

fn branch_of<'a>(
    references: &mut References<'a>,
    schema: &'a Value,
) -> Result<Branch<'a>, GrammarError> {
    let mut branch = Branch { own: known(references, schema, 0)?, ..Branch::default() };
    for piece in references.pieces(schema)? {
        branch.required.extend(list(piece, "required").iter().filter_map(Value::as_str));
        let properties = piece.get("properties").and_then(Value::as_object);
        for (name, schema) in properties.into_iter().flatten() {
            branch.members.insert(name, known(references, schema, 0)?);
        }
        let excludes = piece.get("additionalProperties") == Some(&Value::Bool(false));
        if excludes && !piece.contains_key("patternProperties") {
            branch.closed.push(piece);
        }
    }
    Ok(branch)
}

fn known<'a>(
    references: &mut References<'a>,
    schema: &'a Value,
    level: usize,
) -> Result<Known<'a>, GrammarError> {
    if *schema == Value::Bool(false) {
        return Ok(Known::default());
    }
    let pieces = references.pieces(schema)?;
    let mut kinds = pieces.iter().fold(EVERY, |kinds, piece| kinds & named_kinds(piece));
    for choice in pieces.iter().flat_map(|piece| [list(piece, "anyOf"), list(piece, "oneOf")]) {
        if choice.is_empty() || level >= MAX_CHOICES {
            continue;
        }
        let mut any = 0;
        for branch in choice {
            any |= known(references, branch, level + 1)?.kinds;
        }
        kinds &= any;
    }
    let values = written(&pieces);
    if let Some(values) = &values {
        kinds &= values.iter().fold(0, |all, value| all | value.kind());
    }
    Ok(Known { kinds, values })
}

impl Known<'_> {
    fn excludes(&self, other: &Self) -> bool {
        let values = self.values.as_ref().zip(other.values.as_ref());
        self.kinds & other.kinds == 0
            || values.is_some_and(|(ours, theirs)| ours.is_disjoint(theirs))
    }
}

impl Branch<'_> {
    fn excludes(&self, other: &Self) -> bool {
        // Of values that are no objects, members say nothing.
        let shared = self.own.kinds & other.own.kinds;
        let by_members = || {
            self.requires_what_excludes(other)
                || other.requires_what_excludes(self)
                || self.lacks_what_it_requires(other) && other.lacks_what_it_requires(self)
        };
        self.own.excludes(&other.own) || shared == OBJECT && by_members()
    }

    /// Whether no answer of this branch has all members that the other one requires.
    fn lacks_what_it_requires(&self, other: &Self) -> bool {
        let lacks = |name: &&str| self.answers.is_some_and(|all| !all.contains_key(*name));
        other.required.iter().any(lacks)
    }

    /// Whether a member that this branch requires excludes the other one.
    fn requires_what_excludes(&self, other: &Self) -> bool {
        self.required.iter().any(|name| {
            let members = self.members.get(name).zip(other.members.get(name));
            members.is_some_and(|(ours, theirs)| ours.excludes(theirs)) || other.forbids(name)
        })
    }

    fn forbids(&self, name: &str) -> bool {
        self.closed.iter().any(|piece| {
            let properties = piece.get("properties").and_then(Value::as_object);
            properties.is_none_or(|properties| !properties.contains_key(name))
        })
    }
}

/// The values of a schema that writes them out, if they can be compared.
fn written<'a>(pieces: &[&'a Map<String, Value>]) -> Option<HashSet<Key<'a>>> {
    pieces.iter().find_map(|piece| match (piece.get("const"), piece.get("enum")) {
        (Some(value), _) => Some(HashSet::from([Key::of(value)?])),
        (None, Some(Value::Array(values))) => values.iter().map(Key::of).collect(),
        _ => None,
    })
}

impl<'a> Key<'a> {
    fn kind(&self) -> Kinds {
        match self {
            Self::Null => NULL,
            Self::Bool(_) => BOOLEAN,
            Self::Number(_) => NUMBER,
            Self::Text(_) => STRING,
        }
    }

    /// `None` for a list or an object.
    fn of(value: &'a Value) -> Option<Self> {
        match value {
            Value::Null => Some(Self::Null),
            Value::Bool(value) => Some(Self::Bool(*value)),
            // The sum makes one of the two zeros.
            Value::Number(number) => Some(Self::Number((number.as_f64()? + 0.0).to_bits())),
            Value::String(text) => Some(Self::Text(text)),
            Value::Array(_) | Value::Object(_) => None,
        }
    }
}
