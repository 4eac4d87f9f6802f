//! Most positions of a sequence, as config.json has them.

use serde_json::{Map, Value};

use super::ConfigJson;
use crate::CheckpointError;

const KEY: &str = "max_position_embeddings";

/// Most positions of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextLength {
    /// Their number.
    pub positions: i32,
    /// What an operator should know of it.
    pub note: Option<String>,
}

impl ConfigJson {
    /// `max_position_embeddings`, or what YaRN stretches its original length to if that is more.
    /// Published models are told so by their keys of rotation alone.
    ///
    /// # Errors
    /// It is missing or out of range, or YaRN's product is.
    pub fn context(&self) -> Result<ContextLength, CheckpointError> {
        let positions = self.size(KEY)?;
        let mut keys: Map<String, Value> = Map::new();
        for group in ["rope_scaling", "rope_parameters"] {
            keys.extend(self.optional::<Map<String, Value>>(group)?.unwrap_or_default());
        }
        let kind = keys.get("rope_type").filter(|kind| !kind.is_null()).or(keys.get("type"));
        let number = |key: &str| keys.get(key).and_then(Value::as_f64);
        let (Some("yarn"), Some(factor), Some(original)) = (
            kind.and_then(Value::as_str),
            number("factor"),
            number("original_max_position_embeddings"),
        ) else {
            return Ok(ContextLength { positions, note: None });
        };
        let stretched = self.check_size("rope_scaling.factor", (original * factor) as i64)?;
        let is_longer = stretched > positions;
        let note = is_longer.then(|| {
            format!(
                "the context is {stretched} positions, {original} by YaRN's factor {factor}; {KEY} is \
                 {positions}"
            )
        });
        Ok(ContextLength { positions: stretched.max(positions), note })
    }
}
