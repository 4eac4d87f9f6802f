//! What values may be, and what fields say about each other. One check a section.

use std::net::SocketAddr;

use super::kv::LONGEST_TAP_WINDOW;
use super::{Auto, Config, ConfigError, DRAFTER_KINDS, KvConfig, LogConfig, MOST_SEQUENCES};

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
        self.log.check()
    }

    fn check_addresses(&self) -> Result<(), ConfigError> {
        let gateway = &self.gateway;
        for (key, address) in [("gateway.grpc", &gateway.grpc), ("gateway.http", &gateway.http)] {
            if address.parse::<SocketAddr>().is_err() {
                let what = format!("expected an address like 127.0.0.1:50061, found {address:?}");
                return Err(ConfigError::value(key, what));
            }
        }
        if gateway.tls_cert.is_empty() != gateway.tls_key.is_empty() {
            let what = "expected both tls_cert and tls_key, or neither";
            return Err(ConfigError::value("gateway.tls_cert", what));
        }
        // It was parsed above.
        match gateway.grpc.parse() {
            Ok(address) => gateway.check_exposure(address),
            Err(_) => Ok(()),
        }
    }

    fn check_models(&self) -> Result<(), ConfigError> {
        let kind = &self.drafter.kind;
        if !DRAFTER_KINDS.contains(&kind.as_str()) {
            let known = DRAFTER_KINDS.join(", ");
            let what = format!("expected one of {known}, found {kind:?}");
            return Err(ConfigError::value("drafter.kind", what));
        }
        let sequences = self.target.max_sequences;
        if !(1..=MOST_SEQUENCES).contains(&sequences) {
            let what = format!(
                "expected 1 to {MOST_SEQUENCES} (each is a stream of one connection between our processes), found {sequences}"
            );
            return Err(ConfigError::value("target.max_sequences", what));
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
        match at_least_one.iter().find(|(_, value)| *value == 0) {
            Some((key, _)) => Err(ConfigError::value(key, "expected at least 1, found 0")),
            None => Ok(()),
        }
    }
}

impl KvConfig {
    fn check(&self) -> Result<(), ConfigError> {
        if self.tap_window > LONGEST_TAP_WINDOW {
            let found = self.tap_window;
            let what = format!("expected at most {LONGEST_TAP_WINDOW} positions, found {found}");
            return Err(ConfigError::value("kv.tap_window", what));
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
        if tracing_subscriber::EnvFilter::try_new(&self.level).is_err() {
            let what =
                format!("expected error, warn, info, debug or trace, found {:?}", self.level);
            return Err(ConfigError::value("log.level", what));
        }
        Ok(())
    }
}

/// A share of a whole, of which some must be left.
fn check_share(key: &str, share: f64) -> Result<(), ConfigError> {
    if share > 0.0 && share <= 1.0 {
        return Ok(());
    }
    Err(ConfigError::value(key, format!("expected above 0, at most 1, found {share}")))
}
