//! A made-up model of attention alone, and attention by definition to hold the store against.

use mlx_rs::transforms::eval;

use crate::kv::*;

/// A number from -1 to 1, a pure function of `words`.
pub(crate) fn number(words: [u64; 4]) -> f32 {
    let mixed = words.into_iter().fold(0x9e37_79b9_7f4a_7c15_u64, |mixed, word| {
        let mixed = (mixed ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ (mixed >> 32)
    });
    (mixed >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

pub(crate) const HEADS: i32 = 4;
pub(crate) const KV_HEADS: i32 = 2;
pub(crate) const DIM: i32 = 8;
pub(crate) const LAYERS: [LayerKv; 2] =
    [LayerKv::Growing(GrowingKv { n_kv: KV_HEADS, key_dim: DIM, value_dim: DIM, window: None }); 2];

/// Rows as the model would make them: a pure function of (layer, kind, sequence, position).
fn row(layer: usize, kind: u32, sequence: u64, position: i32, size: i32) -> Vec<f32> {
    let kind = u64::from(kind) + 10 * layer as u64;
    (0..size as u64).map(|at| number([kind, sequence, position as u64, at])).collect()
}

pub(crate) fn rows(layer: usize, kind: u32, segments: &[Segment], heads: i32) -> Array {
    let places = segments
        .iter()
        .flat_map(|s| (s.start..s.start + s.length).map(|position| (s.sequence.0, position)));
    let values: Vec<f32> = places
        .clone()
        .flat_map(|(sequence, position)| row(layer, kind, sequence, position, heads * DIM))
        .collect();
    Array::from_slice(&values, &[places.count() as i32, heads, DIM])
}

pub(crate) fn by_definition(layer: usize, sequence: u64, position: i32) -> Vec<f32> {
    let q = row(layer, 0, sequence, position, HEADS * DIM);
    let mut out = Vec::new();
    for head in 0..HEADS {
        let kv_head = head / (HEADS / KV_HEADS);
        let part = |all: &[f32], head: i32| {
            all[(head * DIM) as usize..((head + 1) * DIM) as usize].to_vec()
        };
        let q = part(&q, head);
        let dot = |k: &[f32]| {
            q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() * 0.25
        };
        let scores: Vec<f64> = (0..=position)
            .map(|at| dot(&part(&row(layer, 1, sequence, at, KV_HEADS * DIM), kv_head)).exp())
            .collect();
        let total: f64 = scores.iter().sum();
        for dim in 0..DIM {
            let value = |at: i32| {
                f64::from(part(&row(layer, 2, sequence, at, KV_HEADS * DIM), kv_head)[dim as usize])
            };
            out.push(
                (scores.iter().zip(0..).map(|(score, at)| score * value(at)).sum::<f64>() / total)
                    as f32,
            );
        }
    }
    out
}

pub(crate) fn step(store: &mut KvStore, lengths: &[(u64, i32)]) {
    let mut segments: Vec<Segment> = lengths
        .iter()
        .map(|(sequence, length)| {
            let sequence = SequenceId(*sequence);
            let start = store.length(sequence).expect("open");
            Segment { sequence, start, length: *length, drafted: 0 }
        })
        .collect();
    segments.sort_by_key(|segment| store.order(segment.sequence));
    for layer in 0..LAYERS.len() {
        let (q, k, v) = (
            rows(layer, 0, &segments, HEADS),
            rows(layer, 1, &segments, KV_HEADS),
            rows(layer, 2, &segments, KV_HEADS),
        );
        let params = AttentionParams { scale: 0.25, ..AttentionParams::default() };
        let out = store.attend(layer, &q, &k, &v, params, &segments).expect("attends");
        eval([&out]).expect("evaluates");
        let found: &[f32] = out.try_as_slice().expect("floats");
        let places = segments
            .iter()
            .flat_map(|s| (s.start..s.start + s.length).map(|position| (s.sequence.0, position)));
        for ((sequence, position), found) in places.zip(found.chunks((HEADS * DIM) as usize)) {
            for (a, b) in by_definition(layer, sequence, position).iter().zip(found) {
                assert!(
                    (a - b).abs() < 1e-4,
                    "layer {layer} sequence {sequence} position {position}: {a} {b}"
                );
            }
        }
    }
    for segment in &segments {
        store.commit(segment.sequence, segment.start + segment.length).expect("commits");
    }
}

pub(crate) fn store(sequences: u64) -> KvStore {
    let mut store = KvStore::new(&LAYERS, Dtype::Float32, 1000).expect("made");
    for sequence in 0..sequences {
        store.open(SequenceId(sequence)).expect("new");
    }
    store
}

/// Where the keys of the first class lie in memory.
pub(crate) fn keys_address(store: &KvStore) -> *const f32 {
    let keys = store.classes[0].arrays().next().expect("there are sequences");
    eval([keys]).expect("evaluates");
    keys.try_as_slice::<f32>().expect("floats").as_ptr()
}

impl KvStore {
    /// The store, written and read by MLX alone, as on a GPU.
    pub(crate) fn by_class(mut self) -> Self {
        self.by_row = false;
        self.classes.iter_mut().for_each(|class| class.by_nodes = false);
        self
    }

    /// The store of [`KvStore::by_class`] with the calls of Metal, or with those of CUDA, which
    /// reads `rows_at_once` rows at once.
    pub(crate) fn with_calls(mut self, rows_at_once: Option<i32>) -> Self {
        self.calls = CallForm { causal: true, rows_at_once };
        self.by_class()
    }
}
