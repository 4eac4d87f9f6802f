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
    /// Write prompts and answers to the gateway's log, at level info. Off: no text of a request is
    /// logged.
    pub prompts: bool,
    /// Collector that gets traces by OTLP/gRPC, as `http://127.0.0.1:4317`. Empty: no traces.
    pub otlp: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { level: "info".into(), format: LogFormat::Text, prompts: false, otlp: String::new() }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Loaded;

    #[test]
    fn a_collector_is_a_host_and_a_port() {
        let load = |otlp: &str| Loaded::from_text(&format!("[log]\notlp = {otlp:?}\n"), &[]);
        for endpoint in
            ["", "http://127.0.0.1:4317", "http://collector.lan:4317/", "http://[::1]:4317"]
        {
            let loaded = load(endpoint).expect(endpoint);
            assert_eq!(loaded.config.log.otlp, endpoint);
        }
        for endpoint in [
            "127.0.0.1:4317",
            "https://127.0.0.1:4317",
            "http://127.0.0.1",
            "http://127.0.0.1:0",
            "http://127.0.0.1:4317/v1/traces",
            "http://127.0.0.1:4317?a=b",
            "http://127.0.0.1:4317#a",
            "http://name:secret@127.0.0.1:4317",
            "http://:4317",
            "unix:/run/collector.sock",
            " ",
        ] {
            let refused = load(endpoint).expect_err(endpoint).to_string();
            assert!(refused.contains("log.otlp") && refused.contains("expected"), "{refused}");
        }
    }
}
