//! The plan of a pull: the files that it would fetch, the room for them, and the model's configuration and
//! headers, from which a reader computes the memory. A plan writes nothing.

use std::path::Path;

use paceline_checkpoint::files::{self, CONFIG};
use paceline_system::platform::free_bytes;
use serde::Serialize;
use serde_json::Value;

use crate::client::Client;
use crate::error::PullError;
use crate::progress::bytes;
use crate::store::has_room;

/// Most bytes of a model's configuration that a plan reads: they have some KiB, and with a format
/// for each module a few hundred.
pub(crate) const MAX_CONFIG_BYTES: u64 = 8 << 20;

/// What a pull would do now.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct PullPlan {
    /// Name of the model on the hub.
    pub(crate) model: String,
    /// Commit of the revision; empty in offline mode.
    pub(crate) revision: String,
    /// Address of the hub; empty in offline mode.
    pub(crate) hub: String,
    /// Directory that the model has, or will have.
    pub(crate) directory: String,
    /// The files that serving needs; none in offline mode.
    pub(crate) files: Vec<PlannedFile>,
    /// Bytes of these files.
    pub(crate) total_bytes: u64,
    /// Bytes that are to be fetched.
    pub(crate) fetch_bytes: u64,
    /// Bytes of the files with weights.
    pub(crate) weight_bytes: u64,
    /// Bytes that are free on the file system; absent if it does not tell.
    pub(crate) free_bytes: Option<u64>,
    /// Whether there is room for the bytes that are to be fetched.
    pub(crate) has_room: bool,
    /// The model's config.json.
    pub(crate) config: Value,
    /// The headers of its files with weights; none if nothing is to be fetched, or one is no header.
    pub(crate) headers: Vec<PlannedHeader>,
}

/// The header of a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct PlannedHeader {
    /// Name of the file in the model's directory.
    pub(crate) name: String,
    /// Bytes of the file.
    pub(crate) bytes: u64,
    /// The header's JSON.
    pub(crate) header: String,
}

/// A file of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct PlannedFile {
    /// Name of the file in the model's directory.
    pub(crate) name: String,
    /// Bytes of the file.
    pub(crate) bytes: u64,
    /// Bytes of it that are there already.
    pub(crate) there_bytes: u64,
}

/// A model's configuration.
pub(crate) fn read_config(text: &[u8]) -> Result<Value, PullError> {
    serde_json::from_slice(text).map_err(|error| {
        PullError::answer(CONFIG, format!("expected JSON, found something else: {error}"))
    })
}

impl PullPlan {
    /// The plan of a model that is in this directory: nothing is to be fetched.
    pub(crate) fn of_whole(model: String, dir: &Path) -> Result<Self, PullError> {
        let path = dir.join(CONFIG);
        // A GGUF file has none.
        let config = match path.is_file() {
            true => files::read(&path, MAX_CONFIG_BYTES)
                .map_err(|cause| PullError::at(&path, cause))
                .and_then(|text| read_config(&text))?,
            false => Value::Null,
        };
        Ok(Self {
            model,
            directory: dir.display().to_string(),
            has_room: true,
            config,
            ..Self::default()
        })
    }

    /// The plan to have these files in `dir`. A pull that fetches any takes `more` bytes of the disk
    /// beside theirs.
    pub(crate) fn of_files(
        client: &Client,
        dir: &Path,
        files: Vec<PlannedFile>,
        more: u64,
    ) -> Self {
        let sum =
            |bytes: fn(&PlannedFile) -> u64| files.iter().map(bytes).fold(0, u64::saturating_add);
        let fetch_bytes = sum(|file| file.bytes - file.there_bytes);
        let needed = if fetch_bytes == 0 { 0 } else { fetch_bytes.saturating_add(more) };
        let free_bytes = free_bytes(dir);
        Self {
            hub: client.endpoint().to_string(),
            directory: dir.display().to_string(),
            total_bytes: sum(|file| file.bytes),
            fetch_bytes,
            free_bytes,
            has_room: has_room(needed, free_bytes),
            files,
            ..Self::default()
        }
    }

    /// The plan in lines for people.
    pub(crate) fn text(&self) -> String {
        let Self { model, revision, directory, .. } = self;
        if self.fetch_bytes == 0 {
            return format!("{model} is there already: {directory}");
        }
        let mut text = format!("{model} at {revision} of {}:", self.hub);
        for PlannedFile { name, bytes: size, there_bytes } in &self.files {
            let there = match there_bytes {
                0 => String::new(),
                there if there == size => ", there already".to_owned(),
                there => format!(", {} of it there already", bytes(*there)),
            };
            text += &format!("\n  {name}: {}{there}", bytes(*size));
        }
        let free = self.free_bytes.map_or_else(|| "unknown".to_owned(), bytes);
        let room = if self.has_room { "" } else { ": not enough" };
        let (fetch, total) = (bytes(self.fetch_bytes), bytes(self.total_bytes));
        text + &format!("\n{fetch} of {total} to fetch into {directory}, {free} free there{room}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_have_each_file_and_the_room() {
        let file = |name: &str, bytes, there_bytes| PlannedFile {
            name: name.to_owned(),
            bytes,
            there_bytes,
        };
        let plan = PullPlan {
            model: "org/name".into(),
            revision: "c0".into(),
            hub: "https://h".into(),
            directory: "/d".into(),
            files: vec![file("a", 1 << 10, 1 << 10), file("b", 2 << 10, 1), file("c", 5, 0)],
            total_bytes: (3 << 10) + 5,
            fetch_bytes: (2 << 10) + 4,
            free_bytes: Some(1 << 10),
            ..PullPlan::default()
        };
        let expected = "\
org/name at c0 of https://h:
  a: 1.0 KiB, there already
  b: 2.0 KiB, 1 bytes of it there already
  c: 5 bytes
2.0 KiB of 3.0 KiB to fetch into /d, 1.0 KiB free there: not enough";
        assert_eq!(plan.text(), expected);
        let whole = PullPlan { fetch_bytes: 0, ..plan };
        assert_eq!(whole.text(), "org/name is there already: /d");
    }
}
