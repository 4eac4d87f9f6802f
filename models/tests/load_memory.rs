//! Loading needs little more memory than what stays: each number goes from the mapped file into
//! its array. A process of its own loads a checkpoint under a limit on its private memory
//! (`RLIMIT_DATA`, which leaves mapped files out), so that no short peak is missed.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use paceline_models::{DeviceChoice, LoadOptions, device, load_target, load_target_with};
use serde_json::{Map, Value, json};

/// Most private memory while a checkpoint is loaded, as a share of what stays.
const MOST: f64 = 1.15;

/// Storage of the weights, in the file and in memory.
#[derive(Clone, Copy, Debug)]
enum Storage {
    Float32,
    Bfloat16,
    /// 4 bits, groups of 64, scales in float16.
    Packed,
    Expanded,
}

const STORAGES: [Storage; 4] =
    [Storage::Float32, Storage::Bfloat16, Storage::Packed, Storage::Expanded];

/// Sizes of a Qwen3 in which no tensor is a large share.
#[derive(Clone, Copy)]
struct Sizes {
    hidden: u64,
    intermediate: u64,
    vocab: u64,
    layers: u64,
}

/// 100 MB in float32.
const SMALL: Sizes = Sizes { hidden: 512, intermediate: 1536, vocab: 8192, layers: 7 };
/// 1 GB in float32.
const LARGE: Sizes = Sizes { hidden: 1024, intermediate: 4096, vocab: 32_768, layers: 14 };
const HEAD_DIM: u64 = 64;

/// Writes a checkpoint of zeros, in a file without blocks. Returns bytes that stay.
fn write(dir: &Path, sizes: Sizes, storage: Storage) -> u64 {
    let Sizes { hidden, intermediate, vocab, layers } = sizes;
    let (wide, narrow) = (hidden, hidden / 2);
    let mut header = Header { tensors: Map::new(), end: 0, stays: 0, storage };
    header.matrix("model.embed_tokens", vocab, hidden);
    for layer in 0..layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        for (part, out, input) in [
            ("self_attn.q_proj", wide, hidden),
            ("self_attn.k_proj", narrow, hidden),
            ("self_attn.v_proj", narrow, hidden),
            ("self_attn.o_proj", hidden, wide),
            ("mlp.gate_proj", intermediate, hidden),
            ("mlp.up_proj", intermediate, hidden),
            ("mlp.down_proj", hidden, intermediate),
        ] {
            header.matrix(&name(part), out, input);
        }
        header.norm(&name("self_attn.q_norm"), HEAD_DIM);
        header.norm(&name("self_attn.k_norm"), HEAD_DIM);
        header.norm(&name("input_layernorm"), hidden);
        header.norm(&name("post_attention_layernorm"), hidden);
    }
    header.norm("model.norm", hidden);
    let mut config = json!({
        "model_type": "qwen3", "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": wide / HEAD_DIM, "num_key_value_heads": narrow / HEAD_DIM,
        "head_dim": HEAD_DIM, "intermediate_size": intermediate, "vocab_size": vocab,
        "max_position_embeddings": 512, "tie_word_embeddings": true, "rope_theta": 10_000.0,
    });
    if matches!(storage, Storage::Packed | Storage::Expanded) {
        config["quantization"] = json!({ "bits": 4, "group_size": 64 });
    }
    std::fs::write(dir.join("config.json"), config.to_string()).expect("written");
    let text = Value::Object(header.tensors).to_string();
    let mut file = File::create(dir.join("model.safetensors")).expect("made");
    file.write_all(&(text.len() as u64).to_le_bytes()).expect("written");
    file.write_all(text.as_bytes()).expect("written");
    file.set_len(8 + text.len() as u64 + header.end).expect("as long as its header says");
    header.stays
}

struct Header {
    tensors: Map<String, Value>,
    end: u64,
    stays: u64,
    storage: Storage,
}

impl Header {
    fn tensor(&mut self, name: String, dtype: &str, shape: &[u64], item: u64) -> u64 {
        let (begin, bytes) = (self.end, shape.iter().product::<u64>() * item);
        self.end += bytes;
        let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": [begin, self.end] });
        self.tensors.insert(name, entry);
        bytes
    }

    fn floats(&mut self, name: String, shape: &[u64]) {
        let (dtype, item) = match self.storage {
            Storage::Float32 => ("F32", 4),
            _ => ("BF16", 2),
        };
        self.stays += self.tensor(name, dtype, shape, item) / item * 4;
    }

    fn norm(&mut self, name: &str, size: u64) {
        self.floats(format!("{name}.weight"), &[size]);
    }

    fn matrix(&mut self, name: &str, out: u64, input: u64) {
        if matches!(self.storage, Storage::Float32 | Storage::Bfloat16) {
            return self.floats(format!("{name}.weight"), &[out, input]);
        }
        let mut stored = self.tensor(format!("{name}.weight"), "U32", &[out, input / 8], 4);
        for part in ["scales", "biases"] {
            stored += self.tensor(format!("{name}.{part}"), "F16", &[out, input / 64], 2);
        }
        let expanded = matches!(self.storage, Storage::Expanded);
        self.stays += if expanded { out * input * 4 } else { stored };
    }
}

/// Private memory of this process, in bytes.
fn private_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:")).expect("a line of it");
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kilobytes * 1024
}

/// Set in the process that loads: bytes that stay, 1 to keep packed weights or 0, the directory.
const LOADS: &str = "PACELINE_TEST_LOADS";

fn load_under_a_limit(order: &str) {
    let mut words = order.splitn(3, ' ');
    let mut word = || words.next().expect("three words");
    let (stays, keeps, dir): (u64, _, _) = (word().parse().expect("bytes"), word() == "1", word());
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    // Threads and buffers that any load makes are there before.
    let small = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/qwen3-tiny");
    drop(load_target(&small, &mut |_, _| {}).expect("loads"));
    let (before, held) = (private_bytes(), device::memory().0);
    let limit = before + (stays as f64 * MOST) as u64;
    let (_, hard) = getrlimit(Resource::RLIMIT_DATA).expect("there is a limit");
    setrlimit(Resource::RLIMIT_DATA, limit, hard).expect("lowered");
    // MLX may wait for ever if it cannot allocate: then the signal ends this process (seconds).
    nix::unistd::alarm::set(60);
    let options = LoadOptions { keep_quantized: keeps, ..LoadOptions::default() };
    let model = load_target_with(Path::new(dir), options, &mut |_, _| {});
    // A panic needs memory, too.
    setrlimit(Resource::RLIMIT_DATA, hard, hard).expect("raised again");
    let model = model.expect("loads within the limit");
    let found = device::memory().0 - held;
    let grown = private_bytes() - before;
    eprintln!("{stays} bytes stay, MLX holds {found}, private memory grew by {grown}");
    assert!(found.abs_diff(stays) < stays / 50, "MLX holds {found} bytes, expected {stays}");
    drop(model);
}

fn check(name: &str, sizes: Sizes) {
    if let Some(order) = std::env::var_os(LOADS) {
        return load_under_a_limit(order.to_str().expect("text"));
    }
    for storage in STORAGES {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let stays = write(dir.path(), sizes, storage);
        let keeps = u8::from(!matches!(storage, Storage::Expanded));
        let order = format!("{stays} {keeps} {}", dir.path().display());
        let mut again = Command::new(std::env::current_exe().expect("a path"));
        again.args([name, "--exact", "--include-ignored", "--nocapture"]).env(LOADS, order);
        // glibc reserves memory for each thread's allocations otherwise, and not always as much.
        again.env("MALLOC_ARENA_MAX", "1");
        let output = again.output().expect("it starts");
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{storage:?}: {}\n{text}", output.status);
        let figures = text.lines().find(|line| line.contains("bytes stay")).expect("it says so");
        eprintln!("{storage:?}: {figures}");
    }
}

#[test]
fn loading_a_hundred_megabytes_needs_little_more_than_what_stays() {
    check("loading_a_hundred_megabytes_needs_little_more_than_what_stays", SMALL);
}

#[test]
#[ignore = "soak: up to 7 GB of memory; run by `make soak`"]
fn loading_a_gigabyte_needs_little_more_than_what_stays() {
    check("loading_a_gigabyte_needs_little_more_than_what_stays", LARGE);
}
