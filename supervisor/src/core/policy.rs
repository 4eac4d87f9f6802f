//! The operator's routing policy: the configuration's at first, changed key by key at run time.
//! Each change has a number.

use paceline_process::config::{Auto, ConfigError, Force, RoutingConfig};
use paceline_proto::internal::v1 as internal;

/// What the operator has set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Changes since our start; 0 is the configuration's.
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

impl Policy {
    /// The configuration's.
    pub fn of(routing: &RoutingConfig) -> Self {
        Self {
            epoch: 0,
            force: routing.force,
            max_concurrent: routing.max_concurrent,
            max_context: routing.max_context,
            kv_pressure: routing.kv_pressure,
        }
    }

    fn routing(&self) -> RoutingConfig {
        RoutingConfig {
            force: self.force,
            max_concurrent: self.max_concurrent,
            max_context: self.max_context,
            kv_pressure: self.kv_pressure,
            route_log: String::new(),
        }
    }

    /// The next policy: this one with `key` at `value`, both in the configuration's form.
    ///
    /// # Errors
    /// The configuration would refuse it.
    pub fn with(&self, key: &str, value: &str) -> Result<Self, ConfigError> {
        let routing = self.routing().with(key, value)?;
        Ok(Self { epoch: self.epoch + 1, ..Self::of(&routing) })
    }

    /// Keys and values in the configuration's form.
    pub fn settings(&self) -> [(&'static str, String); 4] {
        self.routing().policy()
    }

    /// As the target gets it.
    pub fn message(&self) -> internal::Policy {
        let force = match self.force {
            Force::Auto => internal::PolicyForce::Auto,
            Force::Plain => internal::PolicyForce::Plain,
            Force::Speculative => internal::PolicyForce::Speculative,
        };
        let number = |limit| match limit {
            Auto::Auto => None,
            Auto::Is(number) => Some(number),
        };
        internal::Policy {
            epoch: self.epoch,
            force: force.into(),
            max_concurrent: number(self.max_concurrent),
            max_context: number(self.max_context),
            kv_pressure: self.kv_pressure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_counted_and_keeps_the_rest() {
        let first = Policy::of(&RoutingConfig::default());
        let second = first.with("routing.max_concurrent", "2").expect("accepted");
        let third = second.with("routing.force", "plain").expect("accepted");
        assert_eq!((first.epoch, second.epoch, third.epoch), (0, 1, 2));
        assert_eq!((third.force, third.max_concurrent), (Force::Plain, Auto::Is(2)));
        assert!(third.with("routing.force", "maybe").is_err());
        let message = third.message();
        assert_eq!(
            (message.epoch, message.force(), message.max_concurrent),
            (2, internal::PolicyForce::Plain, Some(2))
        );
        assert_eq!((message.max_context, message.kv_pressure), (None, 0.85));
    }
}
