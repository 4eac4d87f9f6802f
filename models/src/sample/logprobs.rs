//! How probable a token was under the distribution it was chosen from: after penalties, bias and
//! bans, divided by the temperature (1 where it is 0), before top-k, top-p and min-p. In float64
//! and in the order of ids, so that it does not depend on which rows come together.

use super::RowRule;

/// Natural logarithms of probabilities at one place.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The most probable ids, most probable first, equal ones by lower id; fewer than asked for
    /// only where fewer are allowed.
    pub top: Vec<(u32, f32)>,
}

/// Log-probabilities of an adjusted row's chosen token and of its `count` most probable ones.
pub(super) fn of(row: &[f32], rule: &RowRule<'_>, chosen: u32, count: usize) -> Logprobs {
    let temperature = match rule.sampling.temperature {
        0.0 => 1.0,
        temperature => f64::from(temperature),
    };
    let allowed = || {
        row.iter()
            .enumerate()
            .filter(|(_, logit)| **logit > f32::NEG_INFINITY)
            .map(|(id, l)| (id as u32, *l))
    };
    let mut top: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    let mut best = f32::NEG_INFINITY;
    for (id, logit) in allowed() {
        best = best.max(logit);
        if top.len() < count || top.last().is_some_and(|(_, least)| logit > *least) {
            // Behind equal ones: ids ascend.
            let at = top.partition_point(|(_, other)| *other >= logit);
            top.insert(at, (id, logit));
            top.truncate(count);
        }
    }
    let scaled = |logit: f32| (f64::from(logit) - f64::from(best)) / temperature;
    let log_total = allowed().map(|(_, logit)| scaled(logit).exp()).sum::<f64>().ln();
    // Finite, as a logarithm of a probability that is no longer a number of its own could not be
    // written as JSON.
    let of = |logit: f32| (scaled(logit) - log_total).max(f64::from(f32::MIN)) as f32;
    let chosen = row.get(chosen as usize).map_or(f32::MIN, |logit| of(*logit));
    Logprobs { chosen, top: top.into_iter().map(|(id, logit)| (id, of(logit))).collect() }
}
