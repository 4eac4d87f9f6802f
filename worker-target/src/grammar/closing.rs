//! Rewrites a schema for the compiler: an object that declares its members has no others.
//!
//! JSON schema lets such an object have any further members, and models then write them. So, as
//! peers do, `properties` without `additionalProperties` closes an object, and it is closed as a
//! whole: by all that applies to the same value ([`References::pieces`]) and by the branch of each
//! `anyOf` and `oneOf` that is chosen. This is the rule of `unevaluatedProperties: false`.
//!
//! A schema that applies to a value of its own (a member, an item) becomes a definition if it is a
//! reference, or if it puts targets of references in place; so the work is bounded, and recursion
//! ends. A target that applies together with other schemas is put in place of its reference,
//! because other members are allowed there than where it stands alone.

use std::collections::{HashMap, VecDeque};

use paceline_vocabulary::grammar::MAX_LEVELS;
use serde_json::{Map, Value, json};

use super::GrammarError;
use super::alternatives::{EVERY, Kinds, exclude_one_another, named_kinds};
use super::pattern::of_json;
use super::references::{References, endless, list, refers};
use super::schema::{Check, FORMATS, LIST, OBJECT, SCHEMA, asserts, place};

/// Names that are written into objects to allow them there: a choice of many branches beside many
/// properties has their product.
const MAX_NAMES: usize = 65_536;
/// Schemas within one another once targets are in place of references.
const MAX_DEPTH: usize = 4 * MAX_LEVELS;

/// The schema for the compiler. `check` has passed `root`.
///
/// # Errors
/// A reference leads nowhere, or what it leads to cannot be enforced; the schema is too large with
/// targets in place of references.
pub(super) fn rewrite(root: &Value, check: Check) -> Result<Value, GrammarError> {
    let mut closing = Closing {
        references: References::new(root, check),
        numbers: HashMap::new(),
        waiting: VecDeque::new(),
        names: 0,
        depth: 0,
    };
    let start = match root {
        Value::Object(members) => closing.references.end_of(members)?.unwrap_or(root),
        _ => root,
    };
    let mut whole = closing.value(start, &Members::default())?;
    let definitions = closing.definitions()?;
    if let Value::Object(whole) = &mut whole {
        if !definitions.is_empty() {
            whole.insert("$defs".into(), Value::Object(definitions));
        }
        // The compiler reads the version of the standard from the root.
        if let Some(version) = root.get("$schema") {
            whole.insert("$schema".into(), version.clone());
        }
    }
    Ok(whole)
}

/// The members of an object by all that applies to it.
#[derive(Clone, Debug, Default)]
struct Members {
    /// Names, each with `true`.
    names: Map<String, Value>,
    /// Patterns of names, each with `true`.
    patterns: Map<String, Value>,
    /// Something has `properties`.
    is_declared: bool,
    /// Something says itself which further members there are.
    is_settled: bool,
    /// Members that it has at least.
    least: u64,
    /// Types that the value cannot have.
    barred: Kinds,
}

impl Members {
    fn of(piece: &Map<String, Value>) -> Self {
        let mut members = Self::default();
        members.add(piece);
        members
    }

    fn add(&mut self, piece: &Map<String, Value>) {
        let keys =
            |name| piece.get(name).and_then(Value::as_object).into_iter().flat_map(Map::keys);
        let required = list(piece, "required").iter().filter_map(Value::as_str);
        let names = keys("properties").map(String::as_str).chain(required);
        self.names.extend(names.map(|name| (name.to_owned(), Value::Bool(true))));
        let patterns = keys("patternProperties");
        self.patterns.extend(patterns.map(|name| (name.clone(), Value::Bool(true))));
        let unevaluated = piece.get("unevaluatedProperties").and_then(Value::as_bool);
        self.is_declared |= piece.contains_key("properties") || unevaluated == Some(false);
        // Objects that are written out have the members that they have.
        let written = piece.get("const").into_iter().chain(list(piece, "enum"));
        self.is_settled |= piece.contains_key("additionalProperties")
            || unevaluated == Some(true)
            || written.into_iter().any(Value::is_object);
        let least = piece.get("minProperties").and_then(Value::as_u64);
        self.least = self.least.max(least.unwrap_or(0));
        self.barred |= EVERY & !named_kinds(piece);
    }

    /// Adds the names of another choice, of which it is not known which branch is taken.
    fn allow(&mut self, other: &Self) {
        self.names.extend(other.names.clone());
        self.patterns.extend(other.patterns.clone());
        self.is_settled |= other.is_settled;
    }

    fn is_empty(&self) -> bool {
        let says = self.is_declared || self.is_settled || self.least > 0;
        !says && self.names.is_empty() && self.patterns.is_empty()
    }

    /// Whether further members are to be excluded. Who demands more than are declared wants others.
    fn closes(&self) -> bool {
        let enough = self.least <= self.names.len() as u64 || !self.patterns.is_empty();
        self.is_declared && !self.is_settled && enough
    }
}

/// Members beside each branch of the choices of a value, by the places of their lists.
type Choices = HashMap<usize, Members>;

struct Closing<'a> {
    references: References<'a>,
    /// Numbers of definitions, by the place of their schema.
    numbers: HashMap<usize, usize>,
    /// Definitions that are not written yet.
    waiting: VecDeque<&'a Value>,
    names: usize,
    depth: usize,
}

impl<'a> Closing<'a> {
    /// A schema for a value of its own.
    fn schema(&mut self, schema: &'a Value) -> Result<Value, GrammarError> {
        let Value::Object(members) = schema else { return Ok(schema.clone()) };
        if let Some(end) = self.references.end_of(members)? {
            return Ok(self.definition(end));
        }
        let is_choice = Members::of(members).is_empty()
            && !["$ref", "allOf"].iter().any(|name| members.contains_key(*name))
            && !["anyOf", "oneOf"].iter().all(|name| members.contains_key(*name));
        if refers(members) && !is_choice {
            return Ok(self.definition(schema));
        }
        self.value(schema, &Members::default())
    }

    /// A reference to the definition of this schema.
    fn definition(&mut self, schema: &'a Value) -> Value {
        let next = self.numbers.len();
        let number = *self.numbers.entry(place(schema)).or_insert(next);
        if number == next {
            self.waiting.push_back(schema);
        }
        json!({ "$ref": format!("#/$defs/{number}") })
    }

    /// Writes the definitions that are waited for, and those that these need.
    fn definitions(&mut self) -> Result<Map<String, Value>, GrammarError> {
        let mut all = Map::new();
        while let Some(schema) = self.waiting.pop_front() {
            let written = self.value(schema, &Members::default())?;
            all.insert(all.len().to_string(), written);
        }
        Ok(all)
    }

    /// All that applies to one value, with `beside` it.
    fn value(&mut self, schema: &'a Value, beside: &Members) -> Result<Value, GrammarError> {
        let pieces = self.references.pieces(schema)?;
        check_unevaluated(&pieces, beside)?;
        let mut members = beside.clone();
        pieces.iter().for_each(|piece| members.add(piece));
        let choices = self.choices(&pieces, &members)?;
        let mut written = match schema {
            Value::Object(own) => self.in_place(own, &choices)?,
            Value::Bool(true) if members.closes() => Map::new(),
            other => return Ok(other.clone()),
        };
        // Otherwise the branches are closed.
        if choices.is_empty() && members.closes() {
            self.close(&mut written, &members)?;
        }
        Ok(Value::Object(written))
    }

    /// The choices of a value.
    fn choices(
        &mut self,
        pieces: &[&'a Map<String, Value>],
        members: &Members,
    ) -> Result<Choices, GrammarError> {
        let found: Vec<(&'a Value, bool)> = pieces
            .iter()
            .flat_map(|piece| [(piece.get("anyOf"), false), (piece.get("oneOf"), true)])
            .filter_map(|(list, is_exclusive)| Some((list?, is_exclusive)))
            .collect();
        let mut all = Vec::with_capacity(found.len());
        if found.len() > 1 {
            for (list, _) in &found {
                all.push(self.members_of_branches(list)?);
            }
        }
        let mut choices = Choices::new();
        for (at, (list, is_exclusive)) in found.iter().enumerate() {
            let mut beside = members.clone();
            // It is not known which branches of the other choices are taken.
            let others = all.iter().enumerate().filter(|(other, _)| *other != at);
            others.for_each(|(_, other)| beside.allow(other));
            self.count_names(beside.names.len())?;
            if *is_exclusive {
                self.check_exclusive(list, &beside)?;
            }
            choices.insert(place(list), beside);
        }
        Ok(choices)
    }

    /// Checks that no answer matches two branches of a `oneOf`, so that it is an `anyOf`.
    fn check_exclusive(&mut self, list: &'a Value, beside: &Members) -> Result<(), GrammarError> {
        let kinds = EVERY & !beside.barred;
        let branches = list.as_array().map(Vec::as_slice).unwrap_or_default();
        let mut answers = Vec::with_capacity(branches.len());
        for branch in branches {
            self.count_names(beside.names.len())?;
            let mut members = beside.clone();
            self.add_branch(branch, &mut members)?;
            let is_closed = members.closes() && members.patterns.is_empty();
            answers.push(is_closed.then_some(members.names));
        }
        if exclude_one_another(&mut self.references, branches, kinds, &answers)? {
            return Ok(());
        }
        let expected = "branches of oneOf that exclude one another, by their types, or by a \
                        required member that has other types or values in the others, or is in none";
        let place = self.references.path_of(list);
        let found = format!("some at {place} that one value may match; anyOf allows that");
        Err(GrammarError::new(expected, found))
    }

    /// The members of all branches.
    fn members_of_branches(&mut self, list: &'a Value) -> Result<Members, GrammarError> {
        let mut members = Members::default();
        for branch in list.as_array().into_iter().flatten() {
            self.add_branch(branch, &mut members)?;
        }
        Ok(members)
    }

    /// Adds the members of a branch, of its branches, and so on.
    fn add_branch(&mut self, branch: &'a Value, members: &mut Members) -> Result<(), GrammarError> {
        let mut waiting = vec![branch];
        // A branch that leads to itself is read again and again, up to the bound of references.
        while let Some(branch) = waiting.pop() {
            for piece in self.references.pieces(branch)? {
                members.add(piece);
                waiting.extend(["anyOf", "oneOf"].iter().flat_map(|name| list(piece, name)));
            }
        }
        Ok(())
    }

    /// A schema with the targets of its references in place of them.
    fn in_place(
        &mut self,
        schema: &'a Map<String, Value>,
        choices: &Choices,
    ) -> Result<Map<String, Value>, GrammarError> {
        if self.depth >= MAX_DEPTH {
            return Err(endless());
        }
        self.depth += 1;
        let mut written = Map::new();
        let mut all = vec![];
        for (name, value) in schema.iter().filter(|(name, _)| asserts(name)) {
            match (name.as_str(), value) {
                ("$ref", reference) => {
                    let target = self.references.target(reference)?;
                    written.entry("allOf").or_insert(Value::Null);
                    all.push(self.member(target, choices)?);
                }
                ("allOf", Value::Array(members)) => {
                    written.entry("allOf").or_insert(Value::Null);
                    for member in members {
                        all.push(self.member(member, choices)?);
                    }
                }
                ("anyOf" | "oneOf", Value::Array(branches)) => {
                    let branches = self.branches(value, branches, choices)?;
                    if written.contains_key("anyOf") {
                        written.entry("allOf").or_insert(Value::Null);
                        all.push(json!({ "anyOf": branches }));
                    } else {
                        written.insert("anyOf".into(), branches);
                    }
                }
                _ => {
                    if let Some(value) = self.keyword(name, value)? {
                        written.insert(name.clone(), value);
                    }
                }
            }
        }
        self.depth -= 1;
        if let Some(place) = written.get_mut("allOf") {
            *place = Value::Array(all);
        }
        Ok(written)
    }

    /// A member of `allOf`, or the target of a reference beside others.
    fn member(&mut self, schema: &'a Value, choices: &Choices) -> Result<Value, GrammarError> {
        self.references.read(1)?;
        match schema {
            Value::Object(members) => self.in_place(members, choices).map(Value::Object),
            other => Ok(other.clone()),
        }
    }

    /// The branches of a choice.
    fn branches(
        &mut self,
        list: &'a Value,
        branches: &'a [Value],
        choices: &Choices,
    ) -> Result<Value, GrammarError> {
        // The pieces have every choice.
        let none = Members::default();
        let beside = choices.get(&place(list)).unwrap_or(&none);
        let written = branches.iter().map(|branch| match beside.is_empty() {
            true => self.schema(branch),
            false => self.value(branch, beside),
        });
        Ok(Value::Array(written.collect::<Result<_, _>>()?))
    }

    /// The value of a keyword; `None` if it excludes nothing.
    fn keyword(&mut self, name: &str, value: &'a Value) -> Result<Option<Value>, GrammarError> {
        let written = match value {
            Value::Object(members) if OBJECT.contains(&name) => {
                let is_pattern = name == "patternProperties";
                let member = |(name, schema): (&String, &'a Value)| {
                    let name = if is_pattern { of_json(name) } else { name.clone() };
                    Ok((name, self.schema(schema)?))
                };
                Value::Object(members.iter().map(member).collect::<Result<_, GrammarError>>()?)
            }
            Value::Array(items) if LIST.contains(&name) => {
                let items = items.iter().map(|item| self.schema(item));
                Value::Array(items.collect::<Result<_, _>>()?)
            }
            schema if SCHEMA.contains(&name) => self.schema(schema)?,
            Value::String(pattern) if name == "pattern" => of_json(pattern).into(),
            Value::String(format) if name == "format" => match enforced(format) {
                Some(format) => format.into(),
                None => return Ok(None),
            },
            // `value` has closed the object.
            _ if name == "unevaluatedProperties" => return Ok(None),
            other => other.clone(),
        };
        Ok(Some(written))
    }

    /// Excludes all members but these.
    fn close(
        &mut self,
        written: &mut Map<String, Value>,
        members: &Members,
    ) -> Result<(), GrammarError> {
        self.count_names(members.names.len())?;
        let declared = written.entry("properties").or_insert_with(|| json!({}));
        if let Value::Object(declared) = declared {
            for name in members.names.keys() {
                declared.entry(name.as_str()).or_insert(Value::Bool(true));
            }
        }
        // The compiler reads the patterns that stand between `allOf` and this keyword.
        if !members.patterns.is_empty() {
            let own = written.shift_remove("patternProperties");
            let mut patterns = own.unwrap_or_else(|| json!({}));
            if let Value::Object(patterns) = &mut patterns {
                for pattern in members.patterns.keys() {
                    patterns.entry(of_json(pattern)).or_insert(Value::Bool(true));
                }
            }
            written.insert("patternProperties".into(), patterns);
        }
        written.insert("additionalProperties".into(), Value::Bool(false));
        Ok(())
    }

    fn count_names(&mut self, count: usize) -> Result<(), GrammarError> {
        self.names += count;
        if self.names <= MAX_NAMES {
            return Ok(());
        }
        let expected = format!(
            "at most {MAX_NAMES} names in all objects, with those that stand beside each branch"
        );
        Err(GrammarError::new(expected, "more"))
    }
}

/// `unevaluatedProperties: false` of a schema beside others excludes the members of the others, which
/// is not served.
fn check_unevaluated(pieces: &[&Map<String, Value>], beside: &Members) -> Result<(), GrammarError> {
    let first = usize::from(beside.is_empty());
    let excludes = |piece: &&&Map<String, Value>| {
        piece.get("unevaluatedProperties") == Some(&Value::Bool(false))
    };
    match pieces.iter().skip(first).find(excludes) {
        None => Ok(()),
        Some(_) => Err(GrammarError::new(
            "only keywords that can be enforced",
            "the keyword unevaluatedProperties in a schema that others stand beside (allOf, anyOf, $ref)",
        )),
    }
}

/// The format that is enforced for this one. An unknown format constrains nothing, by the
/// standard.
fn enforced(format: &str) -> Option<&str> {
    match format {
        "uuid1" | "uuid2" | "uuid3" | "uuid4" | "uuid5" | "uuid6" | "uuid7" | "uuid8" => {
            Some("uuid")
        }
        known => FORMATS.contains(&known).then_some(known),
    }
}
