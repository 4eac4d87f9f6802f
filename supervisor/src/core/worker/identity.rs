//! Whether a process that an earlier supervisor left is the one that we would start: taken over it
//! keeps its weights, so it has to be the same program with the same settings.

/// What makes two workers the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Version of the program and digest of the internal messages (`paceline_proto::BUILD`).
    pub build: String,
    /// Digest of the settings it was started with.
    pub config_digest: String,
}

/// What a worker says of itself when it is taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Number of its life.
    pub epoch: u64,
    /// Its process id.
    pub pid: u32,
    /// Program and settings.
    pub identity: Identity,
}

impl Claim {
    /// Why a process that was recorded as `epoch` and `pid` and claims this is not what `ours`
    /// would start; `None` if it is.
    pub fn differs(&self, epoch: u64, pid: u32, ours: &Identity) -> Option<String> {
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
    fn the_same_program_with_the_same_settings_is_taken_over_and_no_other() {
        let identity = |build: &str, digest: &str| Identity {
            build: build.into(),
            config_digest: digest.into(),
        };
        let ours = identity("1.0.0+5a", "a");
        let claim = |epoch, pid, identity| Claim { epoch, pid, identity };
        assert_eq!(claim(4, 44, ours.clone()).differs(4, 44, &ours), None);
        for (claim, part) in [
            (claim(5, 44, ours.clone()), "epoch 4 of process 44, who answers is epoch 5"),
            (claim(4, 45, ours.clone()), "process 45"),
            (claim(4, 44, identity("1.1.0+5a", "a")), "build is 1.1.0+5a, ours is 1.0.0+5a"),
            (claim(4, 44, identity("1.0.0+5b", "a")), "build is 1.0.0+5b, ours is 1.0.0+5a"),
            (claim(4, 44, identity("1.0.0+5a", "b")), "other settings"),
        ] {
            let cause = claim.differs(4, 44, &ours).expect("another");
            assert!(cause.contains(part), "{cause}");
        }
    }
}
