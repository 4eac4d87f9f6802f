//! Whether a process that an earlier supervisor left is the one that this supervisor would start.
//! An adopted process keeps its weights, so it has to be the same program with the same settings.

use paceline_vocabulary::Epoch;

/// Properties in which two equal workers agree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerIdentity {
    /// Version of the program and digest of the internal messages (`paceline_proto::BUILD`).
    pub build: String,
    /// Digest of the settings it was started with.
    pub config_digest: String,
}

/// Claim of a worker when it is adopted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerClaim {
    /// Epoch of the worker.
    pub epoch: Epoch,
    /// Process id of the worker.
    pub pid: u32,
    /// Program and settings.
    pub identity: WorkerIdentity,
}

impl WorkerClaim {
    /// Why the process that was recorded as `epoch` and `pid` and makes this claim is not the one
    /// that `ours` would start; `None` if it is.
    pub fn differs(&self, epoch: Epoch, pid: u32, ours: &WorkerIdentity) -> Option<String> {
        let theirs = &self.identity;
        if (self.epoch, self.pid) != (epoch, pid) {
            let found = format!("epoch {} of process {}", self.epoch, self.pid);
            return Some(format!(
                "its record says epoch {epoch} of process {pid}, who answers is {found}"
            ));
        }
        if theirs.build != ours.build {
            return Some(format!("its build is {}, ours is {}", theirs.build, ours.build));
        }
        (theirs.config_digest != ours.config_digest)
            .then(|| "it was started with other settings than those there are now".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_program_with_the_same_settings_is_adopted() {
        let identity = |build: &str, digest: &str| WorkerIdentity {
            build: build.into(),
            config_digest: digest.into(),
        };
        let ours = identity("1.0.0+5a", "a");
        let claim = |epoch, pid, identity| WorkerClaim { epoch: Epoch(epoch), pid, identity };
        assert_eq!(claim(4, 44, ours.clone()).differs(Epoch(4), 44, &ours), None);
        for (claim, part) in [
            (claim(5, 44, ours.clone()), "epoch 4 of process 44, who answers is epoch 5"),
            (claim(4, 45, ours.clone()), "process 45"),
            (claim(4, 44, identity("1.1.0+5a", "a")), "build is 1.1.0+5a, ours is 1.0.0+5a"),
            (claim(4, 44, identity("1.0.0+5b", "a")), "build is 1.0.0+5b, ours is 1.0.0+5a"),
            (claim(4, 44, identity("1.0.0+5a", "b")), "other settings"),
        ] {
            let cause = claim.differs(Epoch(4), 44, &ours).expect("another");
            assert!(cause.contains(part), "{cause}");
        }
    }
}
