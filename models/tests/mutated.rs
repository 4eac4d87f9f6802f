//! Checkpoints with random faults are refused in words, or load. None ends the process, and none
//! makes loading need more memory than the files' bytes and a seventh.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use paceline_models::{DeviceChoice, Quantize, device, load_draft, load_target};
use serde_json::Value;

/// Counts what is allocated outside of MLX.
struct Counting;

/// Held by the test that counts: tests of one process share the counters.
static COUNTS: Mutex<()> = Mutex::new(());
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(live, Relaxed);
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller says.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// The files of a checkpoint by name.
type Files = BTreeMap<&'static str, Vec<u8>>;

const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
const WEIGHTS: &str = "model.safetensors";

fn read(checkpoint: &str) -> Files {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(checkpoint);
    let read = |name| Some((name, std::fs::read(dir.join(name)).ok()?));
    [CONFIG, INDEX, WEIGHTS].into_iter().filter_map(read).collect()
}

/// Values that are wrong nearly everywhere.
fn odd(random: &mut Random) -> Value {
    let values = [
        Value::Null,
        Value::from(0),
        Value::from(-1),
        Value::from(1),
        Value::from(3),
        Value::from(1_000_000),
        Value::from(1u64 << 24),
        Value::from(i64::MAX),
        Value::from(u64::MAX),
        Value::from(0.5),
        Value::from(1e300),
        Value::from(""),
        Value::from("F16"),
        Value::from("a".repeat(1000)),
        Value::from(true),
        Value::from(false),
        serde_json::json!([]),
        serde_json::json!([4, -4, 1u64 << 40]),
        serde_json::json!({}),
        serde_json::json!({ "bits": 4, "group_size": 32 }),
    ];
    values[random.below(values.len())].clone()
}

/// Changes a random value, at any depth.
fn mutate_value(value: &mut Value, random: &mut Random) {
    match value {
        Value::Object(object) if !object.is_empty() && random.below(8) != 0 => {
            let key = object.keys().nth(random.below(object.len())).expect("below").clone();
            match random.below(10) {
                0 => drop(object.remove(&key)),
                1 => {
                    let taken = object.remove(&key).expect("it is there");
                    object.insert(format!("{key}x"), taken);
                }
                2 => drop(object.insert("more".into(), odd(random))),
                _ => mutate_value(&mut object[&key], random),
            }
        }
        Value::Array(list) if !list.is_empty() && random.below(4) != 0 => {
            let at = random.below(list.len());
            mutate_value(&mut list[at], random);
        }
        Value::Number(number) if random.below(2) == 0 => {
            let near = number.as_f64().unwrap_or(0.0) as i64;
            let other = [near.wrapping_sub(1), near.wrapping_add(1), near.wrapping_mul(2)];
            *value = Value::from(other[random.below(other.len())]);
        }
        _ => *value = odd(random),
    }
}

/// Flips, repeats, cuts or adds bytes.
fn mutate_bytes(bytes: &mut Vec<u8>, end: usize, random: &mut Random) {
    let at = random.below(end.min(bytes.len()));
    match random.below(5) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        2 => bytes.truncate(at),
        3 => bytes.insert(at, random.next() as u8),
        _ => bytes.extend_from_slice(&vec![0; random.below(4096)]),
    }
}

fn mutate_json(bytes: &mut Vec<u8>, random: &mut Random) {
    if random.below(4) == 0 {
        let end = bytes.len();
        return mutate_bytes(bytes, end, random);
    }
    let mut value: Value = serde_json::from_slice(bytes).expect("the original is JSON");
    for _ in 0..=random.below(2) {
        mutate_value(&mut value, random);
    }
    *bytes = value.to_string().into_bytes();
}

/// The header of a safetensors file as JSON, or its bytes, or its length.
fn mutate_weights(bytes: &mut Vec<u8>, random: &mut Random) {
    let length = u64::from_le_bytes(*bytes.first_chunk().expect("there are more")) as usize;
    match random.below(4) {
        0 => mutate_bytes(bytes, 8 + length, random),
        1 => bytes[random.below(8)] = random.next() as u8,
        _ => {
            let mut head = bytes[8..8 + length].to_vec();
            mutate_json(&mut head, random);
            let mut file = (head.len() as u64).to_le_bytes().to_vec();
            file.extend_from_slice(&head);
            file.extend_from_slice(&bytes[8 + length..]);
            *bytes = file;
        }
    }
}

fn write(dir: &Path, files: &Files) {
    for (name, bytes) in files {
        std::fs::write(dir.join(name), bytes).expect("written");
    }
}

/// Memory that loading needed, here and in MLX, and the reason of a refusal.
fn load(dir: &Path) -> (usize, Option<String>) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let held = device::memory().0 as usize;
    mlx_rs::memory::reset_peak_memory().expect("resets");
    let text = std::fs::read_to_string(dir.join(CONFIG)).unwrap_or_default();
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/dflash-target");
    let kinds = [
        ("DFlashDraft", "dflash"),
        ("DFlash2", "dflash2"),
        ("DSpark", "dspark"),
        ("Eagle3Speculator", "eagle3"),
        ("mtp_num_hidden_layers", "mtp"),
    ];
    let kind = kinds.into_iter().find(|(architecture, _)| text.contains(architecture));
    let loaded = match kind {
        Some((_, kind)) => {
            // A head and its target are in one checkpoint.
            let target = if kind == "mtp" { dir } else { &target };
            load_draft(dir, kind, Some(target), Quantize::None, &mut |_, _| {}).map(drop)
        }
        None => load_target(dir, &mut |_, _| {}).map(drop),
    };
    let in_mlx = mlx_rs::memory::peak_memory().expect("counts").saturating_sub(held);
    let needed = PEAK.load(Relaxed) - before + in_mlx;
    (needed, loaded.err().map(|error| paceline_vocabulary::chain(&error)))
}

fn check(rounds: u64, seed: u64) {
    let _alone = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    let mut random = Random(seed);
    let (mut loaded, mut reasons) = (0, BTreeMap::<String, usize>::new());
    let checkpoints = [
        "qwen3-tiny",
        "qwen3-tiny-q4",
        "eagle3-llama",
        "qwen3_5-tiny",
        "qwen3_5-vl-tiny",
        "mtp-dense",
    ];
    for checkpoint in checkpoints {
        let original = read(checkpoint);
        let dir = tempfile::tempdir().expect("a temporary directory");
        write(dir.path(), &original);
        let (usual, refused) = load(dir.path());
        assert_eq!(refused, None, "{checkpoint}");
        for round in 0..rounds / checkpoints.len() as u64 {
            let mut files = original.clone();
            let name = files.keys().nth(random.below(files.len())).copied().expect("below");
            let bytes = files.get_mut(name).expect("it is there");
            match name {
                WEIGHTS => mutate_weights(bytes, &mut random),
                _ => mutate_json(bytes, &mut random),
            }
            write(dir.path(), &files);
            let size: usize = files.values().map(Vec::len).sum();
            let (needed, refused) = load(dir.path());
            let what = format!("{checkpoint}, round {round} of seed {seed}, {name}: {refused:?}");
            // Numbers of 16 bits become ones of 32: more than the file, no more than usual.
            let most = (size.max(usual) as f64 * 1.15) as usize;
            assert!(needed <= most, "{what}: {needed} bytes, {most} are allowed");
            match refused {
                None => loaded += 1,
                Some(reason) => {
                    let names = ["config.json", "tensor", "safetensors", "module", "cannot read"];
                    assert!(names.iter().any(|name| reason.contains(name)), "{what}: no place");
                    let kind = reason.replace(&format!("{}/", dir.path().display()), "");
                    let words: Vec<_> = kind.split_whitespace().take(6).collect();
                    *reasons.entry(words.join(" ")).or_default() += 1;
                }
            }
        }
    }
    eprintln!("{rounds} checkpoints: {loaded} load, {} kinds of refusals", reasons.len());
    assert!(reasons.len() > 10, "the faults are of many kinds: {reasons:?}");
}

/// Numbers at any depth that `change` has not been given yet; it gets the one at `at`.
fn numbers(value: &mut Value, at: &mut usize, change: &mut dyn FnMut(&mut Value)) {
    match value {
        Value::Object(object) => {
            object.values_mut().for_each(|value| numbers(value, at, change));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| numbers(value, at, change)),
        Value::Number(_) => {
            if *at == 0 {
                change(value);
            }
            *at = at.wrapping_sub(1);
        }
        _ => {}
    }
}

#[test]
fn no_size_of_a_config_makes_loading_need_more_memory() {
    let _alone = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    for checkpoint in [
        "qwen3-tiny",
        "qwen3-tiny-q4",
        "qwen3-moe-tiny",
        "qwen3-vl-tiny",
        "qwen3_5-tiny",
        "qwen3_5_moe-tiny",
        "qwen3_5-vl-tiny",
        "qwen2-vl-tiny",
        "qwen2_5-vl-tiny",
        "qwen3-vl-moe-tiny",
        "paddleocr_vl-tiny",
        "hunyuan_vl-tiny",
        "glm-ocr-tiny",
        "glm4v-tiny",
        "dflash-full",
        "dflash2-tiny",
        "dspark-deepseek",
        "dspark-speculators",
        "eagle3-llama",
        "mtp-dense",
    ] {
        let original = read(checkpoint);
        let dir = tempfile::tempdir().expect("a temporary directory");
        write(dir.path(), &original);
        let size: usize = original.values().map(Vec::len).sum();
        let most = (size.max(load(dir.path()).0) as f64 * 1.15) as usize;
        let config: Value = serde_json::from_slice(&original[CONFIG]).expect("JSON");
        let mut count = usize::MAX;
        numbers(&mut config.clone(), &mut count, &mut |_| {});
        for at in 0..usize::MAX - count {
            for other in [1i64 << 24, 1 << 31, 0, 2] {
                let mut changed = config.clone();
                let mut what = Value::Null;
                numbers(&mut changed, &mut { at }, &mut |value| {
                    what = std::mem::replace(value, Value::from(other));
                });
                std::fs::write(dir.path().join(CONFIG), changed.to_string()).expect("written");
                let (needed, refused) = load(dir.path());
                let what = format!("{checkpoint}: {other} for number {at}, {what}: {refused:?}");
                assert!(needed <= most, "{what}: {needed} bytes, {most} are allowed");
            }
        }
    }
}

#[test]
fn a_hundred_faulty_checkpoints_are_refused_or_load() {
    check(100, 0x0001_2345_6789);
}

#[test]
#[ignore = "soak: a minute; run by `make soak`"]
fn a_thousand_faulty_checkpoints_are_refused_or_load() {
    check(1000, 0x00AB_CDEF_0123);
}
