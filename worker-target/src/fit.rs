//! Whether a model fits this machine, before a weight is read: what its weights and its shortest
//! sequence take, beside what is usable.

use paceline_models::load::{CheckpointPlan, KvHeads};
use paceline_models::{Dtype, GrowingKv, KvStore, LayerKv, ModelError};
use paceline_process::config::{Auto, Config};

/// Share of free memory for the KV when the configuration names none.
pub(crate) const KV_SHARE: f64 = 0.5;

/// Memory that a model needs, and memory that there is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Fit {
    /// Bytes of the weights once they are loaded.
    pub(crate) weights: u64,
    /// Bytes of the KV of the shortest sequence.
    pub(crate) shortest: u64,
    /// Bytes that can be used now; `None` if the system does not tell.
    pub(crate) usable: Option<u64>,
    /// Bytes for the KV, by the configuration or as a share of what the weights leave.
    pub(crate) kv_budget: Option<u64>,
}

/// The model does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the model does not fit this machine: its weights take {weights} and its shortest sequence {shortest}, of which {usable} can be used now; choose a smaller model or one with fewer bits, or end other programs (`paceline inspect` shows the figures)"
)]
pub(crate) struct DoesNotFit {
    weights: String,
    shortest: String,
    usable: String,
}

impl Fit {
    /// Compares a plan with the machine.
    ///
    /// # Errors
    /// The sizes of the KV are none.
    pub(crate) fn new(
        plan: &CheckpointPlan,
        config: &Config,
        usable: Option<u64>,
    ) -> Result<Self, ModelError> {
        let shortest = kv_store(plan)?.class_bytes().first().map_or(0, |(_, bytes)| *bytes);
        let weights = plan.storage.memory_bytes();
        let share = config.kv.budget_fraction.or(KV_SHARE);
        let kv_budget = match config.kv.budget_bytes {
            Auto::Is(bytes) => Some(bytes),
            Auto::Auto => usable.map(|all| (all.saturating_sub(weights) as f64 * share) as u64),
        };
        Ok(Self { weights, shortest, usable, kv_budget })
    }

    /// # Errors
    /// Weights and shortest sequence take more than can be used.
    pub(crate) fn check(&self) -> Result<(), DoesNotFit> {
        match self.usable {
            Some(usable) if self.weights.saturating_add(self.shortest) > usable => {
                let [weights, shortest, usable] =
                    [self.weights, self.shortest, usable].map(in_words);
                Err(DoesNotFit { weights, shortest, usable })
            }
            _ => Ok(()),
        }
    }
}

/// The store that the model would have, without a sequence.
///
/// # Errors
/// Sizes that no store can have.
pub(crate) fn kv_store(plan: &CheckpointPlan) -> Result<KvStore, ModelError> {
    let growing = |heads: &KvHeads| {
        let KvHeads { n_kv, head_dim, window } = *heads;
        LayerKv::Growing(GrowingKv { n_kv, key_dim: head_dim, value_dim: head_dim, window })
    };
    let dtype = if plan.number_bytes == 4 { Dtype::Float32 } else { Dtype::Bfloat16 };
    let recurrent = plan.recurrent.iter().copied().map(LayerKv::Recurrent);
    let layers: Vec<LayerKv> = plan.kv_heads.iter().map(growing).chain(recurrent).collect();
    KvStore::with_most_rows(&layers, dtype, plan.context, plan.most_rows)
}

/// A number of bytes for people.
pub(crate) fn in_words(count: u64) -> String {
    const UNITS: [&str; 4] = ["MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (count as f64 / f64::from(1 << 20), 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use paceline_models::{LoadOptions, plan_target};

    use paceline_models::SequenceId;
    use paceline_models::sample::SamplingRule;

    use super::*;
    use crate::engine::tests::fixture;
    use paceline_target_core::{ClassBytes, Ledger, Scheduler};

    const GREEDY: SamplingRule = SamplingRule::GREEDY;

    #[test]
    fn the_states_of_recurrent_layers_are_planned_for() {
        let model = fixture::load_hybrid();
        let plan = plan_target(&model.info().path, LoadOptions::default()).expect("a plan");
        let (planned, made) = (kv_store(&plan).expect("sizes"), fixture::store(&*model));
        assert_eq!(planned.class_bytes(), made.class_bytes());
        assert!(planned.state_bytes() > 0 && planned.state_bytes() == made.state_bytes());
    }

    #[test]
    fn the_rows_of_an_image_that_must_be_in_one_pass_are_planned_for() {
        let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../models/tests/golden/gemma4-vl-tiny");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let weights = "model.safetensors";
        std::fs::copy(golden.join(weights), dir.path().join(weights)).expect("copied");
        // Slots keep a part of the positions if there are more than a pass and a window have.
        let config = std::fs::read_to_string(golden.join("config.json")).expect("there");
        let (short, long) = ("embeddings\": 512", "embeddings\": 4096");
        assert!(config.contains(short));
        let config = config.replace(short, long);
        std::fs::write(dir.path().join("config.json"), config).expect("written");
        let most_rows = |budget: u32| {
            let settings = format!(r#"{{"image_processor": {{"max_soft_tokens": {budget}}}}}"#);
            std::fs::write(dir.path().join("processor_config.json"), settings).expect("written");
            let plan = plan_target(dir.path(), LoadOptions::default()).expect("a plan");
            let model = paceline_models::load_target(dir.path(), &mut |_, _| {}).expect("loads");
            let (planned, made) = (kv_store(&plan).expect("sizes"), fixture::store(&*model));
            assert_eq!(planned.class_bytes(), made.class_bytes());
            assert_eq!(planned.most_rows(), made.most_rows());
            made.most_rows()
        };
        fixture::load_hybrid();
        assert_eq!([280, 1120].map(most_rows), [Some(512), Some(1120)]);
    }

    #[test]
    fn the_states_of_32_sequences_are_held_to_the_byte_and_bound_their_number() {
        let model = fixture::load_hybrid();
        let (mut kv, drafting) = (fixture::store(&*model), fixture::drafting(&*model, false));
        let (positions, class) = kv.class_bytes()[0];
        assert_eq!(class, positions as u64 * kv.row_bytes() + kv.state_bytes());
        let ask = |scheduler: &mut Scheduler, count: usize| {
            for at in 0..count {
                let (running, _) = fixture::request(&format!("r{at}"), vec![5; 10], 9, GREEDY);
                scheduler.add(running.request.scheduling).expect("it could run");
            }
            scheduler.start(|_| 0).keys
        };
        let mut scheduler = fixture::scheduler(&kv, &drafting);
        for key in ask(&mut scheduler, 32) {
            kv.open(SequenceId(key.0)).expect("new");
            kv.reserve(SequenceId(key.0), positions).expect("room");
        }
        assert_eq!((scheduler.ledger().held(), kv.allocated_bytes()), (32 * class, 32 * class));
        let keys: Vec<_> = scheduler.iter().map(|(key, _)| key).collect();
        for key in keys {
            scheduler.remove(key);
            kv.free(SequenceId(key.0));
        }
        assert_eq!((scheduler.ledger().held(), kv.allocated_bytes()), (0, 0));
        // A budget of five states and shortest places, and half of one.
        let classes = [ClassBytes { positions: 256, kv: class, hidden: 0 }];
        let ledger = Ledger::new(5 * class + class / 2, classes.to_vec());
        assert_eq!(ask(&mut Scheduler::new(ledger, 32), 32).len(), 5);
    }

    #[test]
    fn a_model_fits_if_its_weights_and_one_sequence_do() {
        let fit = |usable| Fit { weights: 3 << 30, shortest: 1 << 20, usable, kv_budget: None };
        assert_eq!(fit(Some((3 << 30) + (1 << 20))).check(), Ok(()));
        assert_eq!(fit(None).check(), Ok(()), "unknown is no reason to refuse");
        let refused = fit(Some(3 << 30)).check().expect_err("one sequence is too much").to_string();
        for figure in ["weights take 3.0 GiB", "sequence 1.0 MiB", "3.0 GiB can be used"] {
            assert!(refused.contains(figure), "{refused}");
        }
    }
}
