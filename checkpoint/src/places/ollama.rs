//! Models that Ollama fetched. A manifest names the blob of each layer; the layer of the model is a GGUF
//! file. The folder is only read.
//!
//! ```text
//! $OLLAMA_MODELS/manifests/registry.ollama.ai/library/NAME/TAG    JSON with the layers
//! $OLLAMA_MODELS/blobs/sha256-<digest>                            a layer
//! ```

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::listed::directories;
use super::{CheckpointKind, ListedCheckpoint, ModelNotFound};
use crate::files;
use crate::from_gguf::GgufSource;

/// The registry whose names need no host.
const REGISTRY: &str = "registry.ollama.ai";
/// The namespace whose names need none.
const LIBRARY: &str = "library";
/// The tag of a name without one.
const LATEST: &str = "latest";
/// Type of the layer that is a GGUF file.
const MODEL: &str = "application/vnd.ollama.image.model";
/// Most bytes of a manifest: they have about one KiB.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;

#[derive(Deserialize)]
struct OllamaManifest {
    layers: Vec<OllamaLayer>,
}

#[derive(Deserialize)]
struct OllamaLayer {
    #[serde(rename = "mediaType")]
    media_type: String,
    digest: String,
    size: u64,
}

/// A name, in its parts.
struct OllamaName<'a> {
    /// Folders below `manifests`.
    folders: Vec<&'a str>,
    tag: &'a str,
}

impl<'a> OllamaName<'a> {
    /// Reads `NAME`, `NAMESPACE/NAME` or `HOST/NAMESPACE/NAME`, and a tag after a colon.
    fn of(text: &'a str) -> Option<Self> {
        let (place, tag) = text.split_once(':').unwrap_or((text, LATEST));
        let mut folders: Vec<&str> = place.split('/').collect();
        let are_plain = folders.iter().chain([&tag]).all(|part| is_part(part));
        match (are_plain, folders.len()) {
            (true, 1) => folders.splice(0..0, [REGISTRY, LIBRARY]).for_each(drop),
            (true, 2) => folders.insert(0, REGISTRY),
            (true, 3) => (),
            _ => return None,
        }
        Some(Self { folders, tag })
    }

    /// The shortest name of the same model, without the tag.
    fn place(&self) -> String {
        let folders = self.folders.as_slice();
        let folders = folders.strip_prefix(&[REGISTRY]).unwrap_or(folders);
        folders.strip_prefix(&[LIBRARY]).unwrap_or(folders).join("/")
    }

    /// The shortest name, as Ollama shows it.
    fn full(&self) -> String {
        format!("{}:{}", self.place(), self.tag)
    }

    fn below(&self, root: &Path) -> PathBuf {
        self.folders.iter().fold(root.join("manifests"), |path, folder| path.join(folder))
    }
}

/// Whether this is one folder below another one.
fn is_part(part: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !part.is_empty() && !part.starts_with('.') && part.bytes().all(allowed)
}

/// The GGUF file of a model, in the first of these folders that has the model's name.
pub(super) fn find(roots: &[PathBuf], text: &str) -> Result<GgufSource, ModelNotFound> {
    let name = OllamaName::of(text).ok_or_else(|| {
        unusable(format!(
            "expected ollama:NAME, ollama:NAME:TAG or ollama:NAMESPACE/NAME:TAG as `ollama list` shows it, found \"ollama:{text}\""
        ))
    })?;
    let (place, full) = (name.place(), name.full());
    for root in roots {
        let folder = name.below(root);
        match fs::metadata(&folder) {
            Ok(_) => return in_root(root, &name),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return Err(unusable(format!(
                    "cannot read {}: {error}; let this user read Ollama's folder, or copy the model to one of this user and set OLLAMA_MODELS to it",
                    folder.display()
                )));
            }
            Err(_) => (),
        }
    }
    let places: Vec<String> = roots.iter().map(|root| root.display().to_string()).collect();
    let places = if places.is_empty() { "no folder".to_owned() } else { places.join(" and ") };
    Err(unusable(format!(
        "Ollama has no model {place} on this machine: looked into {places}; run `ollama pull {full}`, or set OLLAMA_MODELS to Ollama's folder of models"
    )))
}

fn in_root(root: &Path, name: &OllamaName<'_>) -> Result<GgufSource, ModelNotFound> {
    let (folder, place, full) = (name.below(root), name.place(), name.full());
    let path = folder.join(name.tag);
    if !path.is_file() {
        let tags = tags(&folder);
        let there = match tags.is_empty() {
            true => "it has none".to_owned(),
            false => format!("it has {}; name one as ollama:{place}:TAG", tags.join(", ")),
        };
        return Err(unusable(format!(
            "Ollama's model {place} has no tag {} on this machine: {there}, or run `ollama pull {full}`",
            name.tag
        )));
    }
    let layers = layers(&path).map_err(|problem| {
        unusable(format!(
            "cannot use Ollama's manifest {}: {problem}; run `ollama pull {full}`, which writes it again",
            path.display()
        ))
    })?;
    let (model, others): (Vec<_>, Vec<_>) =
        layers.into_iter().partition(|layer| layer.media_type == MODEL);
    let mut others: Vec<String> = others
        .iter()
        .map(|layer| layer.media_type.rsplit('.').next().unwrap_or_default().to_owned())
        .collect();
    others.sort();
    others.dedup();
    let others = others.join(", ");
    let [model] = model.as_slice() else {
        let found = model.len();
        return Err(unusable(format!(
            "ollama:{full}: expected one layer of the type {MODEL}, found {found} beside the layers {others}; name a model that Ollama stores as one GGUF file"
        )));
    };
    let blob = blob(root, model).map_err(|problem| {
        unusable(format!(
            "ollama:{full}: {problem}; run `ollama pull {full}`, which fetches it again"
        ))
    })?;
    let note = format!(
        "of Ollama's model {full} the layer of the model alone is used; left unread: {others}"
    );
    let own_name = format!("{place}:{}", name.tag).replace([':', '/'], "-");
    let own_name = own_name.strip_suffix("-latest").unwrap_or(&own_name).to_owned();
    let notes = if others.is_empty() { vec![] } else { vec![note] };
    Ok(GgufSource { name: Some(own_name), path: blob, notes })
}

fn layers(manifest: &Path) -> Result<Vec<OllamaLayer>, String> {
    let text = files::read(manifest, MAX_MANIFEST_BYTES).map_err(|error| error.to_string())?;
    let manifest: OllamaManifest = serde_json::from_slice(&text)
        .map_err(|error| format!("expected a JSON object with layers, found: {error}"))?;
    Ok(manifest.layers)
}

/// Path of a layer that is whole.
fn blob(root: &Path, layer: &OllamaLayer) -> Result<PathBuf, String> {
    let hex = layer
        .digest
        .strip_prefix("sha256:")
        .filter(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let Some(hex) = hex else {
        return Err(format!("expected the digest sha256:<64 digits>, found {:?}", layer.digest));
    };
    let path = root.join("blobs").join(format!("sha256-{hex}"));
    match fs::metadata(&path) {
        Ok(meta) if meta.is_file() && meta.len() == layer.size => Ok(path),
        Ok(meta) => Err(format!(
            "the blob {} has {} bytes, and its manifest says {}",
            path.display(),
            meta.len(),
            layer.size
        )),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(format!("the blob {} is missing", path.display()))
        }
        Err(error) => Err(format!("cannot read the blob {}: {error}", path.display())),
    }
}

/// The tags of a model, by name.
fn tags(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut tags: Vec<String> = entries
        .filter(|entry| entry.path().is_file())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|tag| is_part(tag))
        .collect();
    tags.sort();
    tags
}

/// All models in these folders that are GGUF files, by name. Each is listed once.
pub(super) fn list(roots: &[PathBuf]) -> Vec<ListedCheckpoint> {
    let mut listed: Vec<ListedCheckpoint> = vec![];
    for root in roots {
        let hosts = directories(&root.join("manifests"));
        let spaces = hosts.iter().flat_map(|host| directories(host));
        for folder in spaces.flat_map(|space| directories(&space)) {
            let parts: Vec<String> = folder
                .iter()
                .rev()
                .take(3)
                .map(|part| part.to_string_lossy().into_owned())
                .collect();
            for tag in tags(&folder) {
                let folders = parts.iter().rev().map(String::as_str).collect();
                let name = OllamaName { folders, tag: &tag };
                let Ok(layers) = layers(&folder.join(&tag)) else { continue };
                let Some(layer) = layers.iter().find(|layer| layer.media_type == MODEL) else {
                    continue;
                };
                let hex = layer.digest.replace(':', "-");
                let missing = if blob(root, layer).is_ok() { vec![] } else { vec![hex.clone()] };
                listed.push(ListedCheckpoint {
                    name: format!("ollama:{}", name.full()),
                    kind: CheckpointKind::Ollama,
                    revision: None,
                    path: root.join("blobs").join(hex),
                    bytes: layer.size,
                    missing,
                });
            }
        }
    }
    // A model of several folders is the first one's.
    let mut names = std::collections::BTreeSet::new();
    listed.retain(|one| names.insert(one.name.clone()));
    listed.sort_by(|one, other| one.name.cmp(&other.name));
    listed
}

fn unusable(what: String) -> ModelNotFound {
    ModelNotFound::Unusable(what)
}
