//! The largest logit of every row, and whether a choice can be made of the row: the part of a
//! greedy choice that is in the graph. A row with a NaN, or whose maximum is not finite, is not
//! sound: its id is some id below the limit, so that a graph that was built on it reads no foreign
//! memory, and the second number marks it as no choice.

use mlx_rs::ops::indexing::{TryIndexOp, argmax_axis};
use mlx_rs::{Array, ArrayElement};

use crate::error::Result;
use crate::layers;

/// The largest logit's id of every row among the ids below a limit, and the rows' verdicts. Lazy.
#[derive(Clone, Debug)]
pub(super) enum Largest {
    /// A node of our own: `[2 · rows]`, uint32. All ids, then 1 for each sound row and 0 for any
    /// other.
    Joined(Array),
    /// Computed by MLX.
    Apart {
        /// `[rows]`, uint32.
        ids: Array,
        /// `[rows]`: ln Σ e^x, which is finite only for a sound row. MLX's maximum would not do, as
        /// not every version and device of MLX keeps a NaN in it.
        sums: Array,
    },
}

impl Largest {
    /// Of `logits` `[rows, vocab]`, float32.
    ///
    /// # Errors
    /// MLX's own.
    pub(super) fn of(logits: &Array, limit: usize) -> Result<Self> {
        match layers::largest(logits, limit)? {
            Some(joined) => Ok(Self::Joined(joined)),
            None => Self::by_mlx(logits, limit),
        }
    }

    fn by_mlx(logits: &Array, limit: usize) -> Result<Self> {
        let below = match limit == logits.dim(1) as usize {
            true => logits.clone(),
            false => logits.try_index((.., ..limit as i32))?,
        };
        Ok(Self::Apart {
            ids: argmax_axis(&below, -1, false)?,
            sums: below.logsumexp_axis(-1, false)?,
        })
    }

    /// Arrays to evaluate before [`Largest::read`].
    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        let (first, second) = match self {
            Self::Joined(joined) => (joined, None),
            Self::Apart { ids, sums } => (ids, Some(sums)),
        };
        [first].into_iter().chain(second)
    }

    /// The ids `[rows]`, uint32, as a part of the graph.
    ///
    /// # Errors
    /// MLX's own.
    pub(super) fn ids(&self) -> Result<Array> {
        match self {
            Self::Joined(joined) => Ok(joined.try_index(..joined.dim(0) / 2)?),
            Self::Apart { ids, .. } => Ok(ids.clone()),
        }
    }

    /// The evaluated numbers.
    ///
    /// # Errors
    /// They are not evaluated.
    pub(super) fn read(&self) -> Result<LargestOnHost<'_>> {
        match self {
            Self::Joined(joined) => {
                let both: &[u32] = on_host(Some(joined))?;
                let (ids, verdicts) = both.split_at(both.len() / 2);
                Ok(LargestOnHost { ids, verdicts: Soundness::Flags(verdicts) })
            }
            Self::Apart { ids, sums } => Ok(LargestOnHost {
                ids: on_host(Some(ids))?,
                verdicts: Soundness::Sums(on_host(Some(sums))?),
            }),
        }
    }
}

/// The numbers of a [`Largest`] on the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct LargestOnHost<'a> {
    ids: &'a [u32],
    verdicts: Soundness<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Soundness<'a> {
    Flags(&'a [u32]),
    Sums(&'a [f32]),
}

impl LargestOnHost<'_> {
    /// The id that a row's choice takes; `None` if the row is not sound, or there is no such row.
    pub(super) fn id(&self, row: usize) -> Option<u32> {
        let is_sound = match self.verdicts {
            Soundness::Flags(flags) => *flags.get(row)? == 1,
            Soundness::Sums(sums) => sums.get(row)?.is_finite(),
        };
        is_sound.then(|| self.ids.get(row).copied())?
    }
}

/// The numbers of an evaluated array, none of none.
pub(super) fn on_host<T: ArrayElement>(array: Option<&Array>) -> Result<&[T]> {
    Ok(array.map(Array::try_as_slice).transpose()?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use mlx_rs::Dtype;
    use mlx_rs::transforms::eval;

    use super::*;
    use crate::device::{DeviceChoice, choose};
    use crate::sample::noise::NoiseKey;

    const VOCAB: usize = 150;
    const LIMIT: usize = 140;

    fn row(seed: u32) -> Vec<f32> {
        (0..VOCAB as u32).map(|id| NoiseKey { seed: 5, sample: seed }.noise(3, id)).collect()
    }

    /// A row with this number at these places.
    fn with(seed: u32, at: &[usize], number: f32) -> Vec<f32> {
        let mut row = row(seed);
        at.iter().for_each(|at| row[*at] = number);
        row
    }

    fn both(logits: &Array, limit: usize) -> [Largest; 2] {
        choose(DeviceChoice::Cpu).expect("there is a CPU");
        [Largest::of(logits, limit).expect("made"), Largest::by_mlx(logits, limit).expect("made")]
    }

    #[test]
    fn an_unsound_row_has_no_choice_and_a_valid_id_in_the_graph() {
        let infinite = f32::INFINITY;
        let padding: Vec<usize> = (LIMIT..VOCAB).collect();
        let all: Vec<usize> = (0..VOCAB).collect();
        // What is in the row, and whether it is sound.
        let rows = [
            (row(0), true),
            (with(1, &[0], f32::NAN), false),
            (with(2, &[77], f32::NAN), false),
            (with(3, &[LIMIT - 1], -f32::NAN), false),
            (with(4, &[20], infinite), false),
            (with(5, &all, f32::NAN), false),
            (with(6, &all, -infinite), false),
            (with(7, &all[..LIMIT], -infinite), false),
            (with(8, &padding, f32::NAN), true),
            (with(9, &padding, infinite), true),
            (with(10, &[3, 90], -infinite), true),
            (row(11), true),
        ];
        let numbers: Vec<f32> = rows.iter().flat_map(|(row, _)| row.clone()).collect();
        let logits = Array::from_slice(&numbers, &[rows.len() as i32, VOCAB as i32]);
        for largest in both(&logits, LIMIT) {
            let ids = largest.ids().expect("lazy");
            eval(largest.arrays().chain([&ids])).expect("evaluates");
            assert_eq!((ids.shape(), ids.dtype()), (&[rows.len() as i32][..], Dtype::Uint32));
            let in_graph: &[u32] = ids.try_as_slice().expect("on the host");
            let read = largest.read().expect("evaluated");
            for (at, (row, is_sound)) in rows.iter().enumerate() {
                let best =
                    (0..LIMIT).rev().max_by(|a, b| row[*a].total_cmp(&row[*b])).expect("not empty")
                        as u32;
                assert_eq!(read.id(at), is_sound.then_some(best), "row {at}");
                assert!(in_graph[at] < LIMIT as u32, "row {at}: {}", in_graph[at]);
                assert!(!is_sound || in_graph[at] == best, "row {at}");
            }
            assert_eq!(read.id(rows.len()), None);
        }
    }

    #[test]
    fn a_limit_of_the_whole_vocabulary_and_a_single_row_work() {
        for row in [with(1, &[VOCAB - 1], 99.0), with(1, &[0], 99.0)] {
            let logits = Array::from_slice(&row, &[1, VOCAB as i32]);
            for largest in both(&logits, VOCAB) {
                eval(largest.arrays()).expect("evaluates");
                let place = row.iter().position(|x| *x == 99.0).map(|at| at as u32);
                assert_eq!(largest.read().expect("evaluated").id(0), place);
            }
        }
    }

    #[test]
    #[ignore = "soak: a timed figure"]
    #[expect(clippy::disallowed_methods, reason = "times of the two ways, nothing else")]
    fn the_greedy_choice_with_its_verdict_costs_no_more_than_mlx_s_argmax() {
        choose(DeviceChoice::Cpu).expect("there is a CPU");
        for (rows, vocab, limit) in [
            (1, 4096, 4096),
            (1, 4096, 4090),
            (8, 4096, 4090),
            (1, 151_936, 151_669),
            (16, 151_936, 151_669),
        ] {
            let numbers: Vec<f32> =
                (0..rows * vocab).map(|at| ((at * 7919 % 100_003) as f32).sin()).collect();
            let logits = Array::from_slice(&numbers, &[rows, vocab]);
            let time = |make: &dyn Fn() -> Vec<Array>| {
                let mut times: Vec<f64> = (0..300)
                    .map(|_| {
                        let start = std::time::Instant::now();
                        eval(make().iter()).expect("evaluates");
                        start.elapsed().as_secs_f64() * 1e6
                    })
                    .collect();
                times.sort_by(f64::total_cmp);
                times[times.len() / 5]
            };
            let own = time(&|| {
                let largest = Largest::of(&logits, limit as usize).expect("made");
                let ids = largest.ids().expect("lazy");
                largest.arrays().cloned().chain([ids]).collect()
            });
            let argmax = time(&|| match Largest::by_mlx(&logits, limit as usize).expect("made") {
                Largest::Apart { ids, .. } => vec![ids],
                Largest::Joined(joined) => vec![joined],
            });
            println!(
                "{rows} rows of {vocab}: {own:.1} us with a verdict, {argmax:.1} us by MLX without one"
            );
            assert!(own < 1.1 * argmax + 5.0, "{own} and {argmax}");
        }
    }

    #[test]
    fn rows_with_strides_are_read_right() {
        let numbers = [row(1), with(2, &[9], f32::NAN), row(3)].concat();
        let logits = Array::from_slice(&numbers, &[3, VOCAB as i32]);
        let across = logits
            .transpose()
            .and_then(|across| across.contiguous())
            .and_then(|across| across.transpose());
        let across = across.expect("a view");
        let read = |logits: &Array| {
            let largest = Largest::of(logits, LIMIT).expect("made");
            eval(largest.arrays()).expect("evaluates");
            (0..3).map(|at| largest.read().expect("evaluated").id(at)).collect::<Vec<_>>()
        };
        assert_eq!(read(&logits), read(&across));
        assert_eq!(read(&logits)[1], None);
    }
}
