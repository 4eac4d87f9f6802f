//! A number, or `"auto"`.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A setting that the service finds by itself, unless the operator gives a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auto<T> {
    /// `"auto"`
    #[default]
    Auto,
    /// The operator's number.
    Is(T),
}

impl<T> Auto<T> {
    /// The operator's number, or `found`.
    pub fn or(self, found: T) -> T {
        self.given().unwrap_or(found)
    }

    /// The operator's number, if there is one.
    pub fn given(self) -> Option<T> {
        match self {
            Auto::Auto => None,
            Auto::Is(value) => Some(value),
        }
    }
}

impl<T: Serialize> Serialize for Auto<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Auto::Auto => serializer.serialize_str("auto"),
            Auto::Is(value) => value.serialize(serializer),
        }
    }
}

impl<'de, T: FromStr> Deserialize<'de> for Auto<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number<T>(std::marker::PhantomData<T>);
        impl<T: FromStr> Number<T> {
            fn read<E: de::Error>(text: &str) -> Result<Auto<T>, E> {
                match text {
                    "auto" => Ok(Auto::Auto),
                    _ => text.parse().map(Auto::Is).map_err(|_| {
                        E::custom(format!(
                            "expected \"auto\" or a number of type {}, found {text:?}",
                            std::any::type_name::<T>()
                        ))
                    }),
                }
            }
        }
        impl<T: FromStr> Visitor<'_> for Number<T> {
            type Value = Auto<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\" or a number")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Auto<T>, E> {
                Self::read(text)
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Auto<T>, E> {
                Self::read(&number.to_string())
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Auto<T>, E> {
                Self::read(&number.to_string())
            }
        }
        deserializer.deserialize_any(Number(std::marker::PhantomData))
    }
}
