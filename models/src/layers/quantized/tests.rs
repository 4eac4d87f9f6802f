//! Quantized modules of small checkpoints, against MLX's own products and against floats.

use mlx_rs::ops::concatenate;
use safetensors::tensor::{Dtype as Stored, TensorView};

use super::*;
use crate::device::{DeviceChoice, choose};
use crate::layers::{Embedding, ExpertLinear, Linear};
use crate::load::{
    ConfigJson, LoadError, MatrixPart, MatrixSizes, Precision, Quantization, StoredMatrix, Tensors,
    WeightForms, Weights,
};
use crate::products::Products;

const ALL: [(QuantMode, &[i32], &[i32]); 4] = [
    (QuantMode::Affine, &[2, 3, 4, 5, 6, 8], &[32, 64, 128]),
    (QuantMode::Mxfp4, &[4], &[32]),
    (QuantMode::Mxfp8, &[8], &[32]),
    (QuantMode::Nvfp4, &[4], &[16]),
];

fn formats() -> impl Iterator<Item = QuantFormat> {
    ALL.into_iter().flat_map(|(mode, bits, groups)| {
        let format = move |bits: i32, group: i32| QuantFormat { mode, bits, group };
        bits.iter().flat_map(move |bits| groups.iter().map(move |group| format(*bits, *group)))
    })
}

/// Numbers without a pattern.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as u32
    }

    /// From −1 to 1.
    fn number(&mut self) -> f32 {
        self.next() as f32 / u32::MAX as f32 * 2.0 - 1.0
    }
}

/// Tensors and settings of a checkpoint.
struct Files {
    dir: tempfile::TempDir,
    tensors: Vec<(String, Stored, Vec<usize>, Vec<u8>)>,
    settings: serde_json::Map<String, serde_json::Value>,
    noise: Noise,
}

impl Files {
    fn new() -> Self {
        choose(DeviceChoice::Cpu).expect("there is a CPU");
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self { dir, tensors: vec![], settings: serde_json::Map::new(), noise: Noise(88_172_645) }
    }

    fn tensor(&mut self, name: &str, dtype: Stored, shape: &[i32], bytes: Vec<u8>) {
        let shape = shape.iter().map(|length| *length as usize).collect();
        self.tensors.push((name.to_owned(), dtype, shape, bytes));
    }

    fn floats(&mut self, name: &str, dtype: Stored, shape: &[i32], size: f32) {
        let count: i32 = shape.iter().product();
        let numbers: Vec<f32> = (0..count).map(|_| size * self.noise.number()).collect();
        let bytes = numbers.iter().flat_map(|number| match dtype {
            Stored::F32 => number.to_le_bytes().to_vec(),
            Stored::F16 => half::f16::from_f32(*number).to_le_bytes().to_vec(),
            _ => half::bf16::from_f32(*number).to_le_bytes().to_vec(),
        });
        let bytes = bytes.collect();
        self.tensor(name, dtype, shape, bytes);
    }

    /// A quantized module of any bits, and the override that says so.
    fn packed(&mut self, module: &str, format: QuantFormat, rows: &[i32], input: i32) {
        let shape = |last: i32| -> Vec<i32> { rows.iter().copied().chain([last]).collect() };
        let words = shape(format.words(input));
        let count: i32 = words.iter().product();
        let bytes: Vec<u8> = (0..count).flat_map(|_| self.noise.next().to_le_bytes()).collect();
        // A byte 0x7F is no number in E4M3.
        let keep: u8 = if format.mode == QuantMode::Mxfp8 { 0xF7 } else { 0xFF };
        let bytes = bytes.iter().map(|byte| byte & keep).collect();
        self.tensor(&format!("{module}.weight"), Stored::U32, &words, bytes);
        let groups = shape(input / format.group);
        let scales = format!("{module}.scales");
        if format.mode == QuantMode::Affine {
            self.floats(&scales, Stored::F16, &groups, 0.1);
            self.floats(&format!("{module}.biases"), Stored::F16, &groups, 0.5);
        } else {
            let near = if format.mode == QuantMode::Nvfp4 { 40 } else { 124 };
            let count: i32 = groups.iter().product();
            let bytes = (0..count).map(|_| near + (self.noise.next() % 8) as u8).collect();
            self.tensor(&scales, Stored::U8, &groups, bytes);
        }
        self.set(module, format);
    }

    fn set(&mut self, module: &str, format: QuantFormat) {
        let settings = serde_json::json!({
            "mode": format.mode.name().to_str().expect("text"),
            "bits": format.bits, "group_size": format.group,
        });
        self.settings.insert(module.to_owned(), settings);
    }

    /// Writes all, and lets `load` read it with `keeps`.
    fn load<T>(
        &self,
        keeps: fn(QuantFormat) -> bool,
        load: impl FnOnce(&mut Weights) -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        self.load_for(Products::Float, keeps, load)
    }

    fn load_for<T>(
        &self,
        products: Products,
        keeps: fn(QuantFormat) -> bool,
        load: impl FnOnce(&mut Weights) -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        let views = self.tensors.iter().map(|(name, dtype, shape, bytes)| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).expect("as many bytes"))
        });
        let file = safetensors::serialize(views, None).expect("serialized");
        std::fs::write(self.dir.path().join("model.safetensors"), file).expect("written");
        let config = match self.settings.is_empty() {
            true => serde_json::json!({}),
            false => serde_json::json!({ "quantization": self.settings }),
        };
        std::fs::write(self.dir.path().join("config.json"), config.to_string()).expect("written");
        let config = ConfigJson::read(self.dir.path()).expect("an object");
        let forms = WeightForms {
            precision: Precision::Float32,
            quantization: Quantization::read(&config)?,
            keeps,
            products,
        };
        let mut progress = |_| {};
        let files = Tensors::open(self.dir.path())?;
        let mut weights = Weights::new(files, forms, &mut progress)?;
        let loaded = load(&mut weights)?;
        weights.finish().map(|()| loaded)
    }

    fn linear(&self, keeps: fn(QuantFormat) -> bool, name: &str, out: i32, input: i32) -> Linear {
        self.load(keeps, |weights| Linear::load(weights, name, out, input, false)).expect("loads")
    }

    fn refusal(&self, out: i32, input: i32) -> String {
        let loaded = self.load(kept, |weights| Linear::load(weights, "m", out, input, false));
        paceline_vocabulary::chain(&loaded.expect_err("refused"))
    }
}

fn kept(_: QuantFormat) -> bool {
    true
}

fn expanded(_: QuantFormat) -> bool {
    false
}

fn numbers(array: &Array) -> Vec<f32> {
    let array = array.as_dtype(Dtype::Float32).and_then(|floats| floats.contiguous());
    let array = array.expect("lazy");
    array.eval().expect("evaluates");
    array.try_as_slice::<f32>().expect("floats").to_vec()
}

fn worst(a: &Array, b: &Array) -> f32 {
    assert_eq!(a.shape(), b.shape());
    numbers(a).iter().zip(numbers(b)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn input(rows: &[i32]) -> Array {
    let mut noise = Noise(7);
    let count: i32 = rows.iter().product();
    Array::from_slice(&(0..count).map(|_| noise.number()).collect::<Vec<_>>(), rows)
}

#[test]
fn expansion_at_load_gives_the_numbers_of_mlx() {
    for format in formats() {
        let mut files = Files::new();
        files.packed("m", format, &[6], 256);
        let part = [MatrixPart { modules: vec!["m".into()], out: 6 }];
        let sizes = MatrixSizes { input: 256, experts: None };
        let matrix = |keeps| {
            let stored = files.load(keeps, |weights| weights.take_matrices(&part, sizes));
            stored.expect("loads").pop().expect("there is one")
        };
        let (StoredMatrix::Quantized(stored), StoredMatrix::Float(floats)) =
            (matrix(kept), matrix(expanded))
        else {
            panic!("{format}: the wish was not heeded")
        };
        let scales = match stored.format.mode {
            QuantMode::Affine => stored.scales.as_dtype(Dtype::Float32).expect("lazy"),
            _ => stored.scales.clone(),
        };
        let biases = stored.biases.as_ref().map(|biases| biases.as_dtype(Dtype::Float32));
        let biases = biases.transpose().expect("lazy");
        let wide = QuantizedMatrix { scales, biases, ..stored };
        assert_eq!(numbers(&wide.dequantized().expect("lazy")), numbers(&floats), "{format}");
        assert!(numbers(&floats).iter().all(|number| number.is_finite()), "{format}");
    }
}

#[test]
fn products_by_stored_weights_are_those_by_their_numbers() {
    for format in formats() {
        let mut files = Files::new();
        files.packed("m", format, &[40], 256);
        let x = input(&[3, 256]);
        let product = |keeps| files.linear(keeps, "m", 40, 256).forward(&x).expect("a product");
        let (packed, floats) = (product(kept), product(expanded));
        let size = numbers(&floats).iter().fold(0f32, |most, number| most.max(number.abs()));
        assert!(worst(&packed, &floats) < 1e-5 * size, "{format}: {}", worst(&packed, &floats));
    }
}

#[test]
fn parts_of_one_format_become_one_and_others_stay_apart() {
    let (four, eight) = (QuantFormat::affine(4, 64), QuantFormat::affine(8, 32));
    for (formats, parts) in [
        ([Some(four), Some(four), Some(four)], 1),
        ([Some(four), Some(eight), Some(four)], 3),
        ([Some(four), Some(four), None], 2),
        ([None, None, None], 1),
    ] {
        let mut files = Files::new();
        let outs = [8, 4, 6];
        for (at, (format, out)) in formats.iter().zip(outs).enumerate() {
            let name = format!("m{at}");
            match format {
                Some(format) => files.packed(&name, *format, &[out], 128),
                None => files.floats(&format!("{name}.weight"), Stored::BF16, &[out, 128], 1.0),
            }
            files.floats(&format!("{name}.bias"), Stored::F32, &[out], 1.0);
        }
        let names = [("m0", 8), ("m1", 4), ("m2", 6)];
        let joined = files.load(kept, |weights| Linear::load_joined(weights, &names, 128, true));
        let joined = joined.expect("loads");
        assert_eq!(joined.count_parts(), parts, "{formats:?}");
        let x = input(&[2, 128]);
        let alone = files.load(kept, |weights| {
            let each = names.map(|(name, out)| Linear::load(weights, name, out, 128, true));
            each.into_iter().collect::<Result<Vec<_>, _>>()
        });
        let alone: Vec<_> =
            alone.expect("loads").iter().map(|one| one.forward(&x).expect("a product")).collect();
        let alone = concatenate(&alone, -1).expect("joined");
        assert!(worst(&joined.forward(&x).expect("a product"), &alone) < 1e-5, "{formats:?}");
    }
}

#[test]
fn rows_of_a_quantized_embedding_are_its_numbers_and_it_is_a_head() {
    for format in formats() {
        let mut files = Files::new();
        files.packed("m", format, &[10], 128);
        let embedding = |keeps| {
            files.load(keeps, |weights| Embedding::load(weights, "m", 10, 128)).expect("loads")
        };
        let (packed, floats) = (embedding(kept), embedding(expanded));
        let ids = Array::from_slice(&[7u32, 0, 7, 9], &[4]);
        let rows = |table: &Embedding| table.rows_of(&ids).expect("rows");
        assert_eq!(numbers(&rows(&packed)), numbers(&rows(&floats)), "{format}");
        let x = input(&[2, 128]);
        let head = |table: &Embedding| table.as_head(&x).expect("a product");
        let size = numbers(&head(&floats)).iter().fold(0f32, |most, number| most.max(number.abs()));
        assert!(worst(&head(&packed), &head(&floats)) < 1e-5 * size, "{format}");
    }
}

/// Both layouts of four experts with two projections, whose rows are those of plain linears.
#[test]
fn experts_are_read_in_both_layouts_and_multiply_by_those_chosen() {
    let (experts, inputs, outs) = (4, 64, [("gate_proj", 6), ("up_proj", 6)]);
    let ids = Array::from_slice(&[2u32, 0, 3, 3, 1, 2], &[3, 2]);
    let four = QuantFormat::affine(4, 32);
    let other = QuantFormat::affine(8, 64);
    for formats in [[None, None], [Some(four), Some(four)], [Some(four), Some(other)]] {
        let mut apart = Files::new();
        for (format, (name, out)) in formats.iter().zip(outs) {
            for expert in 0..experts {
                let module = format!("b.experts.{expert}.{name}");
                match format {
                    Some(format) => apart.packed(&module, *format, &[out], inputs),
                    None => {
                        apart.floats(&format!("{module}.weight"), Stored::F32, &[out, inputs], 1.0);
                    }
                }
            }
        }
        let mut stacked = Files::new();
        for (format, (name, out)) in formats.iter().zip(outs) {
            let module = format!("b.switch_mlp.{name}");
            for part in ["weight", "scales", "biases"] {
                let own = apart
                    .tensors
                    .iter()
                    .filter(|(other, ..)| other.ends_with(&format!(".{name}.{part}")));
                let own: Vec<_> = own.collect();
                let Some((_, dtype, shape, _)) = own.first() else { continue };
                let shape = [experts, out, shape[1] as i32];
                let bytes = own.iter().flat_map(|(.., bytes)| bytes.clone()).collect();
                stacked.tensor(&format!("{module}.{part}"), *dtype, &shape, bytes);
            }
            if let Some(format) = format {
                stacked.set(&module, *format);
            }
        }
        let x = input(&[3, inputs]);
        let product = |files: &Files| {
            let loaded = files
                .load(kept, |weights| ExpertLinear::load(weights, "b", &outs, experts, inputs));
            loaded.expect("loads").forward(&x, &ids).expect("a product")
        };
        let expected: Vec<Array> = [(0, 2), (0, 0), (1, 3), (1, 3), (2, 1), (2, 2)]
            .iter()
            .flat_map(|(row, expert)| {
                let names = outs.map(|(name, _)| format!("b.experts.{expert}.{name}"));
                let apart = &apart;
                let row = x.take_axis(Array::from_slice(&[*row], &[1]), 0).expect("a row");
                names.map(|name| {
                    let mut some = Files::new();
                    let own = apart.tensors.iter().filter(|(n, ..)| n.starts_with(&name));
                    some.tensors = own.cloned().collect();
                    some.settings = apart.settings.clone();
                    some.linear(kept, &name, 6, inputs).forward(&row).expect("a product")
                })
            })
            .collect();
        let expected = concatenate(&expected, -1).expect("joined").reshape(&[3, 2, 12]);
        let expected = expected.expect("as many");
        assert!(worst(&product(&apart), &expected) < 1e-4, "{formats:?}: one tensor an expert");
        assert!(worst(&product(&stacked), &expected) < 1e-4, "{formats:?}: stacked");
        // Each expert with a row of its own.
        let each = concatenate(&[&x, &x], 1).expect("joined").reshape(&[3, 2, inputs]);
        let loaded = stacked
            .load(kept, |weights| ExpertLinear::load(weights, "b", &outs, experts, inputs))
            .expect("loads");
        let found = loaded.forward(&each.expect("as many"), &ids).expect("a product");
        assert!(worst(&found, &expected) < 1e-4, "{formats:?}: rows of their own");
    }
}

/// A weight of `rows` rows whose numbers are arranged, and the same as it is stored.
#[cfg(target_os = "linux")]
fn arranged(format: QuantFormat, rows: &[i32], input: i32) -> [QuantizedMatrix; 2] {
    let mut files = Files::new();
    files.packed("m", format, rows, input);
    let (out, experts) = (rows[rows.len() - 1], (rows.len() > 1).then(|| rows[0]));
    let part = [MatrixPart { modules: vec!["m".into()], out }];
    let load = || {
        let sizes = MatrixSizes { input, experts };
        let loaded = files.load(kept, |weights| weights.take_matrices(&part, sizes));
        match loaded.expect("loads").remove(0) {
            StoredMatrix::Quantized(matrix) => matrix,
            StoredMatrix::Float(_) => panic!("{format} was expanded"),
        }
    };
    let (stored, changed) = (load(), load());
    let parts = changed.affine_parts().expect("an affine format");
    let tiles = host::arrange(&parts).expect("evaluates");
    assert_eq!(tiles, out % 16 == 0, "{format} {rows:?}");
    [QuantizedMatrix { tiles, ..changed }, stored]
}

#[test]
#[cfg(target_os = "linux")]
fn an_arranged_weight_has_the_numbers_of_the_stored_one_and_nearly_its_products() {
    for format in formats().filter(|format| format.mode == QuantMode::Affine) {
        for (rows, out) in [(&[64][..], 64), (&[3, 32], 32), (&[40], 40)] {
            let [changed, stored] = arranged(format, rows, 256);
            let [found, expected] =
                [&changed, &stored].map(|matrix| numbers(&matrix.dequantized().expect("lazy")));
            assert_eq!(found, expected, "{format} {rows:?}");
            let (x, product);
            if rows.len() > 1 {
                let ids = Array::from_slice(&[0u32, 2, 1, 1], &[2, 2]);
                x = input(&[2, 256]);
                let by = |matrix: &QuantizedMatrix| {
                    let form = StoredMatrix::Quantized(matrix.clone());
                    ExpertLinear::of(form).expect("a layer").forward(&x, &ids).expect("lazy")
                };
                product = [by(&changed), by(&stored)];
            } else {
                let ids = Array::from_slice(&[out - 1, 0, 5], &[3]);
                let rows = [&changed, &stored]
                    .map(|matrix| numbers(&matrix.rows_of(&ids, Dtype::Float32).expect("lazy")));
                assert_eq!(rows[0], rows[1], "{format}");
                let taken = [&changed, &stored].map(|matrix| {
                    let taken = StoredMatrix::Quantized(matrix.clone()).rows(&[17, 3]);
                    match taken.expect("taken") {
                        StoredMatrix::Quantized(rows) => {
                            numbers(&rows.dequantized().expect("lazy"))
                        }
                        StoredMatrix::Float(_) => panic!("it was expanded"),
                    }
                });
                assert_eq!(taken[0], taken[1], "{format}");
                x = input(&[3, 256]);
                product = [&changed, &stored].map(|matrix| matrix.product(&x).expect("lazy"));
            }
            let [found, expected] = product;
            let size =
                numbers(&expected).iter().fold(0.0, |size: f32, number| size.max(number.abs()));
            let off = worst(&found, &expected);
            assert!(off <= 0.02 * size, "{format} {rows:?}: {off} of {size}");
            assert_eq!(off > 0.0, changed.tiles, "{format} {rows:?}: integers are rounded");
        }
    }
}

#[test]
fn mxfp4_becomes_affine_with_the_same_numbers_for_products_of_integers() {
    let mut files = Files::new();
    let format = QuantFormat { mode: QuantMode::Mxfp4, bits: 4, group: 32 };
    files.packed("m", format, &[32], 96);
    // The smallest scales, and larger ones than those of the sample.
    let scales = [0, 1, 2, 3, 126, 127, 128, 250].into_iter().cycle().take(32 * 3).collect();
    files.tensors.retain(|(name, ..)| name != "m.scales");
    files.tensor("m.scales", Stored::U8, &[32, 3], scales);
    let part = [MatrixPart { modules: vec!["m".into()], out: 32 }];
    let load = |products, keeps| {
        let sizes = MatrixSizes { input: 96, experts: None };
        let loaded = files.load_for(products, keeps, |weights| weights.take_matrices(&part, sizes));
        loaded.expect("loads").remove(0)
    };
    let affine = |format: QuantFormat| format.mode == QuantMode::Affine;
    let (kept, floats) = (load(Products::Integer, affine), load(Products::Float, affine));
    let (StoredMatrix::Quantized(kept), StoredMatrix::Float(floats)) = (kept, floats) else {
        panic!("floats are expanded, and integers kept")
    };
    assert_eq!(kept.format, QuantFormat::AFFINE_MXFP4);
    let wide = |part: &Array| part.as_dtype(Dtype::Float32).expect("lazy");
    let (scales, biases) = (wide(&kept.scales), kept.biases.as_ref().map(wide));
    let wide = QuantizedMatrix { scales, biases, ..kept };
    assert_eq!(numbers(&wide.dequantized().expect("lazy")), numbers(&floats));
    let floats = load(Products::Integer, expanded);
    assert!(matches!(floats, StoredMatrix::Float(_)), "the wish was not heeded");
}

#[test]
fn contradictions_name_the_module_and_what_was_expected() {
    let four = QuantFormat::affine(4, 64);
    let with = |change: &dyn Fn(&mut Files)| {
        let mut files = Files::new();
        files.packed("m", four, &[8], 128);
        change(&mut files);
        files.refusal(8, 128)
    };
    let check = |change: &dyn Fn(&mut Files), expected: &str| {
        let error = with(change);
        assert!(error.contains(expected), "expected {expected:?}: {error}");
    };
    check(
        &|files| files.set("m", QuantFormat::affine(8, 64)),
        "module m: by config.json affine, 8 bits, groups of 64: expected weight of shape [8, 32], \
         found [8, 16]",
    );
    check(
        &|files| files.set("m", QuantFormat::affine(4, 32)),
        "expected scales of shape [8, 4], found [8, 2]",
    );
    check(&|files| drop(files.tensors.remove(2)), "tensor m.biases is missing");
    check(&|files| drop(files.tensors.remove(1)), "tensor m.scales is missing");
    check(
        &|files| files.tensors[2].2 = vec![4, 4],
        "expected biases of shape [8, 2], found [4, 4]",
    );
    check(
        &|files| files.tensors[2].1 = Stored::BF16,
        "m.biases has type BF16; expected the type of",
    );
    check(&|files| files.tensors[0].1 = Stored::I32, "m.weight has type I32; expected U32");
    check(
        &|files| {
            files.settings.clear();
        },
        "module m: the checkpoint has its scales",
    );
    check(
        &|files| {
            files.settings.insert("m".into(), false.into());
            files.settings.insert("bits".into(), 4.into());
        },
        "module m: the checkpoint has its scales",
    );
    check(
        &|files| files.set("m", QuantFormat { mode: QuantMode::Mxfp4, bits: 4, group: 32 }),
        "by config.json mxfp4, 4 bits, groups of 32: expected scales of shape [8, 4]",
    );
    let mut files = Files::new();
    files.packed("m", four, &[8], 128);
    assert!(files.refusal(8, 96).contains("expected inputs of whole groups, found 96 inputs"));
    let mut files = Files::new();
    files.packed("m", QuantFormat { mode: QuantMode::Mxfp8, bits: 8, group: 32 }, &[8], 64);
    files.tensors[1].1 = Stored::I8;
    assert!(files.refusal(8, 64).contains("m.scales has type I8; expected U8"));
    files.tensors[1].1 = Stored::U8;
    files.floats("m.biases", Stored::F16, &[8, 2], 1.0);
    assert!(files.refusal(8, 64).contains("does not use, the first is m.biases"));
}
