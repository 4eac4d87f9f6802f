//! The router of a layer of experts, row by row: which experts a row takes, and the weighted sum of
//! what they return. A row's numbers have the same bits whatever other rows there are (I1).

use crate::pool::fill_rows;

/// For each row of `logits` `[rows, experts]` the `chosen` most probable experts by softmax, the
/// most probable first and the lower number among equals, and their probabilities. With
/// `renormalized` those of a row are divided by their sum. `ids` and `shares` are `[rows, chosen]`.
///
/// # Panics
/// More are to be chosen than there are experts, or a slice has another size.
pub fn route(
    logits: &[f32],
    experts: usize,
    chosen: usize,
    renormalized: bool,
    ids: &mut [u32],
    shares: &mut [f32],
) {
    let rows = logits.len().checked_div(experts).unwrap_or(0);
    assert!(
        chosen <= experts
            && logits.len() == rows * experts
            && ids.len() == rows * chosen
            && shares.len() == ids.len(),
        "expected room for {chosen} of {experts} experts for each of {rows} rows, found {} and {}",
        ids.len(),
        shares.len()
    );
    if chosen == 0 {
        return;
    }
    let mut exponentials = vec![0.0; experts];
    for (logits, (ids, shares)) in logits
        .chunks_exact(experts)
        .zip(ids.chunks_exact_mut(chosen).zip(shares.chunks_exact_mut(chosen)))
    {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for (exponential, logit) in exponentials.iter_mut().zip(logits) {
            *exponential = (logit - most).exp();
            sum += *exponential;
        }
        for (id, share) in ids.iter_mut().zip(shares.iter_mut()) {
            let expert = first_largest(&exponentials);
            // Taken out of the next search. A probability is never negative.
            let exponential = std::mem::replace(&mut exponentials[expert], -1.0);
            (*id, *share) = (expert as u32, exponential / sum);
        }
        if renormalized {
            let sum: f32 = shares.iter().sum();
            shares.iter_mut().for_each(|share| *share /= sum);
        }
    }
}

/// The index of the largest number, of the first among equals. Numbers that are none lose.
fn first_largest(numbers: &[f32]) -> usize {
    let mut best = 0;
    for (at, number) in numbers.iter().enumerate() {
        if *number > numbers[best] || (numbers[best].is_nan() && !number.is_nan()) {
            best = at;
        }
    }
    best
}

/// For each row the sum of `parts` `[rows, chosen, length]`, each times its share `[rows, chosen]`,
/// in their order, into `out`, rows of `length`.
///
/// # Panics
/// A slice has another size.
pub fn weighted_sum(parts: &[f32], shares: &[f32], length: usize, out: &mut [f32]) {
    let rows = out.len().checked_div(length).unwrap_or(0);
    let chosen = shares.len().checked_div(rows).unwrap_or(0);
    assert!(
        out.len() == rows * length
            && shares.len() == rows * chosen
            && parts.len() == shares.len() * length,
        "expected {chosen} parts of {length} numbers for each of {rows} rows, found {} numbers",
        parts.len()
    );
    fill_rows(out, length, chosen * length, |row, out| {
        out.fill(0.0);
        let shares = &shares[row * chosen..][..chosen];
        let parts = parts[row * chosen * length..].chunks_exact(length);
        for (share, part) in shares.iter().zip(parts) {
            out.iter_mut().zip(part).for_each(|(sum, number)| *sum += share * number);
        }
    });
}

/// Adds `part` `[rows, length]`, each row times the sigmoid of its gate `[rows]`, to the rows of
/// `sums`.
///
/// # Panics
/// A slice has another size.
pub fn add_gated(part: &[f32], gates: &[f32], length: usize, sums: &mut [f32]) {
    assert!(
        part.len() == sums.len() && sums.len() == gates.len() * length,
        "expected {} rows of {length} numbers, found {} and {}",
        gates.len(),
        part.len(),
        sums.len()
    );
    fill_rows(sums, length, length, |row, sums| {
        let share = 1.0 / (1.0 + (-gates[row]).exp());
        let part = &part[row * length..][..length];
        sums.iter_mut().zip(part).for_each(|(sum, number)| *sum += share * number);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_probable_experts_come_first_and_the_lower_among_equals() {
        let logits = [0.0, 2.0, 1.0, 2.0, -3.0, -3.0, -3.0, -3.0];
        let (mut ids, mut shares) = ([9; 6], [0.0; 6]);
        route(&logits, 4, 3, false, &mut ids, &mut shares);
        assert_eq!(ids, [1, 3, 2, 0, 1, 2]);
        let sum: f64 = [0.0f64, 2.0, 1.0, 2.0].map(f64::exp).iter().sum();
        for (share, logit) in shares.iter().zip([2.0f64, 2.0, 1.0]) {
            assert!((f64::from(*share) - logit.exp() / sum).abs() < 1e-6, "{shares:?}");
        }
        assert_eq!(shares[3..], [0.25; 3]);
    }

    #[test]
    fn renormalized_shares_of_a_row_add_up_to_one() {
        let (mut ids, mut shares) = ([0; 2], [0.0; 2]);
        route(&[1.0, 5.0, 3.0], 3, 2, true, &mut ids, &mut shares);
        assert_eq!(ids, [1, 2]);
        assert!((shares[0] + shares[1] - 1.0).abs() < 1e-6);
        assert!((shares[0] / shares[1] - 2.0f32.exp()).abs() < 1e-4);
    }

    #[test]
    fn numbers_that_are_none_choose_experts_that_exist() {
        let (mut ids, mut shares) = ([9; 2], [0.0; 2]);
        route(&[f32::NAN; 3], 3, 2, true, &mut ids, &mut shares);
        assert!(ids.iter().all(|id| *id < 3) && shares.iter().all(|share| share.is_nan()));
    }

    #[test]
    fn parts_are_added_by_their_shares() {
        let (parts, mut out) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], [0.0; 4]);
        weighted_sum(&parts, &[0.5, 2.0, 1.0, -1.0], 2, &mut out);
        assert_eq!(out, [6.5, 9.0, -2.0, -2.0]);
        add_gated(&[4.0, 4.0, 8.0, 8.0], &[0.0, f32::NEG_INFINITY], 2, &mut out);
        assert_eq!(out, [8.5, 11.0, -2.0, -2.0]);
    }
}
