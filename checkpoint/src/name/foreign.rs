//! Names of models that another program fetched: `ollama:NAME:TAG`, `lmstudio:PUBLISHER/REPO`.

use std::fmt;

/// A program whose models are found by name. Nothing is written into its folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignProgram {
    /// Ollama, which keeps manifests and blobs.
    Ollama,
    /// LM Studio, which keeps the files of repositories.
    LmStudio,
}

/// A model that another program fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignName {
    /// The program that has it.
    pub program: ForeignProgram,
    /// Name of the model there, as it was written. It may be none.
    pub name: String,
}

impl ForeignProgram {
    const ALL: [Self; 2] = [Self::Ollama, Self::LmStudio];

    /// What its names begin with.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Ollama => "ollama:",
            Self::LmStudio => "lmstudio:",
        }
    }
}

impl ForeignName {
    /// Reads a setting; `None` if it names no such model.
    pub fn of(text: &str) -> Option<Self> {
        let program = |program: ForeignProgram| {
            Some(Self { program, name: text.strip_prefix(program.prefix())?.to_owned() })
        };
        ForeignProgram::ALL.into_iter().find_map(program)
    }
}

impl fmt::Display for ForeignName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.program.prefix(), self.name)
    }
}
