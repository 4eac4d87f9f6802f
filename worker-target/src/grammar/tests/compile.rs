//! Schemas of many shapes, and schemas that are made to cost much.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Arc, LazyLock};

use llguidance::ParserFactory;
use paceline_process::worker::ENGINE_STACK_BYTES;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::compile::{PartError, compile, factory};
use super::super::store::STACK_BYTES;
use super::super::vocabulary::Vocabulary;
use super::state::{Walk, byte_vocabulary, made_up_vocabulary};
use super::*;

/// Counts the bytes that a thread holds.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let held = HELD.get() + bytes;
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches numbers alone.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Time and memory of a piece of work.
pub(super) struct Cost {
    pub(super) ms: u128,
    pub(super) bytes: isize,
}

/// Runs work on a thread of its own with such a stack, and measures the time of that thread's
/// processor and its memory.
pub(super) fn measured<T: Send + 'static>(
    stack_bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> (T, Cost) {
    let measure = move || {
        let clock = || {
            let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
            std::time::Duration::from(time.expect("the clock of this thread"))
        };
        let (before, held) = (clock(), HELD.get());
        PEAK.set(held);
        let done = work();
        (done, Cost { ms: (clock() - before).as_millis(), bytes: PEAK.get() - held })
    };
    let thread = std::thread::Builder::new().stack_size(stack_bytes);
    let thread = thread.spawn(measure).expect("a thread");
    thread.join().expect("no panic")
}

pub(super) fn source(part: PartContent) -> GrammarSource {
    let part = GrammarPart { field: "the.field".into(), lenient: false, content: part };
    GrammarSource { frame: "start: @part_0".into(), parts: vec![part], end_ids: vec![END] }
}

pub(crate) fn schema(schema: &Value) -> GrammarSource {
    source(PartContent::JsonSchema(schema.to_string()))
}

/// The id that ends answers in the vocabulary of bytes.
pub(super) const END: u32 = 256;

#[derive(Deserialize)]
struct Fixture {
    schemas: Vec<Shape>,
}

#[derive(Deserialize)]
struct Shape {
    shape: String,
    schema: Value,
    /// A word of the error, if it cannot be enforced.
    refused: Option<String>,
}

fn shapes() -> Vec<Shape> {
    let fixture: Fixture = serde_json::from_str(include_str!("schemas.json")).expect("a fixture");
    fixture.schemas
}

/// Answers of random walks through each schema's grammar are valid by another implementation of JSON
/// schema; what cannot be enforced is refused by name.
fn check_shapes(shapes: &[Shape], walks: u64) {
    let vocabulary = byte_vocabulary();
    let factory = factory(&vocabulary).expect("a compiler");
    let (mut served, mut complete, mut asked) = (0, 0, 0);
    for Shape { shape, schema: wanted, refused } in shapes {
        let source = schema(wanted);
        let parser = match (compile(&factory, &source), refused) {
            (Ok(parser), None) => parser,
            (Err(PartError { field, error }), Some(word)) => {
                assert_eq!(field, "the.field");
                let message = error.to_string();
                assert!(message.contains(word.as_str()), "{shape}: {word:?} in {message}");
                continue;
            }
            (Ok(_), Some(_)) => panic!("{shape}: expected a refusal: {wanted}"),
            (Err(PartError { error, .. }), None) => panic!("{shape}: {error}: {wanted}"),
        };
        served += 1;
        let validator = jsonschema::validator_for(wanted).expect("a schema");
        for seed in 0..walks {
            asked += 1;
            let state = GrammarState::new(parser.deep_clone(), vocabulary.end, vec![END]);
            let Some(answer) = Walk::new(seed).run(&state, 600) else {
                println!("{shape}: a walk was not complete: {wanted}");
                continue;
            };
            complete += 1;
            let text = String::from_utf8(answer).expect("text");
            let value: Value = match serde_json::from_str(&text) {
                Ok(value) => value,
                // JSON has numbers that float64 has not, such as 1e7420.
                Err(error) if error.to_string().contains("out of range") => continue,
                Err(error) => panic!("{shape}: {error} in {text:?}"),
            };
            assert!(validator.is_valid(&value), "{shape}: {text} for {wanted}");
        }
    }
    println!("{served} of {} served; {complete} of {asked} walks were complete", shapes.len());
    assert!(complete * 10 >= asked * 9, "{complete} of {asked}");
}

#[test]
fn twenty_shapes_of_schemas_are_enforced_or_refused_by_name() {
    let twenty: Vec<Shape> = shapes().into_iter().step_by(10).collect();
    assert!(twenty.len() >= 20 && twenty.iter().any(|shape| shape.refused.is_some()));
    check_shapes(&twenty, 2);
}

#[test]
#[ignore = "soak: 200 schemas with 10 walks each"]
fn two_hundred_shapes_of_schemas_are_enforced_or_refused_by_name() {
    let all = shapes();
    assert!(all.len() >= 200, "{}", all.len());
    check_shapes(&all, 10);
}

/// Texts that are made to cost much, within the bounds of size.
fn hostile() -> Vec<(String, GrammarSource)> {
    // More than 60 lines: a list, one text of each kind.
    let mut all: Vec<(String, GrammarSource)> = vec![];
    let mut add = |name: &str, value: Value| all.push((name.to_owned(), schema(&value)));
    // 2^n schemas by references that each name two others.
    let doubled = |keyword: &str| {
        let two = |at: u32| {
            let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
            json!({ (keyword): [next.clone(), next] })
        };
        let mut defs: serde_json::Map<String, Value> =
            (0..60).map(|at| (format!("d{at}"), two(at))).collect();
        defs.insert(
            "d60".into(),
            json!({"type": "object", "properties": {"a": {"type": "integer"}}}),
        );
        json!({"$ref": "#/$defs/d0", "$defs": defs})
    };
    for keyword in ["allOf", "anyOf", "oneOf", "prefixItems"] {
        add(&format!("doubled by {keyword}"), doubled(keyword));
    }
    // A product of alternatives: 8^12.
    let options: Vec<Value> =
        (0..8).map(|at| json!({"minimum": at, "maximum": 100 + at})).collect();
    let product: Vec<Value> = (0..12).map(|_| json!({"anyOf": options.clone()})).collect();
    add("a product of anyOf", json!({"type": "integer", "allOf": product}));
    let objects = |at: usize| {
        let key = |n: usize| format!("k{at}_{n}");
        let one = |n: usize| json!({"properties": {(key(n)): {"const": n}}, "required": [key(n)]});
        json!({"oneOf": (0..40).map(one).collect::<Vec<_>>()})
    };
    let product: Vec<Value> = (0..40).map(objects).collect();
    add("a product of oneOf over objects", json!({"type": "object", "allOf": product}));
    // Recursion.
    for keyword in ["allOf", "anyOf", "oneOf"] {
        add(&format!("itself by {keyword}"), json!({ (keyword): [{"$ref": "#"}, {"$ref": "#"}] }));
    }
    add("itself", json!({"$ref": "#"}));
    let circle = json!({"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}});
    add("a circle", json!({"$ref": "#/$defs/a", "$defs": circle, "type": "object"}));
    let mut deep = json!({"type": "integer"});
    for _ in 0..30 {
        deep = json!({"type": "object", "properties": {"a": deep.clone(), "b": {"anyOf": [deep, {"type": "null"}]}}});
        if deep.to_string().len() > MAX_SCHEMA_BYTES / 3 {
            break;
        }
    }
    add("deep and wide", deep.clone());
    // Many of everything.
    let names = |count: usize| (0..count).map(|at| format!("property_{at:05}"));
    let many: serde_json::Map<String, Value> =
        names(4_000).map(|name| (name, json!({"type": "string", "maxLength": 8_000}))).collect();
    add("many optional properties", json!({"type": "object", "properties": many}));
    let many: serde_json::Map<String, Value> =
        names(500).map(|name| (name, json!({"type": "string", "maxLength": 8_000}))).collect();
    add("properties up to the bound", json!({"type": "object", "properties": many}));
    let pattern = |at: usize| format!("^{at}{}$", "(a|b)*c?".repeat(125));
    let many: serde_json::Map<String, Value> = names(200)
        .enumerate()
        .map(|(at, name)| (name, json!({"type": "string", "pattern": pattern(at)})))
        .collect();
    add("many long patterns", json!({"type": "object", "properties": many}));
    let many: Vec<Value> = (0..200).map(|at| json!({ "pattern": pattern(at) })).collect();
    add("an intersection of many long patterns", json!({"type": "string", "allOf": many}));
    let many: Vec<Value> =
        (0..200).map(|at| json!({"type": "string", "pattern": pattern(at)})).collect();
    add("a choice of many long patterns", json!({ "anyOf": many }));
    let required: Vec<String> = names(4_000).collect();
    add("many required properties", json!({"type": "object", "required": required}));
    let values: Vec<String> = (0..4_096).map(|at| format!("{at:050}")).collect();
    add("a long enum", json!({ "enum": values }));
    let objects: Vec<Value> = (0..4_000).map(|at| json!({"a": at, "b": [at]})).collect();
    add("a long enum of objects", json!({ "enum": objects }));
    let one = |at: u32| json!({"type": "object", "properties": {"kind": {"const": at}, "x": {"type": "string"}}});
    add("many alternatives", json!({"oneOf": (0..256).map(one).collect::<Vec<_>>()}));
    add(
        "many items",
        json!({"type": "array", "minItems": 256, "maxItems": 256, "items": {"anyOf": (0..256).map(|at| json!({"const": at})).collect::<Vec<_>>()}}),
    );
    let nested = (0..6).fold(
        json!({"type": "string"}),
        |inner, _| json!({"type": "array", "minItems": 200, "maxItems": 256, "items": inner}),
    );
    add("a power of items", nested);
    let maps = (0..6).fold(json!({"type": "string"}), |inner, _| {
        json!({"type": "object", "minProperties": 200, "maxProperties": 256, "additionalProperties": inner})
    });
    add("a power of properties", maps);
    // Numbers.
    add("a large multiple", json!({"type": "integer", "multipleOf": 999_999_937}));
    add("a fine multiple", json!({"type": "number", "multipleOf": 1e-15}));
    add(
        "a long number",
        json!({"type": "number", "minimum": 1.234_567_890_123_456e-300, "maximum": 9.87e300}),
    );
    let multiples: Vec<Value> =
        [9973, 9967, 9949, 9941].iter().map(|of| json!({ "multipleOf": of })).collect();
    add("a product of multiples", json!({"type": "integer", "allOf": multiples}));
    // Texts and patterns.
    add("a long text", json!({"type": "string", "minLength": 8_192, "maxLength": 8_192}));
    for pattern in [
        "^(a{1000}){1000}$",
        "^((a{100}){100}){100}$",
        "^(.*a.{200}|.*b.{200})$",
        "^(\\w+\\s?)*$",
        "^(a|aa)+$",
        "(x+x+)+y",
        "^[\\p{L}\\p{N}]{1,500}$",
        "^(a?){500}a{500}$",
        "^.*(a|b).{18}$",
    ] {
        add(&format!("the pattern {pattern}"), json!({"type": "string", "pattern": pattern}));
    }
    let classes: String =
        (0..60).map(|at| format!("(?:.*[a-{}].{{9}})", char::from(b'b' + at % 20))).collect();
    add("a pattern of classes", json!({"type": "string", "pattern": format!("^{classes}$")}));
    let patterns: serde_json::Map<String, Value> = (0..16)
        .map(|at| {
            (format!("^(a|b)*{}(a|b){{12}}$", "ab".repeat(at + 1)), json!({"type": "string"}))
        })
        .collect();
    add("patterns of properties", json!({"type": "object", "patternProperties": patterns}));
    let both: Vec<Value> = ["^(.*a.{12})$", "^(.*b.{11})$", "^(.*c.{10})$", "^(.*d.{9})$"]
        .iter()
        .map(|pattern| json!({ "pattern": pattern }))
        .collect();
    add("an intersection of patterns", json!({"type": "string", "allOf": both}));
    // Regular expressions and Lark.
    // Several parts, together as large as one may be.
    let several = |schema: Value| {
        let text = schema.to_string();
        let part = GrammarPart {
            field: "tools".into(),
            lenient: false,
            content: PartContent::JsonSchema(text.clone()),
        };
        let parts = vec![part; MAX_SCHEMA_BYTES / text.len()];
        let names: Vec<String> = (0..parts.len()).map(|at| format!("@part_{at}")).collect();
        GrammarSource { frame: format!("start: {}", names.join(" | ")), parts, end_ids: vec![END] }
    };
    let required: Vec<String> = (0..1_000).map(|at| format!("property_{at:05}")).collect();
    for (name, schema) in [
        ("deep and wide parts", deep),
        ("parts of many required properties", json!({"type": "object", "required": required})),
        ("small parts", json!({"type": "object", "properties": {"a": {"type": "string"}}})),
        ("parts with a long pattern", json!({"type": "string", "pattern": pattern(7)})),
    ] {
        all.push((name.to_owned(), several(schema)));
    }
    let mut add = |name: &str, part: PartContent| all.push((name.to_owned(), source(part)));
    for regex in
        ["(a{1000}){1000}", "(.*a.{300}){3}", "(?:a|b|c|d|e)*f.{1000}g", "[\\p{L}]{1000,2000}"]
    {
        add(&format!("the regex {regex}"), PartContent::Regex(regex.into()));
    }
    add("a long regex", PartContent::Regex("(a|b)*c?".repeat(MAX_REGEX_BYTES / 8)));
    add("a long literal", PartContent::Regex("ab".repeat(MAX_REGEX_BYTES / 2)));
    let regex = "(a|b)*c?".repeat(MAX_LARK_BYTES / 8 - 2);
    add("a long regex in Lark", PartContent::Lark(format!("start: /{regex}/")));
    let words: String = (0..MAX_LARK_BYTES / 16).map(|at| format!("/(a{at}|b)*/ ")).collect();
    add("many regexes in Lark", PartContent::Lark(format!("start: T\nT: {words}")));
    let rule = |at: usize| format!("r{at}: r{} r{} | \"x\"\n", at + 1, at + 1);
    let doubled: String = (0..1_200).map(rule).collect();
    add("doubled rules", PartContent::Lark(format!("start: r0\n{doubled}r1200: \"y\"\n")));
    let token = |at: usize| format!("T{at}: T{} T{} | \"x\"\n", at + 1, at + 1);
    let doubled: String = (0..60).map(token).collect();
    add("doubled tokens", PartContent::Lark(format!("start: T0\n{doubled}T60: \"y\"\n")));
    add(
        "an ambiguous grammar",
        PartContent::Lark("start: start start start | \"a\" | start start\n".into()),
    );
    add("a repetition", PartContent::Lark("start: ((\"a\"{1000}){1000}){1000}\n".into()));
    add(
        "a chain of tokens",
        PartContent::Lark({
            let chain: String = (0..2_000).map(|at| format!("T{at}: T{}\n", at + 1)).collect();
            format!("start: T0\n{chain}T2000: \"y\"\n")
        }),
    );
    add(
        "a chain of rules",
        PartContent::Lark({
            let chain: String = (0..2_000).map(|at| format!("r{at}: r{}\n", at + 1)).collect();
            format!("start: r0\n{chain}r2000: \"y\"\n")
        }),
    );
    all
}

/// Most time of one thread, in milliseconds, and most memory of one hostile grammar. The costliest take
/// half a second on one machine and more than two on a slow one that other work shares; without their
/// bounds they take minutes.
pub(super) const MOST: Cost = Cost { ms: 10_000, bytes: 128 << 20 };

/// A vocabulary of SmolLM2's size, and the compiler for it. Hostile grammars cost more with many
/// tokens, so that a small vocabulary would show nothing.
static LARGE: LazyLock<Arc<(Vocabulary, ParserFactory)>> = LazyLock::new(|| {
    let vocabulary = made_up_vocabulary();
    let factory = factory(&vocabulary).expect("a compiler");
    Arc::new((vocabulary, factory))
});

#[test]
fn hostile_grammars_cost_seconds_of_one_thread_and_128_mib() {
    let mut over = vec![];
    for (name, source) in hostile() {
        let large = Arc::clone(&LARGE);
        let (outcome, cost) = measured(STACK_BYTES, move || {
            let compiled = compile(&large.1, &source);
            compiled.map(|_| ()).map_err(|error| error.error.to_string())
        });
        let bytes = cost.bytes >> 10;
        println!("{:>6} ms {bytes:>8} KiB  {name}: {outcome:?}", cost.ms);
        if cost.ms > MOST.ms || cost.bytes > MOST.bytes {
            over.push(name);
        }
    }
    assert!(over.is_empty(), "{over:?}");
}

/// The parser is made on the compiler's thread; masks are computed, and the parser is dropped, on
/// the engine's.
#[test]
fn masks_of_hostile_grammars_are_bounded_too_on_the_engines_stack() {
    for (name, source) in hostile() {
        let large = Arc::clone(&LARGE);
        let (parser, _) = measured(STACK_BYTES, move || compile(&large.1, &source).ok());
        let Some(parser) = parser else { continue };
        let end = LARGE.0.end;
        let (outcome, cost) = measured(ENGINE_STACK_BYTES, move || {
            let state = GrammarState::new(parser, end, vec![END]);
            let answer = Walk::new(3).run(&state, 200);
            (answer.is_some(), state.failure())
        });
        println!("{:>6} ms {:>8} KiB  {name}: {outcome:?}", cost.ms, cost.bytes >> 10);
        assert!(cost.ms <= 200 * 30, "{name}: {} ms for 200 masks", cost.ms);
        assert!(cost.bytes <= MOST.bytes, "{name}: {} bytes", cost.bytes);
    }
}

#[test]
fn a_lenient_part_that_cannot_be_enforced_is_any_object() {
    let vocabulary = byte_vocabulary();
    let factory = factory(&vocabulary).expect("a compiler");
    let mut source = schema(&json!({"type": "object", "not": {}}));
    assert!(compile(&factory, &source).is_err());
    source.parts[0].lenient = true;
    let parser = compile(&factory, &source).unwrap_or_else(|error| panic!("{}", error.error));
    let state = GrammarState::new(parser, vocabulary.end, vec![END]);
    let text = br#"{"a": [1, null]}"#.map(u32::from);
    assert_eq!(state.allowed_drafts(&text), text.len());
}

#[test]
fn an_error_has_the_field_of_its_part() {
    let vocabulary = byte_vocabulary();
    let factory = factory(&vocabulary).expect("a compiler");
    let mut grammar = schema(&json!({"type": "object"}));
    let part = |field: &str, content| GrammarPart { field: field.into(), lenient: false, content };
    grammar.parts.push(part("tools[0].parameters", PartContent::Regex("(".into())));
    grammar.frame = "start: @part_0 @part_1".into();
    let refused = compile(&factory, &grammar).err().expect("refused");
    assert_eq!(refused.field, "tools[0].parameters");
    grammar.parts[1].content = PartContent::Lark("start: \"a".into());
    let refused = compile(&factory, &grammar).err().expect("refused");
    assert_eq!(refused.field, "tools[0].parameters");
    grammar.frame = "start: @part_7".into();
    grammar.parts[1].content = PartContent::Regex("a".into());
    assert_eq!(compile(&factory, &grammar).err().expect("refused").field, "grammar");
}
