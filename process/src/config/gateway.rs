//! `[gateway]`: where clients connect, and who may.

use std::net::SocketAddr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ConfigError;
use super::names::{ModelAliases, words};

/// Format of the tool calls in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolFormat {
    /// As the chat template and the model's family say.
    #[default]
    Auto,
    /// Not at all: an answer is text.
    None,
    /// JSON objects between `<tool_call>` and `</tool_call>`.
    Hermes,
    /// Functions and parameters as tags, of Qwen3-Coder and Qwen3.5.
    QwenXml,
    /// One JSON object, of Llama 3.
    Llama3,
    /// Gemma 4's own form.
    Gemma4,
    /// Channels of gpt-oss.
    Harmony,
    /// A list of JSON objects after `[TOOL_CALLS]`, of Mistral before Small 3.2.
    MistralList,
    /// A name and its arguments after `[TOOL_CALLS]`, of Mistral since Small 3.2.
    MistralArgs,
    /// Functions and parameters as tags with a name, of MiniCPM5.
    #[serde(rename = "minicpm")]
    MiniCpm,
    /// Keys and values as tags, of GLM-4.5 and later.
    Glm,
}

/// Who may give orders by the status page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Operators {
    /// `"auto"`: without keys a browser on this machine; with keys nobody.
    #[default]
    Auto,
    /// The owners of the keys with these names; without a name nobody.
    Keys(Vec<String>),
}

impl Serialize for Operators {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Keys(names) => names.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Operators {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let names = words(deserializer)?;
        Ok(match names.as_slice() {
            [word] if word == "auto" => Self::Auto,
            _ => Self::Keys(names),
        })
    }
}

/// `[gateway]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatewayConfig {
    /// Address of the gRPC service.
    pub grpc: String,
    /// Address of the HTTP service: OpenAI's and Anthropic's paths, health, metrics; "" = none.
    pub http: String,
    /// Names under which clients may ask for the served model, besides its own.
    pub model_aliases: ModelAliases,
    /// Format of the tool calls in an answer.
    pub tool_format: ToolFormat,
    /// Most tokens of a thought in answers to requests that set no bound of their own; 0 = any
    /// number, as models are trained.
    pub thinking_budget: u32,
    /// Origins (`https://chat.example.com`) whose pages may use the HTTP service from a browser, `*`
    /// = all; empty = none.
    #[serde(deserialize_with = "words")]
    pub cors_origins: Vec<String>,
    /// Names under which clients reach the HTTP service, besides `localhost` and IP addresses
    /// (`box.lan`). Without keys a request for another name is refused, as a page of a browser may
    /// have sent it; empty = none.
    #[serde(deserialize_with = "words")]
    pub hosts: Vec<String>,
    /// File with the digests of API keys, one `name:digest` a line ([`crate::keys`]), of this user
    /// and 0600; "" = no keys.
    pub api_keys_file: String,
    /// Names of the keys whose owners may give orders by the status page; empty = nobody. `auto`:
    /// without keys a browser on this machine, with keys nobody.
    pub operators: Operators,
    /// TLS certificate chain (PEM); "" = no TLS.
    pub tls_cert: String,
    /// TLS key (PEM).
    pub tls_key: String,
    /// Serve without keys and TLS on an address that other machines reach.
    pub insecure: bool,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            grpc: "127.0.0.1:50061".into(),
            http: "127.0.0.1:8061".into(),
            model_aliases: ModelAliases::Auto,
            tool_format: ToolFormat::Auto,
            thinking_budget: 0,
            cors_origins: vec![],
            hosts: vec![],
            api_keys_file: String::new(),
            operators: Operators::Auto,
            tls_cert: String::new(),
            tls_key: String::new(),
            insecure: false,
        }
    }
}

impl GatewayConfig {
    /// Checks that the address of `key` has keys and TLS if other machines reach it.
    ///
    /// # Errors
    /// It has not, and `insecure` is off.
    pub fn check_exposure(&self, key: &str, address: SocketAddr) -> Result<(), ConfigError> {
        let missing = match (self.api_keys_file.is_empty(), self.tls_cert.is_empty()) {
            _ if self.insecure || address.ip().to_canonical().is_loopback() => return Ok(()),
            (false, false) => return Ok(()),
            (true, true) => {
                "neither keys (gateway.api_keys_file) nor TLS (gateway.tls_cert, gateway.tls_key)"
            }
            (true, false) => "no keys (gateway.api_keys_file)",
            (false, true) => "no TLS (gateway.tls_cert, gateway.tls_key)",
        };
        let what = format!(
            "{address} can be reached from other machines, so keys and TLS are expected, found {missing}; set them, listen on \
             127.0.0.1, or set gateway.insecure = true where the network itself keeps others out"
        );
        Err(ConfigError::value(key, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn read(text: &str) -> Config {
        toml::from_str(&format!("[gateway]\n{text}")).expect("readable")
    }

    #[test]
    fn operators_are_a_word_or_names_of_keys_and_names_need_keys() {
        let named =
            |names: &[&str]| Operators::Keys(names.iter().map(|name| (*name).into()).collect());
        for (text, expected) in [
            ("", Operators::Auto),
            ("operators = \"auto\"", Operators::Auto),
            ("operators = []", named(&[])),
            ("operators = \"\"", named(&[])),
            ("operators = \"alice, bob\"", named(&["alice", "bob"])),
            ("operators = [\"alice\"]", named(&["alice"])),
        ] {
            assert_eq!(read(text).gateway.operators, expected, "{text}");
            let written = toml::to_string(&read(text)).expect("writable");
            let again: Config = toml::from_str(&written).expect("readable");
            assert_eq!(again.gateway.operators, expected, "{written}");
        }
        for text in ["", "operators = []", "operators = [\"alice\"]\napi_keys_file = \"/k\""] {
            read(text).validate().unwrap_or_else(|error| panic!("{text}: {error}"));
        }
        let refused = read("operators = [\"alice\"]").validate().expect_err("no keys");
        let refused = refused.to_string();
        assert!(refused.contains("gateway.operators: expected \"auto\""), "{refused}");
        assert!(refused.contains("found \"alice\""), "{refused}");
    }
}
