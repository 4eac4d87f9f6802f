//! A golden file of a tiny checkpoint, and a model held against it.

use std::path::{Path, PathBuf};

use mlx_rs::transforms::eval;
use paceline_models::sample::{RowRule, choose};
use paceline_models::{
    Array, Batch, DeviceChoice, FeatureLayers, KvStore, Segment, SequenceId, Target, Wants, device,
    load_target,
};
use serde::Deserialize;

pub fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

pub fn read<T: for<'a> Deserialize<'a>>(name: &str) -> T {
    let text = std::fs::read(golden(name)).expect("the golden file is in the repository");
    serde_json::from_slice(&text).expect("it has the fields named here")
}

#[derive(Deserialize)]
pub struct Model {
    pub tap_layers: Vec<usize>,
    pub cases: Vec<Case>,
}

#[derive(Deserialize)]
pub struct Case {
    pub prompt: Vec<u32>,
    pub logits: Vec<f32>,
    pub taps: Vec<Vec<f32>>,
    pub final_hidden: Vec<f32>,
    pub greedy: Vec<u32>,
}

pub fn segment(sequence: u64, start: usize, length: usize) -> Segment {
    Segment {
        sequence: SequenceId(sequence),
        start: start as i32,
        length: length as i32,
        drafted: 0,
    }
}

pub fn floats(array: &Array) -> Vec<f32> {
    eval([array]).expect("evaluates");
    array
        .contiguous()
        .and_then(|array| {
            array.eval()?;
            Ok(array.try_as_slice::<f32>().expect("floats").to_vec())
        })
        .expect("contiguous")
}

fn assert_close(what: &str, expected: &[f32], found: &[f32], tolerance: f32) {
    assert_eq!(expected.len(), found.len(), "{what}");
    let worst = expected.iter().zip(found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= tolerance, "{what}: worst difference {worst}, allowed {tolerance}");
}

pub fn greedy_rule(position: usize) -> RowRule<'static> {
    RowRule { position: position as u32, ..RowRule::greedy(&[], 0) }
}

pub fn store(model: &dyn Target) -> KvStore {
    KvStore::new(&model.kv_layers(), model.dtype(), model.info().context).expect("made")
}

/// A checkpoint on the CPU.
pub fn load(dir: &Path) -> Box<dyn Target> {
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    let mut loaded = 0;
    let model = load_target(dir, &mut |read, total| {
        assert!(read >= loaded && read <= total);
        loaded = read
    })
    .expect("loads");
    assert_eq!(loaded, model.info().weight_bytes);
    model
}

/// The golden checkpoint against its golden file.
pub fn check_model(name: &str) {
    check_checkpoint(name, &golden(name));
}

/// The checkpoint in `dir` against the golden file of `name`.
pub fn check_checkpoint(name: &str, dir: &Path) {
    let (expected, model): (Model, _) = (read(&format!("{name}.json")), load(dir));
    check_prompts(name, &*model, &expected);
    check_answers(name, &*model, &expected);
}

/// Each prompt in one pass: logits and hidden states.
fn check_prompts(name: &str, model: &dyn Target, expected: &Model) {
    for case in &expected.cases {
        let last = case.prompt.len() as i32 - 1;
        let wants = Wants {
            logit_rows: vec![last],
            hidden_states: Some(FeatureLayers {
                layers: expected.tap_layers.clone(),
                rows: vec![last],
            }),
            final_hidden: vec![last],
        };
        let mut kv = store(model);
        kv.open(SequenceId(0)).expect("new");
        let batch = Batch::text(case.prompt.clone(), vec![segment(0, 0, case.prompt.len())]);
        let forward = model.forward(&batch, &mut kv, &wants).expect("a forward");
        let what = format!("{name}, prompt of {}", case.prompt.len());
        assert_close(
            &format!("{what}: logits"),
            &case.logits,
            &floats(forward.logits.as_ref().expect("wanted")),
            1e-3,
        );
        assert_close(
            &format!("{what}: hidden states"),
            &case.taps.concat(),
            &floats(&forward.hidden_states.as_ref().expect("wanted").side_by_side().expect("lazy")),
            1e-3,
        );
        let hidden = floats(forward.final_hidden.as_ref().expect("wanted"));
        assert_close(&format!("{what}: final hidden"), &case.final_hidden, &hidden, 1e-3);
        let head =
            model.head(&Array::from_slice(&hidden, &[1, model.info().hidden])).expect("a head");
        assert_close(
            &format!("{what}: head of the final hidden"),
            &case.logits,
            &floats(&head),
            1e-3,
        );
    }
}

/// All prompts side by side, read in chunks of 20, then decoded together.
fn check_answers(name: &str, model: &dyn Target, expected: &Model) {
    let mut kv = store(model);
    let mut ids: Vec<Vec<u32>> = expected.cases.iter().map(|case| case.prompt.clone()).collect();
    for sequence in 0..ids.len() {
        kv.open(SequenceId(sequence as u64)).expect("new");
    }
    loop {
        let wanted = |sequence: usize| {
            expected.cases[sequence].prompt.len() + expected.cases[sequence].greedy.len()
        };
        let mut segments: Vec<Segment> = (0..ids.len())
            .filter(|sequence| ids[*sequence].len() < wanted(*sequence))
            .map(|sequence| {
                let done = kv.length(SequenceId(sequence as u64)).expect("open") as usize;
                segment(sequence as u64, done, (ids[sequence].len() - done).min(20))
            })
            .collect();
        if segments.is_empty() {
            break;
        }
        segments.sort_by_key(|segment| kv.order(segment.sequence));
        let (mut rows, mut logit_rows, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for segment in &segments {
            let all = &ids[segment.sequence.0 as usize];
            let end = (segment.start + segment.length) as usize;
            rows.extend_from_slice(&all[segment.start as usize..end]);
            if end == all.len() {
                logit_rows.push(rows.len() as i32 - 1);
                ends.push(segment.sequence.0 as usize);
            }
        }
        let wants = Wants { logit_rows, ..Wants::default() };
        let forward = model
            .forward(&Batch::text(rows, segments.clone()), &mut kv, &wants)
            .expect("a forward");
        if let Some(logits) = &forward.logits {
            let rules: Vec<_> =
                ends.iter().map(|sequence| greedy_rule(ids[*sequence].len())).collect();
            for (sequence, choice) in ends.iter().zip(choose(logits, &rules, &[]).expect("choices"))
            {
                ids[*sequence].push(choice.token);
            }
        }
        for segment in &segments {
            kv.commit(segment.sequence, segment.start + segment.length).expect("commits");
        }
    }
    for (case, ids) in expected.cases.iter().zip(&ids) {
        assert_eq!(
            case.greedy,
            ids[case.prompt.len()..],
            "{name}, prompt of {}",
            case.prompt.len()
        );
    }
}
