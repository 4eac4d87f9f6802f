//! What the names in `drafter.model` mean.

use std::path::PathBuf;

use paceline_settings::{LOOKUP, TARGET_HEAD};

/// Meaning of a name in `drafter.model`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrafterChoice {
    /// No drafter.
    None,
    /// Prompt lookup.
    Lookup,
    /// The head in the target's checkpoint, which need not have one.
    TargetHead,
    /// The checkpoint in this directory, which need not exist: a drafter that is not there costs
    /// speed, nothing else (I3).
    Directory(PathBuf),
}

impl DrafterChoice {
    /// The value of `drafter.model` that means it in every process.
    pub fn name(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Lookup => LOOKUP.to_owned(),
            Self::TargetHead => TARGET_HEAD.to_owned(),
            Self::Directory(dir) => dir.display().to_string(),
        }
    }
}
