//! `/set`: what a person changes of the way answers are made. Names are those of the flags, so a new
//! flag is a new name here.

use paceline_client::{Failure, message};
use paceline_proto::v1::{ChatRequest, Message};
use paceline_protocols::grpc::decode;
use serde_json::{Map, Value, json};

use crate::args::TalkArgs;
use crate::generate;

/// The conversation as the model is shown it.
pub fn conversation(talk: &TalkArgs, messages: &[Message]) -> Vec<Message> {
    let system = talk.system.iter().map(|text| message::text("system", text.clone()));
    system.chain(messages.iter().cloned()).collect()
}

/// The request for the next answer.
pub fn request(model: &str, talk: &TalkArgs, messages: &[Message]) -> ChatRequest {
    ChatRequest {
        template_arguments: talk.template_arguments.clone().unwrap_or_default(),
        reasoning_effort: talk.reasoning_effort.clone().unwrap_or_default(),
        ..generate::chat(model.to_owned(), conversation(talk, messages), &talk.how)
    }
}

/// All names, with their values.
fn values(talk: &TalkArgs) -> Map<String, Value> {
    // By its text: a value of a number of 32 bits would show digits that it does not have.
    let text = serde_json::to_string(talk).expect("flags are plain JSON");
    serde_json::from_str(&text).expect("an object")
}

/// Names that can be set.
pub fn names() -> Vec<String> {
    values(&TalkArgs::default()).into_iter().map(|(name, _)| name).collect()
}

/// What is set, and the names of what is not.
pub fn shown(talk: &TalkArgs) -> String {
    let defaults = values(&TalkArgs::default());
    let (set, unset): (Vec<_>, Vec<_>) =
        values(talk).into_iter().partition(|(name, value)| defaults[name] != *value);
    let unset: Vec<_> = unset.into_iter().map(|(name, _)| name).collect();
    let set: String = set.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    format!("{set}by default: {}", unset.join(", "))
}

/// The flags with `NAME=VALUE` changed, and the new value for people. Without a value the default is
/// taken.
///
/// # Errors
/// There is no such name, or it has no such value: the text says what was expected.
pub fn set(talk: &TalkArgs, assignment: &str) -> Result<(TalkArgs, String), Failure> {
    let mut values = values(talk);
    let Some((name, text)) = assignment.split_once('=') else {
        let found = format!("/set: expected NAME=VALUE, as temperature=0, found {assignment}");
        return Err(Failure::usage(found));
    };
    let (name, text) = (name.trim().replace('-', "_"), text.trim());
    let Some(default) = self::values(&TalkArgs::default()).remove(&name) else {
        let names = names().join(", ");
        return Err(Failure::usage(format!("/set: expected one of {names}, found {name}")));
    };
    let mut expected = String::new();
    for value in readings(text, default) {
        values.insert(name.clone(), value);
        match serde_json::from_value::<TalkArgs>(values.clone().into()) {
            Ok(changed) => {
                check(&changed)?;
                let value = self::values(&changed).remove(&name).unwrap_or_default();
                return Ok((changed, format!("{name}={value}")));
            }
            Err(error) => expected = expectation(&error.to_string()),
        }
    }
    Err(Failure::usage(format!("{name}: expected {expected}, found {text}")))
}

/// The values that a text may stand for, the likelier one first.
fn readings(text: &str, default: Value) -> impl Iterator<Item = Value> {
    let parsed = |text: &str| serde_json::from_str::<Value>(text).ok();
    let found = match default {
        _ if text.is_empty() => [Some(default), None, None],
        // Several are a list; one needs no brackets.
        Value::Array(_) => [
            parsed(text).filter(Value::is_array),
            parsed(&format!("[{text}]")),
            Some(json!([text])),
        ],
        _ => [parsed(text), Some(text.into()), None],
    };
    found.into_iter().flatten()
}

/// The words for people of an error about a value's type.
fn expectation(error: &str) -> String {
    let words = error.split_once("expected ").map_or(error, |(_, expected)| expected);
    let words = words.split(", found").next().unwrap_or(words);
    match words {
        "f32" => "a number".to_owned(),
        "u32" | "u64" => "a whole number of at least 0".to_owned(),
        "a boolean" => "true or false".to_owned(),
        _ => words.replace('`', ""),
    }
}

/// Checks what needs no model, as the service does.
fn check(talk: &TalkArgs) -> Result<(), Failure> {
    let checked = decode::chat(request("", talk, &[])).and_then(|input| input.params.check());
    checked.map(drop).map_err(|error| {
        let message = error.message.trim_start_matches("sampling.").trim_start_matches("limits.");
        Failure::usage(message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_takes_its_values_and_its_default_back() {
        for (assignment, told) in [
            ("temperature=0", "temperature=0.0"),
            ("top_p = 0.7", "top_p=0.7"),
            ("top-k=40", "top_k=40"),
            ("min_p=0.05", "min_p=0.05"),
            ("seed=18446744073709551615", "seed=18446744073709551615"),
            ("max_tokens=7", "max_tokens=7"),
            ("ignore_eos=true", "ignore_eos=true"),
            ("route=plain", "route=\"plain\""),
            ("system=Be brief = good.", "system=\"Be brief = good.\""),
            ("system=42", "system=\"42\""),
            ("system=\"two\\nlines\"", "system=\"two\\nlines\""),
            ("reasoning_effort=low", "reasoning_effort=\"low\""),
            ("template_arguments={\"a\": 1}", "template_arguments=\"{\\\"a\\\": 1}\""),
            ("stop=END", "stop=[\"END\"]"),
            ("stop=5", "stop=[\"5\"]"),
            ("stop=[\"a\",\"\\n\"]", "stop=[\"a\",\"\\n\"]"),
            ("stop_token_id=8,6", "stop_token_id=[8,6]"),
            ("logit_bias=7=-100", "logit_bias=[\"7=-100\"]"),
        ] {
            let default = TalkArgs::default();
            let (changed, found) = set(&default, assignment).expect(assignment);
            assert_eq!(found, told);
            let (name, _) = told.split_once('=').expect("a name");
            assert!(shown(&changed).starts_with(&format!("{told}\nby default: ")), "{told}");
            let (back, _) = set(&changed, &format!("{name}=")).expect(name);
            assert_eq!(values(&back), values(&default), "{name}");
        }
        // What was set before stays.
        let (first, _) = set(&TalkArgs::default(), "temperature=0.1").expect("a number");
        let (both, _) = set(&first, "seed=3").expect("a number");
        assert_eq!((both.how.temperature, both.how.seed), (Some(0.1), Some(3)));
    }

    #[test]
    fn what_cannot_be_set_is_refused_with_what_was_expected() {
        for (assignment, words) in [
            ("temperature", "expected NAME=VALUE, as temperature=0, found temperature"),
            ("temprature=1", "stop, route, found temprature"),
            ("temperature=warm", "temperature: expected a number, found warm"),
            ("temperature=-1", "temperature: expected "),
            ("top_p=2", "top_p: expected "),
            ("top_k=-1", "top_k: expected a whole number of at least 0, found -1"),
            ("seed=1.5", "seed: expected a whole number of at least 0, found 1.5"),
            ("max_tokens=0", "max_tokens: expected at least 1, found 0"),
            ("ignore_eos=perhaps", "ignore_eos: expected true or false, found perhaps"),
            ("route=fast", "route: expected one of auto, plain, speculative, found fast"),
            ("stop_token_id=x", "stop_token_id: expected a whole number of at least 0, found x"),
            ("logit_bias=7", "logit_bias: expected a token id and a number as 42=-100, found 7"),
            ("logit_bias=7=101", "logit_bias[0].bias: expected a number from -100 to 100"),
        ] {
            let refused = set(&TalkArgs::default(), assignment).expect_err(assignment).message;
            assert!(refused.contains(words), "{assignment}: {refused}");
        }
    }
}
