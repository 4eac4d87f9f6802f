//! Checks of single values, and of fields that depend on each other. One check a section.

use std::net::SocketAddr;

use super::kv::LONGEST_HIDDEN_WINDOW;
use super::{
    AUTO_DRAFTER, Auto, Config, ConfigError, DRAFTER_KINDS, DrafterConfig, KvConfig, LOOKUP,
    LogConfig, MOST_SEQUENCES, MTP, Operators, TARGET_HEAD, WITHOUT_DIRECTORY,
};

/// Longest notice before a drain, in seconds: `paceline drain` waits two minutes unless it is told
/// otherwise, and has to drain as well.
const LONGEST_NOTICE_S: u64 = 60;
/// `limits.body_bytes` over `limits.max_message_bytes`, at least: half of the bytes are for long
/// bodies, and one client may have half of those.
const BODY_SHARE: u64 = 4;
/// Least `limits.body_bytes`: a quarter of them are for short bodies, and one client may have half of
/// those, which is then one short body of a mebibyte.
const LEAST_BODY_BYTES: u64 = 8 << 20;

impl Config {
    /// Checks values and what fields say about each other.
    ///
    /// # Errors
    /// The first key whose value cannot work.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        self.check_addresses()?;
        self.check_models()?;
        check_share("routing.kv_pressure", self.routing.kv_pressure)?;
        self.kv.check()?;
        self.check_at_least_one()?;
        self.check_notice()?;
        self.check_body_bytes()?;
        self.log.check()
    }

    fn check_addresses(&self) -> Result<(), ConfigError> {
        let gateway = &self.gateway;
        let grpc = address("gateway.grpc", &gateway.grpc, "")?;
        let http = match gateway.http.as_str() {
            "" => None,
            http => Some(address("gateway.http", http, ", or \"\" for none")?),
        };
        // Each of two free ports is another one.
        if http == Some(grpc) && grpc.port() != 0 {
            let what = format!("expected another address than gateway.grpc, found {grpc} for both");
            return Err(ConfigError::value("gateway.http", what));
        }
        if gateway.tls_cert.is_empty() != gateway.tls_key.is_empty() {
            let what = "expected both tls_cert and tls_key, or neither";
            return Err(ConfigError::value("gateway.tls_cert", what));
        }
        if let Some(found) = gateway.cors_origins.iter().find(|origin| !is_origin(origin)) {
            let what = format!(
                "expected \"*\", or origins like https://chat.example.com without a path, found {found:?}"
            );
            return Err(ConfigError::value("gateway.cors_origins", what));
        }
        if let Some(found) = gateway.hosts.iter().find(|name| !is_host_name(name)) {
            let what = format!(
                "expected names of this machine like box.lan, without a scheme, a port or a path, found {found:?}"
            );
            return Err(ConfigError::value("gateway.hosts", what));
        }
        if let Operators::Keys(names) = &gateway.operators
            && gateway.api_keys_file.is_empty()
            && let Some(name) = names.first()
        {
            let what = format!(
                "expected \"auto\" or an empty list, because there are no keys (gateway.api_keys_file), found {name:?}"
            );
            return Err(ConfigError::value("gateway.operators", what));
        }
        gateway.check_exposure("gateway.grpc", grpc)?;
        http.map_or(Ok(()), |http| gateway.check_exposure("gateway.http", http))
    }

    /// Prompt lookup has no directory, and a directory is not of that kind. Nor is the target's head,
    /// which is of kind mtp. Any other kind is that of each checkpoint of a list.
    fn check_drafter(&self) -> Result<(), ConfigError> {
        let DrafterConfig { model, kind, .. } = &self.drafter;
        if let Some(fault) = model.fault() {
            return Err(ConfigError::value("drafter.model", fault));
        }
        let names = model.names();
        let fits = match kind.as_str() {
            "auto" => true,
            LOOKUP => names.iter().all(|name| ["", AUTO_DRAFTER, LOOKUP].contains(&name.as_str())),
            MTP if names.iter().any(|name| name == TARGET_HEAD) => true,
            _ => !names.iter().all(|name| WITHOUT_DIRECTORY.contains(&name.as_str())),
        };
        if fits {
            return Ok(());
        }
        let model = match names {
            [name] => format!("{name:?}"),
            names => format!("{names:?}"),
        };
        let what = format!("expected \"auto\" with drafter.model = {model}, found {kind:?}");
        Err(ConfigError::value("drafter.kind", what))
    }

    fn check_models(&self) -> Result<(), ConfigError> {
        let kind = &self.drafter.kind;
        if !DRAFTER_KINDS.contains(&kind.as_str()) {
            let known = DRAFTER_KINDS.join(", ");
            let what = format!("expected one of {known}, found {kind:?}");
            return Err(ConfigError::value("drafter.kind", what));
        }
        self.check_drafter()?;
        let sequences = self.target.max_sequences;
        if !(1..=MOST_SEQUENCES).contains(&sequences) {
            let what = format!(
                "expected 1 to {MOST_SEQUENCES} (each is a stream of one connection between our processes), found {sequences}"
            );
            return Err(ConfigError::value("target.max_sequences", what));
        }
        let chunk_ms = self.target.prompt_chunk_ms;
        if !(10..=5_000).contains(&chunk_ms) {
            let what = format!("expected 10 to 5000 milliseconds, found {chunk_ms}");
            return Err(ConfigError::value("target.prompt_chunk_ms", what));
        }
        Ok(())
    }

    fn check_body_bytes(&self) -> Result<(), ConfigError> {
        let (message, found) = (self.limits.max_message_bytes, self.limits.body_bytes);
        let least = message.saturating_mul(BODY_SHARE).max(LEAST_BODY_BYTES);
        if found >= least {
            return Ok(());
        }
        let what = format!(
            "expected at least {least} (four times limits.max_message_bytes, and 8 MiB), found {found}"
        );
        Err(ConfigError::value("limits.body_bytes", what))
    }

    /// An operator's order that waits for the drain waits for the notice as well.
    fn check_notice(&self) -> Result<(), ConfigError> {
        let found = self.drain.notice_s;
        if found > LONGEST_NOTICE_S {
            let what = format!("expected at most {LONGEST_NOTICE_S} seconds, found {found}");
            return Err(ConfigError::value("drain.notice_s", what));
        }
        Ok(())
    }

    fn check_at_least_one(&self) -> Result<(), ConfigError> {
        let (limits, supervisor) = (&self.limits, &self.supervisor);
        let at_least_one: [(&str, u64); 18] = [
            ("limits.connections", limits.connections.into()),
            ("limits.connections_per_peer", limits.connections_per_peer.or(1).into()),
            ("limits.streams_per_connection", limits.streams_per_connection.into()),
            ("limits.streams_per_key", limits.streams_per_key.into()),
            ("limits.message_s", limits.message_s),
            ("limits.unread_s", limits.unread_s),
            ("supervisor.lease_s", supervisor.lease_s),
            ("supervisor.hang_s", supervisor.hang_s),
            ("supervisor.restart_period_s", supervisor.restart_period_s),
            ("limits.queue_wait_s", limits.queue_wait_s),
            ("limits.deadline_s", limits.deadline_s),
            ("limits.max_message_bytes", limits.max_message_bytes),
            ("limits.max_images", limits.max_images.into()),
            ("limits.max_image_pixels", limits.max_image_pixels),
            ("target.threads", self.target.threads.or(1).into()),
            ("drafter.threads", self.drafter.threads.or(1).into()),
            ("limits.max_prompt_tokens", limits.max_prompt_tokens.or(1).into()),
            ("limits.max_new_tokens", limits.max_new_tokens.or(1).into()),
        ];
        if let Some((key, _)) = at_least_one.iter().find(|(_, value)| *value == 0) {
            return Err(ConfigError::value(key, "expected at least 1, found 0"));
        }
        match limits.context_tokens {
            Auto::Is(found @ (0 | 1)) => {
                let what = format!(
                    "expected \"auto\" or at least 2 (one token of a prompt and one of an answer), found {found}"
                );
                Err(ConfigError::value("limits.context_tokens", what))
            }
            _ => Ok(()),
        }
    }
}

impl KvConfig {
    fn check(&self) -> Result<(), ConfigError> {
        if self.hidden_window > LONGEST_HIDDEN_WINDOW {
            let found = self.hidden_window;
            let what = format!("expected at most {LONGEST_HIDDEN_WINDOW} positions, found {found}");
            return Err(ConfigError::value("kv.hidden_window", what));
        }
        if let Auto::Is(fraction) = self.budget_fraction {
            check_share("kv.budget_fraction", fraction)?;
            if self.budget_bytes != Auto::Auto {
                let what = "expected one of kv.budget_bytes and kv.budget_fraction, found both";
                return Err(ConfigError::value("kv.budget_fraction", what));
            }
        }
        Ok(())
    }
}

impl LogConfig {
    fn check(&self) -> Result<(), ConfigError> {
        // A word that is no level would be taken for the name of a module, and log nothing else.
        let is_level = |word: &str| {
            let levels = ["off", "error", "warn", "info", "debug", "trace"];
            levels.iter().any(|level| word.trim().eq_ignore_ascii_case(level))
        };
        let parts_are = self.level.split(',').all(|part| match part.split_once('=') {
            Some((_, level)) => is_level(level),
            None => is_level(part),
        });
        if !parts_are || tracing_subscriber::EnvFilter::try_new(&self.level).is_err() {
            let what = format!(
                "expected off, error, warn, info, debug or trace, or parts as info,hyper=warn, found {:?}",
                self.level
            );
            return Err(ConfigError::value("log.level", what));
        }
        if !self.otlp.is_empty() && !is_collector(&self.otlp) {
            let what = format!(
                "expected a collector like http://127.0.0.1:4317 (a host and a port, OTLP/gRPC without TLS), or \"\" for no traces, found {:?}",
                self.otlp
            );
            return Err(ConfigError::value("log.otlp", what));
        }
        Ok(())
    }
}

fn address(key: &str, text: &str, or: &str) -> Result<SocketAddr, ConfigError> {
    let what = || format!("expected an address like {}{or}, found {text:?}", default_address(key));
    text.parse().map_err(|_| ConfigError::value(key, what()))
}

fn default_address(key: &str) -> String {
    let gateway = Config::default().gateway;
    if key == "gateway.http" { gateway.http } else { gateway.grpc }
}

/// Whether browsers would send this text as an origin (RFC 6454): scheme, host and port, nothing
/// behind them.
fn is_origin(text: &str) -> bool {
    let host = |rest: &str| {
        !rest.is_empty()
            && rest.chars().all(|character| {
                character.is_ascii_digit()
                    || character.is_ascii_lowercase()
                    || "-.:[]_".contains(character)
            })
    };
    text == "*"
        || text.split_once("://").is_some_and(|(scheme, rest)| {
            scheme.chars().all(|character| character.is_ascii_lowercase() || character == '-')
                && !scheme.is_empty()
                && host(rest)
        })
}

/// Whether clients would send this text as the name of a host, without its port.
fn is_host_name(text: &str) -> bool {
    let is_allowed =
        |character: char| character.is_ascii_alphanumeric() || "-_".contains(character);
    let labels = text.strip_suffix('.').unwrap_or(text).split('.');
    labels.into_iter().all(|label| !label.is_empty() && label.chars().all(is_allowed))
}

/// Whether this is the address of a collector: a host and a port, and nothing that a name or a
/// password could be in.
fn is_collector(text: &str) -> bool {
    text.parse::<http::Uri>().is_ok_and(|uri| {
        let has_port = uri.port_u16().is_some_and(|port| port != 0);
        let is_plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
        let has_host = uri.host().is_some_and(|host| !host.is_empty());
        let is_bare = uri.path() == "/" && uri.query().is_none();
        uri.scheme_str() == Some("http")
            && has_host
            && has_port
            && is_plain
            && is_bare
            && !text.contains('#')
    })
}

/// A share of a whole, of which some must be left.
fn check_share(key: &str, share: f64) -> Result<(), ConfigError> {
    if share > 0.0 && share <= 1.0 {
        return Ok(());
    }
    Err(ConfigError::value(key, format!("expected above 0, at most 1, found {share}")))
}
