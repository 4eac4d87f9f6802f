//! The files of a model directory: how one is opened, and which of them hold the weights. Every
//! process that reads such a directory uses these functions. No core calls them (I10).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// The configuration, which every model has.
pub const CONFIG: &str = "config.json";
/// The settings of generation that the publisher advises.
pub const GENERATION_CONFIG: &str = "generation_config.json";
/// The tokenizer: its vocabulary, its merges and its added tokens.
pub const TOKENIZER: &str = "tokenizer.json";
/// The settings of the tokenizer.
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// The chat template of a model that reads images, in files of earlier libraries.
pub const CHAT_TEMPLATE: &str = "chat_template.json";
/// The settings of the image processor.
pub const PREPROCESSOR_CONFIG: &str = "preprocessor_config.json";
/// The settings of all processors, in newer files.
pub const PROCESSOR_CONFIG: &str = "processor_config.json";
/// Small files of fixed names: configuration, tokenizer, template, images.
pub const TEXT_FILES: [&str; 12] = [
    "added_tokens.json",
    CHAT_TEMPLATE,
    CONFIG,
    GENERATION_CONFIG,
    "merges.txt",
    PREPROCESSOR_CONFIG,
    PROCESSOR_CONFIG,
    "special_tokens_map.json",
    TOKENIZER,
    TOKENIZER_CONFIG,
    "video_preprocessor_config.json",
    "vocab.json",
];
/// Name of the index of a model's shards.
pub const INDEX: &str = "model.safetensors.index.json";
/// Name of the file with all weights of a model without shards.
pub const WEIGHTS: &str = "model.safetensors";
/// Sentences about what a GGUF file does not say, a list of texts, in the directory that stands for the
/// file. No other directory has this file.
pub const GGUF_NOTES: &str = "notes.json";
/// Beginnings of the names of the tensors that make rows of images, as transformers and as MLX
/// write them: the tower of a Qwen or a GLM, HunyuanOCR's, a Gemma's, and what a Gemma without a tower
/// has.
pub const TOWERS: [&str; 7] = [
    "visual.",
    "vit.",
    "model.visual.",
    "vision_tower.",
    "model.vision_tower.",
    "model.vision_embedder.",
    "vision_embedder.",
];
/// Most bytes of a model's configuration, template or index: an index of the largest models has some
/// 10 MiB.
pub const MAX_TEXT_BYTES: u64 = 64 << 20;
/// Most bytes of a tokenizer's file: the largest have some 35 MiB.
pub const MAX_TOKENIZER_BYTES: u64 = 512 << 20;

/// `O_NONBLOCK` of open(2): opening a FIFO without a writer would wait for one.
const NONBLOCK: i32 = if cfg!(target_os = "macos") { 0x4 } else { 0o4000 };

/// Opens a regular file to be read. Links are followed. A FIFO, a device or a directory is refused
/// at once.
///
/// # Errors
/// The file cannot be opened, or it is another kind of file.
pub fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path)?;
    let kind = file.metadata()?.file_type();
    let found = match kind {
        _ if kind.is_file() => return Ok(file),
        _ if kind.is_fifo() => "a FIFO",
        _ if kind.is_dir() => "a directory",
        _ => "a device",
    };
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("expected a regular file, found {found}"),
    ))
}

/// Content of a regular file of at most `most` bytes.
///
/// # Errors
/// As [`open`]; the file cannot be read, or it is larger.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut content = vec![];
    open(path)?.take(most.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > most {
        let what = format!("expected at most {most} bytes, found more");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(content)
}

/// The files with the weights of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightFiles {
    /// Their names, each once.
    pub names: BTreeSet<String>,
    /// Whether the index names them, and which tensors they hold.
    pub indexed: bool,
    /// What an operator should know of the choice.
    pub note: Option<String>,
}

/// A model without weights in safetensors, or without some of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingWeights {
    /// Names of the missing files.
    pub names: Vec<String>,
    /// Name of the file that names them: the index, or another shard.
    pub named_by: Option<String>,
}

impl WeightFiles {
    /// Chooses the files: the shards of the index, whose names are `shards`, else the whole file, else
    /// all files named `model*.safetensors`, as mlx-lm does. A whole file counts beside the index of
    /// shards that are not there. `is_there` answers for a name, `listed` has the names at the top of
    /// the directory.
    ///
    /// # Errors
    /// There are none, or some are missing.
    pub fn choose(
        shards: Option<BTreeSet<String>>,
        is_there: impl Fn(&str) -> bool,
        listed: impl FnOnce() -> Vec<String>,
    ) -> Result<Self, MissingWeights> {
        let whole = || BTreeSet::from([WEIGHTS.to_owned()]);
        if let Some(shards) = shards {
            let missing: Vec<String> =
                shards.iter().filter(|shard| !is_there(shard)).cloned().collect();
            let Some(first) = missing.first() else {
                return Ok(Self { names: shards, indexed: true, note: None });
            };
            if !is_there(WEIGHTS) {
                return Err(MissingWeights { names: missing, named_by: Some(INDEX.to_owned()) });
            }
            let note = format!(
                "{INDEX} is left unread: it names {first}, which is not there, and {WEIGHTS} is"
            );
            return Ok(Self { names: whole(), indexed: false, note: Some(note) });
        }
        if is_there(WEIGHTS) {
            return Ok(Self { names: whole(), ..Self::default() });
        }
        let is_shard = |name: &String| name.starts_with("model") && name.ends_with(".safetensors");
        let names: BTreeSet<String> = listed().into_iter().filter(is_shard).collect();
        if names.is_empty() {
            return Err(MissingWeights { names: vec![WEIGHTS.to_owned()], named_by: None });
        }
        if let Some((shard, missing)) = missing_parts(&names) {
            return Err(MissingWeights { names: missing, named_by: Some(shard) });
        }
        let note = format!("{} files of weights are read without an index", names.len());
        Ok(Self { names, indexed: false, note: Some(note) })
    }

    /// [`WeightFiles::choose`] among the files of a directory, or the files of [`gguf_name`] if it has no
    /// weights in safetensors.
    ///
    /// # Errors
    /// As [`WeightFiles::choose`].
    pub fn of_directory(
        dir: &Path,
        shards: Option<BTreeSet<String>>,
    ) -> Result<Self, MissingWeights> {
        let listed = || {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
        };
        Self::choose(shards, |name| dir.join(name).is_file(), listed).or_else(|missing| {
            match missing.named_by.is_none().then(|| Self::gguf(dir)).flatten() {
                Some(names) => Ok(Self { names, ..Self::default() }),
                None => Err(missing),
            }
        })
    }

    /// The GGUF files of a directory that stands for a model in this format.
    fn gguf(dir: &Path) -> Option<BTreeSet<String>> {
        let is_there = |name: &String| dir.join(name).is_file();
        if is_there(&gguf_name(1, 1)) {
            return Some(BTreeSet::from([gguf_name(1, 1)]));
        }
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let parts = |name: String| {
            let count = name.strip_prefix("model-00001-of-")?.strip_suffix(".gguf")?.parse().ok();
            count.filter(|count| *count <= MAX_PARTS)
        };
        let count = names.filter_map(parts).next()?;
        let names: BTreeSet<String> = (1..=count).map(|part| gguf_name(part, count)).collect();
        names.iter().all(is_there).then_some(names)
    }

    /// Whether they are in the format GGUF.
    pub fn are_gguf(&self) -> bool {
        self.names.iter().any(|name| name.ends_with(".gguf"))
    }
}

/// Name of part `number` of `count` parts of a model in the format GGUF, in the directory that stands for
/// it.
pub fn gguf_name(number: usize, count: usize) -> String {
    match count {
        1 => "model.gguf".to_owned(),
        _ => format!("model-{number:05}-of-{count:05}.gguf"),
    }
}

/// Most parts of a model that are counted: the largest published ones have some 200.
const MAX_PARTS: usize = 10_000;

/// A shard whose name says of how many it is one, and the names of those that are missing.
fn missing_parts(names: &BTreeSet<String>) -> Option<(String, Vec<String>)> {
    // model-00001-of-00002.safetensors
    let parts = |name: &str| {
        let (start, count) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
        let (start, _) = start.rsplit_once('-')?;
        Some((start.to_owned(), count.to_owned()))
    };
    let groups: BTreeMap<_, _> =
        names.iter().filter_map(|name| Some((parts(name)?, name))).collect();
    groups.into_iter().find_map(|((start, count), shard)| {
        let all: usize = count.parse().ok().filter(|all| *all <= MAX_PARTS)?;
        let width = count.len();
        let name = |at: usize| format!("{start}-{at:0width$}-of-{count}.safetensors");
        let missing: Vec<String> =
            (1..=all).map(name).filter(|name| !names.contains(name)).collect();
        (!missing.is_empty()).then(|| (shard.clone(), missing))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(shards: Option<&[&str]>, there: &[&str]) -> Result<WeightFiles, MissingWeights> {
        let shards = shards.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        let listed = || there.iter().map(|name| (*name).to_owned()).collect();
        WeightFiles::choose(shards, |name| there.contains(&name), listed)
    }

    fn names(found: Result<WeightFiles, MissingWeights>) -> Vec<String> {
        found.expect("chosen").names.into_iter().collect()
    }

    const FIRST: &str = "model-00001-of-00002.safetensors";
    const SECOND: &str = "model-00002-of-00002.safetensors";

    #[test]
    fn the_index_goes_first_then_the_whole_file_then_all_shards() {
        let both = [FIRST, SECOND];
        assert_eq!(names(chosen(Some(&both), &[FIRST, SECOND, WEIGHTS])), both);
        assert_eq!(names(chosen(None, &[FIRST, WEIGHTS])), [WEIGHTS]);
        assert_eq!(names(chosen(None, &["x.safetensors", SECOND, FIRST])), both);
        assert_eq!(names(chosen(None, &["model_q4.safetensors"])), ["model_q4.safetensors"]);
        let old = chosen(Some(&both), &[FIRST, WEIGHTS]).expect("chosen");
        assert!(!old.indexed && old.note.is_some_and(|note| note.contains(SECOND)));
    }

    #[test]
    fn missing_shards_are_named_with_the_file_that_names_them() {
        let missing = |shards: Option<&[&str]>, there: &[&str]| {
            chosen(shards, there).expect_err("some are missing")
        };
        let found = missing(Some(&[FIRST, SECOND]), &[SECOND]);
        assert_eq!((found.names, found.named_by), (vec![FIRST.into()], Some(INDEX.into())));
        let found = missing(None, &[SECOND]);
        assert_eq!((found.names, found.named_by), (vec![FIRST.into()], Some(SECOND.into())));
        let found = missing(None, &["consolidated.safetensors", "config.json"]);
        assert_eq!((found.names, found.named_by), (vec![WEIGHTS.into()], None));
        // A name that counts more parts than any model has is read as it is.
        let odd = "model-1-of-99999999999.safetensors";
        assert_eq!(names(chosen(None, &[odd])), [odd]);
    }

    #[test]
    fn only_regular_files_of_a_bounded_size_are_read() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let bytes = read(&path, 1 << 20).expect("there").len() as u64;
        assert_eq!(read(&path, bytes).expect("as long").len() as u64, bytes);
        let error = read(&path, bytes - 1).expect_err("longer").to_string();
        assert!(error.contains(&format!("at most {} bytes", bytes - 1)), "{error}");
        for (path, kind) in [("/dev/null", "a device"), ("/", "a directory")] {
            let error = open(Path::new(path)).expect_err("refused").to_string();
            assert!(error.contains(kind), "{path}: {error}");
        }
        assert!(
            open(Path::new("/nowhere")).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        );
    }
}
