//! One row's choice on the host, exact in every lane: no operation depends on how many rows there
//! are.

use super::noise::{gumbel, gumbel_bound};
use super::{RowRule, TokenChoice};

/// Candidates taken first when the whole set need not be sorted; grows eightfold.
const FIRST_SORTED: usize = 128;

/// Descending by logit, ties by lower id: the order in which top-k and top-p count.
fn order(row: &[f32]) -> impl Fn(&u32, &u32) -> std::cmp::Ordering + '_ {
    |a, b| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b))
}

/// The ids that pass the processors, and how far each is from failing.
struct Survivors<'a> {
    row: &'a [f32],
    rule: &'a RowRule<'a>,
    /// Candidates, in no order; survivors first.
    ids: Vec<u32>,
    /// How many of `ids` survive.
    count: usize,
    /// Best logit / T.
    max: f32,
    /// The edge of top-k: (last inside, first outside), as logit / T.
    top_k_edge: Option<(f32, f32)>,
    /// By rank in the order: mass strictly before, for the sorted ones.
    mass_before: Vec<f64>,
    /// Least exp(x − max) that top-a leaves; 0 if it is off.
    top_a_edge: f64,
}

/// Whether every logit of a row is a number below +∞. Both a NaN and +∞ fail the comparison; −∞ is
/// a banned id.
pub(super) fn is_sound(row: &[f32]) -> bool {
    // Without an early exit, so that the row is compared by vectors.
    row.iter().fold(true, |sound, logit| sound & (*logit < f32::INFINITY))
}

/// The token of one row, adjusted, ids beyond it being padding already cut off. `None` if the
/// largest allowed logit is not finite. The row as the model gave it must be sound ([`is_sound`]).
pub(super) fn choose(row: &[f32], rule: &RowRule<'_>) -> Option<TokenChoice> {
    let ids: Vec<u32> =
        (0..row.len() as u32).filter(|id| row[*id as usize] > f32::NEG_INFINITY).collect();
    if rule.sampling.temperature == 0.0 {
        return greedy(row, &ids, rule.wants_margin);
    }
    let best = ids.iter().map(|id| row[*id as usize]).fold(f32::NEG_INFINITY, f32::max);
    if !best.is_finite() {
        return None;
    }
    let max = best / rule.sampling.temperature;
    if !max.is_finite() {
        // So cold that the quotient is no number: no noise reaches from one logit to another.
        return greedy(row, &ids, rule.wants_margin);
    }
    let mut survivors = Survivors {
        row,
        rule,
        count: ids.len(),
        ids,
        max,
        top_k_edge: None,
        mass_before: vec![],
        top_a_edge: 0.0,
    };
    survivors.apply_top_k();
    survivors.apply_top_p();
    survivors.apply_min_p();
    survivors.apply_top_a();
    survivors.draw()
}

fn greedy(row: &[f32], ids: &[u32], wants_margin: bool) -> Option<TokenChoice> {
    let (mut best, mut second) = (None::<u32>, f32::NEG_INFINITY);
    for &id in ids {
        let value = row[id as usize];
        match best {
            Some(old) if value <= row[old as usize] => second = second.max(value),
            _ => {
                if let Some(old) = best {
                    second = second.max(row[old as usize]);
                }
                best = Some(id);
            }
        }
    }
    let best = best.filter(|token| row[*token as usize].is_finite());
    best.map(|token| TokenChoice {
        token,
        margin: if wants_margin { row[token as usize] - second } else { f32::INFINITY },
    })
}

impl Survivors<'_> {
    fn scaled(&self, id: u32) -> f32 {
        self.row[id as usize] / self.rule.sampling.temperature
    }

    fn apply_top_k(&mut self) {
        let k = self.rule.sampling.top_k as usize;
        if k == 0 || k >= self.count {
            return;
        }
        self.ids.select_nth_unstable_by(k, order(self.row));
        let last = self.ids[..k].iter().map(|id| self.scaled(*id)).fold(f32::INFINITY, f32::min);
        self.top_k_edge = Some((last, self.scaled(self.ids[k])));
        self.count = k;
    }

    /// Keeps an id while the mass before it is below top-p. Mass is of the survivors so far, summed
    /// in float64 from the most probable down; only as many are sorted as are needed.
    fn apply_top_p(&mut self) {
        let p = f64::from(self.rule.sampling.top_p);
        if p >= 1.0 {
            return;
        }
        let total = self.mass();
        let mut sorted = FIRST_SORTED.min(self.count);
        loop {
            if sorted < self.count {
                self.ids[..self.count].select_nth_unstable_by(sorted, order(self.row));
            }
            self.ids[..sorted].sort_unstable_by(order(self.row));
            let weight = |id: u32| f64::from(self.scaled(id) - self.max).exp() / total;
            let mut mass = 0.0;
            let before: Vec<f64> = self.ids[..sorted]
                .iter()
                .map(|id| {
                    let at = mass;
                    mass += weight(*id);
                    at
                })
                .collect();
            let kept = before.iter().take_while(|mass| **mass < p).count();
            // The margin needs one id beyond the edge, unless there is none.
            if kept < sorted || sorted == self.count {
                self.count = kept;
                self.mass_before = before;
                return;
            }
            sorted = (sorted * 8).min(self.count);
        }
    }

    fn apply_min_p(&mut self) {
        let min_p = f64::from(self.rule.sampling.min_p);
        if min_p > 0.0 {
            let (row, temperature, max) = (self.row, self.rule.sampling.temperature, self.max);
            let survives =
                |id: &u32| f64::from(row[*id as usize] / temperature - max).exp() >= min_p;
            self.count = partition(&mut self.ids[..self.count], &mut self.mass_before, survives);
        }
    }

    /// Keeps an id if its probability is at least top-a times the square of the best one's, by the
    /// softmax of the survivors so far. With masses m = exp(x − max) and their sum M that is
    /// m ≥ top-a / M: the best id has mass 1 and always survives.
    fn apply_top_a(&mut self) {
        let top_a = f64::from(self.rule.sampling.top_a);
        if top_a > 0.0 {
            self.top_a_edge = top_a / self.mass();
            let (row, temperature, max) = (self.row, self.rule.sampling.temperature, self.max);
            let edge = self.top_a_edge;
            let survives =
                |id: &u32| f64::from(row[*id as usize] / temperature - max).exp() >= edge;
            self.count = partition(&mut self.ids[..self.count], &mut self.mass_before, survives);
        }
    }

    /// Sum of the survivors' exp(x − max), in the order of ids, so that it does not depend on how
    /// candidates were selected.
    fn mass(&self) -> f64 {
        let mut by_id = self.ids[..self.count].to_vec();
        by_id.sort_unstable();
        by_id.into_iter().map(|id| f64::from(self.scaled(id) - self.max).exp()).sum()
    }

    /// The survivor with the largest logit / T + noise. The noise's logarithms are only taken where
    /// its bound could win.
    fn draw(&self) -> Option<TokenChoice> {
        let (key, position) = (self.rule.noise, self.rule.position);
        let mut best: Option<(f32, u32)> = None;
        let mut second = f32::NEG_INFINITY;
        let (mut quad, mut words) = (u32::MAX, [0; 4]);
        for &id in &self.ids[..self.count] {
            if id / 4 != quad {
                quad = id / 4;
                words = key.words(position, quad);
            }
            let word = words[(id % 4) as usize];
            let (x, floor) = (
                self.scaled(id),
                if self.rule.wants_margin {
                    second
                } else {
                    best.map_or(f32::NEG_INFINITY, |best| best.0)
                },
            );
            if x + gumbel_bound(word) < floor {
                continue;
            }
            let score = x + gumbel(word);
            match best {
                Some((top, token)) if score < top || (score == top && id > token) => {
                    second = second.max(score)
                }
                _ => {
                    second = best.map_or(second, |(top, _)| second.max(top));
                    best = Some((score, id));
                }
            }
        }
        let (score, token) = best?;
        let margin = if self.rule.wants_margin {
            (score - second).min(self.edge_distance(token, score))
        } else {
            f32::INFINITY
        };
        Some(TokenChoice { token, margin })
    }

    /// How near the outcome is to an edge of top-k, top-p, min-p or top-a: the winner's own distance, and
    /// that of ids shut out by an edge that would have won.
    fn edge_distance(&self, winner: u32, score: f32) -> f32 {
        let mut distance = f32::INFINITY;
        for (at, &id) in self.ids.iter().enumerate() {
            let inside = at < self.count;
            if inside && id != winner {
                continue;
            }
            if !inside && self.scaled(id) + self.rule.noise.noise(self.rule.position, id) <= score {
                continue;
            }
            let x = self.scaled(id);
            let mut edges = f32::INFINITY;
            if let Some((last_in, first_out)) = self.top_k_edge {
                edges = edges.min(if x >= last_in { x - first_out } else { last_in - x });
            }
            // The most probable id is never cut, neither by a share of mass nor by its own
            // probability.
            if let Some(mass) = self.mass_before.get(at).filter(|mass| **mass > 0.0) {
                edges = edges.min((mass - f64::from(self.rule.sampling.top_p)).abs() as f32);
            }
            if self.rule.sampling.min_p > 0.0 && x < self.max {
                edges = edges.min(
                    (f64::from(x - self.max).exp() - f64::from(self.rule.sampling.min_p)).abs()
                        as f32,
                );
            }
            if self.top_a_edge > 0.0 && x < self.max {
                let mass = f64::from(x - self.max).exp();
                edges = edges.min((mass - self.top_a_edge).abs() as f32);
            }
            distance = distance.min(edges);
        }
        distance
    }
}

/// Moves what survives to the front, keeping the order and `beside` in step; returns how many do.
fn partition(ids: &mut [u32], beside: &mut [f64], survives: impl Fn(&u32) -> bool) -> usize {
    let mut kept = 0;
    for at in 0..ids.len() {
        if survives(&ids[at]) {
            ids.swap(kept, at);
            if at < beside.len() {
                beside.swap(kept, at);
            }
            kept += 1;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::SamplingRule;
    use crate::sample::noise::NoiseKey;

    fn rule(sampling: SamplingRule, position: u32) -> RowRule<'static> {
        RowRule {
            sampling,
            noise: NoiseKey { seed: 7, sample: 0 },
            position,
            wants_margin: true,
            ..RowRule::greedy(&[], 0)
        }
    }

    /// The definition, word for word: everything sorted, every noise computed.
    fn by_definition(row: &[f32], rule: &RowRule<'_>) -> u32 {
        let s = rule.sampling;
        let mut ids: Vec<u32> = (0..row.len() as u32).collect();
        ids.sort_by(order(row));
        if s.top_k > 0 {
            ids.truncate(s.top_k as usize);
        }
        let weight = |id: &u32| {
            f64::from(row[*id as usize] / s.temperature - row[ids[0] as usize] / s.temperature)
                .exp()
        };
        let total: f64 = ids.iter().map(weight).sum();
        let mut mass = 0.0;
        let kept: Vec<u32> = ids
            .iter()
            .copied()
            .filter(|id| {
                let before = mass;
                mass += weight(id) / total;
                (before < f64::from(s.top_p) || s.top_p >= 1.0) && weight(id) >= f64::from(s.min_p)
            })
            .collect();
        let mass: f64 = kept.iter().map(weight).sum();
        let probability = |id: &u32| weight(id) / mass;
        let best = kept.iter().map(probability).fold(0.0, f64::max);
        let kept: Vec<u32> = kept
            .iter()
            .copied()
            .filter(|id| probability(id) >= f64::from(s.top_a) * best * best)
            .collect();
        let score =
            |id: &u32| row[*id as usize] / s.temperature + rule.noise.noise(rule.position, *id);
        kept.into_iter()
            .max_by(|a, b| score(a).total_cmp(&score(b)).then(b.cmp(a)))
            .expect("one survives")
    }

    fn random_row(size: usize, seed: u32) -> Vec<f32> {
        (0..size as u32).map(|id| NoiseKey { seed: 99, sample: seed }.noise(0, id) * 2.0).collect()
    }

    #[test]
    fn shortcuts_choose_what_the_definition_chooses() {
        for seed in 0..60u32 {
            let row = random_row(if seed % 3 == 0 { 3000 } else { 200 }, seed);
            for sampling in [
                SamplingRule { temperature: 1.0, ..SamplingRule::GREEDY },
                SamplingRule { temperature: 0.8, top_p: 0.95, ..SamplingRule::GREEDY },
                SamplingRule { temperature: 3.0, top_p: 0.99, ..SamplingRule::GREEDY },
                SamplingRule { temperature: 1.5, top_k: 20, ..SamplingRule::GREEDY },
                SamplingRule {
                    temperature: 1.2,
                    top_k: 50,
                    top_p: 0.7,
                    min_p: 0.02,
                    ..SamplingRule::GREEDY
                },
                SamplingRule { temperature: 2.0, min_p: 0.1, ..SamplingRule::GREEDY },
                SamplingRule { temperature: 1.5, top_a: 0.3, ..SamplingRule::GREEDY },
                SamplingRule { temperature: 2.0, top_a: 1.0, top_k: 50, ..SamplingRule::GREEDY },
                SamplingRule { temperature: 1.5, top_a: 0.1, top_p: 0.9, ..SamplingRule::GREEDY },
            ] {
                for position in 0..20 {
                    let rule = rule(sampling, position);
                    assert_eq!(
                        choose(&row, &rule).expect("a choice").token,
                        by_definition(&row, &rule),
                        "{sampling:?} {seed} {position}"
                    );
                    let quick =
                        choose(&row, &RowRule { wants_margin: false, ..rule }).expect("a choice");
                    assert_eq!(quick.token, by_definition(&row, &rule));
                }
            }
        }
    }

    #[test]
    fn ties_go_to_the_lowest_id() {
        assert_eq!(
            choose(&[1.0, 3.0, 3.0], &rule(SamplingRule::GREEDY, 0)),
            Some(TokenChoice { token: 1, margin: 0.0 })
        );
    }

    #[test]
    fn a_margin_is_the_distance_to_another_outcome() {
        assert!(
            (choose(&[1.0, 3.0, 2.5], &rule(SamplingRule::GREEDY, 0)).expect("a choice").margin
                - 0.5)
                .abs()
                < 1e-6
        );
        // Two ids share the mass evenly: with top-p just at a half, the second is at the edge
        // whichever wins.
        let edge = SamplingRule { temperature: 1.0, top_p: 0.5, ..SamplingRule::GREEDY };
        let margins: Vec<f32> = (0..50)
            .map(|at| choose(&[1.0, 1.0], &rule(edge, at)).expect("a choice").margin)
            .collect();
        assert!(
            margins.iter().any(|margin| *margin < 1e-6),
            "an id excluded at the edge would have won sometimes"
        );
    }

    #[test]
    fn a_row_without_a_finite_maximum_gives_no_choice() {
        let banned = [1.0, f32::NEG_INFINITY, 2.0];
        assert_eq!(choose(&banned, &rule(SamplingRule::GREEDY, 0)).expect("a choice").token, 2);
        assert_eq!(choose(&[f32::NAN, f32::NEG_INFINITY], &rule(SamplingRule::GREEDY, 0)), None);
        let warm = SamplingRule { temperature: 1.0, ..SamplingRule::GREEDY };
        assert_eq!(choose(&[f32::NAN], &rule(warm, 0)), None);
        // Adjusted to more than there is.
        for sampling in [SamplingRule::GREEDY, warm] {
            assert_eq!(choose(&[1.0, f32::INFINITY], &rule(sampling, 0)), None, "{sampling:?}");
            assert_eq!(choose(&[f32::NEG_INFINITY; 2], &rule(sampling, 0)), None, "{sampling:?}");
        }
    }

    #[test]
    fn the_coldest_temperature_is_greedy() {
        for temperature in [f32::MIN_POSITIVE, 1e-40, 1e-30] {
            for (top_p, min_p) in [(1.0, 0.0), (0.5, 0.0), (0.5, 0.5)] {
                let cold = SamplingRule { temperature, top_p, min_p, ..SamplingRule::GREEDY };
                assert_eq!(
                    choose(&[1.0, 3.0, 9.0, 2.0], &rule(cold, 0)).expect("a choice").token,
                    2
                );
                assert_eq!(choose(&[-1.0, -3.0, -9.0], &rule(cold, 0)).expect("a choice").token, 0);
            }
        }
    }

    #[test]
    fn a_token_does_not_depend_on_ids_beyond_the_limit() {
        let row = random_row(200, 5);
        let longer: Vec<f32> = row.iter().copied().chain([50.0; 8]).collect();
        let warm = SamplingRule { temperature: 0.9, top_p: 0.9, ..SamplingRule::GREEDY };
        assert_eq!(choose(&row, &rule(warm, 3)), choose(&longer[..200], &rule(warm, 3)));
    }
}
