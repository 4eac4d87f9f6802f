//! `docs/openapi.json`: the paths of the HTTP address, with schemas that are made of the types that
//! decode and encode. Tests compare the file with the code and write it.
//!
//! A schema of a request has the served fields of its type and the accepted ones of the protocol's
//! table, and no others.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use super::accepted::{Accepted, Values};
use super::openai::accepted;
use super::openai::chat::answer::{ChatCompletion, ChatCompletionChunk};
use super::openai::chat::request::ChatCompletionRequest;
use super::openai::completions::answer::{Completion, CompletionChunk};
use super::openai::completions::request::CompletionRequest;
use super::openai::error::ErrorBody;
use super::openai::models::{ModelList, ModelObject};

/// Statuses of errors on every path that answers.
const ERRORS: &[(&str, &str)] = &[
    ("400", "The request cannot be served."),
    ("401", "Keys are set, and the request has none that is known."),
    ("404", "No such model here."),
    ("408", "The body did not arrive in time."),
    ("413", "The body is too large."),
    ("429", "Too many requests; `retry-after` says when to try again."),
    ("500", "An error inside the service."),
    ("503", "The model is not served now; `retry-after` says when to try again."),
    ("504", "The deadline passed."),
];

/// The types of all bodies. Types inside them are found by themselves.
#[derive(OpenApi)]
#[openapi(components(schemas(
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    Completion,
    CompletionChunk,
    CompletionRequest,
    ErrorBody,
    ModelList,
    ModelObject,
)))]
struct Schemas;

/// The accepted fields of each type of a request.
const ACCEPTED: &[(&str, &[Accepted])] = &[
    ("ChatCompletionRequest", accepted::CHAT),
    ("ChatMessage", accepted::MESSAGE),
    ("ChatPart", accepted::PART),
    ("ImageAddress", accepted::IMAGE),
    ("ChatTool", accepted::TOOL),
    ("ChatFunction", accepted::FUNCTION),
    ("ChatToolCall", accepted::CALL),
    ("StreamOptions", accepted::STREAM),
    ("CompletionRequest", accepted::COMPLETIONS),
];

/// How a path is answered.
struct Answering<'a> {
    summary: &'a str,
    /// Type of the request.
    request: &'a str,
    /// Type of a whole answer.
    whole: &'a str,
    /// Type of the data of each event of a streamed answer.
    chunk: &'a str,
}

fn document() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Paceline",
            "description": "The HTTP address of Paceline (gateway.http). Fields that are in no schema are refused.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "http://127.0.0.1:8061" }],
        "security": [{}, { "bearer": [] }, { "x-api-key": [] }],
        "paths": paths(),
        "components": {
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "x-api-key": { "type": "apiKey", "in": "header", "name": "x-api-key" },
            },
            "schemas": schemas(),
        },
    })
}

fn paths() -> Value {
    let name =
        json!({ "name": "name", "in": "path", "required": true, "schema": { "type": "string" } });
    json!({
        "/v1/models": { "get": getting("The served model, in a list.", "ModelList") },
        "/v1/models/{name}": {
            "parameters": [name],
            "get": getting("The served model, by its name or an alias.", "ModelObject"),
        },
        "/v1/chat/completions": { "post": answering(&Answering {
            summary: "Answers a conversation.",
            request: "ChatCompletionRequest",
            whole: "ChatCompletion",
            chunk: "ChatCompletionChunk",
        }) },
        "/v1/completions": { "post": answering(&Answering {
            summary: "Continues a text.",
            request: "CompletionRequest",
            whole: "Completion",
            chunk: "CompletionChunk",
        }) },
        "/v1/responses": { "post": untyped(
            "Answers a conversation, in the Responses protocol.",
            "The answer. With `stream`: server-sent events with names.",
        ) },
        "/v1/messages": { "post": untyped(
            "Answers a conversation, in the Messages protocol.",
            "The answer. With `stream`: server-sent events with names.",
        ) },
        "/v1/messages/count_tokens": { "post": untyped(
            "Counts the tokens of a conversation.",
            "The number, in `input_tokens`.",
        ) },
    })
}

/// A path whose types have no schema yet: its bodies are objects.
fn untyped(summary: &str, answer: &str) -> Value {
    let object = json!({ "application/json": { "schema": { "type": "object" } } });
    let ok = json!({ "description": answer, "content": object });
    let mut responses = Map::from_iter([("200".to_owned(), ok)]);
    for (status, description) in ERRORS {
        let error = json!({ "description": description, "content": object });
        responses.insert((*status).to_owned(), error);
    }
    json!({
        "summary": summary,
        "requestBody": { "required": true, "content": object },
        "responses": responses,
    })
}

fn getting(summary: &str, answer: &str) -> Value {
    let ok = json!({ "description": "It.", "content": content(answer) });
    json!({ "summary": summary, "responses": with_errors(&ok) })
}

fn answering(of: &Answering<'_>) -> Value {
    let chunk = of.chunk;
    let ok = json!({
        "description": "The answer. With `stream`: server-sent events.",
        "content": {
            "application/json": { "schema": reference(of.whole) },
            "text/event-stream": { "schema": {
                "type": "string",
                "description": format!("The data of each event is a {chunk}; of the last one `[DONE]`."),
            } },
        },
    });
    json!({
        "summary": of.summary,
        "requestBody": { "required": true, "content": content(of.request) },
        "responses": with_errors(&ok),
    })
}

fn content(schema: &str) -> Value {
    json!({ "application/json": { "schema": reference(schema) } })
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

fn with_errors(ok: &Value) -> Value {
    let mut responses = Map::from_iter([("200".to_owned(), ok.clone())]);
    for (status, description) in ERRORS {
        let error = json!({ "description": description, "content": content("ErrorBody") });
        responses.insert((*status).to_owned(), error);
    }
    Value::Object(responses)
}

fn schemas() -> Value {
    let document = serde_json::to_value(Schemas::openapi()).expect("JSON");
    let mut schemas = document["components"]["schemas"].clone();
    for (name, table) in ACCEPTED {
        let schema = schemas[name].as_object_mut().unwrap_or_else(|| panic!("no schema {name}"));
        schema.insert("additionalProperties".to_owned(), Value::Bool(false));
        let properties = schema["properties"].as_object_mut().expect("it has fields");
        for accepted in *table {
            let mut described = values(accepted.values);
            described["description"] = json!("Accepted and not read.");
            let before = properties.insert(accepted.field.to_owned(), described);
            assert!(before.is_none(), "{name}.{} is served", accepted.field);
        }
    }
    schemas
}

/// The schema of the values of an accepted field.
fn values(values: Values) -> Value {
    let or_null = |schema: Value| json!({ "oneOf": [{ "type": "null" }, schema] });
    match values {
        Values::Any => json!({}),
        Values::Null => json!({ "type": "null" }),
        Values::Empty => json!({ "enum": [null, "", [], {}] }),
        Values::Boolean(value) => or_null(json!({ "const": value })),
        Values::Words(words) => or_null(json!({ "enum": words })),
        Values::ListOf(word) => or_null(json!({ "type": "array", "items": { "const": word } })),
    }
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/openapi.json")
}

fn text() -> String {
    format!("{:#}\n", document())
}

#[test]
fn the_file_is_what_the_types_say() {
    let found = std::fs::read_to_string(file()).expect("docs/openapi.json");
    let wanted = text();
    let differing = found.lines().zip(wanted.lines()).find(|(found, wanted)| found != wanted);
    assert!(
        found == wanted,
        "docs/openapi.json is not what the types say, first at {differing:?}; write it again: \
         cargo nextest run -p paceline-gateway --run-ignored only -E 'test(write_the_file)'"
    );
}

#[test]
#[ignore = "it writes docs/openapi.json, when the types have changed"]
fn write_the_file() {
    std::fs::write(file(), text()).expect("writable");
}

#[test]
fn every_reference_has_its_schema() {
    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("$ref").and_then(Value::as_str));
                members.values().for_each(|value| references(value, found));
            }
            Value::Array(list) => list.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let document = document();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 20, "{found:?}");
    for reference in found {
        let name = reference.strip_prefix("#/components/schemas/").expect("a schema");
        assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
    }
}

#[test]
fn a_type_of_a_request_refuses_other_fields() {
    let schemas = schemas();
    let closed = |name: &str| schemas[name]["additionalProperties"] == json!(false);
    for name in ["ChatCompletionRequest", "ChatMessage", "CompletionRequest", "Extension"] {
        assert!(closed(name), "{name}");
    }
}
