//! Ratios of all cells as geometric means: over the kinds at each number of requests, over the
//! numbers for each kind, and over all. Each run has a mean of its own. Pure.

use serde::Serialize;

use super::verdict::CellRow;
use crate::statistics::Figure;

/// The mean of some cells.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mean {
    /// The cells, in words.
    pub of: String,
    /// Whether they are those of a number of requests, over all kinds.
    pub of_number: bool,
    /// One mean for each run.
    #[serde(flatten)]
    pub figure: Figure,
}

/// The means of what `ratios` has for each row. Rows without ratios are left out.
pub fn means<'a>(
    rows: &'a [CellRow],
    ratios: impl Fn(&'a CellRow) -> Option<&'a [f64]>,
) -> Vec<Mean> {
    let mut numbers: Vec<usize> = rows.iter().map(|row| row.cell.streams).collect();
    numbers.dedup();
    let mut kinds: Vec<&str> = vec![];
    for row in rows {
        if !kinds.contains(&row.cell.kind.as_str()) {
            kinds.push(&row.cell.kind);
        }
    }
    let mean = |of: String, of_number: bool, some: Vec<&'a CellRow>| {
        let ratios: Vec<&[f64]> = some.into_iter().filter_map(&ratios).collect();
        let runs = ratios.iter().map(|one| one.len()).min().unwrap_or(0);
        let of_run = |run: usize| {
            let logs: f64 = ratios.iter().map(|one| one[run].ln()).sum();
            (logs / ratios.len() as f64).exp()
        };
        Figure::of((0..runs).map(of_run)).map(|figure| Mean { of, of_number, figure })
    };
    let at = |number: usize| rows.iter().filter(|row| row.cell.streams == number).collect();
    let of_kind = |kind: &str| rows.iter().filter(|row| row.cell.kind == kind).collect();
    let numbers =
        numbers.into_iter().map(|number| mean(format!("at once: {number}"), true, at(number)));
    let kinds = kinds.iter().map(|kind| mean((*kind).into(), false, of_kind(kind)));
    let all = mean("all".into(), false, rows.iter().collect());
    numbers.chain(kinds).chain([all]).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::plan::Cell;

    #[test]
    fn a_mean_is_taken_in_each_run_and_then_over_the_runs() {
        let row = |kind: &str, streams| CellRow::of(Cell { kind: kind.into(), streams }, &[]);
        let rows = [row("json", 1), row("prose", 1), row("json", 4), row("prose", 4)];
        let ratios = [[1.0, 4.0, 1.0], [4.0, 1.0, 1.0], [2.0, 2.0, 2.0], [8.0, 8.0, 8.0]];
        let found = means(&rows, |row| {
            let at = rows.iter().position(|other| other.cell == row.cell).expect("one of them");
            Some(&ratios[at])
        });
        let medians: Vec<(&str, bool, f64)> = found
            .iter()
            .map(|mean| {
                (
                    mean.of.as_str(),
                    mean.of_number,
                    (mean.figure.estimate.median * 1e6).round() / 1e6,
                )
            })
            .collect();
        let root = (8f64.sqrt() * 1e6).round() / 1e6;
        let expected = [
            ("at once: 1", true, 2.0),
            ("at once: 4", true, 4.0),
            // In the runs: the roots of 2, 8 and 2; of 32, 8 and 8.
            ("json", false, (2f64.sqrt() * 1e6).round() / 1e6),
            ("prose", false, root),
            ("all", false, root),
        ];
        assert_eq!(medians, expected);
        assert_eq!(means(&rows, |_| None), []);
    }
}
