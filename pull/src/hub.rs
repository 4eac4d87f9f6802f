//! Description of a revision by the hub: its commit, and the files with sizes and digests.

use std::collections::BTreeMap;

use paceline_checkpoint::ModelName;
use serde::Deserialize;

use crate::client::Client;
use crate::digest::{Expected, is_hex};
use crate::error::PullError;

/// Most bytes of the description: some 200 for each file, and large repositories have a thousand.
const MAX_DESCRIPTION_BYTES: u64 = 32 << 20;

/// A revision of a model on a hub.
#[derive(Debug)]
pub(crate) struct Revision {
    pub(crate) commit: String,
    /// By name in the model's folder.
    pub(crate) files: BTreeMap<String, RemoteFile>,
}

/// A file of a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteFile {
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) digest: Expected,
}

#[derive(Deserialize)]
struct Description {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    size: Option<u64>,
    sha256: Option<String>,
}

impl Revision {
    /// Asks the hub for a revision.
    ///
    /// # Errors
    /// The hub refuses, or its answer cannot be used.
    pub(crate) fn fetch(
        client: &Client,
        model: &ModelName,
        revision: &str,
    ) -> Result<Self, PullError> {
        let what = format!("{model} at {revision}");
        let url = client.endpoint().revision(model, revision);
        let text = client.get(url, 0, &what)?.read(MAX_DESCRIPTION_BYTES, &what)?;
        let revision = Self::read(&text).map_err(|problem| PullError::answer(&what, problem))?;
        Ok(match model.subfolder() {
            Some(folder) => revision.below(folder),
            None => revision,
        })
    }

    /// The files of a folder of the repository, by their names in it.
    fn below(self, folder: &str) -> Self {
        let file = |(name, file): (String, RemoteFile)| {
            let name = name.strip_prefix(folder)?.strip_prefix('/')?.to_owned();
            Some((name.clone(), RemoteFile { name, ..file }))
        };
        Self { commit: self.commit, files: self.files.into_iter().filter_map(file).collect() }
    }

    fn read(text: &[u8]) -> Result<Self, String> {
        let Description { sha, siblings } = serde_json::from_slice(text)
            .map_err(|error| format!("expected a JSON object with sha and siblings: {error}"))?;
        if !is_hex(&sha, 20) {
            return Err(format!("expected a commit of 40 hexadecimal digits, found {sha:?}"));
        }
        let files = siblings.into_iter().filter_map(|sibling| {
            // A file without a size cannot be checked, and is missed only if it is needed.
            let file = sibling.file()?;
            Some((file.name.clone(), file))
        });
        Ok(Self { commit: sha, files: files.collect() })
    }
}

impl Sibling {
    fn file(self) -> Option<RemoteFile> {
        let is_lfs = self.lfs.is_some();
        let lfs_size = self.lfs.as_ref().and_then(|lfs| lfs.size);
        let size = lfs_size.or(self.size)?;
        let sha256 = self.lfs.and_then(|lfs| lfs.sha256).map(|text| text.to_ascii_lowercase());
        let digest = match (sha256, self.blob_id) {
            (Some(sha256), _) if is_hex(&sha256, 32) => Expected::Sha256(sha256),
            // The blob of a file in Git LFS is its pointer.
            (None, Some(blob)) if is_hex(&blob, 20) && !is_lfs => Expected::GitBlob(blob),
            _ => Expected::Unknown,
        };
        Some(RemoteFile { name: self.rfilename, size, digest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn files_have_sizes_and_the_digest_of_their_kind() {
        let sha = "5".repeat(64);
        let text = format!(
            r#"{{"id":"org/name","sha":"{COMMIT}","gated":false,"siblings":[
               {{"rfilename":"config.json","size":7,"blobId":"{COMMIT}"}},
               {{"rfilename":"model.safetensors","size":9,"blobId":"{COMMIT}","lfs":{{"sha256":"{sha}","size":9,"pointerSize":1}}}},
               {{"rfilename":"a"}},{{"rfilename":"b","size":1}},
               {{"rfilename":"c","blobId":"{COMMIT}","lfs":{{"size":2}}}},
               {{"rfilename":"d","size":3,"lfs":{{"sha256":"5"}}}}]}}"#
        );
        let revision = Revision::read(text.as_bytes()).expect("well formed");
        assert_eq!(revision.commit, COMMIT);
        let files: Vec<_> = revision.files.into_values().collect();
        let file = |name: &str, size, digest| RemoteFile { name: name.into(), size, digest };
        assert_eq!(
            files,
            [
                file("b", 1, Expected::Unknown),
                file("c", 2, Expected::Unknown),
                file("config.json", 7, Expected::GitBlob(COMMIT.into())),
                file("d", 3, Expected::Unknown),
                file("model.safetensors", 9, Expected::Sha256(sha)),
            ]
        );
    }

    #[test]
    fn an_answer_without_a_commit_is_refused() {
        for text in
            ["", "[]", "{}", r#"{"sha":"main","siblings":[]}"#, r#"{"sha":"../..","siblings":[]}"#]
        {
            assert!(Revision::read(text.as_bytes()).is_err(), "{text}");
        }
    }
}
