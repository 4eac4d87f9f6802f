//! In which form a device keeps weights, and how it multiplies by them.

use paceline_vocabulary::Products;

use crate::{CheckpointError, ConfigJson, QuantFormat, QuantMode, Quantization, Tensors};

/// Inputs of a group of a matrix that is quantized as it is loaded.
pub const PACKED_GROUP: i32 = 64;

/// Bytes of quantized elements below which a target is small. It is fast with floats, too, and
/// rounding changes its answers more. SmolLM2-135M begins its answer about the capital of France with
/// a token that leads the next best by 0.08 in logits. Rounding to 8 bits moves that lead by up to
/// 0.4, here as in llama.cpp.
pub const SMALL: u64 = 256 << 20;

/// What a configuration asks for of products by quantized weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProductsChoice {
    /// Integers where there are kernels for them and the model is not [small](SMALL), else floats.
    #[default]
    Auto,
    /// Floats everywhere.
    Float,
    /// Integers; a place or a checkpoint without them is an error.
    Integer,
}

/// The properties of a device that decide about the form of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceKind {
    /// Whether it is a GPU.
    pub on_gpu: bool,
    /// Whether the project's own kernels compute, which multiply by quantized weights on a CPU.
    pub has_kernels: bool,
}

/// In which type weights are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// float32: half-precision products do not go through BLAS on the CPU.
    Float32,
    /// As in the file: for the GPU.
    AsStored,
}

/// In which form weights are kept.
#[derive(Clone, Debug)]
pub struct WeightForms {
    /// The type of floats.
    pub precision: Precision,
    /// Formats of quantized modules, by config.json.
    pub quantization: Quantization,
    /// Whether a quantized weight of this format stays as it is stored. Others are expanded to
    /// float32.
    pub keeps: fn(QuantFormat) -> bool,
    /// How products by weights that stay quantized are computed.
    pub products: Products,
}

impl WeightForms {
    /// The forms of a checkpoint with this config.json on a device. `keep_quantized`: a CPU with kernels
    /// keeps quantized weights as they are stored; a GPU keeps them in any case.
    ///
    /// # Errors
    /// As [`Quantization::read`].
    pub fn of(
        config: &ConfigJson,
        device: DeviceKind,
        keep_quantized: bool,
        products: Products,
    ) -> Result<Self, CheckpointError> {
        Ok(Self {
            precision: if device.on_gpu { Precision::AsStored } else { Precision::Float32 },
            quantization: Quantization::read(config)?,
            keeps: match (device.on_gpu, keep_quantized && device.has_kernels) {
                (true, _) => |_| true,
                (false, true) => QuantFormat::has_kernel,
                (false, false) => |_| false,
            },
            products,
        })
    }

    /// The forms of a checkpoint of floats alone.
    pub fn of_floats(device: DeviceKind) -> Self {
        let precision = if device.on_gpu { Precision::AsStored } else { Precision::Float32 };
        let quantization = Quantization::default();
        Self { precision, quantization, keeps: |_| true, products: Products::Float }
    }

    /// The format in which a quantized weight is kept; `None`: its numbers are expanded. For products
    /// of integers mxfp4 becomes affine, with the same numbers ([`QuantFormat::AFFINE_MXFP4`]).
    pub fn kept(&self, format: QuantFormat) -> Option<QuantFormat> {
        let affine = QuantFormat::AFFINE_MXFP4;
        match (self.keeps)(format) {
            true => Some(format),
            false => (format.mode == QuantMode::Mxfp4
                && self.products == Products::Integer
                && (self.keeps)(affine))
            .then_some(affine),
        }
    }

    /// Whether the quantized blocks of a GGUF file stay quantized: those of a device that keeps MLX's
    /// groups of 32.
    pub fn keeps_blocks(&self) -> bool {
        (self.keeps)(QuantFormat::affine(4, 32))
    }

    /// How products by the weights of this checkpoint are computed.
    pub fn products_of(&self, tensors: &Tensors) -> Products {
        let mut modules = tensors.entries.keys().filter_map(|name| name.strip_suffix(".scales"));
        let keeps = |module| {
            self.quantization.format(module).is_some_and(|format| self.kept(format).is_some())
        };
        let has_blocks = || tensors.entries.values().any(|entry| entry.blocks().is_some());
        let is_kept = modules.any(keeps) || (self.keeps_blocks() && has_blocks());
        if is_kept { self.products } else { Products::Float }
    }
}

/// Bits to which the matrix of module `name` is quantized where others get `bits`. All later numbers
/// depend on the projection of a target's hidden states, and all of a layer's on a router: 8 bits at
/// least.
pub fn packed_bits(bits: i32, name: &str) -> i32 {
    let matters = matches!(name.rsplit('.').next(), Some("fc" | "input_proj" | "gate"));
    if matters { bits.max(8) } else { bits }
}

impl ProductsChoice {
    /// How products are computed on a device for a checkpoint with `quantized_bytes` bytes of quantized
    /// elements, if their formats allow it.
    pub fn on(self, device: DeviceKind, quantized_bytes: u64) -> Products {
        let may = device.has_kernels && !device.on_gpu;
        match self {
            Self::Integer if may => Products::Integer,
            Self::Auto if may && quantized_bytes >= SMALL => Products::Integer,
            _ => Products::Float,
        }
    }
}
