//! Objects that declare their members have no others, whatever stands beside them.

use serde_json::{Value, json};

use super::super::compile::{PartError, compile, factory};
use super::compile::{END, schema};
use super::state::{Walk, byte_vocabulary};
use super::*;

/// The answers that a schema allows.
struct Allowed {
    name: &'static str,
    schema: Value,
    good: Vec<Value>,
    bad: Vec<Value>,
}

/// JSON as the compiler writes it.
fn written(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| {
                format!("{}: {}", Value::from(name.as_str()), written(value))
            };
            format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(written).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

pub(super) fn compiled(schema_of: &Value) -> Result<GrammarState, String> {
    let vocabulary = byte_vocabulary();
    let factory = factory(&vocabulary).expect("a compiler");
    let source = schema(schema_of);
    let parser = compile(&factory, &source).map_err(|PartError { error, .. }| error.to_string())?;
    Ok(GrammarState::new(parser, vocabulary.end, vec![END]))
}

/// Why a schema is refused.
#[track_caller]
fn refusal(schema_of: &Value) -> String {
    match compiled(schema_of) {
        Err(error) => error,
        Ok(_) => panic!("{schema_of} is served"),
    }
}

/// Whether a grammar allows a whole answer.
fn allows(state: &GrammarState, value: &Value) -> bool {
    let ids: Vec<u32> = written(value).bytes().map(u32::from).chain([END]).collect();
    state.allowed_drafts(&ids) == ids.len()
}

#[track_caller]
fn check(case: &Allowed) {
    let Allowed { name, schema, good, bad } = case;
    let state = compiled(schema).unwrap_or_else(|error| panic!("{name}: {error}"));
    let validator = jsonschema::validator_for(schema).expect("a schema");
    for value in good {
        assert!(validator.is_valid(value), "{name}: {value} is no answer of {schema}");
        assert!(allows(&state, value), "{name}: {value} is refused by {schema}");
    }
    for value in bad {
        assert!(!allows(&state, value), "{name}: {value} is allowed by {schema}");
    }
    for seed in 0..6 {
        let state = compiled(schema).expect("as before");
        let Some(answer) = Walk::new(seed).run(&state, 400) else { continue };
        let text = String::from_utf8(answer).expect("text");
        let Ok(value) = serde_json::from_str(&text) else { continue };
        assert!(validator.is_valid(&value), "{name}: {text} for {schema}");
    }
}

fn integer() -> Value {
    json!({"type": "integer"})
}

/// An object of integers.
pub(super) fn object(names: &[&str], required: &[&str]) -> Value {
    let properties: serde_json::Map<String, Value> =
        names.iter().map(|name| ((*name).to_owned(), integer())).collect();
    json!({"type": "object", "properties": properties, "required": required})
}

#[test]
fn an_object_that_declares_its_members_has_no_others() {
    let plain = object(&["a", "b"], &["a"]);
    let nested = json!({"type": "array", "maxItems": 1, "items": plain});
    for case in [
        Allowed {
            name: "plain",
            schema: plain.clone(),
            good: vec![json!({"a": 1}), json!({"a": 1, "b": 2})],
            bad: vec![json!({"a": 1, "x": 2}), json!({"b": 2})],
        },
        Allowed {
            name: "in items",
            schema: nested,
            good: vec![json!([{"a": 1}])],
            bad: vec![json!([{"a": 1, "x": 2}])],
        },
        Allowed {
            name: "no member at all",
            schema: json!({"type": "object", "properties": {}}),
            good: vec![json!({})],
            bad: vec![json!({"x": 1})],
        },
        Allowed {
            name: "without a type",
            schema: json!({"properties": {"a": integer()}}),
            good: vec![json!({"a": 1}), json!(3), json!([{"x": 1}])],
            bad: vec![json!({"x": 1})],
        },
        Allowed {
            name: "a required member that no `properties` declares",
            schema: json!({"type": "object", "properties": {"a": integer()}, "required": ["b"]}),
            good: vec![json!({"a": 1, "b": {"c": []}}), json!({"b": 1})],
            bad: vec![json!({"a": 1}), json!({"b": 1, "x": 2})],
        },
        Allowed {
            name: "patterns beside",
            schema: json!({"type": "object", "properties": {"a": integer()},
                "patternProperties": {"^n_": integer()}}),
            good: vec![json!({"a": 1, "n_b": 2}), json!({"n_b": 2})],
            bad: vec![json!({"a": 1, "x": 2}), json!({"n_b": "c"})],
        },
        Allowed {
            name: "in a map",
            schema: json!({"type": "object", "additionalProperties": plain}),
            good: vec![json!({"k": {"a": 1}, "l": {"a": 2, "b": 1}})],
            bad: vec![json!({"k": {"a": 1, "x": 2}})],
        },
        Allowed {
            name: "at least one member",
            schema: json!({"type": "object", "minProperties": 1,
                "properties": {"a": integer(), "b": integer()}}),
            good: vec![json!({"a": 1}), json!({"b": 1})],
            bad: vec![json!({}), json!({"x": 1})],
        },
    ] {
        check(&case);
    }
}

#[test]
fn what_opens_an_object_keeps_it_open() {
    let any = json!({"x": [1, {"y": null}]});
    let both = |more: Value| {
        let mut schema = object(&["a"], &["a"]);
        schema["additionalProperties"] = more;
        schema
    };
    for case in [
        Allowed {
            name: "a free map",
            schema: json!({"type": "object"}),
            good: vec![any.clone(), json!({})],
            bad: vec![json!(1)],
        },
        Allowed {
            name: "required alone",
            schema: json!({"type": "object", "required": ["x"]}),
            good: vec![any.clone(), json!({"x": 1, "z": 2})],
            bad: vec![json!({"z": 2})],
        },
        Allowed {
            name: "patterns alone",
            schema: json!({"type": "object", "patternProperties": {"^n_": integer()}}),
            good: vec![any.clone(), json!({"n_a": 1})],
            bad: vec![json!({"n_a": "b"})],
        },
        Allowed {
            name: "additionalProperties, true",
            schema: both(json!(true)),
            good: vec![json!({"a": 1, "x": "y"})],
            bad: vec![json!({"x": "y"})],
        },
        Allowed {
            name: "additionalProperties, a schema",
            schema: both(json!({"type": "boolean"})),
            good: vec![json!({"a": 1, "x": true})],
            bad: vec![json!({"a": 1, "x": "y"})],
        },
        Allowed {
            name: "an open base",
            schema: json!({"allOf": [both(json!(true))], "properties": {"b": integer()}}),
            good: vec![json!({"a": 1, "b": 2, "x": 3}), json!({"a": 1})],
            bad: vec![json!({"b": 2})],
        },
        Allowed {
            name: "an open branch",
            schema: json!({"type": "object", "properties": {"a": integer()}, "required": ["a"],
            "anyOf": [
                {"properties": {"k": {"const": 1}}, "required": ["k"], "additionalProperties": true},
                {"properties": {"l": {"const": 2}}, "required": ["l"]},
            ]}),
            good: vec![json!({"a": 1, "k": 1, "x": 3}), json!({"a": 1, "l": 2})],
            bad: vec![json!({"a": 1, "l": 2, "x": 3})],
        },
        Allowed {
            name: "unevaluatedProperties, true",
            schema: json!({"type": "object", "properties": {"a": integer()},
                "unevaluatedProperties": true}),
            good: vec![json!({"a": 1, "x": 3})],
            bad: vec![json!({"a": "b"})],
        },
        Allowed {
            name: "more members demanded than declared",
            schema: json!({"type": "object", "properties": {"a": integer()}, "required": ["a"],
                "minProperties": 2}),
            good: vec![json!({"a": 1, "x": 3})],
            bad: vec![json!({"a": 1})],
        },
        Allowed {
            name: "a value that is written out",
            schema: json!({"type": "object", "properties": {"a": integer()},
                "enum": [{"a": 1, "b": 2}]}),
            good: vec![json!({"a": 1, "b": 2})],
            bad: vec![json!({"a": 1})],
        },
    ] {
        check(&case);
    }
}

#[test]
fn what_stands_together_is_closed_as_a_whole() {
    let defs = json!({
        "Base": object(&["id", "at"], &["id"]),
        "Named": object(&["name"], &["name"]),
        "Derived": {"allOf": [{"$ref": "#/$defs/Base"}], "properties": {"size": integer()},
            "required": ["size"]},
        "a/b %": object(&["odd"], &["odd"]),
    });
    let with = |schema: Value| {
        let mut schema = schema;
        schema["$defs"] = defs.clone();
        schema
    };
    let reference = |name: &str| json!({"$ref": format!("#/$defs/{name}")});
    for case in [
        Allowed {
            name: "inheritance: a base and own properties",
            schema: with(json!({"allOf": [reference("Base")], "type": "object",
                "properties": {"size": integer()}, "required": ["size"]})),
            good: vec![json!({"id": 1, "at": 2, "size": 3}), json!({"id": 1, "size": 3})],
            bad: vec![json!({"id": 1, "size": 3, "x": 4}), json!({"size": 3})],
        },
        Allowed {
            name: "inheritance: own properties before the base",
            schema: with(json!({"properties": {"size": integer()}, "allOf": [reference("Base")]})),
            good: vec![json!({"size": 3, "id": 1, "at": 2}), json!({"id": 1})],
            bad: vec![json!({"size": 3, "id": 1, "x": 4})],
        },
        Allowed {
            name: "a reference and properties beside it",
            schema: with(json!({"$ref": "#/$defs/Base", "properties": {"size": integer()}})),
            good: vec![json!({"id": 1, "size": 3})],
            bad: vec![json!({"id": 1, "x": 4})],
        },
        Allowed {
            name: "inheritance over two levels",
            schema: with(json!({"allOf": [reference("Derived"), reference("Named")]})),
            good: vec![json!({"id": 1, "size": 3, "name": 4})],
            bad: vec![json!({"id": 1, "size": 3, "name": 4, "x": 5})],
        },
        Allowed {
            name: "two references",
            schema: with(json!({"allOf": [reference("Base"), reference("Named")]})),
            good: vec![json!({"id": 1, "at": 2, "name": 3})],
            bad: vec![json!({"id": 1, "name": 3, "x": 4}), json!({"id": 1})],
        },
        Allowed {
            name: "the base alone, used beside its heirs",
            schema: with(json!({"type": "object", "properties": {
                "base": reference("Base"), "heir": reference("Derived")}})),
            good: vec![json!({"base": {"id": 1}, "heir": {"id": 1, "size": 2}})],
            bad: vec![
                json!({"base": {"id": 1, "size": 2}}),
                json!({"heir": {"id": 1, "size": 2, "x": 3}}),
            ],
        },
        Allowed {
            name: "a name with characters that are escaped",
            schema: with(
                json!({"allOf": [{"$ref": "#/$defs/a~1b%20%25"}], "properties": {"b": integer()}}),
            ),
            good: vec![json!({"odd": 1, "b": 2})],
            bad: vec![json!({"odd": 1, "x": 2})],
        },
        Allowed {
            name: "a wrapped reference, as older pydantic writes it",
            schema: with(json!({"type": "object", "properties": {
                "in": {"allOf": [reference("Base")], "default": {"id": 3}, "title": "T"}}})),
            good: vec![json!({"in": {"id": 1}})],
            bad: vec![json!({"in": {"id": 1, "x": 1}})],
        },
        Allowed {
            name: "unevaluatedProperties, false",
            schema: with(json!({"allOf": [reference("Base")], "unevaluatedProperties": false})),
            good: vec![json!({"id": 1})],
            bad: vec![json!({"id": 1, "x": 1})],
        },
        Allowed {
            name: "patterns of a base",
            schema: with(json!({"allOf": [{"properties": {"a": integer()},
                "patternProperties": {"^n_": integer()}}], "properties": {"b": integer()},
                "type": "object"})),
            good: vec![json!({"a": 1, "b": 2, "n_c": 3})],
            bad: vec![json!({"a": 1, "x": 2})],
        },
        Allowed {
            name: "a base that closes itself",
            schema: json!({"allOf": [{"properties": {"a": integer()},
                "additionalProperties": false}], "properties": {"a": {"minimum": 3}, "b": integer()},
                "type": "object"}),
            good: vec![json!({"a": 4}), json!({})],
            bad: vec![json!({"a": 1}), json!({"a": 4, "b": 2})],
        },
    ] {
        check(&case);
    }
}

#[test]
fn branches_have_their_own_members_and_those_beside_them() {
    let cat =
        json!({"properties": {"kind": {"const": "cat"}, "lives": integer()}, "required": ["kind"]});
    let dog = json!({"type": "object", "properties": {"kind": {"const": "dog"}, "tricks": integer()},
        "required": ["kind"]});
    let defs = json!({"Cat": cat, "Dog": dog});
    let pets = json!([{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]);
    let good = vec![
        json!({"id": 1, "kind": "cat", "lives": 9}),
        json!({"id": 1, "kind": "dog", "tricks": 2}),
    ];
    let bad = vec![
        json!({"id": 1, "kind": "cat", "tricks": 2}),
        json!({"id": 1, "kind": "dog", "tricks": 2, "x": 3}),
        json!({"id": 1}),
        json!({"kind": "cat"}),
    ];
    let beside = |keyword: &str, branches: &Value| {
        let mut schema = json!({"type": "object", "properties": {"id": integer()}, "required": ["id"], "$defs": defs});
        schema[keyword] = branches.clone();
        schema
    };
    let alone = |keyword: &str| {
        let mut schema = json!({"type": "object", "$defs": defs});
        schema[keyword] = pets.clone();
        schema
    };
    for case in [
        Allowed {
            name: "anyOf of references",
            schema: beside("anyOf", &pets),
            good: good.clone(),
            bad: bad.clone(),
        },
        Allowed {
            name: "oneOf of references",
            schema: beside("oneOf", &pets),
            good: good.clone(),
            bad: bad.clone(),
        },
        Allowed {
            name: "anyOf within allOf",
            schema: beside("allOf", &json!([{"anyOf": pets}])),
            good: good.clone(),
            bad: bad.clone(),
        },
        Allowed {
            name: "branches alone",
            schema: alone("anyOf"),
            good: vec![json!({"kind": "cat", "lives": 9}), json!({"kind": "dog"})],
            bad: vec![json!({"kind": "dog", "lives": 9}), json!({"kind": "cat", "x": 1})],
        },
        Allowed {
            name: "a union by a discriminator",
            schema: alone("oneOf"),
            good: vec![json!({"kind": "cat", "lives": 9}), json!({"kind": "dog"})],
            bad: vec![json!({"kind": "dog", "lives": 9}), json!({"kind": "cat", "x": 1})],
        },
        Allowed {
            name: "one of two members, at least",
            schema: json!({"type": "object", "properties": {"a": integer(), "b": integer(), "c": integer()},
                "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
            good: vec![json!({"a": 1}), json!({"a": 1, "b": 2, "c": 3}), json!({"b": 2, "c": 3})],
            bad: vec![json!({"c": 3}), json!({"a": 1, "x": 2})],
        },
        Allowed {
            name: "a branch that says nothing",
            schema: json!({"type": "object", "properties": {"a": integer()}, "anyOf": [true, {"properties": {"b": integer()}}]}),
            good: vec![json!({"a": 1}), json!({"a": 1, "b": 2})],
            bad: vec![json!({"a": 1, "x": 2})],
        },
        Allowed {
            name: "two choices",
            schema: json!({"type": "object", "properties": {"id": integer()},
            "allOf": [
                {"anyOf": [{"properties": {"a": integer()}, "required": ["a"]}, {"properties": {"b": integer()}, "required": ["b"]}]},
                {"anyOf": [{"properties": {"c": integer()}, "required": ["c"]}, {"properties": {"d": integer()}, "required": ["d"]}]},
            ]}),
            good: vec![json!({"id": 1, "a": 1, "c": 2}), json!({"id": 1, "b": 1, "d": 2})],
            bad: vec![
                json!({"id": 1, "a": 1}),
                json!({"id": 1, "a": 1, "c": 2, "x": 3}),
                json!({"id": 1, "a": 1, "b": 2, "c": 3}),
            ],
        },
        Allowed {
            name: "an optional object",
            schema: json!({"type": "object", "properties": {"o": {"anyOf": [{"$ref": "#/$defs/Dog"}, {"type": "null"}]}}, "$defs": defs}),
            good: vec![json!({"o": null}), json!({"o": {"kind": "dog"}}), json!({})],
            bad: vec![json!({"o": {"kind": "dog", "x": 1}})],
        },
    ] {
        check(&case);
    }
}

#[test]
fn recursion_is_closed_at_every_level() {
    let node = json!({"type": "object", "properties": {"value": integer(),
        "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}, "required": ["value"]});
    let expression = json!({"anyOf": [{"$ref": "#/$defs/Number"}, {"$ref": "#/$defs/Sum"}]});
    let sum = json!({"type": "object", "properties": {"left": {"$ref": "#/$defs/Expression"},
        "right": {"$ref": "#/$defs/Expression"}}, "required": ["left", "right"]});
    let heir = json!({"allOf": [{"$ref": "#/$defs/Tree"}], "properties": {"leaf": integer()}});
    let tree = json!({"type": "object", "properties": {"id": integer(),
        "children": {"type": "array", "items": {"$ref": "#/$defs/Heir"}, "maxItems": 2},
        "self": {"allOf": [{"$ref": "#/$defs/Tree"}], "properties": {"extra": integer()}}}});
    let defs = json!({"Node": node, "Expression": expression, "Sum": sum,
        "Number": object(&["n"], &["n"]), "Heir": heir, "Tree": tree});
    let of = |name: &str| json!({"$ref": format!("#/$defs/{name}"), "$defs": defs});
    for case in [
        Allowed {
            name: "a list",
            schema: of("Node"),
            good: vec![json!({"value": 1, "next": {"value": 2, "next": null}})],
            bad: vec![
                json!({"value": 1, "next": {"value": 2, "x": 3}}),
                json!({"value": 1, "x": 3}),
            ],
        },
        Allowed {
            name: "alternatives",
            schema: of("Expression"),
            good: vec![json!({"left": {"n": 1}, "right": {"left": {"n": 1}, "right": {"n": 2}}})],
            bad: vec![json!({"left": {"n": 1}, "right": {"n": 1, "x": 2}})],
        },
        Allowed {
            name: "a base whose members are its heirs",
            schema: of("Tree"),
            good: vec![
                json!({"id": 1, "children": [{"id": 2, "leaf": 3}], "self": {"id": 4, "extra": 5}}),
            ],
            bad: vec![
                json!({"id": 1, "leaf": 2}),
                json!({"children": [{"leaf": 3, "x": 4}]}),
                json!({"self": {"self": {"extra": 1, "x": 2}}}),
            ],
        },
        Allowed {
            name: "the root in itself",
            schema: json!({"type": "object", "properties": {"a": integer(), "in": {"$ref": "#"}}}),
            good: vec![json!({"a": 1, "in": {"in": {"a": 2}}})],
            bad: vec![json!({"in": {"x": 1}})],
        },
    ] {
        check(&case);
    }
}

#[test]
fn branches_of_one_of_are_alternatives_only_if_they_exclude_one_another() {
    let refused = refusal;
    // Closed, each has a member that the other has not. As they stand, one value matches both.
    let overlapping = json!({"type": "object", "oneOf": [object(&["a"], &["a"]), object(&["a", "b"], &["a", "b"])]});
    assert!(refused(&overlapping).contains("oneOf"), "{}", refused(&overlapping));
    // A number is no object, so that both may match it.
    let kind = |name: &str| json!({"properties": {"kind": {"const": name}}, "required": ["kind"]});
    let without_type = json!({"oneOf": [kind("a"), kind("b")]});
    assert!(refused(&without_type).contains("oneOf"));
    let not_required = json!({"type": "object", "oneOf": [
        {"properties": {"kind": {"const": "a"}}}, {"properties": {"kind": {"const": "b"}}}]});
    assert!(refused(&not_required).contains("found some at oneOf"), "{}", refused(&not_required));
    check(&Allowed {
        name: "each branch has a member of its own",
        schema: json!({"type": "object", "properties": {"id": integer()}, "oneOf": [
            object(&["a"], &["a"]), object(&["b", "c"], &["b"])]}),
        good: vec![json!({"id": 1, "a": 2}), json!({"b": 1, "c": 2})],
        bad: vec![json!({"id": 1, "a": 2, "b": 3}), json!({"id": 1}), json!({"a": 2, "c": 3})],
    });
    check(&Allowed {
        name: "numbers that are equal are one value",
        schema: json!({"oneOf": [{"const": 1}, {"const": 2}, {"type": "string"}]}),
        good: vec![json!(1), json!(2), json!("a")],
        bad: vec![json!(3)],
    });
    assert!(refused(&json!({"oneOf": [{"enum": [1, 2]}, {"const": 2.0}]})).contains("oneOf"));
}

#[test]
fn references_that_end_nowhere_are_refused_by_name() {
    let refused = |schema: Value| refusal(&schema);
    let itself = json!({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}], "properties": {}}}, "$ref": "#/$defs/a"});
    assert!(refused(itself).contains("reference"));
    let circle = json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"});
    assert!(refused(circle).contains("reference"));
    assert!(
        refused(json!({"properties": {"a": {"$ref": "#/$defs/none"}}})).contains("#/$defs/none")
    );
    assert!(refused(json!({"$ref": "other.json"})).contains("other.json"));
    assert!(refused(json!({"$ref": 3})).contains("$ref"));
    // Schemas outside the known keywords are checked when a reference leads to them.
    let outside = json!({"components": {"a": {"not": {}}}, "$ref": "#/components/a"});
    assert!(refused(outside).contains("not at components.a.not"));
    let nested = json!({"allOf": [{"properties": {"a": {}}, "unevaluatedProperties": false}], "properties": {"b": {}}});
    assert!(refused(nested).contains("unevaluatedProperties"));
}

#[test]
fn formats_that_are_not_known_say_nothing() {
    let text = |format: &str| json!({"type": "string", "format": format});
    for format in
        ["binary", "path", "password", "base64", "decimal", "colour-name", "unknown", "iri"]
    {
        check(&Allowed {
            name: "unknown",
            schema: text(format),
            good: vec![json!("~ a b")],
            bad: vec![json!(1)],
        });
    }
    let uuid = json!("123e4567-e89b-42d3-a456-426614174000");
    for format in ["uuid", "uuid1", "uuid3", "uuid4", "uuid5", "uuid7"] {
        let (good, bad) = (vec![uuid.clone()], vec![json!("x"), json!("")]);
        check(&Allowed { name: "uuid", schema: text(format), good, bad });
    }
    for format in schema::FORMATS {
        let state = compiled(&text(format)).expect("known");
        assert!(!allows(&state, &json!("~ a b")), "{format} is enforced");
    }
    let number = json!({"type": "integer", "format": "int32"});
    check(&Allowed {
        name: "a number",
        schema: number,
        good: vec![json!(3)],
        bad: vec![json!("3")],
    });
    let other = json!({"type": ["integer", "null"], "format": "uuid4"});
    check(&Allowed { name: "no text", schema: other, good: vec![json!(3)], bad: vec![json!("3")] });
    assert!(refusal(&json!({"type": "string", "format": 3})).contains("format"));
}
