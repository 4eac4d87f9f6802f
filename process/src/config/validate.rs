//! Checks of texts, and of settings that depend on each other. Bounds of single values are in the
//! table of `paceline_settings`.

use std::net::SocketAddr;

use super::{
    AUTO_DRAFTER, Auto, Config, ConfigError, DrafterConfig, KvConfig, LOOKUP, LogConfig, MTP,
    TARGET_HEAD, WITH_LOOKUP, WITHOUT_DIRECTORY, check_exposure,
};

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
        // A section that is new has to be checked, too.
        let Self {
            gateway,
            supervisor,
            target,
            drafter,
            classes: _,
            routing,
            kv,
            limits,
            drain,
            log,
        } = self;
        gateway.check()?;
        supervisor.check()?;
        target.check()?;
        drafter.check()?;
        routing.check()?;
        kv.check()?;
        limits.check()?;
        drain.check()?;
        log.check()?;
        self.check_addresses()?;
        self.check_drafter()?;
        check_budget(kv)?;
        self.check_body_bytes()?;
        check_log(log)
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
        let ollama = match gateway.ollama.address() {
            None => None,
            Some(ollama) => Some(address("gateway.ollama", ollama, ", on or off")?),
        };
        if gateway.ollama.is_served() && http.is_none() {
            let what = "expected off, because there is no HTTP (gateway.http), found another value";
            return Err(ConfigError::value("gateway.ollama", what));
        }
        // A free port is another one each time.
        let named = ollama.filter(|ollama| ollama.port() != 0);
        if let Some(taken) = named.filter(|named| [http, Some(grpc)].contains(&Some(*named))) {
            let what =
                format!("expected another address than those of grpc and http, found {taken}");
            return Err(ConfigError::value("gateway.ollama", what));
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
        check_exposure(gateway, "gateway.grpc", grpc)?;
        for (key, address) in [("gateway.http", http), ("gateway.ollama", ollama)] {
            if let Some(address) = address {
                check_exposure(gateway, key, address)?;
            }
        }
        Ok(())
    }

    /// Prompt lookup has no directory, and a directory is not of that kind. Nor is the target's head,
    /// which is of kind mtp. Any other kind is that of each checkpoint of a list.
    fn check_drafter(&self) -> Result<(), ConfigError> {
        let DrafterConfig { model, kind, .. } = &self.drafter;
        let names = model.names();
        let fits = match kind.strip_prefix(WITH_LOOKUP).unwrap_or(kind) {
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
}

fn check_budget(kv: &KvConfig) -> Result<(), ConfigError> {
    if kv.budget_fraction == Auto::Auto || kv.budget_bytes == Auto::Auto {
        return Ok(());
    }
    let what = "expected one of kv.budget_bytes and kv.budget_fraction, found both";
    Err(ConfigError::value("kv.budget_fraction", what))
}

fn check_log(log: &LogConfig) -> Result<(), ConfigError> {
    // A word that is no level would be taken for the name of a module, and log nothing else.
    let is_level = |word: &str| {
        let levels = ["off", "error", "warn", "info", "debug", "trace"];
        levels.iter().any(|level| word.trim().eq_ignore_ascii_case(level))
    };
    let parts_are = log.level.split(',').all(|part| match part.split_once('=') {
        Some((_, level)) => is_level(level),
        None => is_level(part),
    });
    if !parts_are || tracing_subscriber::EnvFilter::try_new(&log.level).is_err() {
        let what = format!(
            "expected off, error, warn, info, debug or trace, or parts as info,hyper=warn, found {:?}",
            log.level
        );
        return Err(ConfigError::value("log.level", what));
    }
    if !log.otlp.is_empty() && !is_collector(&log.otlp) {
        let what = format!(
            "expected a collector like http://127.0.0.1:4317 (a host and a port, OTLP/gRPC without TLS), or \"\" for no traces, found {:?}",
            log.otlp
        );
        return Err(ConfigError::value("log.otlp", what));
    }
    Ok(())
}

fn address(key: &str, text: &str, or: &str) -> Result<SocketAddr, ConfigError> {
    let what = || format!("expected an address like {}{or}, found {text:?}", default_address(key));
    text.parse().map_err(|_| ConfigError::value(key, what()))
}

fn default_address(key: &str) -> String {
    let gateway = Config::default().gateway;
    match key {
        "gateway.http" => gateway.http,
        "gateway.ollama" => "127.0.0.1:11434".to_owned(),
        _ => gateway.grpc,
    }
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
