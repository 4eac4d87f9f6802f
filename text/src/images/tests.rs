//! Images against the pixels of the reference implementation (tests/golden/make_images.py made
//! them), and files changed at random.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::decode::Bounds;
use super::resize::{Budget, SizeRule, Sizes, SmallSides};
use super::*;
use crate::samples::processor;

/// Bytes that decoding may take, as in the gateway.
const DECODING_BYTES: u64 = 176 << 20;
const BOUNDS: Bounds = Bounds { pixels: 40_000_000, bytes: DECODING_BYTES };

#[derive(Deserialize)]
struct Golden {
    images: Vec<Case>,
    sizes: Vec<[u64; 7]>,
}

#[derive(Deserialize)]
struct Case {
    file: String,
    width: u32,
    height: u32,
    sha256: Option<String>,
    #[serde(default)]
    resized: Vec<Resized>,
    png: Option<String>,
}

#[derive(Deserialize)]
struct Resized {
    min_pixels: u64,
    max_pixels: u64,
    width: u32,
    height: u32,
    sha256: String,
}

fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn golden() -> Golden {
    serde_json::from_slice(&std::fs::read(dir().join("images.json")).expect("in the repository"))
        .expect("as written")
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(dir().join("images").join(name)).expect("in the repository")
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// All rows of a file's image, upright.
fn pixels(file: &[u8]) -> (Size, Vec<u8>) {
    let header = decode::inspect(file, BOUNDS).expect("a good file");
    let pixels = decode::decode(file, &header).expect("a good file");
    assert_eq!(pixels.size(), header.upright());
    let Size { width, height } = pixels.size();
    let mut all = vec![0; (width * height * 3) as usize];
    all.chunks_exact_mut(width as usize * 3).zip(0..).for_each(|(line, y)| pixels.row(y, line));
    (pixels.size(), all)
}

#[test]
fn pixels_equal_those_of_the_reference_implementation() {
    let golden = golden();
    assert!(golden.images.len() >= 30);
    for case in golden.images {
        let bytes = file(&case.file);
        let (size, found) = pixels(&bytes);
        let expected = Size { width: case.width, height: case.height };
        assert_eq!(size, expected, "{}", case.file);
        if let Some(sha256) = &case.sha256 {
            assert_eq!(&hex(&found), sha256, "{}: unpacked", case.file);
        }
        if let Some(png) = &case.png {
            // Another decoder of a lossy type: rounded otherwise, by little.
            let (_, expected) =
                pixels(&base64::engine::general_purpose::STANDARD.decode(png).expect("base64"));
            let off = |(a, b): (&u8, &u8)| u64::from(a.abs_diff(*b));
            let (most, sum) = found
                .iter()
                .zip(&expected)
                .map(off)
                .fold((0, 0), |(most, sum), off| (most.max(off), sum + off));
            let mean = sum as f64 / expected.len() as f64;
            // Thinned colours are spread by the one with a filter and by the other without.
            let (most_allowed, mean_allowed) =
                if case.file == "lossy.webp" || case.file == "turned.jpg" {
                    (90, 6.0)
                } else {
                    (6, 1.0)
                };
            assert!(
                most <= most_allowed && mean <= mean_allowed,
                "{}: off by {most} at most, {mean} in the mean",
                case.file
            );
        }
        for Resized { min_pixels, max_pixels, width, height, sha256 } in case.resized {
            let processor = ImageProcessor {
                sizes: SizeRule::Within(Sizes {
                    factor: 32,
                    min_pixels,
                    max_pixels,
                    frames: 1,
                    small: SmallSides::AsTheyAre,
                }),
                ..processor()
            };
            let (grid, resized) = process(&bytes, BOUNDS, &processor).expect("a good file");
            assert_eq!(processor.size(grid), Size { width, height }, "{}", case.file);
            assert_eq!(hex(&resized), sha256, "{}: resized to {width} x {height}", case.file);
        }
    }
}

#[test]
fn sizes_equal_those_of_the_reference_implementation() {
    let sizes = golden().sizes;
    assert!(sizes.len() > 400);
    for [width, height, factor, min_pixels, max_pixels, to_width, to_height] in sizes {
        let sizes = Sizes {
            factor: factor as u32,
            min_pixels,
            max_pixels,
            frames: 1,
            small: SmallSides::AsTheyAre,
        };
        let size = |width: u64, height: u64| Size { width: width as u32, height: height as u32 };
        let found = sizes.of(size(width, height)).unwrap_or(size(0, 0));
        assert_eq!(found, size(to_width, to_height), "{width} x {height}, {sizes:?}");
    }
}

#[derive(Deserialize)]
struct GemmaGolden {
    images: Vec<GemmaCase>,
    sizes: Vec<[u32; 6]>,
}

#[derive(Deserialize)]
struct GemmaCase {
    file: String,
    filled: Vec<Filled>,
}

#[derive(Deserialize)]
struct Filled {
    rows: u32,
    width: u32,
    height: u32,
    sha256: String,
}

fn gemma_golden() -> GemmaGolden {
    let text = std::fs::read(dir().join("gemma_images.json")).expect("in the repository");
    serde_json::from_slice(&text).expect("as written")
}

#[test]
fn pixels_that_fill_a_budget_equal_those_of_the_reference_implementation() {
    let golden = gemma_golden();
    assert!(golden.images.len() >= 20);
    for case in golden.images {
        for Filled { rows, width, height, sha256 } in case.filled {
            let sizes = SizeRule::Filling(Budget { factor: 48, rows });
            let processor = ImageProcessor { sizes, merge: 3, marks: Some([8, 9]), ..processor() };
            let (grid, resized) = process(&file(&case.file), BOUNDS, &processor).expect("good");
            assert_eq!(processor.size(grid), Size { width, height }, "{}", case.file);
            assert_eq!(hex(&resized), sha256, "{}: resized to {width} x {height}", case.file);
            assert_eq!(processor.tokens(grid), u64::from(width / 48 * (height / 48) + 2));
        }
    }
}

#[test]
fn sizes_that_fill_a_budget_equal_those_of_the_reference_implementation() {
    let sizes = gemma_golden().sizes;
    assert!(sizes.len() > 300);
    for [width, height, factor, rows, to_width, to_height] in sizes {
        let found = Budget { factor, rows }.of(Size { width, height }).expect("pixels");
        let expected = Size { width: to_width, height: to_height };
        assert_eq!(found, expected, "{width} x {height}, {rows} of {factor}");
    }
}

/// Numbers that are the same in every run (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

/// Changes a file at a random place: cuts it, or removes, repeats, appends or changes bytes.
fn change(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(bytes.len());
    let length = random.below(24);
    let range = at..(at + length).min(bytes.len());
    match random.below(6) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(range)),
        2 => {
            let again = bytes[range].to_vec();
            drop(bytes.splice(at..at, again));
        }
        3 => bytes.extend((0..length).map(|byte| byte as u8)),
        // Sizes are in the header.
        4 => {
            let place = random.below(bytes.len().min(64));
            if let Some(byte) = bytes.get_mut(place) {
                *byte = random.below(256) as u8;
            }
        }
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
    }
}

/// A processor of each rule by which a family chooses sizes. Images become small.
fn small_processors() -> [ImageProcessor; 5] {
    let processor = processor();
    let within = |patch: u32, frames: u32, small: SmallSides| {
        let bounds = (1024 * u64::from(frames), 16_384 * u64::from(frames));
        let (min_pixels, max_pixels) = bounds;
        let sizes = Sizes { factor: 2 * patch, min_pixels, max_pixels, frames, small };
        ImageProcessor { sizes: SizeRule::Within(sizes), patch, ..processor.clone() }
    };
    let gemma = SizeRule::Filling(Budget { factor: 48, rows: 70 });
    [
        within(16, 1, SmallSides::AsTheyAre),
        within(14, 1, SmallSides::AsTheyAre),
        within(14, 2, SmallSides::RaisedTogether),
        within(14, 1, SmallSides::RaisedOneByOne),
        ImageProcessor { sizes: gemma, merge: 3, marks: Some([8, 9]), ..processor.clone() },
    ]
}

/// A changed file is refused in words or becomes an image of the right size. It never causes a
/// panic, and never takes more memory than allowed, because a decoder that requests more fails by
/// its limits.
#[test]
fn changed_files_are_refused_or_served() {
    let names = [
        "up.png",
        "palette.png",
        "alpha.png",
        "deep3.png",
        "turned6.png",
        "holes.gif",
        "still.gif",
        "lossless.webp",
        "lossless_alpha.webp",
        "lossy.webp",
        "baseline.jpg",
        "progressive.jpg",
        "turned.jpg",
        "gray.jpg",
    ];
    let files = names.map(file);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let bounds = Bounds { pixels: 1 << 20, bytes: 16 << 20 };
    let (processors, mut served) = (small_processors(), 0);
    for round in 0..6_000 {
        // Another one for the same file in the next turn through the files.
        let processor = &processors[round / files.len() % processors.len()];
        let mut bytes = files[round % files.len()].clone();
        for _ in 0..=random.below(4) {
            change(&mut bytes, &mut random);
        }
        match process(&bytes, bounds, processor) {
            Ok((grid, resized)) => {
                let pixels = grid.rows * grid.columns * processor.patch.pow(2);
                assert_eq!(resized.len(), pixels as usize * 3);
                served += 1;
            }
            Err(problem) => assert!(!problem.to_string().is_empty()),
        }
    }
    assert!(
        (100..5_900).contains(&served),
        "{served} of 6000 were served: the changes do too much or too little"
    );
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_refused_or_served(head in 0usize..6, tail in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
        let begins: [&[u8]; 6] = [b"", b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR", b"\xff\xd8\xff\xc0", b"RIFF\x40\0\0\0WEBPVP8X", b"GIF89a", b"RIFF\x40\0\0\0WEBPVP8L"];
        let bytes = [begins[head], &tail].concat();
        let _ = process(&bytes, Bounds { pixels: 1 << 20, bytes: 16 << 20 }, &processor());
    }
}

#[test]
fn nothing_of_an_image_is_printed() {
    let image = |source| EncodedImage { field: "f".into(), source, detail: Detail::Full };
    let secret = image(ImageSource::Address("data:image/png;base64,c2VjcmV0".into()));
    let shown = r#"EncodedImage { field: "f", source: Address(30 bytes), detail: Full }"#;
    assert_eq!(format!("{secret:?}"), shown);
    let secret = image(ImageSource::File(Bytes::from_static(b"secret")));
    assert!(!format!("{secret:?}").contains("secret"));
}
