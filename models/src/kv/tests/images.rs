//! Rows of images attend to one another both ways in layers with windows: against attention by
//! definition.

use mlx_rs::transforms::eval;

use super::visibility::{HEADS, by_definition, rows};
use super::windows::ways;
use super::*;

/// Rows of one sequence in a pass.
struct Part {
    sequence: u64,
    rows: i32,
    /// Rows of images, counted from the part's first row.
    images: Vec<Range<i32>>,
}

/// `images`: first row, and row after the last one.
fn part(sequence: u64, rows: i32, images: &[(i32, i32)]) -> Part {
    Part { sequence, rows, images: images.iter().map(|(first, end)| *first..*end).collect() }
}

/// One pass over all layers, whose rows are accepted.
fn step(store: &mut KvStore, mut parts: Vec<Part>) {
    parts.sort_by_key(|part| store.order(SequenceId(part.sequence)));
    let (mut segments, mut images, mut expected) = (vec![], vec![], vec![]);
    let mut next = 0;
    for part in &parts {
        let sequence = SequenceId(part.sequence);
        let start = store.length(sequence).expect("open");
        segments.push(Segment { sequence, start, length: part.rows, drafted: 0 });
        images.extend(part.images.iter().map(|image| next + image.start..next + image.end));
        next += part.rows;
        for row in 0..part.rows {
            let image = part.images.iter().find(|image| image.contains(&row));
            let image_end = image.map_or(row + 1, |image| image.end);
            expected.push((part.sequence, start + row, start + image_end));
        }
    }
    let places: Vec<(u64, i32)> =
        expected.iter().map(|(sequence, position, _)| (*sequence, *position)).collect();
    let (q, k, v) = (rows(0, &places, HEADS), rows(1, &places, 1), rows(2, &places, 1));
    let params = AttentionParams { scale: 1.0, images: &images, ..AttentionParams::default() };
    let windows: Vec<_> = store.layers.growing.iter().map(|layer| layer.window).collect();
    for (at, window) in windows.into_iter().enumerate() {
        let out = store.attend(at, &q, &k, &v, params, &segments).expect("attends");
        eval([&out]).expect("evaluates");
        let found: &[f32] = out.try_as_slice().expect("floats");
        let by_row = found.chunks(found.len() / expected.len());
        for ((sequence, position, image_end), found) in expected.iter().zip(by_row) {
            let end = if window.is_some() { *image_end } else { position + 1 };
            let first = window.map_or(0, |window| (position - window + 1).max(0));
            for (a, b) in by_definition(*sequence, *position, first..end).iter().zip(found) {
                let what = format!("layer {at} sequence {sequence} position {position}");
                assert!((a - b).abs() < 1e-4, "{what}: {a} {b}");
            }
        }
    }
    for segment in &segments {
        store.commit(segment.sequence, segment.end()).expect("commits");
    }
}

#[test]
fn rows_of_an_image_attend_to_one_another_in_layers_with_windows_alone() {
    for mut store in ways(3) {
        // Images longer than the window of 5, at both ends of a pass, and side by side.
        step(&mut store, vec![part(0, 12, &[(3, 9)])]);
        step(&mut store, vec![part(0, 8, &[(0, 7), (7, 8)]), part(1, 3, &[])]);
        step(
            &mut store,
            vec![part(0, 10, &[(1, 4), (4, 7)]), part(1, 10, &[(2, 3)]), part(2, 10, &[])],
        );
        step(&mut store, vec![part(0, 1, &[]), part(1, 1, &[]), part(2, 1, &[])]);
    }
}

#[test]
fn images_stand_beyond_the_positions_that_a_slot_keeps() {
    for mut store in ways(2) {
        for pass in 0..9 {
            // Slots keep 64 positions of each window: later passes write over the first ones.
            let image = (pass % 5, 18 - pass % 3);
            step(&mut store, vec![part(0, 19, &[image]), part(1, 4, &[(1, 3)])]);
        }
    }
}

#[test]
fn an_image_with_rows_of_two_sequences_is_refused() {
    let [mut store, ..] = ways(2);
    let segments = [0, 1].map(|sequence| Segment {
        sequence: SequenceId(sequence),
        start: 0,
        length: 3,
        drafted: 0,
    });
    let places: Vec<(u64, i32)> = (0..6).map(|row| (row / 3, row as i32 % 3)).collect();
    let (q, k, v) = (rows(0, &places, HEADS), rows(1, &places, 1), rows(2, &places, 1));
    let images = 2..4;
    let images = std::slice::from_ref(&images);
    let params = AttentionParams { scale: 1.0, images, ..AttentionParams::default() };
    let refused = store.attend(0, &q, &k, &v, params, &segments).expect_err("refused");
    let expected = "expected the rows 2..4 of an image in one sequence";
    assert!(refused.to_string().contains(expected), "{refused}");
}
