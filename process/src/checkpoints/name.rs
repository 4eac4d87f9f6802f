//! How a setting or a flag names a model.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// Name of the small language model that `make smollm2` puts into the user's cache.
pub const SMOLLM2: &str = "smollm2";

/// Most bytes of a part of a hub's name, as on huggingface.co.
const LONGEST_PART: usize = 96;

/// Name of a model on a hub: `org/name`, or `org/name/folder` for a model that lies in a folder of the
/// repository `org/name`, as some drafters do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelName {
    org: String,
    name: String,
    subfolder: Option<String>,
}

/// A text that is no name of a model on a hub.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected ORG/NAME or ORG/NAME/FOLDER as on a hub (letters, digits, \"-\", \"_\" and \".\"), found {0:?}"
)]
pub struct NameError(String);

impl ModelName {
    /// The organisation or user.
    pub fn org(&self) -> &str {
        &self.org
    }

    /// The model of that organisation.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder of the repository that has the model, if it is not at the top.
    pub fn subfolder(&self) -> Option<&str> {
        self.subfolder.as_deref()
    }

    /// The repository that has the model.
    pub fn repository(&self) -> Self {
        Self { subfolder: None, ..self.clone() }
    }

    /// Name of its folder in the cache: `org--name` or `org--name--folder`. No part of a name has two
    /// hyphens in a row, so two models never share a folder.
    pub fn folder(&self) -> String {
        self.to_string().replace('/', "--")
    }

    /// The model whose folder has this name.
    pub fn of_folder(folder: &str) -> Option<Self> {
        folder.replace("--", "/").parse().ok()
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.org, self.name)?;
        self.subfolder.as_ref().map_or(Ok(()), |folder| write!(f, "/{folder}"))
    }
}

impl FromStr for ModelName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let parts: Vec<&str> = text.split('/').collect();
        let (org, name, subfolder) = match parts.as_slice() {
            [org, name] => (*org, *name, None),
            [org, name, folder] => (*org, *name, Some(*folder)),
            _ => return Err(NameError(text.to_owned())),
        };
        if ![Some(org), Some(name), subfolder].into_iter().flatten().all(is_part) {
            return Err(NameError(text.to_owned()));
        }
        let subfolder = subfolder.map(str::to_owned);
        Ok(Self { org: org.to_owned(), name: name.to_owned(), subfolder })
    }
}

/// Whether a hub accepts this as a part of a name. Such a part is also the name of one directory.
fn is_part(part: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let ends_well = |byte: Option<&u8>| byte.is_some_and(|byte| !matches!(byte, b'-' | b'.'));
    let bytes = part.as_bytes();
    bytes.len() <= LONGEST_PART
        && bytes.iter().all(|byte| allowed(*byte))
        && ends_well(bytes.first())
        && ends_well(bytes.last())
        && !part.contains("--")
        && !part.contains("..")
}

/// How a setting or a flag names a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelRef {
    /// Empty: the embedded model.
    Embedded,
    /// A directory, as written.
    Directory(PathBuf),
    /// A directory below the user's home: what follows `~/`.
    BelowHome(PathBuf),
    /// The small language model of [`SMOLLM2`].
    Smollm2,
    /// A model of a hub.
    Named(ModelName),
    /// One word, or a path of three words or more, that is a directory only if it exists. Three words
    /// without a directory are a model in a folder of a hub's repository.
    DirectoryIfThere(PathBuf),
}

impl ModelRef {
    /// Reads a setting. `org/name` is the name of a model also where a directory `org/name` exists:
    /// a directory of the working directory is written with `./` before it.
    pub fn parse(text: &str) -> Self {
        if text.is_empty() {
            return Self::Embedded;
        }
        if text == SMOLLM2 {
            return Self::Smollm2;
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
            _ => match text.parse::<ModelName>() {
                Ok(name) if name.subfolder.is_none() => Self::Named(name),
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

    #[test]
    fn a_hubs_name_has_two_parts_of_letters_digits_and_single_separators() {
        for text in [
            "Qwen/Qwen3-8B",
            "a/b",
            "mlx-community/Qwen3.5-4B_q4",
            "0/_x",
            "a/b/dflash",
            "a/b/v1.0",
        ] {
            let name: ModelName = text.parse().expect(text);
            assert_eq!(name.to_string(), text);
            assert_eq!(ModelName::of_folder(&name.folder()), Some(name));
        }
        let long = format!("a/{}", "x".repeat(97));
        for text in [
            "", "a", "a/", "/b", "a/b/c/d", "a/b/", "a/b/..", "a//c", "../b", "a/..", "a/.",
            "a/.b", "-a/b", "a/b-", "a/b--c", "a/b..c", "a b/c", "a/b\0", "a/b\n", "a/ü", "~/b",
            &long,
        ] {
            assert!(text.parse::<ModelName>().is_err(), "{text:?}");
        }
        for folder in ["ab", "a--b--c--d", "--b", "a--", "a----b", "models--a", ".tmp"] {
            let known = ModelName::of_folder(folder).map(|name| name.to_string());
            assert_eq!(known, (folder == "models--a").then(|| "models/a".to_owned()), "{folder}");
        }
        let inner: ModelName = "a/b/c".parse().expect("a name");
        assert_eq!((inner.folder().as_str(), inner.subfolder()), ("a--b--c", Some("c")));
        assert_eq!(inner.repository().to_string(), "a/b");
    }

    #[test]
    fn three_words_are_a_hubs_name_unless_there_is_a_directory() {
        let name = |text: &str| ModelRef::parse(text).hub_name().map(|name| name.to_string());
        // The tests run in the crate's folder, which has a folder src/config/load.
        assert_eq!(name("src/config/load"), None);
        assert_eq!(name("org/name/dflash").as_deref(), Some("org/name/dflash"));
        assert_eq!(name("org/name").as_deref(), Some("org/name"));
        for text in ["word", "a/b/c/d", "./org/name/dflash", "/org/name", "~/x", ""] {
            assert_eq!(name(text), None, "{text}");
        }
    }

    #[test]
    fn a_setting_is_a_directory_a_name_or_nothing() {
        let directory = |path: &str| ModelRef::Directory(path.into());
        for (text, expected) in [
            ("", ModelRef::Embedded),
            ("smollm2", ModelRef::Smollm2),
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
        ] {
            assert_eq!(ModelRef::parse(text), expected, "{text}");
        }
    }
}
