//! Directories that stand for GGUF files, and split files.

use std::fs;
use std::path::{Path, PathBuf};

use paceline_vocabulary::Products;

use crate::families::Sizes;
use crate::files::GGUF_NOTES;
use crate::from_gguf::{first_file, prepare};
use crate::plan::{DeviceKind, PlanOptions, ProductsChoice, ServedCheckpoint};
use crate::samples::SampleGguf;
use crate::{ConfigJson, ModelPlaces, ModelRef, ModelSummary, Tensors, missing_files, name_of};

struct Shelf {
    dir: tempfile::TempDir,
}

impl Shelf {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::create_dir(dir.path().join("models")).expect("made");
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("models").join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        fs::write(self.path(name), bytes).expect("written");
        self.path(name)
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("cache/paceline/gguf")
    }

    fn prepare(&self, gguf: &Path) -> Result<PathBuf, String> {
        prepare(gguf, &self.root()).map_err(|error| error.to_string())
    }

    fn locate(&self, text: &str) -> Result<PathBuf, String> {
        let places = ModelPlaces {
            own: Some(self.dir.path().join("cache/paceline/models")),
            ..ModelPlaces::default()
        };
        places.locate(&ModelRef::parse(text)).map_err(|error| error.to_string())
    }

    /// Writes the parts of a model, each with some of its tensors.
    fn split(&self, change: impl Fn(usize, &mut SampleGguf)) -> PathBuf {
        let all = SampleGguf::of("qwen3");
        let count = all.tensors.len();
        for part in 0..3 {
            let mut sample = all.clone();
            sample.tensors = all.tensors.iter().skip(part).step_by(3).cloned().collect();
            if part > 0 {
                sample.pairs.clear();
            }
            sample.set_count("split.no", part as u32);
            sample.set_count("split.count", 3);
            sample.set_count("split.tensors.count", count as u32);
            change(part, &mut sample);
            self.write(&format!("q-{:05}-of-00003.gguf", part + 1), &sample.bytes());
        }
        self.path("q-00001-of-00003.gguf")
    }
}

fn content(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("there").flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

const FILES: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "model.gguf",
    GGUF_NOTES,
    "tokenizer.json",
    "tokenizer_config.json",
];

#[test]
fn a_file_has_one_directory_that_stands_for_it_until_it_changes() {
    let shelf = Shelf::new();
    let file = shelf.write("Some Model.gguf", &SampleGguf::of("qwen3").bytes());
    let dir = shelf.prepare(&file).expect("made");
    assert_eq!(content(&dir), FILES);
    assert_eq!(content(&shelf.path("")), ["Some Model.gguf"], "nothing is written beside it");
    assert_eq!(name_of(&dir).as_deref(), Some("Some-Model"));
    assert_eq!(missing_files(&dir), [""; 0]);
    let sizes = Sizes::read(&ConfigJson::read(&dir).expect("read")).expect("sizes");
    assert_eq!((sizes.hidden_size, sizes.n_layers), (32, 2));
    // It is reused, and made again if a file of it is gone.
    fs::write(dir.join("config.json"), "{}").expect("written");
    assert_eq!(shelf.prepare(&file), Ok(dir.clone()));
    assert_eq!(fs::read_to_string(dir.join("config.json")).expect("there"), "{}");
    fs::remove_file(dir.join(GGUF_NOTES)).expect("removed");
    assert_eq!(shelf.prepare(&file), Ok(dir.clone()));
    assert_eq!(content(&dir), FILES);
    assert_ne!(fs::read_to_string(dir.join("config.json")).expect("there"), "{}");
    // Another content has another directory.
    shelf.write("Some Model.gguf", &SampleGguf::of("qwen2").bytes());
    let other = shelf.prepare(&file).expect("made");
    assert_ne!(other, dir);
    assert_eq!(content(&shelf.root()).len(), 2, "and nothing is left of its making");
}

#[test]
fn threads_that_prepare_a_file_at_once_make_one_directory() {
    let shelf = Shelf::new();
    let file = shelf.write("q.gguf", &SampleGguf::of("qwen3").bytes());
    let dirs: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| shelf.prepare(&file))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(dirs.iter().all(|dir| *dir == dirs[0] && dir.is_ok()), "{dirs:?}");
    assert_eq!(content(&shelf.root()).len(), 1);
}

#[test]
fn the_tensors_of_a_directory_are_those_of_the_file() {
    let shelf = Shelf::new();
    let sample = SampleGguf::of("gemma3");
    let file = shelf.write("g.gguf", &sample.bytes());
    let dir = shelf.prepare(&file).expect("made");
    let tensors = Tensors::open(&dir).expect("opened");
    assert_eq!(tensors.entries.len(), sample.tensors.len());
    assert_eq!(tensors.notes.len(), 1, "{:?}", tensors.notes);
    let entry = &tensors.entries["model.layers.1.self_attn.v_proj.weight"];
    assert_eq!((entry.shape.as_slice(), entry.elements()), (&[16, 32][..], 512));
    let mut stored = vec![0; entry.bytes];
    tensors.read_at(entry, 0, &mut stored).expect("read");
    let named = |name: &str| sample.tensors.iter().find(|tensor| tensor.name == name).expect(name);
    assert_eq!(stored, named("blk.1.attn_v.weight").data);
    assert_eq!(tensors.quantized_bytes() as usize, stored.len() * (6 + 16 * 2 * 12) / 16);
    // Its family is read from config.json.
    let config = ConfigJson::read(&dir).expect("read");
    assert_eq!(config.required::<String>("model_type").expect("there"), "gemma3_text");
}

#[test]
fn the_plan_counts_blocks_as_they_are_stored_or_expanded() {
    let shelf = Shelf::new();
    let dir = shelf.prepare(&shelf.write("q.gguf", &SampleGguf::of("qwen3").bytes()));
    let dir = dir.expect("made");
    let plan = |keep_quantized, products| {
        let device = DeviceKind { on_gpu: false, has_kernels: true };
        let options = PlanOptions { device, keep_quantized, vision: true, products };
        let plan = ServedCheckpoint::open(&dir, &options).expect("served").plan().expect("a plan");
        let blocks = plan.storage.formats[0].clone();
        (blocks.format, blocks.parameters, blocks.memory_bytes, plan.products)
    };
    let numbers = 32 * (6 + 2 * 192);
    // A group has a bias beside the scale.
    let kept = plan(true, ProductsChoice::Integer);
    assert_eq!(kept, ("Q8_0 of GGUF".to_owned(), numbers, numbers / 32 * 36, Products::Integer));
    let (format, _, bytes, products) = plan(false, ProductsChoice::Auto);
    assert_eq!((bytes, products), (numbers * 4, Products::Float));
    assert_eq!(format, "Q8_0 of GGUF, expanded to float32");
    let summary = ModelSummary::of(&dir);
    assert_eq!(summary.quantization.as_deref(), Some("GGUF Q8_0"));
}

#[test]
fn a_path_or_a_directory_with_one_model_is_found() {
    let shelf = Shelf::new();
    let file = shelf.write("q.gguf", &SampleGguf::of("qwen3").bytes());
    let dir = shelf.locate(&file.display().to_string()).expect("found");
    assert!(dir.starts_with(shelf.root()), "{}", dir.display());
    assert_eq!(shelf.locate(&dir.display().to_string()), Ok(dir.clone()), "it stands for itself");
    let models = shelf.path("").display().to_string();
    assert_eq!(shelf.locate(&models), Ok(dir.clone()));
    assert_eq!(missing_files(&shelf.path("")), [""; 0]);
    // A tower is no model, and a config.json of the publisher may lie there.
    shelf.write("mmproj-q.gguf", b"GGUF");
    shelf.write("config.json", br#"{"hidden_size": 32, "num_hidden_layers": 2}"#);
    let with_config = shelf.locate(&models).expect("found");
    assert!(with_config.starts_with(shelf.root()) && with_config != dir);
    fs::remove_file(shelf.path("config.json")).expect("removed");
    shelf.write("other.gguf", b"GGUF");
    let error = shelf.locate(&models).expect_err("two models");
    assert!(error.contains("files in the format GGUF") && error.contains("name one"), "{error}");
    shelf.write("model.safetensors", b"");
    assert_eq!(first_file(&shelf.path("")), None);
    let error = shelf.locate(&shelf.path("other.gguf").display().to_string()).expect_err("broken");
    assert!(error.contains("other.gguf: GGUF: byte 4"), "{error}");
    let error = shelf.locate("models/nothing.gguf").expect_err("missing");
    assert!(error.contains("found nothing at models/nothing.gguf"), "{error}");
}

#[test]
fn the_parts_of_a_split_model_are_found_beside_the_first_one() {
    let shelf = Shelf::new();
    let first = shelf.split(|_, _| {});
    let dir = shelf.locate(&first.display().to_string()).expect("found");
    assert!(content(&dir).contains(&"model-00003-of-00003.gguf".to_owned()));
    assert_eq!(name_of(&first).as_deref(), Some("q"));
    assert_eq!(shelf.locate(&shelf.path("").display().to_string()), Ok(dir.clone()));
    assert_eq!(missing_files(&dir), [""; 0]);
    let sample = SampleGguf::of("qwen3");
    let tensors = Tensors::open(&dir).expect("opened");
    assert_eq!((tensors.files.len(), tensors.entries.len()), (3, sample.tensors.len()));
    let entry = &tensors.entries["model.layers.1.mlp.down_proj.weight"];
    let mut stored = vec![0; entry.bytes];
    tensors.read_at(entry, 0, &mut stored).expect("read");
    let tensor = sample.tensors.iter().find(|tensor| tensor.name == "blk.1.ffn_down.weight");
    assert_eq!(stored, tensor.expect("there").data);
}

#[test]
fn what_is_wrong_with_parts_is_said() {
    let shelf = Shelf::new();
    let first = shelf.split(|_, _| {});
    let error = shelf.prepare(&shelf.path("q-00002-of-00003.gguf")).expect_err("not the first");
    assert!(error.contains("found part 2 of 3; name q-00001-of-00003.gguf"), "{error}");
    fs::rename(shelf.path("q-00003-of-00003.gguf"), shelf.path("q3.gguf")).expect("renamed");
    let error = shelf.prepare(&first).expect_err("one is missing");
    assert!(error.contains("q-00003-of-00003.gguf is missing"), "{error}");
    fs::rename(&first, shelf.path("alone.gguf")).expect("renamed");
    let error = shelf.prepare(&shelf.path("alone.gguf")).expect_err("its name says nothing");
    assert!(error.contains("expected the name NAME-00001-of-00003.gguf"), "{error}");
    for (change, words) in [
        (
            (|part, sample| sample.set_count("split.count", if part == 2 { 4 } else { 3 }))
                as fn(usize, &mut SampleGguf),
            "q-00003-of-00003.gguf: GGUF: split.count: expected one of 3 parts",
        ),
        (|_, sample| sample.set_count("split.no", 0), "split.no: expected 1"),
        (
            |_, sample| sample.set_count("split.tensors.count", 5),
            "tensors of all parts: expected 5",
        ),
        (
            |part, sample| {
                if part == 2 {
                    sample.add("output_norm.weight", &[32], 0);
                }
                sample.unset("split.tensors.count");
            },
            "\"output_norm.weight\": expected one tensor of this name, found two in different parts",
        ),
    ] {
        let first = shelf.split(change);
        let error = shelf.prepare(&first).expect_err(words);
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_head_that_is_longer_than_the_first_reading_is_read_whole() {
    let shelf = Shelf::new();
    let mut sample = SampleGguf::of("qwen3");
    sample.set_text("general.description", &"x".repeat(3 << 20));
    let dir = shelf.prepare(&shelf.write("long.gguf", &sample.bytes())).expect("made");
    assert_eq!(Tensors::open(&dir).expect("opened").entries.len(), sample.tensors.len());
}
