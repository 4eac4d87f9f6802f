//! Values of flags that are more than a word or a number.

use serde::{Deserialize, Serialize};

/// The token ids of a prompt, as the command line has them: `--token-ids 1,2,3`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenIds(pub Vec<u32>);

impl std::str::FromStr for TokenIds {
    type Err = BadTokenIds;

    fn from_str(text: &str) -> Result<Self, BadTokenIds> {
        let id = |word: &str| word.trim().parse().map_err(|_| BadTokenIds(word.trim().to_owned()));
        text.split(',').map(id).collect::<Result<_, _>>().map(Self)
    }
}

/// A word of `--token-ids` that is no token id.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected token ids as 1,2,3, found {0:?}")]
pub struct BadTokenIds(String);

/// One of `--logit-bias`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Bias {
    /// The id of the token whose logit is changed.
    pub id: u32,
    /// Number added to the logit of the token; the service knows the range.
    pub bias: f32,
}

impl std::str::FromStr for Bias {
    type Err = BadBias;

    fn from_str(text: &str) -> Result<Self, BadBias> {
        let read = || {
            let (id, bias) = text.split_once('=')?;
            Some(Self { id: id.trim().parse().ok()?, bias: bias.trim().parse().ok()? })
        };
        read().ok_or_else(|| BadBias(text.to_owned()))
    }
}

impl TryFrom<String> for Bias {
    type Error = BadBias;

    fn try_from(text: String) -> Result<Self, BadBias> {
        text.parse()
    }
}

impl From<Bias> for String {
    fn from(Bias { id, bias }: Bias) -> Self {
        format!("{id}={bias}")
    }
}

/// A value of `--logit-bias` that is none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a token id and a number as 42=-100, found {0:?}")]
pub struct BadBias(String);
