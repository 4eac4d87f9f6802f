//! `[log]`: level and form of the log lines.

use serde::{Deserialize, Serialize};

/// Form of the log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// error, warn, info, debug or trace; or a filter as of `tracing`.
    pub level: String,
    /// Form of the lines.
    pub format: LogFormat,
    /// Log prompts and outputs. Off: nothing of a request's text is logged.
    pub prompts: bool,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { level: "info".into(), format: LogFormat::Text, prompts: false }
    }
}
