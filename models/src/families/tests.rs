//! Tensors that a model does not use: skipped with one log line if they are of a part that the family
//! names, else refused.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use safetensors::tensor::{Dtype as Stored, SafeTensors, TensorView};

use super::*;
use crate::device::{DeviceChoice, choose};

/// Collects the log lines of a test.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("not poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Loads the tiny Qwen3 with more tensors of 4 bytes beside its own. Returns the log.
fn load_with(more: &[&str]) -> Result<String, String> {
    choose(DeviceChoice::Cpu).expect("there is a CPU");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/qwen3-tiny");
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::copy(source.join("config.json"), dir.path().join("config.json")).expect("copied");
    let bytes = std::fs::read(source.join("model.safetensors")).expect("there is one");
    let tensors = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let mut all: Vec<(&str, TensorView<'_>)> = tensors.iter().collect();
    for name in more {
        all.push((name, TensorView::new(Stored::F32, vec![1], &[0; 4]).expect("4 bytes")));
    }
    let file = safetensors::serialize(all, None).expect("serialized");
    std::fs::write(dir.path().join("model.safetensors"), file).expect("written");
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let mut last = (0, 0);
    let loaded = tracing::subscriber::with_default(subscriber, || {
        load_target(dir.path(), &mut |read, total| last = (read, total)).map(drop)
    });
    loaded.map_err(|error| paceline_vocabulary::chain(&error))?;
    assert_eq!(last.0, last.1, "all that counts was read");
    let text = log.0.lock().expect("not poisoned").clone();
    Ok(String::from_utf8(text).expect("text"))
}

#[test]
fn parts_that_are_not_served_are_skipped_with_one_log_line() {
    let more = [
        "mtp.fc.weight",
        "mtp.norm.weight",
        "model.visual.patch_embed.proj.weight",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
    ];
    let log = load_with(&more).expect("loads");
    let lines: Vec<_> = log.lines().filter(|line| line.contains("skipped")).collect();
    let [line] = lines.as_slice() else { panic!("expected one line: {log}") };
    for figure in ["count=4", "bytes=16", "mtp.", "model.visual.", ".rotary_emb.inv_freq"] {
        assert!(line.contains(figure), "{figure}: {line}");
    }
    assert!(!load_with(&[]).expect("loads").contains("skipped"));
}

#[test]
fn any_other_tensor_is_refused() {
    for name in ["model.layers.3.mlp.up_proj.weight", "lm_head.scale", "mtp_fc.weight"] {
        let error = load_with(&["mtp.fc.weight", name]).expect_err(name);
        assert!(
            error.contains(&format!("has 1 tensors the model does not use, the first is {name}")),
            "{error}"
        );
    }
}

#[test]
fn a_tied_head_that_differs_is_read_and_must_fit() {
    let error = load_with(&["lm_head.weight"]).expect_err("it has another shape");
    assert!(error.contains("tensor lm_head.weight has shape"), "{error}");
}
