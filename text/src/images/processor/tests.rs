use super::*;
use sha2::{Digest as _, Sha256};

use crate::images::decode::Bounds;
use crate::images::process;
use crate::images::resize::SmallSides;

const VISION: &str = r#"{"model_type": "qwen3_vl", "image_token_id": 2, "vision_config": {"patch_size": 16, "spatial_merge_size": 2}}"#;

fn read(files: &[(&str, &str)]) -> Result<Option<ImageProcessor>, String> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    // With a tower, unless the files are others.
    let seeing = weights("visual.blocks.0.norm1.weight");
    for (name, content) in [("model.safetensors", &*seeing)].iter().chain(files) {
        std::fs::write(dir.path().join(name), content).expect("writable");
    }
    let language = crate::samples::language();
    let read = || match VisionSettings::read(dir.path())? {
        None => Ok(None),
        Some(settings) => ImageProcessor::new(&settings, |id| language.tokens.text(id)),
    };
    read().map_err(|error: LoadError| error.to_string())
}

fn with(preprocessor: &str) -> Result<ImageProcessor, String> {
    read(&[("config.json", VISION), ("preprocessor_config.json", preprocessor)])
        .map(|found| found.expect("it sees"))
}

/// Least and most pixels.
fn bounds(processor: &ImageProcessor) -> (u64, u64) {
    match processor.sizes {
        SizeRule::Within(sizes) => (sizes.min_pixels, sizes.max_pixels),
        SizeRule::Filling(budget) => panic!("expected bounds, found {budget:?}"),
    }
}

#[test]
fn a_model_without_vision_has_no_image_processor() {
    assert_eq!(read(&[("config.json", "{}")]), Ok(None));
    assert_eq!(
        read(&[("config.json", r#"{"vision_config": null, "image_token_id": 3}"#)]),
        Ok(None)
    );
    assert_eq!(
        read(&[("config.json", r#"{"model_type": "other_vl", "vision_config": {}}"#)]),
        Ok(None),
        "one that is not known"
    );
    let unknown = ("config.json", r#"{"model_type": "other_vl", "vision_config": {}}"#);
    for broken in ["{", r#"{"image_processor": 3}"#] {
        let files = [unknown, ("processor_config.json", broken)];
        assert_eq!(read(&files), Ok(None), "its image settings are not read");
    }
    let own = crate::prompt::Language::read(&crate::samples::dir()).expect("in the repository");
    assert!(own.images.is_none());
}

/// A file of weights with one tensor of this name.
fn weights(name: &str) -> String {
    let header = format!(r#"{{"{name}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}}}"#);
    // A header of fewer than 128 bytes: all bytes of its length are characters of UTF-8.
    let length = String::from_utf8((header.len() as u64).to_le_bytes().to_vec());
    length.expect("a short header") + &header
}

#[test]
fn a_hybrid_model_reads_images_if_it_has_a_tower() {
    for model_type in ["qwen3_5", "qwen3_5_moe"] {
        let config = VISION.replace("qwen3_vl", model_type);
        let found = |name: &str, processor: &str| {
            let weights = weights(name);
            let files = [("config.json", &*config), ("model.safetensors", &*weights)];
            read(&[files[0], files[1], ("preprocessor_config.json", processor)])
        };
        for tower in ["model.visual.pos_embed.weight", "vision_tower.pos_embed.weight"] {
            let made = found(tower, "{}").expect("fine").expect("it has a tower");
            assert_eq!((made.patch, made.merge, made.token), (16, 2, 2), "{model_type}");
            let error = found(tower, r#"{"patch_size": 14}"#).expect_err("another patch");
            assert!(error.contains("patch_size: expected 16"), "{error}");
        }
        // As mlx-lm converts it. Settings for images are not read then.
        let text = "language_model.model.embed_tokens.weight";
        for processor in ["{}", "{", r#"{"patch_size": 14}"#] {
            assert_eq!(found(text, processor), Ok(None), "{model_type}");
        }
        let broken = [("config.json", &*config), ("model.safetensors", "nothing")];
        let error = read(&broken).expect_err("broken weights");
        assert!(error.contains("model.safetensors"), "{error}");
    }
}

#[test]
fn a_setting_that_is_left_out_or_null_has_the_model_types_default() {
    let own = ImageProcessor {
        sizes: SizeRule::Within(Sizes {
            factor: 32,
            min_pixels: 65_536,
            max_pixels: 16_777_216,
            frames: 1,
            small: SmallSides::AsTheyAre,
        }),
        patch: 16,
        merge: 2,
        tokens: ImageTokens::Squares,
        scale: [(1.0 / 255.0 / 0.5) as f32; 3],
        bias: [-1.0; 3],
        token: 2,
        marks: None,
    };
    assert_eq!(read(&[("config.json", VISION)]), Ok(Some(own.clone())));
    let nulls = r#"{"size": null, "min_pixels": null, "max_pixels": null, "patch_size": null, "merge_size": null, "resample": null,
        "do_resize": null, "do_rescale": null, "rescale_factor": null, "do_normalize": null, "image_mean": null, "image_std": null,
        "do_convert_rgb": null, "temporal_patch_size": null, "image_processor_type": "Qwen2VLImageProcessorFast"}"#;
    assert_eq!(with(nulls), Ok(own.clone()));
    assert_eq!(with(r#"{"size": {"shortest_edge": null, "longest_edge": null}}"#), Ok(own.clone()));
    let null_vision = r#"{"model_type": "qwen3_vl", "image_token_id": 2, "vision_config": {"patch_size": null, "spatial_merge_size": null}}"#;
    assert_eq!(
        read(&[
            ("config.json", null_vision),
            ("processor_config.json", r#"{"image_processor": null}"#)
        ]),
        Ok(Some(own))
    );
}

#[test]
fn settings_of_a_file_replace_the_defaults() {
    let sized = |text: &str| with(text).map(|made| bounds(&made));
    assert_eq!(
        sized(r#"{"size": {"shortest_edge": 2048, "longest_edge": 4096}}"#),
        Ok((2048, 4096))
    );
    assert_eq!(
        sized(
            r#"{"size": {"shortest_edge": 2048, "longest_edge": 4096}, "min_pixels": 1024, "max_pixels": null}"#
        ),
        Ok((1024, 4096))
    );
    assert_eq!(sized(r#"{"min_pixels": 1024, "max_pixels": 9999}"#), Ok((1024, 9999)));
    let made =
        with(r#"{"image_mean": [0.0, 0.25, 0.5], "image_std": 0.25, "rescale_factor": 0.5}"#)
            .expect("fine");
    assert_eq!((made.scale, made.bias), ([2.0; 3], [0.0, -1.0, -2.0]));
    let raw = with(r#"{"do_rescale": false, "do_normalize": false}"#).expect("fine");
    assert_eq!((raw.scale, raw.bias), ([1.0; 3], [0.0; 3]));
    // The one file for all wins.
    let both = [
        ("config.json", VISION),
        ("preprocessor_config.json", r#"{"max_pixels": 1}"#),
        ("processor_config.json", r#"{"image_processor": {"max_pixels": 90000}}"#),
    ];
    assert_eq!(bounds(&read(&both).expect("fine").expect("it sees")).1, 90_000);
}

#[test]
fn settings_that_cannot_be_served_are_refused_by_name() {
    for (text, words) in [
        (r#"{"patch_size": 14}"#, "patch_size: expected 16"),
        (r#"{"merge_size": 1}"#, "merge_size: expected 2"),
        (r#"{"do_resize": false}"#, "do_resize: expected true"),
        (r#"{"do_resize": "yes"}"#, "do_resize: expected true or false"),
        (r#"{"resample": 2}"#, "resample: expected 3"),
        (r#"{"size": {"height": 224, "width": 224}}"#, "size: expected shortest_edge"),
        (r#"{"size": 448}"#, "size: expected shortest_edge"),
        (
            r#"{"size": {"shortest_edge": 0}}"#,
            "shortest_edge: expected a whole number above 0, found 0",
        ),
        (r#"{"max_pixels": -1}"#, "max_pixels: expected a whole number above 0"),
        (r#"{"max_pixels": 1.5}"#, "max_pixels: expected a whole number above 0"),
        (r#"{"max_pixels": 1023}"#, "at least 1024"),
        (r#"{"min_pixels": 5000, "max_pixels": 4000}"#, "found 5000 to 4000"),
        (r#"{"max_pixels": 99999999999}"#, "at most 268435456"),
        (r#"{"image_std": [0.5, 0, 0.5]}"#, "image_std"),
        (r#"{"image_mean": [0.5, 0.5]}"#, "image_mean: expected three numbers"),
        (r#"{"rescale_factor": "x"}"#, "rescale_factor: expected a number"),
        (r#"{"rescale_factor": 0}"#, "rescale_factor"),
        ("[]", "not as expected"),
        ("{", "not as expected"),
    ] {
        let error = with(text).expect_err(text);
        assert!(
            error.contains("preprocessor_config.json") && error.contains(words),
            "{text}: {error}"
        );
    }
    for (config, words) in [
        (r#"{"model_type": "qwen3_vl", "vision_config": {}}"#, "image_token_id"),
        (r#"{"model_type": "qwen3_vl", "vision_config": {}, "image_token_id": 99999}"#, "99999"),
        (
            r#"{"model_type": "qwen3_vl", "vision_config": {"patch_size": 0}, "image_token_id": 2}"#,
            "patch_size 1 to 128",
        ),
        (
            r#"{"model_type": "qwen3_vl", "vision_config": {"patch_size": "x"}, "image_token_id": 2}"#,
            "not as expected",
        ),
    ] {
        let error = read(&[("config.json", config)]).expect_err(config);
        assert!(error.contains("config.json") && error.contains(words), "{config}: {error}");
    }
}

const GEMMA: &str = r#"{"model_type": "gemma4", "image_token_id": 2, "boi_token_id": 0, "eoi_token_id": 1, "vision_config": {"patch_size": 16, "pooling_kernel_size": 3}}"#;

fn gemma(model_type: &str, processor: &str) -> Result<Option<ImageProcessor>, String> {
    let config = GEMMA.replace("gemma4", model_type);
    let tensor = match model_type {
        "gemma4" => "model.vision_tower.std_bias",
        _ => "vision_embedder.pos_embedding",
    };
    let weights = weights(tensor);
    let settings = format!(r#"{{"image_processor": {processor}}}"#);
    read(&[
        ("config.json", &*config),
        ("model.safetensors", &*weights),
        ("processor_config.json", &*settings),
    ])
}

#[test]
fn images_of_gemma_fill_a_budget_and_have_marks_around_them() {
    for model_type in ["gemma4", "gemma4_unified"] {
        let own = gemma(model_type, "{}").expect("fine").expect("it sees");
        let expected = ImageProcessor {
            sizes: SizeRule::Filling(Budget { factor: 48, rows: 280 }),
            patch: 16,
            merge: 3,
            tokens: ImageTokens::Squares,
            scale: [(1.0f64 / 255.0) as f32; 3],
            bias: [0.0; 3],
            token: 2,
            marks: Some([0, 1]),
        };
        assert_eq!(own, expected, "{model_type}");
        // Published files of the model without a tower name a size that the reference ignores.
        let published = r#"{"max_soft_tokens": 1120, "patch_size": 16, "pooling_kernel_size": 3,
            "size": {"height": 224, "width": 224}, "do_normalize": false, "image_mean": [0.0, 0.0, 0.0],
            "image_std": [1.0, 1.0, 1.0], "rescale_factor": 0.00392156862745098, "resample": 3}"#;
        let made = gemma(model_type, published).expect("fine").expect("it sees");
        let sizes = SizeRule::Filling(Budget { factor: 48, rows: 1120 });
        assert_eq!(made, ImageProcessor { sizes, ..expected }, "{model_type}");
        let low = made.grid(Size { width: 4000, height: 3000 }, Detail::Low).expect("fine");
        assert!(made.tokens(low) <= 72, "{low:?}");
    }
}

#[test]
fn settings_of_gemma_that_cannot_be_served_are_refused_by_name() {
    for (processor, words) in [
        (r#"{"max_soft_tokens": 300}"#, "max_soft_tokens: expected one of [70, 140, 280"),
        (r#"{"pooling_kernel_size": 2}"#, "pooling_kernel_size: expected 3"),
        (r#"{"patch_size": 14}"#, "patch_size: expected 16"),
        (r#"{"resample": 2}"#, "resample: expected 3"),
    ] {
        let error = gemma("gemma4", processor).expect_err(processor);
        assert!(error.contains("processor_config.json") && error.contains(words), "{error}");
    }
    let beyond = GEMMA.replace(r#""eoi_token_id": 1"#, r#""eoi_token_id": 99999"#);
    let weights = weights("model.vision_tower.std_bias");
    let error = read(&[("config.json", &*beyond), ("model.safetensors", &*weights)]);
    let error = error.expect_err("no token");
    assert!(error.contains("eoi_token_id: expected a token of tokenizer.json"), "{error}");
    // As mlx-lm converts it.
    let text = ("model.safetensors", &*self::weights("language_model.model.norm.weight"));
    assert_eq!(read(&[("config.json", GEMMA), text]), Ok(None));
}

#[derive(serde::Deserialize)]
struct FamilyGolden {
    families: Vec<FamilyCase>,
}

#[derive(serde::Deserialize)]
struct FamilyCase {
    model_type: String,
    patch: u32,
    merge: u32,
    black: [f32; 3],
    white: [f32; 3],
    sizes: Vec<[u32; 4]>,
    resized: Vec<FamilyImage>,
}

#[derive(serde::Deserialize)]
struct FamilyImage {
    file: String,
    width: u32,
    height: u32,
    sha256: String,
}

/// The image processor of a model of this type whose files name no size.
fn of_type(model_type: &str, processor: &str) -> Result<Option<ImageProcessor>, String> {
    let config = format!(
        r#"{{"model_type": "{model_type}", "image_token_id": 2, "vision_config": {{"depth": 2}}}}"#
    );
    read(&[("config.json", &*config), ("preprocessor_config.json", processor)])
}

#[test]
fn each_family_has_the_sizes_and_numbers_of_its_own_reference() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let text =
        std::fs::read(path.join("tests/golden/family_images.json")).expect("in the repository");
    let golden: FamilyGolden = serde_json::from_slice(&text).expect("as written");
    assert!(golden.families.len() >= 6);
    for FamilyCase { model_type, patch, merge, black, white, sizes, resized } in golden.families {
        let made = of_type(&model_type, "{}").expect("fine").expect("it sees");
        assert_eq!((made.patch, made.merge), (patch, merge), "{model_type}");
        for channel in 0..3 {
            let becomes = |byte: f32| byte.mul_add(made.scale[channel], made.bias[channel]);
            assert!((becomes(0.0) - black[channel]).abs() < 1e-5, "{model_type}: {black:?}");
            assert!((becomes(255.0) - white[channel]).abs() < 1e-5, "{model_type}: {white:?}");
        }
        assert!(sizes.len() > 60);
        for [width, height, wide, high] in sizes {
            let found = made.sizes.of(Size { width, height });
            let expected = Size { width: wide, height: high };
            match wide {
                0 => assert!(found.is_err(), "{model_type}: {width} x {height} is {found:?}"),
                _ => assert_eq!(found, Ok(expected), "{model_type}: {width} x {height}"),
            }
        }
        for FamilyImage { file, width, height, sha256 } in resized {
            let bytes = std::fs::read(path.join("tests/golden/images").join(&file));
            let bounds = Bounds { pixels: 1 << 24, bytes: 1 << 28 };
            let (grid, pixels) =
                process(&bytes.expect("in the repository"), bounds, &made).expect("a good file");
            assert_eq!(made.size(grid), Size { width, height }, "{model_type}: {file}");
            let found: String =
                Sha256::digest(&pixels).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(found, sha256, "{model_type}: {file}");
        }
    }
}

#[test]
fn older_names_of_bounds_are_read_where_files_have_them() {
    let sized = |processor: &str| {
        of_type("qwen2_vl", processor).map(|made| bounds(&made.expect("it sees")))
    };
    assert_eq!(
        sized(r#"{"size": {"min_pixels": 3136, "max_pixels": 12845056}}"#),
        Ok((3136, 12_845_056))
    );
    let both = r#"{"size": {"shortest_edge": 6272, "max_pixels": 9000}, "min_pixels": 4000}"#;
    assert_eq!(sized(both), Ok((4000, 9000)));
    // Published files name a filter that the reference ignores.
    assert!(of_type("hunyuan_vl", r#"{"resample": 1}"#).is_ok());
    assert!(of_type("qwen2_vl", r#"{"resample": 1}"#).is_err());
}

#[test]
fn an_image_of_a_glm_counts_as_two_frames() {
    let made = of_type("glm_ocr", r#"{"size": {"shortest_edge": 12544, "longest_edge": 100352}}"#);
    let made = made.expect("fine").expect("it sees");
    let size =
        |size: Size, detail| made.size(made.grid(size, detail).expect("a shape that is read"));
    let (large, side) = (Size { width: 2240, height: 2240 }, 224);
    assert_eq!(size(large, Detail::Full), Size { width: side, height: side });
    assert_eq!(made.sizes.at_most(112 * 112).of(large), Ok(Size { width: 112, height: 112 }));
}

#[test]
fn no_image_has_more_tokens_than_the_most() {
    for model_type in ["qwen2_vl", "glm_ocr", "paddleocr_vl", "hunyuan_vl"] {
        let made = of_type(model_type, "{}").expect("fine").expect("it sees");
        let most = made.most_tokens();
        let sides = [1, 27, 28, 40, 41, 333, 1000, 2048, 4096, 8192];
        let mut largest = 0;
        for width in sides {
            for height in sides {
                let Ok(grid) = made.grid(Size { width, height }, Detail::Full) else { continue };
                largest = largest.max(made.tokens(grid));
            }
        }
        assert!(largest <= most && 2 * largest > most, "{model_type}: {largest} of {most}");
    }
}
