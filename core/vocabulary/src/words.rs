//! One macro for enums whose values have a word: the word is what JSON, logs and messages show.

/// Defines an enum with `ALL`, `word` and `from_word`.
#[macro_export]
macro_rules! worded {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $value:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$doc])* $value,)* }

        impl $name {
            /// Every value, in the order of the definition.
            pub const ALL: &[$name] = &[$($name::$value,)*];

            /// The value's word in JSON, logs and messages.
            pub fn word(self) -> &'static str {
                match self { $($name::$value => $word,)* }
            }

            /// The value with this word; `None` for any other text.
            pub fn from_word(word: &str) -> Option<$name> {
                match word { $($word => Some($name::$value),)* _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}
pub(crate) use worded;

#[cfg(test)]
mod tests {
    use crate::state::{GatewayState, LinkPhase, ProcessState, WorkerPhase};
    use crate::{Force, Lane, Products, Reason, RouteReason, RouteWish};

    #[test]
    fn every_word_leads_back_to_its_value() {
        fn check<T: Copy + PartialEq + std::fmt::Debug>(
            all: &[T],
            word: impl Fn(T) -> &'static str,
            from: impl Fn(&str) -> Option<T>,
        ) {
            for &value in all {
                assert_eq!(from(word(value)), Some(value));
            }
            assert_eq!(from("no such word"), None);
        }
        check(Lane::ALL, Lane::word, Lane::from_word);
        check(RouteReason::ALL, RouteReason::word, RouteReason::from_word);
        check(RouteWish::ALL, RouteWish::word, RouteWish::from_word);
        check(Products::ALL, Products::word, Products::from_word);
        check(Force::ALL, Force::word, Force::from_word);
        check(ProcessState::ALL, ProcessState::word, ProcessState::from_word);
        check(WorkerPhase::ALL, WorkerPhase::word, WorkerPhase::from_word);
        check(LinkPhase::ALL, LinkPhase::word, LinkPhase::from_word);
        check(GatewayState::ALL, GatewayState::word, GatewayState::from_word);
        check(Reason::ALL, Reason::word, Reason::from_word);
    }
}
