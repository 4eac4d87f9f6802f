//! How a setting or a flag names a model.

use std::path::{Component, Path, PathBuf};

use super::embedded::EmbeddedModel;
use super::foreign::ForeignName;
use super::known::SMOLLM2;
use super::model_name::ModelName;
use crate::gguf::stem;

/// How a setting or a flag names a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelRef {
    /// A model that lies with the programs.
    Embedded(&'static EmbeddedModel),
    /// A directory, as written.
    Directory(PathBuf),
    /// A directory below the user's home: what follows `~/`.
    BelowHome(PathBuf),
    /// The small language model of [`SMOLLM2`], which empty text means, too.
    Smollm2,
    /// A model that another program fetched.
    Foreign(ForeignName),
    /// A model of a hub, by its name there or by the short name of a known one.
    Named(ModelName),
    /// One word, or a path of three words or more, that is a directory only if it exists. Three words
    /// without a directory are a model in a folder of a hub's repository.
    DirectoryIfThere(PathBuf),
}

impl ModelRef {
    /// Reads a setting. A name of a model stays one where a directory of that name exists: a
    /// directory of the working directory is written with `./` before it.
    pub fn parse(text: &str) -> Self {
        if text.is_empty() || text == SMOLLM2 {
            return Self::Smollm2;
        }
        if let Some(model) = EmbeddedModel::named(text) {
            return Self::Embedded(model);
        }
        if let Some(name) = ForeignName::of(text) {
            return Self::Foreign(name);
        }
        if text == "~" {
            return Self::BelowHome(PathBuf::new());
        }
        if let Some(rest) = text.strip_prefix("~/") {
            return Self::BelowHome(rest.trim_start_matches('/').into());
        }
        let path = Path::new(text);
        match path.components().next() {
            Some(Component::RootDir | Component::CurDir | Component::ParentDir) => {
                Self::Directory(path.to_path_buf())
            }
            // A file has no name on a hub. With a colon before it, a repository has it.
            _ if stem(text).is_some() && text.contains('/') && !text.contains(':') => {
                Self::Directory(path.to_path_buf())
            }
            _ => match text.parse::<ModelName>() {
                Ok(name) if name.subfolder().is_none() => Self::Named(name),
                _ => Self::DirectoryIfThere(path.to_path_buf()),
            },
        }
    }

    /// The model of a hub that is meant, if one is. Three words are one unless there is a directory of
    /// this path.
    pub fn hub_name(&self) -> Option<ModelName> {
        match self {
            Self::Named(name) => Some(name.clone()),
            Self::DirectoryIfThere(path) if !path.is_dir() => path.to_str()?.parse().ok(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::ForeignProgram;

    #[test]
    fn two_or_three_words_are_a_hubs_name() {
        let name = |text: &str| ModelRef::parse(text).hub_name().map(|name| name.to_string());
        assert_eq!(name("org/name/dflash").as_deref(), Some("org/name/dflash"));
        assert_eq!(name("org/name").as_deref(), Some("org/name"));
        assert_eq!(name("org/name:Q4_K_M").as_deref(), Some("org/name:Q4_K_M"));
        assert_eq!(name("org/name/dflash:q.gguf").as_deref(), Some("org/name/dflash:q.gguf"));
        assert_eq!(name("qwen3-4b").as_deref(), Some("mlx-community/Qwen3-4B-4bit"));
        for text in [
            "word",
            "a/b/c/d",
            "./org/name/dflash",
            "/org/name",
            "~/x",
            "",
            "demo-target",
            "ollama:x/y",
            "lmstudio:x/y",
            "x:Q8_0",
            "org/name:",
            "qwen3-4b:Q8_0",
        ] {
            assert_eq!(name(text), None, "{text}");
        }
    }

    #[test]
    fn a_setting_is_a_directory_a_name_or_nothing() {
        let directory = |path: &str| ModelRef::Directory(path.into());
        let foreign =
            |program, name: &str| ModelRef::Foreign(ForeignName { program, name: name.to_owned() });
        for (text, expected) in [
            ("", ModelRef::Smollm2),
            ("smollm2", ModelRef::Smollm2),
            ("./demo-target", directory("./demo-target")),
            ("./qwen3-4b", directory("./qwen3-4b")),
            ("./smollm2", directory("./smollm2")),
            ("./org/name", directory("./org/name")),
            ("../org/name", directory("../org/name")),
            ("/org/name", directory("/org/name")),
            (".", directory(".")),
            ("~/models/x", ModelRef::BelowHome("models/x".into())),
            ("~//etc", ModelRef::BelowHome("etc".into())),
            ("~", ModelRef::BelowHome("".into())),
            ("org/name", ModelRef::Named("org/name".parse().expect("a name"))),
            ("model", ModelRef::DirectoryIfThere("model".into())),
            ("demo/vision/target", ModelRef::DirectoryIfThere("demo/vision/target".into())),
            ("org/name/", ModelRef::DirectoryIfThere("org/name/".into())),
            ("q4.gguf", ModelRef::DirectoryIfThere("q4.gguf".into())),
            ("models/q4.gguf", directory("models/q4.gguf")),
            ("org/name:q4.gguf", ModelRef::Named("org/name:q4.gguf".parse().expect("a name"))),
            ("ollama:coder:1.5b", foreign(ForeignProgram::Ollama, "coder:1.5b")),
            ("ollama:", foreign(ForeignProgram::Ollama, "")),
            ("lmstudio:a/b/q.gguf", foreign(ForeignProgram::LmStudio, "a/b/q.gguf")),
            ("./ollama:coder", directory("./ollama:coder")),
            ("org/name-GGUF", ModelRef::Named("org/name-GGUF".parse().expect("a name"))),
        ] {
            assert_eq!(ModelRef::parse(text), expected, "{text}");
        }
    }
}
