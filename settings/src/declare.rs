//! The macro of the table, and what it keeps of each declaration.

use crate::applies::Applies;

/// A setting as it is declared, besides its type, default and bound.
#[derive(Clone, Copy, Debug)]
pub struct Declared {
    /// Section and key: `routing.max_concurrent`.
    pub key: &'static str,
    /// Reader of a change.
    pub applies: Applies,
    /// The line for people, which continues after a line break.
    pub text: &'static str,
}

/// A value that its setting cannot have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfBounds {
    /// Section and key.
    pub key: &'static str,
    /// The expected and the found value.
    pub what: String,
}

/// Makes of the declarations of each section a struct with its defaults and its check, and of all
/// sections one list, `DECLARED`.
///
/// A declaration is `key: type = default, bound, applies, text;`. The bound is `any`, or a call of a
/// function of [`crate::bounds`] without its first argument. `applies` is a value of [`Applies`].
macro_rules! settings {
    ($(
        $(#[$about:meta])*
        [$section:ident] $config:ident {
            $(
                $(#[$reason:meta])*
                $key:ident: $type:ty = $default:expr,
                    $bound:ident $(($($limit:expr),*))?, $applies:ident, $text:literal;
            )*
        }
    )*) => {
        $(
            $(#[$about])*
            #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
            #[serde(deny_unknown_fields, default)]
            pub struct $config {
                $(
                    #[doc = $text]
                    ///
                    $(#[$reason])*
                    pub $key: $type,
                )*
            }

            impl Default for $config {
                fn default() -> Self {
                    Self { $($key: $default,)* }
                }
            }

            impl $config {
                /// Checks each value by itself.
                ///
                /// # Errors
                /// The first one that is out of its bound.
                pub fn check(&self) -> Result<(), OutOfBounds> {
                    $($crate::declare::check_value!(
                        concat!(stringify!($section), ".", stringify!($key)),
                        &self.$key, $bound $($(, $limit)*)?
                    );)*
                    Ok(())
                }
            }
        )*

        /// All settings in the order of the table, without those of `[classes]`.
        pub const DECLARED: &[Declared] = &[$($(
            Declared {
                key: concat!(stringify!($section), ".", stringify!($key)),
                applies: Applies::$applies,
                text: $text,
            },
        )*)*];
    };
}
pub(crate) use settings;

/// Returns from a check if a value is out of its bound.
macro_rules! check_value {
    ($key:expr, $value:expr, any) => {};
    ($key:expr, $value:expr, $bound:ident $(, $limit:expr)*) => {
        $crate::bounds::$bound($value $(, $limit)*)
            .map_err(|what| OutOfBounds { key: $key, what })?
    };
}
pub(crate) use check_value;
