//! Time and memory of closing hostile schemas.

use serde_json::{Value, json};

use super::super::store::STACK_BYTES;
use super::closing::{compiled, object};
use super::compile::{MOST, measured};

#[test]
fn hostile_references_and_branches_are_bounded() {
    let two = |keyword: &str, at: u32| {
        let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
        json!({"type": "object", "properties": {(format!("p{at}")): true}, (keyword): [next.clone(), next]})
    };
    let doubled = |keyword: &str| {
        let mut defs: serde_json::Map<String, Value> =
            (0..60).map(|at| (format!("d{at}"), two(keyword, at))).collect();
        defs.insert("d60".into(), object(&["a"], &[]));
        json!({"$ref": "#/$defs/d0", "$defs": defs})
    };
    let named = |count: usize| {
        (0..count).map(|at| (format!("n{at}"), json!(true))).collect::<serde_json::Map<_, _>>()
    };
    let branch = |at: usize| {
        let members: serde_json::Map<String, Value> =
            (0..15).map(|name| (format!("m{name}"), json!({"const": at * 64 + name}))).collect();
        json!({"type": "object", "properties": members, "required": ["m14"]})
    };
    let branches: Vec<Value> = (0..200).map(branch).collect();
    let chain: serde_json::Map<String, Value> = (0..1_300)
        .map(|at| {
            (
                format!("d{at}"),
                json!({"allOf": [{"$ref": format!("#/$defs/d{}", at + 1)}], "properties": {}}),
            )
        })
        .collect();
    let unions: serde_json::Map<String, Value> = (0..400)
        .map(|at| {
            (
                format!("u{at}"),
                json!({"$ref": "#/$defs/U", "properties": {(format!("x{at}")): true}}),
            )
        })
        .collect();
    let leads_back = json!([{"$ref": "#"}, {"$ref": "#"}]);
    for (name, schema_of) in [
        ("doubled allOf", doubled("allOf")),
        ("doubled anyOf", doubled("anyOf")),
        ("doubled oneOf", doubled("oneOf")),
        (
            "many branches beside many properties",
            json!({"type": "object", "properties": named(500), "anyOf": branches}),
        ),
        ("a large union", json!({ "oneOf": branches })),
        (
            "a large union in many places",
            json!({"type": "object", "properties": unions, "$defs": {"U": {"oneOf": branches}}}),
        ),
        ("a chain", json!({"$ref": "#/$defs/d0", "$defs": chain})),
        ("a branch that is the whole", json!({"properties": {"a": true}, "anyOf": leads_back})),
        (
            "choices that are the whole",
            json!({"properties": {"a": true}, "anyOf": leads_back, "oneOf": leads_back}),
        ),
        ("a whole of itself", json!({"properties": {"a": true}, "allOf": leads_back})),
    ] {
        let (outcome, cost) = measured(STACK_BYTES, move || compiled(&schema_of).map(|_| ()));
        println!("{:>6} ms {:>8} KiB  {name}: {outcome:?}", cost.ms, cost.bytes >> 10);
        assert!(cost.ms <= MOST.ms && cost.bytes <= MOST.bytes, "{name}: {} ms", cost.ms);
    }
}
