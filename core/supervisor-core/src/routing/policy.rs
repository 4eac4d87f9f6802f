//! The operator's routing policy: the configuration's at first, changed key by key at run time.
//! Each change has a number.

use paceline_settings::{Auto, RoutingConfig};
use paceline_vocabulary::Force;

/// The policy in force.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Changes since the supervisor's start; 0 is the configuration's policy.
    pub epoch: u64,
    /// `routing.force`
    pub force: Force,
    /// `routing.max_concurrent`
    pub max_concurrent: Auto<u32>,
    /// `routing.max_context`
    pub max_context: Auto<u32>,
    /// `routing.kv_pressure`
    pub kv_pressure: f64,
}

impl Default for Policy {
    fn default() -> Self {
        Self::of(&RoutingConfig::default())
    }
}

/// One key of the policy with its new value. The shell reads it from an operator's text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PolicyChange {
    /// `routing.force`
    Force(Force),
    /// `routing.max_concurrent`
    MaxConcurrent(Auto<u32>),
    /// `routing.max_context`
    MaxContext(Auto<u32>),
    /// `routing.kv_pressure`
    KvPressure(f64),
}

impl PolicyChange {
    /// The key, as in the configuration.
    pub fn key(self) -> &'static str {
        match self {
            PolicyChange::Force(_) => "routing.force",
            PolicyChange::MaxConcurrent(_) => "routing.max_concurrent",
            PolicyChange::MaxContext(_) => "routing.max_context",
            PolicyChange::KvPressure(_) => "routing.kv_pressure",
        }
    }

    /// The value in the configuration's form.
    pub fn value(self) -> String {
        match self {
            PolicyChange::Force(force) => force.word().to_owned(),
            PolicyChange::MaxConcurrent(limit) | PolicyChange::MaxContext(limit) => {
                limit.given().map_or_else(|| "auto".to_owned(), |number| number.to_string())
            }
            // Always with a point: the configuration's form of a number that is no integer.
            PolicyChange::KvPressure(share) => format!("{share:?}"),
        }
    }
}

impl Policy {
    /// The configuration's policy.
    pub fn of(routing: &RoutingConfig) -> Self {
        let RoutingConfig { force, max_concurrent, max_context, kv_pressure, .. } = *routing;
        Self { epoch: 0, force, max_concurrent, max_context, kv_pressure }
    }

    /// The next policy: this one with one key changed.
    pub fn with(&self, change: PolicyChange) -> Self {
        let mut policy = Self { epoch: self.epoch + 1, ..*self };
        match change {
            PolicyChange::Force(force) => policy.force = force,
            PolicyChange::MaxConcurrent(limit) => policy.max_concurrent = limit,
            PolicyChange::MaxContext(limit) => policy.max_context = limit,
            PolicyChange::KvPressure(share) => policy.kv_pressure = share,
        }
        policy
    }

    /// Every key with its value.
    pub fn settings(&self) -> [PolicyChange; 4] {
        [
            PolicyChange::Force(self.force),
            PolicyChange::MaxConcurrent(self.max_concurrent),
            PolicyChange::MaxContext(self.max_context),
            PolicyChange::KvPressure(self.kv_pressure),
        ]
    }

    /// The value of the key that `change` changes.
    pub fn value_before(&self, change: PolicyChange) -> String {
        let same = |setting: &PolicyChange| setting.key() == change.key();
        self.settings().into_iter().find(same).map(PolicyChange::value).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_counted_and_keeps_the_other_keys() {
        let first = Policy::default();
        let second = first.with(PolicyChange::MaxConcurrent(Auto::Is(2)));
        let third = second.with(PolicyChange::Force(Force::Plain));
        assert_eq!((first.epoch, second.epoch, third.epoch), (0, 1, 2));
        assert_eq!((third.force, third.max_concurrent), (Force::Plain, Auto::Is(2)));
        assert_eq!((third.max_context, third.kv_pressure), (Auto::Auto, 0.85));
        let values = third.settings().map(PolicyChange::value);
        assert_eq!(values, ["plain", "2", "auto", "0.85"]);
        assert_eq!(first.value_before(PolicyChange::MaxConcurrent(Auto::Is(2))), "auto");
    }
}
