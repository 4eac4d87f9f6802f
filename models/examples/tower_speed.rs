//! Cost of a vision tower for one image, block by block, without processes around it.
//!
//! `cargo run --release -p paceline-models --example tower_speed -- MODEL_DIR [patches down]
//! [patches across] [times]`

use std::path::Path;

use paceline_models::vision::ImagePixels;
use paceline_models::{DeviceChoice, device, load_target};

#[expect(clippy::disallowed_methods, clippy::print_stdout, reason = "a measurement for a terminal")]
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, ..] = arguments.as_slice() else {
        panic!("usage: tower_speed MODEL_DIR [patches down] [patches across] [times]")
    };
    let number = |at: usize, default: u32| {
        arguments.get(at).map_or(default, |text| text.parse().expect("a number"))
    };
    let (rows, columns, times) = (number(1, 16), number(2, 16), number(3, 5));
    device::choose(DeviceChoice::Auto).expect("a device");
    let model = load_target(Path::new(model), &mut |_, _| {}).expect("loads");
    let tower = model.vision().expect("a model that sees");
    let side = tower.info().patch;
    let pixels: Vec<u8> =
        (0..rows * columns * side * side * 3).map(|at| (at * 37 % 251) as u8).collect();
    let image =
        ImagePixels { pixels: &pixels, rows, columns, scale: [2.0 / 255.0; 3], bias: [-1.0; 3] };
    let (mut begins, mut blocks, mut ends) = (vec![], vec![], vec![]);
    for _ in 0..times {
        let mut began = std::time::Instant::now();
        let mut lap = || {
            let took = began.elapsed().as_secs_f64() * 1e3;
            began = std::time::Instant::now();
            took
        };
        let mut pass = tower.begin(&image).expect("taken in");
        begins.push(lap());
        while tower.advance(&mut pass, 1).expect("goes on").is_none() {
            blocks.push(lap());
        }
        ends.push(lap());
    }
    let middle = |mut took: Vec<f64>| {
        took.sort_by(f64::total_cmp);
        took.get(took.len() / 2).copied().unwrap_or_default()
    };
    println!(
        "{} patches: begin {:.1} ms, block {:.1} ms (middle of {}), last block and merger {:.1} ms",
        rows * columns,
        middle(begins),
        middle(blocks.clone()),
        blocks.len(),
        middle(ends),
    );
}
