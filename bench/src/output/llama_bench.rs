//! Speeds as `llama-bench -o json` writes them, so that its readers can show ours beside others.
//! Fields and their order: ggml-org/llama.cpp, tools/llama-bench/llama-bench.cpp, `get_fields` and
//! `json_printer`. A field for which this program has no true value is null.
//!
//! `pp` tests have `n_prompt`, `tg` tests have `n_gen` and the tokens before them as `n_depth`. One
//! more field, `lane`, is not llama-bench's.

use std::path::Path;

use paceline_checkpoint::ModelSummary;
use paceline_checkpoint::plan::parameters;
use paceline_client::own_service::settings::Settings;
use paceline_client::own_service::subject::Subject;
use paceline_system::clock::unix_seconds;
use paceline_system::platform;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::statistics::Figure;

/// A speed of one stream that was measured several times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LlamaTest {
    /// Tokens that were prefilled: 0 of generation.
    pub n_prompt: usize,
    /// Tokens that were generated: 0 of prefill.
    pub n_gen: usize,
    /// Tokens of the context before them.
    pub n_depth: usize,
    /// How requests were served.
    pub lane: &'static str,
    /// Tokens per second, one value for each run.
    pub samples_ts: Vec<f64>,
}

impl LlamaTest {
    /// Prefill of `prompt` tokens, and generation of `generated` ones after them. What has no speed is
    /// left out.
    pub fn of_context(
        lane: &'static str,
        (prompt, pp_tok_s): (usize, &Option<Figure>),
        (generated, tg_tok_s): (usize, &Option<Figure>),
    ) -> impl Iterator<Item = Self> + use<> {
        let values = |figure: &Option<Figure>| figure.as_ref().map(|figure| figure.values.clone());
        let base = Self { lane, ..Self::default() };
        let pp = values(pp_tok_s).map(|samples_ts| Self {
            n_prompt: prompt,
            samples_ts,
            ..base.clone()
        });
        let tg = values(tg_tok_s).map(|samples_ts| Self {
            n_gen: generated,
            n_depth: prompt,
            samples_ts,
            ..base
        });
        pp.into_iter().chain(tg)
    }
}

/// The fields of a test in their order.
const FIELDS: &str = "build_commit build_number cpu_info gpu_info backends model_filename model_type model_size model_n_params \
    n_batch n_ubatch n_threads cpu_mask cpu_strict poll type_k type_v n_gpu_layers n_cpu_moe split_mode main_gpu \
    no_kv_offload flash_attn devices tensor_split tensor_buft_overrides load_mode embeddings no_op_offload no_host \
    fit_target fit_min_ctx n_prompt n_gen n_depth test_time avg_ns stddev_ns avg_ts stddev_ts samples_ns samples_ts lane";

/// What all tests of a benchmark share.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LlamaSubject {
    /// Name and version of this program, which does not know its commit.
    build_commit: String,
    cpu_info: Option<String>,
    model_filename: String,
    model_type: Option<String>,
    model_size: u64,
    model_n_params: Option<u64>,
    n_threads: u64,
    /// When the benchmark began, RFC 3339 in UTC. Its runs alternate, so its tests have no times of
    /// their own.
    test_time: String,
}

/// Family and format of the weights, as `paceline models` names them: "llama, affine 4-bit".
fn kind(dir: &Path) -> Option<String> {
    let ModelSummary { family, quantization } = ModelSummary::of(dir);
    Some(format!("{}, {}", family?, quantization.as_deref().unwrap_or("float")))
}

impl LlamaSubject {
    /// Program, machine and model of a benchmark that begins now.
    pub fn new(subject: &Subject, settings: &Settings) -> Self {
        let dir = Path::new(&subject.target.model);
        let now = jiff::Timestamp::from_second(unix_seconds());
        Self {
            build_commit: format!("paceline {}", subject.version),
            cpu_info: platform::processor_name(),
            model_filename: subject.target.model.clone(),
            model_type: kind(dir),
            model_size: subject.target.weight_bytes,
            model_n_params: parameters(dir).ok(),
            n_threads: u64::from(settings.config.target.threads.or(subject.cores as u32)),
            test_time: now.map_or(String::new(), |now| now.to_string()),
        }
    }

    /// The array of all tests.
    pub fn array(&self, tests: &[LlamaTest]) -> String {
        let entries: Vec<TestEntry> =
            tests.iter().map(|test| TestEntry(self.known(test))).collect();
        serde_json::to_string_pretty(&entries).expect("entries are plain JSON") + "\n"
    }

    /// The fields of a test that have a true value.
    fn known(&self, test: &LlamaTest) -> Value {
        let LlamaTest { n_prompt, n_gen, n_depth, lane, samples_ts } = test;
        let tokens = (n_prompt + n_gen) as f64;
        let samples_ns: Vec<f64> = samples_ts.iter().map(|speed| tokens * 1e9 / speed).collect();
        let (ns, ts) = (Moments::of(&samples_ns), Moments::of(samples_ts));
        let whole = |ns: f64| ns.round() as u64;
        json!({
            "build_commit": self.build_commit,
            "cpu_info": self.cpu_info,
            "backends": "MLX",
            "model_filename": self.model_filename,
            "model_type": self.model_type,
            "model_size": self.model_size,
            "model_n_params": self.model_n_params,
            "n_threads": self.n_threads,
            "embeddings": false,
            "n_prompt": n_prompt,
            "n_gen": n_gen,
            "n_depth": n_depth,
            "test_time": self.test_time,
            "avg_ns": whole(ns.mean),
            "stddev_ns": whole(ns.deviation),
            "avg_ts": ts.mean,
            "stddev_ts": ts.deviation,
            "samples_ns": samples_ns.into_iter().map(whole).collect::<Vec<_>>(),
            "samples_ts": samples_ts,
            "lane": lane,
        })
    }
}

/// One object of the array.
struct TestEntry(Value);

impl Serialize for TestEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(FIELDS.split_whitespace().map(|name| (name, &self.0[name])))
    }
}

/// Mean and standard deviation of a sample; 0 where llama-bench has 0.
struct Moments {
    mean: f64,
    deviation: f64,
}

impl Moments {
    fn of(values: &[f64]) -> Self {
        let count = values.len() as f64;
        if values.is_empty() {
            return Self { mean: 0.0, deviation: 0.0 };
        }
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = if values.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
        Self { mean, deviation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(tests: &[LlamaTest]) -> Vec<serde_json::Value> {
        let subject = LlamaSubject {
            model_filename: "models/m".into(),
            n_threads: 2,
            test_time: "2026-11-27T08:00:00Z".into(),
            ..LlamaSubject::default()
        };
        serde_json::from_str(&subject.array(tests)).expect("JSON")
    }

    #[test]
    fn the_fields_are_those_of_llama_bench_in_its_order() {
        let test = LlamaTest { n_prompt: 512, lane: "absent", ..LlamaTest::default() };
        let text = LlamaSubject::default().array(&[test]);
        let fields: Vec<&str> = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix('"')?.split_once("\":"))
            .map(|(name, _)| name)
            .collect();
        let expected = "build_commit build_number cpu_info gpu_info backends model_filename model_type model_size model_n_params \
            n_batch n_ubatch n_threads cpu_mask cpu_strict poll type_k type_v n_gpu_layers n_cpu_moe split_mode main_gpu \
            no_kv_offload flash_attn devices tensor_split tensor_buft_overrides load_mode embeddings no_op_offload no_host \
            fit_target fit_min_ctx n_prompt n_gen n_depth test_time avg_ns stddev_ns avg_ts stddev_ts samples_ns samples_ts lane";
        assert_eq!(fields, expected.split_whitespace().collect::<Vec<_>>());
    }

    #[test]
    fn averages_are_of_the_samples() {
        let prefill =
            LlamaTest { n_prompt: 512, samples_ts: vec![100.0, 200.0], ..LlamaTest::default() };
        let generation = LlamaTest {
            n_gen: 128,
            n_depth: 512,
            lane: "routed",
            samples_ts: vec![64.0],
            ..LlamaTest::default()
        };
        let found = array(&[prefill, generation]);
        assert_eq!(
            found[0]["samples_ns"],
            serde_json::json!([5_120_000_000_u64, 2_560_000_000_u64])
        );
        assert_eq!(
            (&found[0]["avg_ns"], &found[0]["avg_ts"]),
            (&3_840_000_000_u64.into(), &150.0.into())
        );
        assert_eq!(found[0]["stddev_ts"], (2.0 * 50.0_f64.powi(2)).sqrt());
        assert_eq!(found[1]["avg_ns"], 2_000_000_000_u64);
        assert_eq!((&found[1]["stddev_ns"], &found[1]["n_depth"]), (&0.into(), &512.into()));
        assert_eq!(
            (&found[1]["lane"], &found[1]["n_batch"]),
            (&"routed".into(), &serde_json::Value::Null)
        );
        assert_eq!(found[1]["test_time"], "2026-11-27T08:00:00Z");
    }
}
