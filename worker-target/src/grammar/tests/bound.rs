//! Whatever passes the compiler can be generated: objects with as many properties as are served, with a
//! vocabulary of the size that models have.

use paceline_models::sample::Constraint as _;
use serde_json::{Map, Value, json};

use super::super::compile::{compile, factory};
use super::compile::{END, schema};
use super::state::made_up_vocabulary;
use super::*;

/// The most that are served.
const PROPERTIES: usize = 500;

/// An object with as many properties as are served.
fn object(required: usize, additional: bool) -> Value {
    let name = |at: usize| format!("property_{at:03}");
    let properties: Map<String, Value> =
        (0..PROPERTIES).map(|at| (name(at), json!({"type": "string"}))).collect();
    let required: Vec<String> = (0..required).map(name).collect();
    json!({"type": "object", "properties": properties, "required": required,
        "additionalProperties": additional})
}

#[test]
fn an_object_with_as_many_properties_as_are_served_can_be_generated() {
    let vocabulary = made_up_vocabulary();
    let factory = factory(&vocabulary).expect("a compiler");
    let members: Vec<String> =
        (0..PROPERTIES).map(|at| format!("\"property_{at:03}\": \"ab\"")).collect();
    let answer: Vec<u32> = format!("{{{}}}", members.join(", ")).bytes().map(u32::from).collect();
    for (required, additional) in [(0, false), (0, true), (PROPERTIES, false)] {
        let source = schema(&object(required, additional));
        let parser = match compile(&factory, &source) {
            Ok(parser) => parser,
            Err(refused) => panic!("{required} {additional}: {}", refused.error),
        };
        let state = GrammarState::new(parser, vocabulary.end, vec![END]);
        for at in (0..40).chain((40..answer.len()).step_by(487)) {
            state.follow(&answer[..at]);
            let allowed = state.allowed(&[]);
            let (failure, next) = (state.failure(), answer[at]);
            assert!(failure.is_none(), "{required} {additional} at {at}: {failure:?}");
            assert!(allowed.contains(next), "{required} {additional} at {at}");
        }
    }
}
