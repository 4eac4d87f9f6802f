//! The requests of `/api/chat` and `/api/generate`.

use serde::{Deserialize, Deserializer, de};
use serde_json::Value;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use super::accepted;
use crate::accepted::{check, objects};
use crate::inference::error::Result;
use crate::json::{AnyJson, ResentArguments};
use crate::number::TopLogprobs;
use crate::openai::chat::request::Think;
use crate::protocol::Extension;
use crate::values::{TextOr, ToolChoice};

objects! {
    /// A conversation to answer.
    #[derive(Default)]
    pub struct OllamaChatRequest accepts CHAT {
        /// The served model's name, also with `:latest` after it, or an alias of it.
        pub model: Option<String>,
        /// The messages, oldest first. Without one nothing is asked of the model.
        pub messages: Option<Vec<OllamaMessage>>,
        /// Tools that the model may call.
        pub tools: Option<Vec<OllamaTool>>,
        /// `auto`, `none` to leave the tools out of the prompt, `required`, or a tool by name.
        pub tool_choice: Option<ToolChoice>,
        /// `json`, or a JSON schema.
        #[schema(value_type = Option<Object>)]
        pub format: Option<AnyJson>,
        /// How tokens are chosen, and when the answer ends.
        pub options: Option<OllamaOptions>,
        /// False: the answer comes at once. Otherwise it comes in JSON lines.
        pub stream: Option<bool>,
        /// Whether, or how much, the model thinks; its template decides if it is absent.
        #[schema(value_type = Option<bool>)]
        pub think: Option<Think>,
        /// How long the model stays loaded, in seconds or as `5m`. It always stays.
        #[schema(value_type = Option<String>)]
        pub keep_alive: Option<KeepLoaded>,
        /// Whether log-probabilities are reported.
        pub logprobs: Option<bool>,
        /// Number of the most probable tokens that are reported beside each token.
        #[schema(inline)]
        pub top_logprobs: Option<TopLogprobs>,
        /// `options.temperature`, as ollama-ai-provider writes it.
        #[schema(minimum = 0.0, maximum = 100.0)]
        pub temperature: Option<f32>,
        /// `options.top_p`, as ollama-ai-provider writes it.
        #[schema(exclusive_minimum = 0.0, maximum = 1.0)]
        pub top_p: Option<f32>,
        /// `options.num_predict`, as ollama-ai-provider writes it.
        #[schema(inline)]
        pub max_output_tokens: Option<Cut>,
        /// Options that only this service has.
        pub paceline: Option<Extension>,
    }

    /// A text to answer, or to continue.
    #[derive(Default)]
    pub struct OllamaGenerateRequest accepts GENERATE {
        /// The served model's name, also with `:latest` after it, or an alias of it.
        pub model: Option<String>,
        /// The user's message, or with `raw` a text to continue. Without one nothing is asked of
        /// the model.
        pub prompt: Option<String>,
        /// Text after the answer. A model whose tokenizer has markers for it fills in the middle.
        pub suffix: Option<String>,
        /// Images in base64.
        pub images: Option<Vec<String>>,
        /// The system prompt.
        pub system: Option<String>,
        /// Whether the prompt is a text to continue, without the chat template.
        pub raw: Option<bool>,
        /// `json`, or a JSON schema.
        #[schema(value_type = Option<Object>)]
        pub format: Option<AnyJson>,
        /// How tokens are chosen, and when the answer ends.
        pub options: Option<OllamaOptions>,
        /// False: the answer comes at once. Otherwise it comes in JSON lines.
        pub stream: Option<bool>,
        /// Whether, or how much, the model thinks; its template decides if it is absent.
        #[schema(value_type = Option<bool>)]
        pub think: Option<Think>,
        /// How long the model stays loaded, in seconds or as `5m`. It always stays.
        #[schema(value_type = Option<String>)]
        pub keep_alive: Option<KeepLoaded>,
        /// Whether log-probabilities are reported.
        pub logprobs: Option<bool>,
        /// Number of the most probable tokens that are reported beside each token.
        #[schema(inline)]
        pub top_logprobs: Option<TopLogprobs>,
        /// Options that only this service has.
        pub paceline: Option<Extension>,
    }

    /// A question about a model.
    #[derive(Default)]
    pub struct OllamaShowRequest accepts SHOW {
        /// The model's name.
        pub model: Option<String>,
        /// Another name of `model`.
        pub name: Option<String>,
    }

    /// One message of a conversation.
    #[derive(Default)]
    pub struct OllamaMessage accepts MESSAGE {
        /// `system`, `user`, `assistant` or `tool`.
        pub role: String,
        /// Its text.
        pub content: Option<String>,
        /// Images in base64, which the model is shown before the text.
        pub images: Option<Vec<String>>,
        /// Tool calls that the assistant made.
        pub tool_calls: Option<Vec<OllamaToolCall>>,
        /// Name of the tool that answers.
        pub tool_name: Option<String>,
        /// Id of the tool call that a tool answers.
        pub tool_call_id: Option<String>,
        /// The assistant's thoughts before its answer.
        pub thinking: Option<String>,
    }

    /// A tool call that the assistant made, as a client resends it.
    #[derive(Default)]
    pub struct OllamaToolCall accepts TOOL_CALL {
        /// Id of the tool call. Some clients drop it.
        pub id: Option<String>,
        /// Function that was called.
        pub function: OllamaCalledFunction,
    }

    /// A function that was called.
    #[derive(Default)]
    pub struct OllamaCalledFunction accepts CALLED {
        /// Name of the function.
        pub name: String,
        /// Arguments of the call: a JSON object.
        #[serde(default)]
        #[schema(value_type = Object)]
        pub arguments: ResentArguments,
    }

    /// A tool that the model may call.
    #[derive(Default)]
    pub struct OllamaTool {
        /// `function`, the one type of tools that is served; the same without a type.
        #[serde(rename = "type")]
        pub kind: Option<String>,
        /// Function that the model may call.
        pub function: OllamaFunction,
    }

    /// A function that the model may call.
    #[derive(Default)]
    pub struct OllamaFunction accepts FUNCTION {
        /// Name of the function.
        pub name: String,
        /// Purpose of the function, for the model.
        pub description: Option<String>,
        /// The JSON schema of its arguments.
        #[schema(value_type = Option<Object>)]
        pub parameters: Option<AnyJson>,
    }

    /// How tokens are chosen, and when an answer ends. An option that is null counts as absent.
    #[derive(Default)]
    pub struct OllamaOptions accepts OPTIONS {
        /// Most tokens of the answer; as many as fit if it is 0 or less.
        #[schema(inline)]
        pub num_predict: Option<Cut>,
        /// The model's own temperature if it is absent.
        #[schema(minimum = 0.0, maximum = 100.0)]
        pub temperature: Option<f32>,
        /// Number of the most probable tokens to choose from; all with 0 or less.
        #[schema(inline)]
        pub top_k: Option<Cut>,
        /// Probability mass of the tokens to choose from.
        #[schema(exclusive_minimum = 0.0, maximum = 1.0)]
        pub top_p: Option<f32>,
        /// Least probability of a token, relative to the most probable one.
        #[schema(minimum = 0.0, maximum = 1.0)]
        pub min_p: Option<f32>,
        /// Seed of the random numbers. The service draws one if it is absent or -1.
        #[schema(inline)]
        pub seed: Option<Cut>,
        /// Strings that end the answer.
        pub stop: Option<TextOr<String>>,
        /// Divides the logits of tokens that the prompt or the answer has; 0 means 1.
        #[schema(minimum = 0.0, maximum = 10.0)]
        pub repeat_penalty: Option<f32>,
        /// Lowers the logits of tokens that the answer has.
        #[schema(minimum = -2.0, maximum = 2.0)]
        pub presence_penalty: Option<f32>,
        /// Lowers the logits of tokens by their count in the answer.
        #[schema(minimum = -2.0, maximum = 2.0)]
        pub frequency_penalty: Option<f32>,
    }
}

impl OllamaShowRequest {
    /// The name that is asked for.
    ///
    /// # Errors
    /// A field that is not served.
    pub fn name(self) -> Result<Option<String>> {
        let Self { model, name, rest } = self;
        check("", &rest, Self::ACCEPTED)?;
        let given = |name: &String| !name.is_empty();
        Ok(model.filter(given).or(name))
    }
}

/// A number that Ollama cuts to a whole one: clients in JavaScript and Python send 100.0 as well.
/// Those of more than 53 bits come from no client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut(pub i64);

/// Largest number of which a float has each whole one.
const LARGEST_CUT: i64 = 1 << 53;

impl<'de> Deserialize<'de> for Cut {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = || de::Error::custom("expected a number between -2^53 and 2^53");
        let number = serde_json::Number::deserialize(deserializer)?;
        let whole = number.as_i64().or_else(|| {
            let cut = number.as_f64().map(f64::trunc);
            // The comparison is false for NaN.
            cut.filter(|cut| cut.abs() <= LARGEST_CUT as f64).map(|cut| cut as i64)
        });
        whole
            .filter(|whole| whole.unsigned_abs() <= LARGEST_CUT.unsigned_abs())
            .map(Self)
            .ok_or_else(expected)
    }
}

impl PartialSchema for Cut {
    fn schema() -> RefOr<Schema> {
        let range = ObjectBuilder::new().minimum(Some(-LARGEST_CUT)).maximum(Some(LARGEST_CUT));
        range.schema_type(Type::Number).into()
    }
}

impl ToSchema for Cut {}

impl Cut {
    /// The number if it is positive. One above the largest count is as good as that.
    pub(super) fn positive(self) -> Option<u32> {
        (self.0 > 0).then(|| u32::try_from(self.0).unwrap_or(u32::MAX))
    }
}

/// How long a model stays loaded, as a client wishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepLoaded {
    /// For some time, or for ever.
    Yes,
    /// It is unloaded.
    No,
}

impl<'de> Deserialize<'de> for KeepLoaded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let seconds = match AnyJson::deserialize(deserializer)?.0 {
            Value::Number(seconds) => seconds.as_f64(),
            Value::String(text) => go_duration(&text),
            _ => None,
        };
        let expected = || de::Error::custom("expected seconds, or a duration such as 5m or 1h30m");
        let seconds = seconds.ok_or_else(expected)?;
        Ok(if seconds == 0.0 { Self::No } else { Self::Yes })
    }
}

/// Seconds of a duration as Go writes it: numbers with units, such as `1h30m` or `-1.5s`; `None` for
/// another text. Source: the documentation of Go's package `time`.
fn go_duration(text: &str) -> Option<f64> {
    const UNITS: [(&str, f64); 8] = [
        ("ns", 1e-9),
        ("us", 1e-6),
        ("\u{b5}s", 1e-6),
        ("\u{3bc}s", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3600.0),
    ];
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Some(0.0);
    }
    let mut seconds = None;
    while !rest.is_empty() {
        let digits = rest.find(|one: char| !one.is_ascii_digit() && one != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let unit = &rest[digits..];
        let end = unit.find(|one: char| one.is_ascii_digit() || one == '.').unwrap_or(unit.len());
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == &unit[..end])?;
        seconds = Some(seconds.unwrap_or(0.0) + number * factor);
        rest = &unit[end..];
    }
    seconds
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_cut_to_whole_ones() {
        let cut = |value: Value| serde_json::from_value::<Cut>(value).ok().map(|Cut(cut)| cut);
        for (value, wanted) in [
            (json!(100), Some(100)),
            (json!(100.0), Some(100)),
            (json!(-1.9), Some(-1)),
            (json!(1_u64 << 54), None),
            (json!(1e300), None),
            (json!("7"), None),
        ] {
            assert_eq!(cut(value.clone()), wanted, "{value}");
        }
        assert_eq!(
            [Cut(-1), Cut(0), Cut(7), Cut(1 << 40)].map(Cut::positive),
            [None, None, Some(7), Some(u32::MAX)]
        );
    }

    #[test]
    fn a_model_is_kept_for_seconds_or_for_a_duration_of_go() {
        let kept = |value: Value| serde_json::from_value::<KeepLoaded>(value).ok();
        for value in [json!(5), json!(1.5), json!(-1.0), json!("5m"), json!("1h30m"), json!("-1m")]
        {
            assert_eq!(kept(value.clone()), Some(KeepLoaded::Yes), "{value}");
        }
        for value in [json!(0), json!(0.0), json!("0"), json!("0s"), json!("0h0m")] {
            assert_eq!(kept(value.clone()), Some(KeepLoaded::No), "{value}");
        }
        for value in [json!("10"), json!("1d"), json!(""), json!("m"), json!(true), json!("1.2.3s")]
        {
            assert_eq!(kept(value.clone()), None, "{value}");
        }
    }
}
