//! Digests of the settings that workers are started with.

use sha2::{Digest as _, Sha256};

use super::{AUTO_DRAFTER, Config, DrafterConfig, SupervisorConfig, TARGET_HEAD, TargetConfig};

impl Config {
    /// Digest of the settings that the target is started with. A target with another digest is not
    /// adopted. Settings that only other processes read are left out, as are logs: a change of them
    /// reloads no worker.
    ///
    /// The target reads two settings of the drafter, to retain the hidden states of its layers
    /// before a drafter is linked: `drafter.model` and `drafter.kind`. Neither is part of the digest.
    /// A drafter names its layers when it is linked, and the target follows them then. Another
    /// drafter costs drafts until the windows are full again; a reload of the weights would
    /// interrupt the running streams.
    pub fn target_digest(&self) -> String {
        Self { target: self.target.clone(), kv: self.kv.clone(), ..self.of_every_worker() }.hashed()
    }

    /// Digest of the settings that a drafter is started with, likewise.
    pub fn drafter_digest(&self) -> String {
        let DrafterConfig { start, idle_stop_s, .. } = DrafterConfig::default();
        let drafter = DrafterConfig { start, idle_stop_s, ..self.drafter.clone() };
        // With "auto" the target decides which drafter there is, and with "target" it is the target.
        let of_target = |name: &String| [AUTO_DRAFTER, TARGET_HEAD].contains(&name.as_str());
        let model = if drafter.model.names().iter().any(of_target) {
            self.target.model.clone()
        } else {
            String::new()
        };
        // The drafter computes where and as the target does.
        let TargetConfig { device, products, .. } = self.target;
        let target = TargetConfig { model, device, products, ..Default::default() };
        Self { target, drafter, ..self.of_every_worker() }.hashed()
    }

    /// The settings that every worker reads; all others are the defaults.
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
}
