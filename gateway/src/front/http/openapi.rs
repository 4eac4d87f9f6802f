//! `docs/openapi.json`: the paths of the HTTP address, with schemas that are made of the types that
//! decode and encode. Tests compare the file with the code and write it.
//!
//! A schema of a request has the served fields of its type and the accepted ones of the protocol's
//! table, and no others.

use std::path::{Path, PathBuf};

use paceline_protocols::accepted::Values;
use paceline_protocols::anthropic::CountedTokens;
use paceline_protocols::anthropic::answer::MessagesAnswer;
use paceline_protocols::anthropic::error::MessagesErrorBody;
use paceline_protocols::anthropic::models::{MessagesModel, MessagesModelList};
use paceline_protocols::anthropic::types::MessagesRequest;
use paceline_protocols::dialect::status;
use paceline_protocols::openai::chat::answer::{ChatCompletion, ChatCompletionChunk};
use paceline_protocols::openai::chat::request::ChatCompletionRequest;
use paceline_protocols::openai::completions::answer::{Completion, CompletionChunk};
use paceline_protocols::openai::completions::request::CompletionRequest;
use paceline_protocols::openai::error::ErrorBody;
use paceline_protocols::openai::models::{ModelList, ModelObject};
use paceline_protocols::responses::answer::ResponsesAnswer;
use paceline_protocols::responses::types::ResponsesRequest;
use paceline_protocols::{anthropic, openai, responses};
use paceline_vocabulary::Reason;
use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use super::page::report::StatusReport;
use super::{Health, HttpWire};
use crate::front::connection::WireProtocol as _;
use crate::front::connection::places::AnswerKind;

/// Statuses of errors that a path may answer with.
const ERRORS: &[(u16, &str)] = &[
    (400, "The request cannot be served."),
    (401, "Keys are set, and the request has none that is known."),
    (403, "No keys are set, and a page of another site may have sent the request."),
    (404, "No such model here."),
    (405, "The path has no such method."),
    (408, "The body did not arrive in time."),
    (413, "The body is too large."),
    (415, "The body is compressed."),
    (429, "Too many requests; `retry-after` says when to try again."),
    (499, "An operator or the client's own leaving cancelled the request."),
    (500, "An error inside the service."),
    (503, "The model is not served now; `retry-after` says when to try again."),
    (504, "The deadline passed."),
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
    CountedTokens,
    ErrorBody,
    Health,
    MessagesAnswer,
    MessagesErrorBody,
    MessagesRequest,
    MessagesModel,
    MessagesModelList,
    ModelList,
    ModelObject,
    ResponsesAnswer,
    ResponsesRequest,
    StatusReport,
    // Only in lists of a generic type, which has copies of them.
    anthropic::types::Block,
    anthropic::types::ContentBlock,
    responses::types::Item,
    anthropic::types::ResultBlock,
    anthropic::types::SystemBlock,
    responses::types::InputItem,
    responses::types::ResponsesPart,
)))]
struct Schemas;

/// How a path is answered.
struct Answering<'a> {
    summary: &'a str,
    /// Type of the request.
    request: &'a str,
    /// Type of a whole answer.
    whole: &'a str,
    /// Description of a streamed answer's events; empty if it is never streamed.
    events: &'a str,
    /// Type of an error.
    error: &'a str,
}

const CHAT: Answering<'_> = Answering {
    summary: "Answers a conversation.",
    request: "ChatCompletionRequest",
    whole: "ChatCompletion",
    events: "The data of each event is a ChatCompletionChunk; of the last one `[DONE]`.",
    error: "ErrorBody",
};

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
        "/": { "get": page() },
        "/status": { "get": getting("The figures of the page.", "StatusReport") },
        "/status/session": {
            "post": session("Begins a session of the page: the cookie of the answer opens \
                `GET /status` and `POST /status/chat`. Without keys none is begun."),
            "delete": session("Ends the session of the cookie."),
        },
        "/status/chat": { "post": chatting() },
        "/health": { "get": health() },
        "/metrics": { "get": metrics() },
        "/v1/models": {
            "get": getting_either("The served model, in a list.", "ModelList", "MessagesModelList"),
        },
        "/v1/models/{name}": {
            "parameters": [name],
            "get": getting_either(
                "The served model, by its name or an alias.",
                "ModelObject",
                "MessagesModel",
            ),
        },
        "/v1/chat/completions": { "post": answering(&CHAT) },
        "/v1/completions": { "post": answering(&Answering {
            summary: "Continues a text.",
            request: "CompletionRequest",
            whole: "Completion",
            events: "The data of each event is a CompletionChunk; of the last one `[DONE]`.",
            error: "ErrorBody",
        }) },
        "/v1/responses": { "post": answering(&Answering {
            summary: "Answers a conversation, in the Responses protocol.",
            request: "ResponsesRequest",
            whole: "ResponsesAnswer",
            events: "Events have names. The last one, `response.completed` or \
                `response.incomplete`, has a ResponsesAnswer in `response`.",
            error: "ErrorBody",
        }) },
        "/v1/messages": { "post": answering(&Answering {
            summary: "Answers a conversation, in the Messages protocol.",
            request: "MessagesRequest",
            whole: "MessagesAnswer",
            events: "Events have names, from `message_start` to `message_stop`.",
            error: "MessagesErrorBody",
        }) },
        "/v1/messages/count_tokens": { "post": answering(&Answering {
            summary: "Counts the tokens of a conversation.",
            request: "MessagesRequest",
            whole: "CountedTokens",
            events: "",
            error: "MessagesErrorBody",
        }) },
    })
}

fn health() -> Value {
    let report =
        |description: &str| json!({ "description": description, "content": content("Health") });
    let method = json!({
        "description": "The path has no such method.",
        "content": content("ErrorBody"),
    });
    json!({
        "summary": "Whether a request would be served now. It needs no key.",
        "security": [],
        "responses": {
            "200": report("It would."),
            "405": method,
            "503": report("It would not, and why."),
        },
    })
}

fn page() -> Value {
    let html = json!({ "text/html": { "schema": { "type": "string" } } });
    let method = json!({
        "description": "The path has no such method.",
        "content": content("ErrorBody"),
    });
    json!({
        "summary": "The page, without figures. It needs no key.",
        "security": [],
        "responses": {
            "200": { "description": "The page, as HTML.", "content": html },
            "405": method,
        },
    })
}

fn session(summary: &str) -> Value {
    let mut responses = with_errors(&Value::Null, "ErrorBody");
    let errors = responses.as_object_mut().expect("responses");
    errors.remove("200");
    errors.insert("204".to_owned(), json!({ "description": "Done." }));
    json!({ "summary": summary, "responses": responses })
}

fn chatting() -> Value {
    let mut chatting = answering(&Answering {
        summary: "Answers a conversation of the page, for the page alone. Programs use \
            `/v1/chat/completions`.",
        ..CHAT
    });
    for (status, description) in [
        ("401", "Keys are set, and the request has no session of the page."),
        ("403", "Another page sent the request, or no page."),
    ] {
        chatting["responses"][status]["description"] = description.into();
    }
    chatting
}

fn metrics() -> Value {
    let text = json!({ "text/plain": { "schema": { "type": "string" } } });
    let ok = json!({ "description": "Figures in the text format of Prometheus.", "content": text });
    let responses = with_errors(&ok, "ErrorBody");
    json!({ "summary": "Figures of the service, for Prometheus.", "responses": responses })
}

fn getting(summary: &str, answer: &str) -> Value {
    let ok =
        json!({ "description": "What the summary names, as JSON.", "content": content(answer) });
    json!({ "summary": summary, "responses": with_errors(&ok, "ErrorBody") })
}

/// A path whose answer has the form of Anthropic's API if the request has its header.
fn getting_either(summary: &str, usual: &str, anthropic: &str) -> Value {
    let mut getting = getting(summary, usual);
    let forms = json!({ "oneOf": [reference(usual), reference(anthropic)] });
    let ok = &mut getting["responses"]["200"];
    ok["description"] =
        "With the header `anthropic-version`: in the form of Anthropic's API.".into();
    ok["content"] = json!({ "application/json": { "schema": forms } });
    getting
}

fn answering(of: &Answering<'_>) -> Value {
    let mut description = "The answer.";
    let mut forms = content(of.whole);
    if !of.events.is_empty() {
        description = "The answer. With `stream`: server-sent events.";
        let events = json!({ "type": "string", "description": of.events });
        forms["text/event-stream"] = json!({ "schema": events });
    }
    let ok = json!({ "description": description, "content": forms });
    json!({
        "summary": of.summary,
        "requestBody": { "required": true, "content": content(of.request) },
        "responses": with_errors(&ok, of.error),
    })
}

fn content(schema: &str) -> Value {
    json!({ "application/json": { "schema": reference(schema) } })
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("{SCHEMAS}{schema}") })
}

/// Where a reference finds a schema.
const SCHEMAS: &str = "#/components/schemas/";

fn with_errors(ok: &Value, error: &str) -> Value {
    let mut responses = Map::from_iter([("200".to_owned(), ok.clone())]);
    for (status, description) in ERRORS {
        let error = json!({ "description": description, "content": content(error) });
        responses.insert(status.to_string(), error);
    }
    Value::Object(responses)
}

fn schemas() -> Map<String, Value> {
    let document = serde_json::to_value(Schemas::openapi()).expect("JSON");
    let mut schemas = document["components"]["schemas"].as_object().expect("schemas").clone();
    let mut accepted_fields = vec![
        ("ChatCompletionRequest".into(), openai::accepted::CHAT),
        ("CompletionRequest".into(), openai::accepted::COMPLETIONS),
    ];
    accepted_fields.extend(paceline_protocols::protocol::accepted_by_schema());
    accepted_fields.extend(openai::chat::request::accepted_by_schema());
    accepted_fields.extend(openai::params::accepted_by_schema());
    accepted_fields.extend(responses::types::accepted_by_schema());
    accepted_fields.extend(anthropic::types::accepted_by_schema());
    for (name, table) in accepted_fields {
        let schema = schemas.get_mut(&*name).unwrap_or_else(|| panic!("no schema {name}"));
        schema["additionalProperties"] = Value::Bool(false);
        let schema = schema.as_object_mut().expect("an object");
        let properties = schema.entry("properties").or_insert_with(|| json!({}));
        let properties = properties.as_object_mut().expect("an object");
        for accepted in table {
            let mut described = values(accepted.values);
            described["description"] = json!("Accepted and not read.");
            // Kinds of items share a table. A field that is served of one has its own schema there.
            let is_shared = name.starts_with("Responses") && name.ends_with("Item");
            let served = properties.contains_key(accepted.field);
            assert!(is_shared || !served, "{name}.{} is served", accepted.field);
            properties.entry(accepted.field).or_insert(described);
        }
    }
    // A generic type has a copy of the schema inside, which lacks the accepted fields.
    for (name, schema) in &mut schemas {
        if let Some(inner) = name.strip_prefix("TextOr_").filter(|inner| *inner != "String") {
            let list = json!({ "type": "array", "items": reference(inner) });
            *schema = json!({ "oneOf": [{ "type": "string" }, list], "description": "A text, or a list." });
        }
    }
    let closed = schemas.clone();
    let mut joined = Vec::new();
    schemas.values_mut().for_each(|schema| joined.extend(join_tags(schema, &closed)));
    // An item without its type is a message. Items of other services have any fields.
    let kind = json!({ "type": "string", "enum": responses::accepted::OTHER_SERVICES_ITEMS });
    let left_out = json!({
        "type": "object", "description": "An item that another service made. It is left out.",
        "properties": { "type": kind }, "required": ["type"],
    });
    let forms = [reference("ResponsesItem"), reference("ResponsesMessageItem"), left_out];
    let item = json!({ "anyOf": forms, "description": "An item of a conversation." });
    schemas.insert("ResponsesInputItem".to_owned(), item);
    let text = Value::from(schemas.clone()).to_string();
    schemas
        .retain(|name, _| !joined.contains(name) || text.contains(&format!("\"{SCHEMAS}{name}\"")));
    schemas
}

/// Makes one closed object of each variant of a tagged enum: the variant's own type is closed, too,
/// and does not have the tag. Returns the names of these types.
fn join_tags(schema: &mut Value, closed: &Map<String, Value>) -> Vec<String> {
    let mut names = Vec::new();
    let variants = schema.get_mut("oneOf").and_then(Value::as_array_mut);
    for variant in variants.into_iter().flatten() {
        if let Some(all) = variant.get("allOf").and_then(Value::as_array) {
            let mut joined = json!({});
            for part in all {
                let name = part.get("$ref").and_then(Value::as_str);
                let name = name.and_then(|path| path.strip_prefix(SCHEMAS));
                names.extend(name.map(str::to_owned));
                join(&mut joined, name.and_then(|name| closed.get(name)).unwrap_or(part));
            }
            if let Some(description) = variant.get("description") {
                joined["description"] = description.clone();
            }
            *variant = joined;
        }
        let Some(tags) = variant.pointer_mut("/properties/type/enum") else { continue };
        let tags = tags.as_array_mut().expect("a list");
        // A search of the web has an older name.
        if tags.contains(&json!("web_search")) {
            tags.push(json!("web_search_preview"));
        }
        let variant = variant.as_object_mut().expect("an object");
        variant.entry("additionalProperties").or_insert(Value::Bool(false));
    }
    names
}

/// Adds the fields of one object's schema to another's.
fn join(joined: &mut Value, part: &Value) {
    for (name, value) in part.as_object().expect("a schema") {
        match (joined.get_mut(name), value) {
            (Some(Value::Object(known)), Value::Object(more)) => known.extend(more.clone()),
            (Some(Value::Array(known)), Value::Array(more)) => known.extend(more.clone()),
            _ => joined[name] = value.clone(),
        }
    }
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
        Values::Numbers(numbers) => or_null(json!({ "enum": numbers })),
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
#[ignore = "by hand: writes docs/openapi.json, when the types have changed"]
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
        let name = reference.strip_prefix(SCHEMAS).expect("a schema");
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
    // Types inside requests are closed in every form that a field may have.
    for name in
        ["ResponsesItem", "ResponsesPart", "ResponsesTool", "MessagesBlock", "MessagesImageSource"]
    {
        for variant in schemas[name]["oneOf"].as_array().expect("variants") {
            let of_service = variant["properties"]["type"]["enum"].as_array().expect("a tag");
            let of_service =
                of_service.iter().any(|tag| tag == "web_search" || tag == "image_generation");
            assert!(of_service || variant["additionalProperties"] == json!(false), "{variant:#}");
            assert!(variant.get("allOf").is_none(), "{variant:#}");
        }
    }
}

/// The answers of such a path count as a model's where streams are bounded (I14).
#[test]
fn each_path_with_a_stream_is_known_as_one_whose_answers_a_model_writes() {
    let document = document();
    let paths = document["paths"].as_object().expect("paths").iter();
    let streaming = paths.filter(|(_, methods)| {
        methods["post"]["responses"]["200"]["content"].get("text/event-stream").is_some()
    });
    let paths: Vec<_> = streaming.map(|(path, _)| path).collect();
    assert!(paths.len() >= 5, "{paths:?}");
    for path in paths {
        assert_eq!(HttpWire::answer_kind(path), AnswerKind::Model, "{path}");
    }
}

#[test]
fn every_status_of_an_error_is_listed() {
    for reason in Reason::ALL {
        let status = status(*reason).as_u16();
        // 409 is of what operators ask for, and of messages between processes, which have no path.
        assert!(status == 409 || ERRORS.iter().any(|(known, _)| *known == status), "{reason:?}");
    }
}

/// Calls `visit` with each schema inside this one, by its path. References are followed once.
fn each_schema(
    schema: &Value,
    path: &str,
    schemas: &Map<String, Value>,
    seen: &mut Vec<String>,
    visit: &mut impl FnMut(&str, &Value),
) {
    let reference = schema.get("$ref").and_then(Value::as_str);
    if let Some(name) = reference.and_then(|path| path.strip_prefix(SCHEMAS)) {
        if !seen.iter().any(|known| known == name) {
            seen.push(name.to_owned());
            each_schema(&schemas[name], name, schemas, seen, visit);
        }
        return;
    }
    visit(path, schema);
    let members = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    let inner = members.map(|(name, inner)| (format!("{path}.{name}"), inner));
    let lists =
        ["oneOf", "anyOf", "allOf"].into_iter().filter_map(|name| schema.get(name)?.as_array());
    let inner = inner.chain(lists.flatten().map(|inner| (path.to_owned(), inner)));
    let single = ["items", "additionalProperties"].into_iter().filter_map(|name| schema.get(name));
    let inner = inner.chain(single.map(|inner| (format!("{path}[]"), inner)));
    for (path, inner) in inner {
        each_schema(inner, &path, schemas, seen, visit);
    }
}

#[test]
fn every_number_of_a_request_has_bounds() {
    let schemas = schemas();
    let (mut seen, mut count) = (Vec::new(), 0);
    let mut visit = |path: &str, schema: &Value| {
        let words = match &schema["type"] {
            Value::Array(words) => words.clone(),
            word => vec![word.clone()],
        };
        if words.iter().any(|word| word == "integer" || word == "number") {
            let has = |name: &str| schema.get(name).is_some_and(Value::is_number);
            let bounded = (has("minimum") || has("exclusiveMinimum")) && has("maximum");
            assert!(bounded, "{path} has no bounds: use a type of `number.rs`: {schema}");
            count += 1;
        }
    };
    for request in
        ["ChatCompletionRequest", "CompletionRequest", "ResponsesRequest", "MessagesRequest"]
    {
        each_schema(&reference(request), request, &schemas, &mut seen, &mut visit);
    }
    assert!(count >= 35, "expected the numbers of all requests, found {count}");
}
