//! Matrices of linear modules, as floats or quantized, and several of them joined to one along
//! their outputs. A module is quantized if the checkpoint has its scales; config.json says in which
//! format.

use mlx_rs::ops::quantize;
use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype as MlxDtype};
use paceline_checkpoint::from_gguf::StoredForm;
use paceline_checkpoint::numbers::is_float;
use paceline_checkpoint::plan::PACKED_GROUP;
use safetensors::tensor::Dtype;

use super::arrays::{PackedPieces, affine_mxfp4, blank, expanded, mlx_dtype, stored, written};
use super::gguf::{self, FactorForm, StoredBlocks, scaled_row};
use super::mapped::MappedBytes;
use super::{CheckpointError, LoadError, QuantFormat, QuantMode, Weights};

/// Modules with the rows of one projection: one module, or for experts one each, in their order.
#[derive(Clone, Debug)]
pub(crate) struct MatrixPart {
    pub(crate) modules: Vec<String>,
    /// Outputs, of each expert.
    pub(crate) out: i32,
}

/// How many rows of how many inputs, and of how many experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatrixSizes {
    pub(crate) input: i32,
    /// `None`: a matrix without an axis of experts.
    pub(crate) experts: Option<i32>,
}

/// A weight `[out, in]`, or `[experts, out, in]`.
#[derive(Clone, Debug)]
pub(crate) enum StoredMatrix {
    Float(Array),
    Quantized(QuantizedMatrix),
}

/// A quantized weight as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct QuantizedMatrix {
    /// uint32 `[…, out, in · bits / 32]`.
    pub(crate) packed: Array,
    /// `[…, out, in / group]`.
    pub(crate) scales: Array,
    /// As `scales`; only in the affine mode.
    pub(crate) biases: Option<Array>,
    pub(crate) format: QuantFormat,
    /// Whether all parts lie in tiles, for products of integers (`QuantizedMatrix::arranged`).
    pub(crate) tiles: bool,
}

impl StoredMatrix {
    /// Rows of a weight `[out, in]`.
    pub(crate) fn outputs(&self) -> i32 {
        match self {
            Self::Float(matrix) => matrix.dim(0),
            Self::Quantized(matrix) => matrix.packed.dim(0),
        }
    }

    /// These rows of a weight `[out, in]`, in this order. Evaluated, so that the whole weight can go.
    ///
    /// # Errors
    /// MLX's own.
    pub(crate) fn rows(&self, rows: &[i32]) -> Result<Self, LoadError> {
        let rows = Array::from_slice(rows, &[rows.len() as i32]);
        let take = |array: &Array| -> Result<Array, LoadError> {
            let taken = array.take_axis(&rows, 0)?;
            taken.eval()?;
            Ok(taken)
        };
        Ok(match self {
            Self::Float(matrix) => Self::Float(take(matrix)?),
            Self::Quantized(matrix) => {
                let matrix = matrix.as_stored()?;
                Self::Quantized(QuantizedMatrix {
                    packed: take(&matrix.packed)?,
                    scales: take(&matrix.scales)?,
                    biases: matrix.biases.as_ref().map(take).transpose()?,
                    format: matrix.format,
                    tiles: false,
                })
            }
        })
    }
}

impl QuantizedMatrix {
    /// Numbers, scales and biases in the order of checkpoints.
    fn affine([packed, scales, biases]: [Array; 3], format: QuantFormat) -> Self {
        Self { packed, scales, biases: Some(biases), format, tiles: false }
    }

    /// Inputs that share a scale and a bias in a weight that is quantized here.
    pub(crate) const GROUP: i32 = PACKED_GROUP;

    /// Quantizes `matrix` `[…, out, in]` in groups of inputs, which must be whole. Evaluated now
    /// and not at the first forward, so that the float weight is gone before the next one is read.
    ///
    /// # Errors
    /// MLX's own.
    pub(crate) fn pack(matrix: &Array, bits: i32) -> Result<Self, LoadError> {
        let (packed, scales, biases) = quantize(matrix, Self::GROUP, bits)?;
        eval([&packed, &scales, &biases])?;
        let format = QuantFormat::affine(bits, Self::GROUP);
        Ok(Self::affine([packed, scales, biases], format))
    }
}

/// Types that a float tensor may have, for errors.
const FLOATS: &str = "F32, F16 or BF16";

fn shape(rows: &[i32], columns: i32) -> Vec<i32> {
    rows.iter().copied().chain([columns]).collect()
}

/// The bytes of one module's weight.
enum ModuleBytes {
    Float { bytes: MappedBytes, dtype: Dtype },
    Quantized { pieces: PackedPieces, format: QuantFormat },
    Blocks(StoredBlocks),
}

impl ModuleBytes {
    /// Block `at` of `count` equal blocks of rows.
    fn part(&self, at: usize, count: usize) -> Self {
        match self {
            Self::Float { bytes, dtype } => {
                Self::Float { bytes: bytes.part(at, count), dtype: *dtype }
            }
            Self::Quantized { pieces, format } => {
                let pieces = PackedPieces {
                    packed: pieces.packed.part(at, count),
                    scales: pieces.scales.part(at, count),
                    scales_dtype: pieces.scales_dtype,
                    biases: pieces.biases.as_ref().map(|biases| biases.part(at, count)),
                };
                Self::Quantized { pieces, format: *format }
            }
            Self::Blocks(blocks) => Self::Blocks(blocks.part(at, count)),
        }
    }

    /// Parts of one storage are joined without loss.
    fn storage(&self) -> Option<(QuantFormat, FactorForm)> {
        match self {
            Self::Float { .. } => None,
            Self::Quantized { pieces, format } => {
                Some((*format, FactorForm::Each(pieces.scales_dtype)))
            }
            Self::Blocks(blocks) => Some((blocks.format, blocks.factors)),
        }
    }
}

/// All blocks of rows, which are of one storage.
enum Blocks {
    Floats(Vec<(MappedBytes, Dtype)>),
    Quantized(Vec<PackedPieces>, QuantFormat),
    Gguf(Vec<StoredBlocks>, QuantFormat, FactorForm),
}

impl Blocks {
    fn of(all: Vec<ModuleBytes>) -> Self {
        let (mut floats, mut packed, mut gguf) = (vec![], vec![], vec![]);
        let mut format_of_all = None;
        for block in all {
            match block {
                ModuleBytes::Float { bytes, dtype } => floats.push((bytes, dtype)),
                ModuleBytes::Quantized { pieces, format } => {
                    packed.push(pieces);
                    format_of_all = Some(format);
                }
                ModuleBytes::Blocks(blocks) => gguf.push(blocks),
            }
        }
        let forms = gguf.first().map(|first| (first.format, first.factors));
        match (forms, format_of_all) {
            (Some((format, factors)), _) => Self::Gguf(gguf, format, factors),
            (None, Some(format)) => Self::Quantized(packed, format),
            (None, None) => Self::Floats(floats),
        }
    }
}

impl Weights<'_> {
    /// Reads one projection after another. Neighbours of the same storage become one matrix: their
    /// outputs lie side by side. Others are kept apart.
    ///
    /// # Errors
    /// A tensor is missing or contradicts its format; experts of one projection have different
    /// formats.
    pub(crate) fn take_matrices(
        &mut self,
        parts: &[MatrixPart],
        sizes: MatrixSizes,
    ) -> Result<Vec<StoredMatrix>, LoadError> {
        let mut groups: Vec<(Vec<Vec<ModuleBytes>>, i32)> = vec![];
        let mut bytes = 0;
        let name = parts.first().and_then(|part| part.modules.first());
        let bits = name.and_then(|name| self.bits_of(name)).filter(|bits| {
            let format = QuantFormat::affine(*bits, QuantizedMatrix::GROUP);
            sizes.input % format.group == 0 && (self.forms.keeps)(format)
        });
        for part in parts {
            let blocks = self.open_part(part, sizes, &mut bytes)?;
            let storage = blocks.first().map(ModuleBytes::storage);
            match groups.last_mut() {
                Some((own, out)) if own[0].first().map(ModuleBytes::storage) == storage => {
                    own.push(blocks);
                    *out += part.out;
                }
                _ => groups.push((vec![blocks], part.out)),
            }
        }
        let mut matrices = Vec::with_capacity(groups.len());
        for (parts, out) in groups {
            // Block by block: all parts of the first expert, then all of the second.
            let mut parts: Vec<_> = parts.into_iter().map(Vec::into_iter).collect();
            let mut blocks = vec![];
            while let Some(first) = parts[0].next() {
                blocks.push(first);
                blocks.extend(parts[1..].iter_mut().filter_map(Iterator::next));
            }
            matrices.push(match (self.matrix(blocks, out, sizes)?, bits) {
                (StoredMatrix::Float(matrix), Some(bits)) if !self.rehearses() => {
                    StoredMatrix::Quantized(QuantizedMatrix::pack(&matrix, bits)?)
                }
                (matrix, _) => matrix,
            });
        }
        self.report(bytes);
        Ok(matrices)
    }

    /// The bytes of a part, one block of rows for each expert. Adds their number to `bytes`.
    fn open_part(
        &mut self,
        part: &MatrixPart,
        sizes: MatrixSizes,
        bytes: &mut usize,
    ) -> Result<Vec<ModuleBytes>, LoadError> {
        let experts = sizes.experts.unwrap_or(1) as usize;
        if let ([module], Some(experts)) = (part.modules.as_slice(), sizes.experts) {
            let all = self.open_module(module, &[experts, part.out], sizes.input, bytes)?;
            return Ok((0..experts as usize).map(|at| all.part(at, experts as usize)).collect());
        }
        let mut blocks: Vec<ModuleBytes> = Vec::with_capacity(experts);
        for module in &part.modules {
            let block = self.open_module(module, &[part.out], sizes.input, bytes)?;
            if blocks.first().is_some_and(|first| first.storage() != block.storage()) {
                let what = format!("expected the format of {}, found another", part.modules[0]);
                return Err(LoadError::from(CheckpointError::Quantized {
                    module: module.clone(),
                    what,
                }));
            }
            blocks.push(block);
        }
        Ok(blocks)
    }

    /// The bytes of the weight of a module, `[rows…, input]`. Adds their number to `bytes`.
    fn open_module(
        &mut self,
        module: &str,
        rows: &[i32],
        input: i32,
        bytes: &mut usize,
    ) -> Result<ModuleBytes, LoadError> {
        if let Some(format) = self.format_of(module)? {
            return self.open_quantized(module, format, rows, input, bytes);
        }
        let weight = self.weight_of(module);
        let (entry, mapped) = self.open(&weight, &shape(rows, input))?;
        if let Some(form) = entry.gguf.filter(|form| form.kind.is_quantized()) {
            *bytes += entry.bytes;
            let rows = rows.iter().map(|length| *length as usize).product();
            return Ok(self.blocks(&mapped, form, rows));
        }
        self.check_dtype(&weight, entry.dtype, is_float(entry.dtype), FLOATS)?;
        *bytes += entry.bytes;
        Ok(ModuleBytes::Float { bytes: mapped, dtype: entry.dtype })
    }

    /// The blocks of a GGUF file, as packed numbers or as floats.
    fn blocks(&self, bytes: &MappedBytes, form: StoredForm, rows: usize) -> ModuleBytes {
        let packing = gguf::packing(form.kind, &self.forms);
        let packed = packing.and_then(|packing| match self.rehearses() {
            // What is not read is not looked at either.
            true => Some(StoredBlocks::unread(bytes.clone(), form, packing, rows)),
            false => StoredBlocks::new(bytes.clone(), form, packing, rows),
        });
        match packed {
            Some(blocks) => ModuleBytes::Blocks(blocks),
            None if self.rehearses() => {
                ModuleBytes::Float { bytes: bytes.clone(), dtype: Dtype::F32 }
            }
            None => {
                ModuleBytes::Float { bytes: gguf::expanded(bytes, form, rows), dtype: Dtype::F32 }
            }
        }
    }

    /// Tensors of all experts have no name of their own behind the module's.
    fn weight_of(&self, module: &str) -> String {
        match self.entry(module) {
            Some(_) => module.to_owned(),
            None => format!("{module}.weight"),
        }
    }

    fn open_quantized(
        &mut self,
        module: &str,
        format: QuantFormat,
        rows: &[i32],
        input: i32,
        bytes: &mut usize,
    ) -> Result<ModuleBytes, LoadError> {
        let (words, groups) = (shape(rows, format.words(input)), shape(rows, input / format.group));
        self.check_shapes(module, format, input, [&words, &groups])?;
        let weight = self.weight_of(module);
        let (packed, packed_bytes) = self.open(&weight, &words)?;
        self.check_dtype(&weight, packed.dtype, packed.dtype == Dtype::U32, "U32")?;
        let name = format!("{module}.scales");
        let (scales, scales_bytes) = self.open(&name, &groups)?;
        *bytes += packed.bytes + scales.bytes;
        let biases = match format.mode {
            QuantMode::Affine => {
                self.check_dtype(&name, scales.dtype, is_float(scales.dtype), FLOATS)?;
                let name = format!("{module}.biases");
                let (biases, biases_bytes) = self.open(&name, &groups)?;
                let same = biases.dtype == scales.dtype;
                self.check_dtype(&name, biases.dtype, same, "the type of the scales")?;
                *bytes += biases.bytes;
                Some(biases_bytes)
            }
            _ => {
                self.check_dtype(&name, scales.dtype, scales.dtype == Dtype::U8, "U8")?;
                None
            }
        };
        let pieces = PackedPieces {
            packed: packed_bytes,
            scales: scales_bytes,
            scales_dtype: scales.dtype,
            biases,
        };
        Ok(ModuleBytes::Quantized { pieces, format })
    }

    /// Whether the tensors of a quantized module that are there have the shapes of its format:
    /// `words` for the weight, `groups` for the others.
    fn check_shapes(
        &self,
        module: &str,
        format: QuantFormat,
        input: i32,
        [words, groups]: [&[i32]; 2],
    ) -> Result<(), LoadError> {
        let contradicts = |what: String| {
            LoadError::from(CheckpointError::Quantized {
                module: module.to_owned(),
                what: format!("by config.json {format}: {what}"),
            })
        };
        if input % format.group != 0 {
            return Err(contradicts(format!(
                "expected inputs of whole groups, found {input} inputs"
            )));
        }
        for (part, expected) in [("weight", words), ("scales", groups), ("biases", groups)] {
            let found = self.shape(&format!("{module}.{part}"));
            if let Some(found) = found
                && !found.iter().copied().eq(expected.iter().map(|length| *length as usize))
            {
                return Err(contradicts(format!(
                    "expected {part} of shape {expected:?}, found {found:?}"
                )));
            }
        }
        Ok(())
    }

    /// The format of a module; `None` if it is stored as floats.
    fn format_of(&self, module: &str) -> Result<Option<QuantFormat>, LoadError> {
        let scales = format!("{module}.scales");
        if self.entry(&scales).is_none() {
            let weight = self.entry(&format!("{module}.weight"));
            return match weight.is_some_and(|weight| weight.dtype == Dtype::U32) {
                true => Err(LoadError::from(CheckpointError::Missing { name: self.full(&scales) })),
                false => Ok(None),
            };
        }
        let format = self.forms.quantization.format(&self.full(module));
        format.map(Some).ok_or_else(|| {
            LoadError::from(CheckpointError::Quantized {
            module: self.full(module),
            what: "the checkpoint has its scales, and by the quantization settings of config.json \
                   it is not quantized"
                .into(),
        })
        })
    }

    fn check_dtype(
        &self,
        name: &str,
        found: Dtype,
        fits: bool,
        expected: &'static str,
    ) -> Result<(), LoadError> {
        let (name, found) = (self.full(name), format!("{found:?}"));
        if fits {
            Ok(())
        } else {
            Err(LoadError::from(CheckpointError::Dtype { name, found, expected }))
        }
    }

    /// The blocks one after another, all of one storage.
    fn matrix(
        &mut self,
        blocks: Vec<ModuleBytes>,
        out: i32,
        sizes: MatrixSizes,
    ) -> Result<StoredMatrix, LoadError> {
        let shape = |columns: i32| -> Vec<i32> {
            sizes.experts.into_iter().chain([out, columns]).collect()
        };
        let whole = shape(sizes.input);
        let (packed, format) = match Blocks::of(blocks) {
            Blocks::Floats(floats) => return Ok(StoredMatrix::Float(self.floats(floats, &whole)?)),
            Blocks::Gguf(blocks, format, factors) => {
                let row = scaled_row(sizes.input, format.group);
                let row = row.filter(|_| factors == FactorForm::Scaled);
                let factors = (factors.dtype(), &*shape(row.unwrap_or(sizes.input / format.group)));
                let words = shape(format.words(sizes.input));
                return self.of_blocks(blocks, format, [(Dtype::U32, &*words), factors, factors]);
            }
            Blocks::Quantized(packed, format) => (packed, format),
        };
        let Some(kept) = self.forms.kept(format) else {
            return Ok(StoredMatrix::Float(self.expanded(packed, format, &whole)?));
        };
        let groups = shape(sizes.input / format.group);
        if kept != format {
            return self.affine(&packed, kept, &shape(kept.words(sizes.input)), &groups);
        }
        let (mut words, mut scales, mut biases) = (vec![], vec![], vec![]);
        let mut scales_dtype = Dtype::U8;
        for pieces in packed {
            scales_dtype = pieces.scales_dtype;
            words.push(pieces.packed);
            scales.push(pieces.scales);
            biases.extend(pieces.biases);
        }
        let rehearses = self.rehearses();
        let stored = |pieces, dtype, shape: &[i32]| match rehearses {
            true => blank(mlx_dtype(dtype).expect("its type was checked"), shape),
            false => stored(pieces, dtype, shape),
        };
        let biases = match format.mode {
            QuantMode::Affine => Some(stored(biases, scales_dtype, &groups)?),
            _ => None,
        };
        Ok(StoredMatrix::Quantized(QuantizedMatrix {
            packed: stored(words, Dtype::U32, &shape(format.words(sizes.input)))?,
            scales: stored(scales, scales_dtype, &groups)?,
            biases,
            format,
            tiles: false,
        }))
    }

    /// The numbers of all pieces as float32.
    fn expanded(
        &mut self,
        packed: Vec<PackedPieces>,
        format: QuantFormat,
        shape: &[i32],
    ) -> Result<Array, LoadError> {
        if self.rehearses() {
            return blank(MlxDtype::Float32, shape);
        }
        let held = packed.iter().map(PackedPieces::bytes).sum::<usize>() as u64;
        let array = expanded(packed, format, shape)?;
        self.expanded.modules += 1;
        self.expanded.stored_bytes += held;
        self.expanded.bytes += array.nbytes() as u64;
        self.expanded.format = Some(format);
        Ok(array)
    }

    /// The blocks of a GGUF file, in arrays of numbers, scales and biases of these types and shapes.
    fn of_blocks(
        &self,
        blocks: Vec<StoredBlocks>,
        format: QuantFormat,
        parts: [(Dtype, &[i32]); 3],
    ) -> Result<StoredMatrix, LoadError> {
        let parts = match self.rehearses() {
            true => {
                let blank = |(dtype, shape): (Dtype, &[i32])| {
                    blank(mlx_dtype(dtype).expect("its type was checked"), shape)
                };
                let [packed, scales, biases] = parts.map(blank);
                [packed?, scales?, biases?]
            }
            false => written(parts, move |outs| gguf::write(&blocks, outs))?,
        };
        Ok(StoredMatrix::Quantized(QuantizedMatrix::affine(parts, format)))
    }

    /// The blocks of mxfp4 as affine numbers, in shapes of words and of groups.
    fn affine(
        &self,
        packed: &[PackedPieces],
        format: QuantFormat,
        words: &[i32],
        groups: &[i32],
    ) -> Result<StoredMatrix, LoadError> {
        let parts = match self.rehearses() {
            true => {
                let factors = || blank(MlxDtype::Bfloat16, groups);
                [blank(MlxDtype::Uint32, words)?, factors()?, factors()?]
            }
            false => affine_mxfp4(packed, [words, groups]),
        };
        Ok(StoredMatrix::Quantized(QuantizedMatrix::affine(parts, format)))
    }
}
