//! The configuration: one struct a section, defaults in code, file and environment over them,
//! checked before a port is bound or a weight is read.
//!
//! A key's value comes from the environment (`PACELINE_ROUTING__MAX_CONCURRENT=2`; an empty value
//! is a value), else from the file, else from the defaults here. Unknown keys are refused with the
//! nearest known name.

mod auto;
mod policy;
mod served;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use auto::Auto;
pub use policy::POLICY_KEYS;

/// Environment variable naming the configuration file; set but empty means none at all.
pub const CONFIG_VAR: &str = "PACELINE_CONFIG";

/// Everything that can be set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The process clients talk to.
    pub gateway: GatewayConfig,
    /// The process that owns the workers.
    pub supervisor: SupervisorConfig,
    /// The model that is served.
    pub target: TargetConfig,
    /// The model that proposes tokens.
    pub drafter: DrafterConfig,
    /// API key name → traffic class.
    pub classes: BTreeMap<String, String>,
    /// When speculation is allowed.
    pub routing: RoutingConfig,
    /// The target's KV memory.
    pub kv: KvConfig,
    /// What a request may ask for.
    pub limits: LimitsConfig,
    /// Logs.
    pub log: LogConfig,
}

/// `[gateway]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatewayConfig {
    /// Address of the gRPC service.
    pub grpc: String,
    /// Address of health, metrics and the OpenAI-compatible service.
    pub http: String,
    /// File with the digests of API keys, one `name:digest` a line ([`crate::keys`]), of this user
    /// and 0600; "" = no keys.
    pub api_keys_file: String,
    /// TLS certificate chain (PEM); "" = no TLS.
    pub tls_cert: String,
    /// TLS key (PEM).
    pub tls_key: String,
    /// Serve on an address that other machines reach without keys and TLS.
    pub insecure: bool,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            grpc: "127.0.0.1:50061".into(),
            http: "127.0.0.1:8061".into(),
            api_keys_file: String::new(),
            tls_cert: String::new(),
            tls_key: String::new(),
            insecure: false,
        }
    }
}

/// `[supervisor]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SupervisorConfig {
    /// Directory of sockets, logs and counters; "" = $XDG_RUNTIME_DIR/paceline or the user's cache
    /// directory.
    pub runtime_dir: String,
    /// Seconds a worker lives on without its supervisor.
    pub lease_s: u64,
    /// Seconds without progress after which a busy worker counts as hung, if ten times its usual
    /// step is less.
    pub hang_s: u64,
    /// The restart within `restart_period_s` at which a process counts as failed: with 5 there are
    /// at most five starts.
    pub restarts: u32,
    /// Seconds over which restarts are counted.
    pub restart_period_s: u64,
}

impl Default for SupervisorConfig {
    fn default() -> Self {
        Self {
            runtime_dir: String::new(),
            lease_s: 30,
            hang_s: 10,
            restarts: 5,
            restart_period_s: 60,
        }
    }
}

/// Where a model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// The GPU if MLX has one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU; none is an error.
    Gpu,
}

/// Most that `target.max_sequences` may be: each sequence has a stream of its own on the connection
/// between supervisor and target, and an HTTP/2 server accepts 200 at once unless it is told
/// otherwise; heartbeats and orders need some of them.
pub const MOST_SEQUENCES: u32 = 128;

/// `[target]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TargetConfig {
    /// Model directory; "" = the embedded demo model.
    pub model: String,
    /// Where it runs.
    pub device: Device,
    /// Threads of its matrix products on the CPU; auto = all cores.
    pub threads: Auto<u32>,
    /// Keep quantized weights quantized on the CPU (slower, smaller).
    pub keep_quantized: bool,
    /// Requests that run at once, if there is memory for them; others wait in the queue. 1 to
    /// [`MOST_SEQUENCES`]. Default: 32, up to which the cost of a step is measured by its number of
    /// sequences.
    pub max_sequences: u32,
}

impl Default for TargetConfig {
    fn default() -> Self {
        Self {
            model: String::new(),
            device: Device::default(),
            threads: Auto::Auto,
            keep_quantized: false,
            max_sequences: 32,
        }
    }
}

/// When the drafter is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrafterStart {
    /// With the service.
    #[default]
    Eager,
    /// At the first request that would use it.
    Lazy,
    /// When an operator says so.
    Manual,
}

/// What `drafter.kind` may be.
pub const DRAFTER_KINDS: [&str; 2] = ["auto", "dflash"];

/// Longest `kv.tap_window`, in positions: taps are wide, and a drafter's use of old ones is small.
const LONGEST_TAP_WINDOW: u32 = 65_536;

/// How far the drafter's weights are rounded at load. Only a GPU keeps them packed; on the CPU they
/// stay float32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrafterQuantize {
    /// As in the files.
    #[default]
    None,
    /// 8 bits.
    Q8,
    /// 4 bits.
    Q4,
}

/// `[drafter]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DrafterConfig {
    /// Model directory; "" = none, or the embedded demo drafter where the embedded demo target is
    /// served.
    pub model: String,
    /// Architecture, one of [`DRAFTER_KINDS`]; "auto" reads it from the files.
    pub kind: String,
    /// When it is started.
    pub start: DrafterStart,
    /// Seconds without use after which it is stopped; 0 = never.
    pub idle_stop_s: u64,
    /// Threads of its matrix products on the CPU; auto = all cores.
    pub threads: Auto<u32>,
    /// Quantization at load. On the CPU it saves no memory.
    pub quantize: DrafterQuantize,
    /// Contexts of ended requests that it keeps for requests with the same beginning, in bytes; 0 =
    /// none. Default: 256 MiB, which is some ten thousand positions of the published drafters.
    pub prefix_bytes: u64,
}

impl Default for DrafterConfig {
    fn default() -> Self {
        Self {
            model: String::new(),
            kind: "auto".into(),
            start: DrafterStart::default(),
            idle_stop_s: 0,
            threads: Auto::Auto,
            quantize: DrafterQuantize::default(),
            prefix_bytes: 256 << 20,
        }
    }
}

/// An operator's override of the route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Force {
    /// No override.
    #[default]
    Auto,
    /// Everything without the drafter.
    Plain,
    /// Everything with the drafter, where there is one.
    Speculative,
}

/// `[routing]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RoutingConfig {
    /// Requests at once that may draft; auto: 4 until it is measured how far speculation pays.
    pub max_concurrent: Auto<u32>,
    /// Context above which requests decode plainly, in tokens; auto: 4096, where published drafters
    /// were trained, until measured.
    pub max_context: Auto<u32>,
    /// KV pressure above which requests decode plainly.
    pub kv_pressure: f64,
    /// Operator's override.
    pub force: Force,
    /// File of the route log; "" = off.
    pub route_log: String,
}

impl Default for RoutingConfig {
    fn default() -> Self {
        Self {
            max_concurrent: Auto::Auto,
            max_context: Auto::Auto,
            kv_pressure: 0.85,
            force: Force::Auto,
            route_log: String::new(),
        }
    }
}

/// `[kv]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KvConfig {
    /// Bytes that sequences may hold together; auto = `budget_fraction` of what is free after load.
    pub budget_bytes: Auto<u64>,
    /// Share of the memory that is free after the weights are loaded; auto = 0.5. On macOS no more
    /// counts as free than the working set that the GPU's driver recommends has left.
    pub budget_fraction: Auto<f64>,
    /// Keep the KV of ended requests for later ones with the same beginning.
    pub prefix_cache: bool,
    /// Positions of which taps are kept for a drafter that attaches later.
    pub tap_window: u32,
}

impl Default for KvConfig {
    fn default() -> Self {
        Self {
            budget_bytes: Auto::Auto,
            budget_fraction: Auto::Auto,
            prefix_cache: true,
            tap_window: 512,
        }
    }
}

/// `[limits]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Longest prompt in tokens; auto = the model's context.
    pub max_prompt_tokens: Auto<u32>,
    /// Most tokens a request may generate; auto = the model's context.
    pub max_new_tokens: Auto<u32>,
    /// Requests that may wait, of all API keys together. Default: 128, so that a burst of 100 is
    /// served whole.
    pub queue: u32,
    /// Seconds a request may wait.
    pub queue_wait_s: u64,
    /// Seconds a request may take in all.
    pub deadline_s: u64,
    /// Largest message a client may send; its pictures are in it.
    pub max_message_bytes: u64,
    /// Connections of clients at once. Where they are all taken, the longest idle one is closed for
    /// a newcomer.
    pub connections: u32,
    /// Connections at once of one peer (an IPv4 address, an IPv6 /64), other than this machine;
    /// auto = a quarter of `connections`.
    pub connections_per_peer: Auto<u32>,
    /// Requests at once on one connection; a client that wants more has them wait.
    pub streams_per_connection: u32,
    /// Requests that run at once under one API key's name, where there are keys; its others wait in
    /// the queue. Default: 16, half of what runs at once.
    pub streams_per_key: u32,
    /// Seconds a client may take for its message, from the headers on.
    pub message_s: u64,
    /// Seconds a client may leave its answer unread before its request is ended.
    pub unread_s: u64,
    /// Pictures in one request.
    pub max_images: u32,
    /// Pixels of one picture as it is sent.
    pub max_image_pixels: u64,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            max_prompt_tokens: Auto::Auto,
            max_new_tokens: Auto::Auto,
            queue: 128,
            queue_wait_s: 10,
            deadline_s: 600,
            max_message_bytes: 16 << 20,
            // Each is a descriptor, and systems give 1024 or fewer by default.
            connections: 512,
            connections_per_peer: Auto::Auto,
            streams_per_connection: 128,
            streams_per_key: 16,
            // The largest message at two megabits a second.
            message_s: 60,
            unread_s: 60,
            max_images: 8,
            max_image_pixels: 40_000_000,
        }
    }
}

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

/// Why a configuration is refused. Every one ends the process with exit code 64.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file that was named cannot be read.
    #[error("cannot read the configuration file {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// Not TOML.
    #[error("{} is not valid TOML: {cause}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        cause: Box<toml::de::Error>,
    },
    /// A key nobody knows.
    #[error("unknown configuration key {key} ({place}); {hint}")]
    UnknownKey {
        /// The key as written.
        key: String,
        /// File or environment variable.
        place: String,
        /// The nearest known key, or which there are.
        hint: String,
    },
    /// A value of the wrong type.
    #[error("configuration key {key}: {what}")]
    Value {
        /// The key.
        key: String,
        /// Expected and found.
        what: String,
    },
}

/// A configuration and where it came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// The file that was read, if any, as an absolute path.
    pub file: Option<PathBuf>,
    /// Settings that are accepted but do nothing yet, one sentence each.
    pub warnings: Vec<String>,
}

impl Loaded {
    /// Finds, reads and checks the configuration of this process: `flag` (`--config`), else
    /// `PACELINE_CONFIG`, else `./paceline.toml`, else the user's configuration directory, else
    /// defaults.
    ///
    /// # Errors
    /// A named file that cannot be read, unknown keys, values of the wrong type or out of range,
    /// settings whose feature is not there yet.
    pub fn find(flag: Option<&Path>) -> Result<Self, ConfigError> {
        Self::find_with(flag, &text_variables(std::env::vars_os())?)
    }

    fn find_with(
        flag: Option<&Path>,
        environment: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        let named = match environment.iter().find(|(name, _)| name == CONFIG_VAR) {
            _ if flag.is_some() => flag.map(Path::to_path_buf),
            Some((_, path)) if path.is_empty() => return Self::build(None, environment),
            Some((_, path)) => Some(PathBuf::from(path)),
            None => None,
        };
        let user = crate::platform::config_dir().map(|dir| dir.join("paceline/paceline.toml"));
        let file = named.or_else(|| {
            [Some(PathBuf::from("paceline.toml")), user]
                .into_iter()
                .flatten()
                .find(|path| path.is_file())
        });
        Self::build(file.as_deref(), environment)
    }

    /// Reads `file` and lays `environment` over it.
    ///
    /// # Errors
    /// As [`Loaded::find`].
    pub fn build(
        file: Option<&Path>,
        environment: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        let Some(path) = file else {
            return Self::from_table(toml::Table::new(), "no file", environment);
        };
        let read = |cause| ConfigError::Read { path: path.to_path_buf(), cause };
        let text = std::fs::read_to_string(path).map_err(read)?;
        let file = std::path::absolute(path).map_err(read)?;
        let loaded =
            Self::from_table(parse(&text, path)?, &path.display().to_string(), environment)?;
        Ok(Self { file: Some(file), ..loaded })
    }

    /// Lays `environment` over a file's text. For fuzzing.
    ///
    /// # Errors
    /// As [`Loaded::find`].
    pub fn from_text(text: &str, environment: &[(String, String)]) -> Result<Self, ConfigError> {
        Self::from_table(parse(text, Path::new("the text"))?, "the text", environment)
    }

    fn from_table(
        mut table: toml::Table,
        place: &str,
        environment: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        let known = toml::Table::try_from(Config::default()).expect("the defaults are plain TOML");
        refuse_unknown(&table, &known, place)?;
        overlay(&mut table, &known, environment)?;
        let config: Config =
            serde_path_to_error::deserialize(toml::Value::Table(table)).map_err(|error| {
                ConfigError::Value {
                    key: error.path().to_string(),
                    what: error.inner().message().to_owned(),
                }
            })?;
        config.validate()?;
        let warnings = served::check(&config)?;
        Ok(Self { config, file: None, warnings })
    }
}

/// The variables that are text. One of ours that is not UTF-8 is refused; others may hold any bytes
/// and are left out.
fn text_variables(
    all: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Vec<(String, String)>, ConfigError> {
    let mut variables = Vec::new();
    for (name, value) in all {
        let shown = name.to_string_lossy().into_owned();
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => variables.push((name, value)),
            _ if shown == CONFIG_VAR
                || (shown.starts_with("PACELINE_") && shown.contains("__")) =>
            {
                let what = "expected UTF-8 text, found other bytes in this environment variable; set it anew, or unset it";
                return Err(ConfigError::Value { key: shown, what: what.to_owned() });
            }
            _ => {}
        }
    }
    Ok(variables)
}

fn parse(text: &str, path: &Path) -> Result<toml::Table, ConfigError> {
    text.parse()
        .map_err(|cause| ConfigError::Syntax { path: path.to_path_buf(), cause: Box::new(cause) })
}

/// Refuses sections and keys that the defaults do not have.
fn refuse_unknown(
    table: &toml::Table,
    known: &toml::Table,
    place: &str,
) -> Result<(), ConfigError> {
    let unknown = |key: String, candidates: Vec<String>| ConfigError::UnknownKey {
        hint: hint(&key, &candidates),
        key,
        place: place.to_owned(),
    };
    for (section, value) in table {
        let Some(known_keys) = known.get(section).and_then(toml::Value::as_table) else {
            return Err(unknown(section.clone(), all_keys(known)));
        };
        let Some(keys) = value.as_table() else {
            let what = format!("expected a section [{section}], found {}", value.type_str());
            return Err(ConfigError::Value { key: section.clone(), what });
        };
        if section == "classes" {
            continue; // its keys are the operator's own
        }
        if let Some(key) = keys.keys().find(|key| !known_keys.contains_key(*key)) {
            return Err(unknown(format!("{section}.{key}"), all_keys(known)));
        }
    }
    Ok(())
}

fn all_keys(known: &toml::Table) -> Vec<String> {
    let mut keys = Vec::new();
    for (section, value) in known {
        keys.push(section.clone());
        keys.extend(
            value
                .as_table()
                .into_iter()
                .flat_map(|table| table.keys())
                .map(|key| format!("{section}.{key}")),
        );
    }
    keys
}

/// What may have been meant, or what there is: in that section if it is one, else all sections.
fn hint(key: &str, candidates: &[String]) -> String {
    if let Some(near) = nearest(key, candidates) {
        return format!("did you mean {near}?");
    }
    let inside = |candidate: &&String| {
        key.split_once('.').is_some_and(|(own, _)| section(candidate) == Some(own))
    };
    let mut there: Vec<&str> = candidates.iter().filter(inside).map(String::as_str).collect();
    if there.is_empty() {
        there = candidates
            .iter()
            .filter(|candidate| section(candidate).is_none())
            .map(String::as_str)
            .collect();
    }
    if there.is_empty() {
        there = candidates.iter().map(String::as_str).collect();
    }
    format!("expected one of {}", there.join(", "))
}

fn section(key: &str) -> Option<&str> {
    key.split_once('.').map(|(section, _)| section)
}

fn nearest<'a>(key: &str, candidates: &'a [String]) -> Option<&'a str> {
    let word = |text: &'_ str| text.rsplit('.').next().unwrap_or_default().to_owned();
    // A misspelt key is found by its distance, one in the wrong section by its last word.
    let distance = |candidate: &str| {
        let letters = strsim::damerau_levenshtein(&word(key), &word(candidate));
        match section(key) == section(candidate) {
            true => (letters <= 1 + word(key).len() / 3).then_some(letters),
            false => (section(candidate).is_some() && letters <= word(key).len() / 4)
                .then_some(letters + 1),
        }
    };
    let near = candidates.iter().filter_map(|candidate| Some((distance(candidate)?, candidate)));
    near.min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate.as_str())
}

/// Lays `PACELINE_SECTION__KEY=value` over the file's table, each value in the type its default
/// has.
fn overlay(
    table: &mut toml::Table,
    known: &toml::Table,
    environment: &[(String, String)],
) -> Result<(), ConfigError> {
    for (name, text) in environment {
        let Some((section, key)) =
            name.strip_prefix("PACELINE_").and_then(|rest| rest.split_once("__"))
        else {
            continue;
        };
        let (section, mut key) = (section.to_lowercase(), key.to_lowercase());
        let default = known.get(&section).and_then(|keys| keys.get(&key));
        let value = match default {
            _ if section == "classes" => {
                key = name
                    .split_once("__")
                    .map_or_else(String::new, |(_, original)| original.to_owned());
                toml::Value::String(text.clone())
            }
            None => {
                let full = format!("{section}.{key}");
                return Err(ConfigError::UnknownKey {
                    hint: hint(&full, &all_keys(known)),
                    key: full,
                    place: name.clone(),
                });
            }
            Some(default) => typed(text, default).ok_or_else(|| ConfigError::Value {
                key: format!("{section}.{key}"),
                what: format!("expected {}, found {text:?} in {name}", default.type_str()),
            })?,
        };
        let entry = table.entry(section).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        if let Some(keys) = entry.as_table_mut() {
            keys.insert(key, value);
        }
    }
    Ok(())
}

fn typed(text: &str, like: &toml::Value) -> Option<toml::Value> {
    Some(match like {
        toml::Value::Integer(_) => toml::Value::Integer(text.parse().ok()?),
        toml::Value::Float(_) => toml::Value::Float(text.parse().ok()?),
        toml::Value::Boolean(_) => toml::Value::Boolean(text.parse().ok()?),
        _ => toml::Value::String(text.to_owned()),
    })
}

impl Config {
    /// Checks values and what fields say about each other.
    ///
    /// # Errors
    /// The first key whose value cannot work.
    fn validate(&self) -> Result<(), ConfigError> {
        let refuse =
            |key: &str, what: String| Err(ConfigError::Value { key: key.to_owned(), what });
        for (key, address) in
            [("gateway.grpc", &self.gateway.grpc), ("gateway.http", &self.gateway.http)]
        {
            if address.parse::<SocketAddr>().is_err() {
                return refuse(
                    key,
                    format!("expected an address like 127.0.0.1:50061, found {address:?}"),
                );
            }
        }
        if self.gateway.tls_cert.is_empty() != self.gateway.tls_key.is_empty() {
            return refuse(
                "gateway.tls_cert",
                "expected both tls_cert and tls_key, or neither".into(),
            );
        }
        // It was parsed above.
        if let Ok(address) = self.gateway.grpc.parse() {
            self.gateway.check_exposure(address)?;
        }
        if !(self.routing.kv_pressure > 0.0 && self.routing.kv_pressure <= 1.0) {
            return refuse(
                "routing.kv_pressure",
                format!("expected above 0, at most 1, found {}", self.routing.kv_pressure),
            );
        }
        if !DRAFTER_KINDS.contains(&self.drafter.kind.as_str()) {
            let what = format!(
                "expected one of {}, found {:?}",
                DRAFTER_KINDS.join(", "),
                self.drafter.kind
            );
            return refuse("drafter.kind", what);
        }
        if self.kv.tap_window > LONGEST_TAP_WINDOW {
            let what = format!(
                "expected at most {LONGEST_TAP_WINDOW} positions, found {}",
                self.kv.tap_window
            );
            return refuse("kv.tap_window", what);
        }
        if let Auto::Is(fraction) = self.kv.budget_fraction {
            if !(fraction > 0.0 && fraction <= 1.0) {
                return refuse(
                    "kv.budget_fraction",
                    format!("expected above 0, at most 1, found {fraction}"),
                );
            }
            if self.kv.budget_bytes != Auto::Auto {
                return refuse(
                    "kv.budget_fraction",
                    "expected one of kv.budget_bytes and kv.budget_fraction, found both".into(),
                );
            }
        }
        if !(1..=MOST_SEQUENCES).contains(&self.target.max_sequences) {
            let what = format!(
                "expected 1 to {MOST_SEQUENCES} (each is a stream of one connection between our processes), found {}",
                self.target.max_sequences
            );
            return refuse("target.max_sequences", what);
        }
        let at_least_one: [(&str, u64); 18] = [
            ("limits.connections", self.limits.connections.into()),
            ("limits.connections_per_peer", self.limits.connections_per_peer.or(1).into()),
            ("limits.streams_per_connection", self.limits.streams_per_connection.into()),
            ("limits.streams_per_key", self.limits.streams_per_key.into()),
            ("limits.message_s", self.limits.message_s),
            ("limits.unread_s", self.limits.unread_s),
            ("supervisor.lease_s", self.supervisor.lease_s),
            ("supervisor.hang_s", self.supervisor.hang_s),
            ("supervisor.restart_period_s", self.supervisor.restart_period_s),
            ("limits.queue_wait_s", self.limits.queue_wait_s),
            ("limits.deadline_s", self.limits.deadline_s),
            ("limits.max_message_bytes", self.limits.max_message_bytes),
            ("limits.max_images", self.limits.max_images.into()),
            ("limits.max_image_pixels", self.limits.max_image_pixels),
            ("target.threads", self.target.threads.or(1).into()),
            ("drafter.threads", self.drafter.threads.or(1).into()),
            ("limits.max_prompt_tokens", self.limits.max_prompt_tokens.or(1).into()),
            ("limits.max_new_tokens", self.limits.max_new_tokens.or(1).into()),
        ];
        if let Some((key, _)) = at_least_one.iter().find(|(_, value)| *value == 0) {
            return refuse(key, "expected at least 1, found 0".into());
        }
        if tracing_subscriber::EnvFilter::try_new(&self.log.level).is_err() {
            return refuse(
                "log.level",
                format!("expected error, warn, info, debug or trace, found {:?}", self.log.level),
            );
        }
        Ok(())
    }

    /// Digest of the settings that the target is started with: one with another digest is not taken
    /// over. What only others go by is left out, as are logs: changing it costs no load. Of the
    /// drafter it reads what to keep for it.
    pub fn target_digest(&self) -> String {
        let drafter = DrafterConfig { model: self.drafter.model.clone(), ..Default::default() };
        Self { target: self.target.clone(), kv: self.kv.clone(), drafter, ..self.of_every_worker() }
            .hashed()
    }

    /// Digest of the settings that a drafter is started with, likewise.
    pub fn drafter_digest(&self) -> String {
        let DrafterConfig { start, idle_stop_s, .. } = DrafterConfig::default();
        let drafter = DrafterConfig { start, idle_stop_s, ..self.drafter.clone() };
        // Where no drafter is named the target says which one there is.
        let model =
            if drafter.model.is_empty() { self.target.model.clone() } else { String::new() };
        let target = TargetConfig { model, device: self.target.device, ..Default::default() };
        Self { target, drafter, ..self.of_every_worker() }.hashed()
    }

    /// The settings by which every worker lives; all others are the defaults.
    fn of_every_worker(&self) -> Self {
        let SupervisorConfig { runtime_dir, lease_s, .. } = self.supervisor.clone();
        Self {
            supervisor: SupervisorConfig { runtime_dir, lease_s, ..Default::default() },
            ..Default::default()
        }
    }

    fn hashed(&self) -> String {
        let text = toml::to_string(self).expect("a configuration is plain TOML");
        Sha256::digest(text.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Directory of the served model: `target.model`, or the embedded demo model.
    ///
    /// # Errors
    /// The directory does not exist, or the demo model is not where it is installed.
    pub fn model_dir(&self) -> Result<PathBuf, ConfigError> {
        let refuse = |what: String| ConfigError::Value { key: "target.model".into(), what };
        if self.target.model.is_empty() {
            return demo_dir("target").ok_or_else(|| {
                refuse(
                    "none is set and the embedded demo model was not found beside the program; set it to a model directory"
                        .into(),
                )
            });
        }
        let dir = PathBuf::from(&self.target.model);
        if !dir.is_dir() {
            return Err(refuse(format!(
                "expected a model directory, found nothing at {}",
                dir.display()
            )));
        }
        std::path::absolute(&dir).map_err(|error| refuse(error.to_string()))
    }

    /// Directory of the configured drafter: `drafter.model`; where neither target nor drafter are
    /// set the embedded demo drafter; else none. It need not exist: a drafter that is not there
    /// costs speed, nothing else (I3).
    pub fn drafter_dir(&self) -> Option<PathBuf> {
        match (self.drafter.model.is_empty(), self.target.model.is_empty()) {
            (false, _) => Some(
                std::path::absolute(&self.drafter.model)
                    .unwrap_or_else(|_| PathBuf::from(&self.drafter.model)),
            ),
            (true, true) => demo_dir("drafter"),
            (true, false) => None,
        }
    }
}

impl GatewayConfig {
    /// Checks that what other machines reach has keys and TLS.
    ///
    /// # Errors
    /// It has not, and nobody said that it may be so.
    pub fn check_exposure(&self, address: SocketAddr) -> Result<(), ConfigError> {
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
        Err(ConfigError::Value { key: "gateway.grpc".to_owned(), what })
    }
}

impl Config {
    /// What clients call the served model: its directory's name, `demo-target` for the embedded
    /// one.
    pub fn model_name(&self) -> String {
        let name = Path::new(&self.target.model)
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_else(|| "demo-target".to_owned())
    }
}

/// The embedded demo model: beside an installed program (`../share/paceline/demo`), or in the
/// source tree a program was built in.
pub fn demo_dir(which: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.canonicalize().ok()?;
    let installed = program.parent()?.parent()?.join("share/paceline/demo");
    let built = program.ancestors().skip(1).map(|dir| dir.join("demo"));
    std::iter::once(installed)
        .chain(built)
        .map(|demo| demo.join(which))
        .find(|dir| dir.join("config.json").is_file())
}

#[cfg(test)]
mod tests;
