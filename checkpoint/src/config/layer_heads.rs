//! Heads of single layers: `per_layer_config` of config.json, in which transformers 5.23 writes what
//! layers have instead of the config's own values, by their numbers.

use serde_json::{Map, Value};

use super::ConfigJson;
use crate::CheckpointError;

const KEY: &str = "per_layer_config";
/// Keys of a layer.
const KEYS: [&str; 2] = ["head_dim", "num_key_value_heads"];

/// Heads of keys and values of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadSizes {
    /// Numbers of a head.
    pub head_dim: i32,
    /// Number of heads.
    pub n_kv: i32,
}

impl ConfigJson {
    /// Heads of those of `n_layers` layers that `is_wanted` names, which must be the same; `None` if
    /// config.json has nothing about single layers. Layers that it does not name have the `usual` ones.
    ///
    /// # Errors
    /// They differ, or the config names what is not read here.
    pub fn heads_of_layers(
        &self,
        n_layers: usize,
        is_wanted: impl Fn(usize) -> bool,
        usual: HeadSizes,
    ) -> Result<Option<HeadSizes>, CheckpointError> {
        let Some(all) = self.part(KEY)? else { return Ok(None) };
        for (layer, keys) in self.required::<Map<String, Value>>(KEY)? {
            let is_number = layer.parse().is_ok_and(|at: usize| at < n_layers);
            if !is_number || layer.starts_with('0') && layer != "0" {
                let what = format!("expected the number of a layer below {n_layers}");
                return Err(all.wrong(&layer, what));
            }
            let mut keys = keys.as_object().into_iter().flat_map(Map::keys);
            if let Some(other) = keys.find(|key| !KEYS.contains(&key.as_str())) {
                let what = format!("expected {}, found {other}", KEYS.join(" or "));
                return Err(all.wrong(&layer, what));
            }
        }
        let mut first: Option<(usize, HeadSizes)> = None;
        for at in (0..n_layers).filter(|at| is_wanted(*at)) {
            let sizes = match all.part(&at.to_string())? {
                None => usual,
                Some(layer) => HeadSizes {
                    head_dim: layer.size_or(KEYS[0], usual.head_dim)?,
                    n_kv: layer.size_or(KEYS[1], usual.n_kv)?,
                },
            };
            let (before, expected) = *first.get_or_insert((at, sizes));
            if sizes != expected {
                let what = format!(
                    "expected layers of one kind to have the same heads, found {} of {} in layer \
                     {before} and {} of {} in layer {at}",
                    expected.n_kv, expected.head_dim, sizes.n_kv, sizes.head_dim
                );
                return Err(self.wrong(KEY, what));
            }
        }
        Ok(Some(first.map_or(usual, |(_, sizes)| sizes)))
    }
}
