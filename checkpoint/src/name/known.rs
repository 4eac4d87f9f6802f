//! Models that are known to work, by short names. The table is `known.toml`, beside this file.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::LazyLock;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::embedded::demo_dir;
use super::model_name::{ModelName, NameError};

/// Name of the small language model that is served if nothing names another. `paceline pull smollm2`
/// puts it into the user's cache.
pub const SMOLLM2: &str = "smollm2";

/// The drafter of a known model, if it lies with the programs.
const EMBEDDED_DRAFTER: &str = "embedded";

static TABLE: LazyLock<Vec<KnownModel>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Table {
        model: Vec<KnownModel>,
    }
    let table: Table = toml::from_str(include_str!("known.toml")).expect("a test reads the table");
    table.model
});

/// A model that is known to work.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct KnownModel {
    /// Short name, which is accepted wherever a model is named.
    pub name: String,
    /// Name of the model on the hub. `None` for smollm2, which is not fetched from a hub.
    #[serde(default)]
    pub hub: Option<ModelName>,
    /// Bytes that a pull fetches.
    pub download_bytes: u64,
    /// Whether `download_bytes` is counted; else it is computed from parameters and bits.
    #[serde(default, rename(serialize = "exact"))]
    pub is_exact: bool,
    /// Bytes of weights and of the KV of a conversation, about.
    pub memory_bytes: u64,
    /// Its drafter as `drafter.model` names one: a name of the hub, `target` or `lookup`; or
    /// `embedded`.
    pub drafter: String,
    /// Whether it reads images.
    #[serde(default)]
    pub pictures: bool,
}

impl KnownModel {
    /// All known models, the smallest download first.
    pub fn all() -> &'static [Self] {
        &TABLE
    }

    /// The known model of this short name.
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::all().iter().find(|model| model.name == name)
    }

    /// The known model that the hub has by this name.
    pub fn of_hub(name: &ModelName) -> Option<&'static Self> {
        Self::all().iter().find(|model| model.hub.as_ref() == Some(name))
    }

    /// The drafter's name on the hub, if it has files of its own.
    pub fn hub_drafter(&self) -> Option<ModelName> {
        ModelName::on_hub(&self.drafter).ok()
    }

    /// Directory of the drafter that lies with the programs, if the model has one.
    pub fn embedded_drafter(&self) -> Option<PathBuf> {
        (self.drafter == EMBEDDED_DRAFTER).then(|| demo_dir(&format!("{}/drafter", self.name)))?
    }

    /// Size of the download in words: `93 MB`, `about 2.3 GB`.
    pub fn size(&self) -> String {
        format!("{}{}", if self.is_exact { "" } else { "about " }, decimal(self.download_bytes))
    }

    /// Memory that the model needs, in words: `about 3.5 GB`.
    pub fn memory(&self) -> String {
        format!("about {}", decimal(self.memory_bytes))
    }
}

/// Reads a name as a hub has it, or the short name of a known model.
impl FromStr for ModelName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match KnownModel::named(text).and_then(|known| known.hub.clone()) {
            Some(name) => Ok(name),
            None => Self::on_hub(text),
        }
    }
}

/// Bytes in the decimal units of downloads.
pub(crate) fn decimal(bytes: u64) -> String {
    match bytes {
        0..1_000_000_000 => format!("{:.0} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

impl<'de> Deserialize<'de> for ModelName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::on_hub(&text).map_err(serde::de::Error::custom)
    }
}

impl Serialize for ModelName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::name::ModelRef;
    use crate::places::missing_files;

    /// Drafters without files of their own.
    const WITHOUT_DIRECTORY: [&str; 2] = ["lookup", "target"];

    #[test]
    fn each_row_has_a_name_of_its_own_and_a_model_that_a_pull_knows() {
        let names: BTreeSet<&str> = KnownModel::all().iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names.len(), KnownModel::all().len());
        assert!(names.contains(SMOLLM2));
        for row in KnownModel::all() {
            let name = &row.name;
            assert!(ModelName::on_hub(name).is_err(), "{name} is no name of a hub");
            assert!(!WITHOUT_DIRECTORY.contains(&name.as_str()) && *name != "auto", "{name}");
            match &row.hub {
                Some(hub) => {
                    assert_eq!(ModelRef::parse(name), ModelRef::Named(hub.clone()), "{name}");
                    assert_eq!(name.parse::<ModelName>().as_ref(), Ok(hub));
                    assert_eq!(KnownModel::of_hub(hub).map(|row| &row.name), Some(name));
                }
                None => assert_eq!(ModelRef::parse(name), ModelRef::Smollm2, "{name}"),
            }
            let is_there = WITHOUT_DIRECTORY.contains(&row.drafter.as_str())
                || row.embedded_drafter().is_some_and(|dir| missing_files(&dir).is_empty());
            assert!(is_there || row.hub_drafter().is_some(), "{name}: {}", row.drafter);
        }
    }

    #[test]
    fn the_table_is_sorted_by_download_and_a_model_needs_more_memory_than_that() {
        assert!(KnownModel::all().is_sorted_by_key(|row| row.download_bytes));
        for KnownModel { name, download_bytes, memory_bytes, .. } in KnownModel::all() {
            assert!(download_bytes < memory_bytes && *download_bytes > 1_000_000, "{name}");
        }
        let sizes = |name| KnownModel::named(name).map(|row| (row.size(), row.memory()));
        let expected = |size: &str, memory: &str| Some((size.to_owned(), memory.to_owned()));
        assert_eq!(sizes("smollm2"), expected("93 MB", "about 500 MB"));
        assert_eq!(sizes("qwen3-4b"), expected("about 2.3 GB", "about 3.5 GB"));
    }
}
