//! Machines that can be named: Apple's chips with the sizes of memory that they are sold with, and
//! a few cards of NVIDIA.
//!
//! Bandwidths are the makers' own figures. Where a chip is sold with fewer memory channels for some
//! sizes, these sizes have a line of their own.

/// A chip or card, with the sizes of memory that it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chip {
    /// Name without the maker.
    pub(super) name: &'static str,
    /// Sizes of memory in GiB.
    pub(super) sizes: &'static [u64],
    /// Read bandwidth of the memory in GB/s.
    pub(super) bandwidth: f64,
    /// Maker, and what depends on it.
    pub(super) kind: Kind,
}

/// Maker of a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Processor and GPU share the memory. The number is that of the GPU's architecture in Metal
    /// (`applegpu_g16s` is 16), by which MLX chooses its kernels.
    Apple(u32),
    /// A card with memory of its own.
    Nvidia,
}

const fn apple(name: &'static str, generation: u32, sizes: &'static [u64], bandwidth: f64) -> Chip {
    Chip { name, sizes, bandwidth, kind: Kind::Apple(generation) }
}

const fn nvidia(name: &'static str, sizes: &'static [u64], bandwidth: f64) -> Chip {
    Chip { name, sizes, bandwidth, kind: Kind::Nvidia }
}

/// All of them. A name may have several lines, each with other sizes.
pub(super) const CHIPS: &[Chip] = &[
    apple("M1", 13, &[8, 16], 68.3),
    apple("M1 Pro", 13, &[16, 32], 200.0),
    apple("M1 Max", 13, &[32, 64], 400.0),
    apple("M1 Ultra", 13, &[64, 128], 800.0),
    apple("M2", 14, &[8, 16, 24], 100.0),
    apple("M2 Pro", 14, &[16, 32], 200.0),
    apple("M2 Max", 14, &[32, 64, 96], 400.0),
    apple("M2 Ultra", 14, &[64, 128, 192], 800.0),
    apple("M3", 15, &[8, 16, 24], 100.0),
    apple("M3 Pro", 15, &[18, 36], 150.0),
    apple("M3 Max", 15, &[36, 96], 300.0),
    apple("M3 Max", 15, &[48, 64, 128], 400.0),
    apple("M3 Ultra", 15, &[96, 256, 512], 819.0),
    apple("M4", 16, &[16, 24, 32], 120.0),
    apple("M4 Pro", 16, &[24, 48, 64], 273.0),
    apple("M4 Max", 16, &[36], 410.0),
    apple("M4 Max", 16, &[48, 64, 128], 546.0),
    apple("M5", 17, &[16, 24, 32], 153.0),
    apple("M5 Pro", 17, &[24, 48, 64], 307.0),
    apple("M5 Max", 17, &[36], 460.0),
    apple("M5 Max", 17, &[48, 64, 128], 614.0),
    nvidia("RTX 3090", &[24], 936.0),
    nvidia("RTX 4090", &[24], 1_008.0),
    nvidia("RTX 5090", &[32], 1_792.0),
    nvidia("L40S", &[48], 864.0),
    nvidia("A100", &[40], 1_555.0),
    nvidia("A100", &[80], 2_039.0),
    nvidia("H100", &[80], 3_350.0),
    nvidia("H200", &[141], 4_800.0),
];
