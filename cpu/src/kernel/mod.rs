//! The sums of a product, block by block. Element (i, j) has the same bits whatever rows and
//! columns stand beside it: it is summed over k in one order, which only k and the instruction set
//! settle.
//!
//! ```text
//!  rows of B in C (x @ W.T)   one SIMD vector of L numbers per element runs over k in steps of L; the last step
//!                             may be shorter and has zeros behind k; its numbers are folded by halves: i and i+L/2, i and i+L/4, …
//!  columns of B in C (p @ V)  one number of a SIMD vector per element, k in order, one fused step each
//! ```
//! A block keeps the sums of some rows × some columns in registers. Which blocks a product is cut
//! into differs with its number of rows, and no sum knows of it.

mod blocks;
mod decode;
mod delta;
mod factors;
mod functions;
pub(crate) mod integer;
mod quantized;
mod simd;

use std::cell::RefCell;
use std::ffi::c_int;

pub(crate) use decode::{brain, half};
pub(crate) use delta::{DeltaFunctions, DeltaRow};
pub(crate) use factors::{Factors, QuantizedWeight, RUN};
pub(crate) use functions::Functions;
pub use functions::{Affine, Rotation};

/// C = α·A·B + β·C in rows. A is m × k, its elements as far apart as its steps say; B is stored n ×
/// k (`transposed`) or k × n.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    pub(crate) transposed: bool,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) alpha: f32,
    pub(crate) a: *const f32,
    /// From one row of A to the next.
    pub(crate) a_row: usize,
    /// From one element of a row of A to the next.
    pub(crate) a_step: usize,
    /// The rows of A as the kernels read them, where B is transposed ([`Kernels::prepare`]).
    pub(crate) packed: *const f32,
    /// None where `weight` is B.
    pub(crate) b: *const f32,
    pub(crate) ldb: usize,
    /// B, transposed, as quantized numbers; null where they are floats.
    pub(crate) weight: *const QuantizedWeight,
    pub(crate) beta: f32,
    pub(crate) c: *mut f32,
    pub(crate) ldc: usize,
}

impl Product {
    /// A part of its rows. Of a prepared product only rows that were prepared together
    /// ([`Kernels::prepare`]).
    ///
    /// # Safety
    /// There are as many rows.
    pub(crate) unsafe fn rows(&self, from: usize, to: usize) -> Product {
        // SAFETY: the caller's.
        unsafe {
            let a = self.a.add(from * self.a_row);
            let packed = if self.packed.is_null() {
                self.packed
            } else {
                self.packed.add(from * self.packed_row())
            };
            Product { m: to - from, a, packed, c: self.c.add(from * self.ldc), ..*self }
        }
    }

    /// The weight, if it is multiplied by integers.
    fn integers(&self) -> Option<&QuantizedWeight> {
        // SAFETY: the weight of a product lives as long as it.
        unsafe { self.weight.as_ref() }.filter(|weight| weight.tiles)
    }

    /// Many rows are given out in multiples of this: the rows of a block, for all instruction sets.
    pub(crate) fn row_step(&self) -> usize {
        if self.integers().is_some() { 8 } else { 6 }
    }

    /// Floats from a packed row to the next.
    fn packed_row(&self) -> usize {
        match self.integers() {
            Some(weight) => integer::packed_row(self.k, weight.group),
            None => packed_row(self.k),
        }
    }

    /// Four elements of a row from their sums, those behind column `end` left out. β = 0 does not
    /// read C, which may be anything, as BLAS has it.
    ///
    /// # Safety
    /// The row and the columns up to `end` are C's. `column` may lie behind `end`.
    #[inline(always)]
    unsafe fn put(&self, row: usize, column: usize, sums: [f32; 4], end: usize) {
        // SAFETY: the caller's.
        unsafe {
            // The last block of a row may begin behind `end` and write nothing. Its place need not
            // be in C's allocation, so no pointer arithmetic with `add`.
            let place = self.c.wrapping_add(row * self.ldc + column);
            let sums = sums.map(|sum| self.alpha * sum);
            if self.beta == 0.0 && column + 4 <= end {
                place.cast::<[f32; 4]>().write_unaligned(sums);
                return;
            }
            for (at, sum) in sums.into_iter().enumerate().take(end.saturating_sub(column)) {
                let place = place.add(at);
                *place = if self.beta == 0.0 { sum } else { sum + self.beta * *place };
            }
        }
    }
}

/// Packs the rows of A.
type Pack = unsafe fn(&Product, *mut f32);
/// Computes columns `from..to` of C.
type Columns = unsafe fn(&Product, usize, usize);
/// Computes columns `from..to` of C, B quantized, with room for what it expands.
type QuantizedColumns = unsafe fn(&Product, &QuantizedWeight, usize, usize, &mut PackBuffer);

/// Products of integers: packs the rows of A, and computes columns `from..to` of C.
#[derive(Clone, Copy)]
struct IntegerKernels {
    pack: unsafe fn(&Product, &QuantizedWeight, *mut f32),
    columns: unsafe fn(&Product, &QuantizedWeight, usize, usize),
}

/// The kernels of one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Kernels {
    pub(crate) name: &'static str,
    pack: Pack,
    columns: Columns,
    quantized_pack: Pack,
    quantized_columns: QuantizedColumns,
    integers: IntegerKernels,
    pub(crate) functions: Functions,
    pub(crate) delta: DeltaFunctions,
}

/// Room for packed rows or expanded columns, kept from product to product.
#[derive(Default)]
pub(crate) struct PackBuffer(Vec<PackedLine>);

impl PackBuffer {
    /// None yet.
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Room for `count` floats, of any content.
    fn floats(&mut self, count: usize) -> *mut f32 {
        let lines = count.div_ceil(16);
        if self.0.len() < lines {
            self.0.resize(lines, PackedLine([0.0; 16]));
        }
        self.0.as_mut_ptr().cast()
    }
}

/// A cache line, so that no vector of a packed row lies across two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct PackedLine([f32; 16]);

/// Columns are given out in multiples of this: no block is cut then, for any instruction set's
/// kernels.
pub(crate) const COLUMNS: usize = 64;

/// Floats between packed rows: whole cache lines, and no vector is longer.
const fn packed_row(k: usize) -> usize {
    k.next_multiple_of(16)
}

impl Kernels {
    /// The product, ready for [`Kernels::columns`] for as long as `buffer` is not touched, whole or
    /// in parts of `tile` rows.
    ///
    /// # Safety
    /// A is as large as the product says, and the processor has the instructions, which
    /// [`available`] sees to.
    pub(crate) unsafe fn prepare(
        &self,
        product: &Product,
        tile: usize,
        buffer: &mut PackBuffer,
    ) -> Product {
        let packed = buffer.floats(product.m * product.packed_row());
        // SAFETY: the caller's; there is room.
        unsafe { self.prepare_at(product, tile, packed) }
    }

    /// The products, ready as [`Kernels::prepare`] says, whole.
    ///
    /// # Safety
    /// [`Kernels::prepare`]'s, for each.
    pub(crate) unsafe fn prepare_all(&self, products: &mut [Product], buffer: &mut PackBuffer) {
        let size = |product: &Product| product.m * product.packed_row();
        let mut packed = buffer.floats(products.iter().map(size).sum());
        for product in products {
            // SAFETY: the caller's; there is room for all.
            unsafe {
                *product = self.prepare_at(product, product.m, packed);
                packed = packed.add(size(product));
            }
        }
    }

    /// # Safety
    /// [`Kernels::prepare`]'s; there is room at `packed` for as many rows.
    unsafe fn prepare_at(&self, product: &Product, tile: usize, packed: *mut f32) -> Product {
        if !product.transposed {
            return *product;
        }
        let pack = if product.weight.is_null() { self.pack } else { self.quantized_pack };
        for from in (0..product.m).step_by(tile.max(1)) {
            // SAFETY: the rows are the product's and there is room for them.
            unsafe {
                let part = product.rows(from, (from + tile).min(product.m));
                let packed = packed.add(from * product.packed_row());
                match product.integers() {
                    Some(weight) => (self.integers.pack)(&part, weight, packed),
                    None => pack(&part, packed),
                }
            }
        }
        Product { packed, ..*product }
    }

    /// Computes columns `from..to` of C.
    ///
    /// # Safety
    /// The product is prepared, A, B and C are as large as it says, and C is written by nobody else
    /// in these columns.
    pub(crate) unsafe fn columns(&self, product: &Product, from: usize, to: usize) {
        thread_local!(static BUFFER: RefCell<PackBuffer> = const { RefCell::new(PackBuffer::new()) });
        // SAFETY: the caller's; the weight of a product lives as long as it.
        unsafe {
            match product.weight.as_ref() {
                None => (self.columns)(product, from, to),
                Some(weight) if weight.tiles => (self.integers.columns)(product, weight, from, to),
                Some(weight) => BUFFER.with_borrow_mut(|buffer| {
                    (self.quantized_columns)(product, weight, from, to, buffer);
                }),
            }
        }
    }
}

macro_rules! kernels {
    ($name:literal, $set:ident, $integers:ident) => {
        Kernels {
            name: $name,
            pack: blocks::$set::pack,
            columns: blocks::$set::columns,
            quantized_pack: quantized::$set::pack,
            quantized_columns: quantized::$set::columns,
            integers: IntegerKernels {
                pack: integer::$integers::pack,
                columns: integer::$integers::columns,
            },
            functions: functions::$set::ALL,
            delta: delta::$set::ALL,
        }
    };
}

/// Plain Rust: for processors without any of the others, and as a second opinion in tests.
pub(crate) const PORTABLE: Kernels = kernels!("portable", portable, portable);

/// Plain Rust in blocks of eight columns, as the instruction sets with many registers have them: so
/// that tests reach those blocks on every machine, and under Miri.
#[cfg(test)]
const WIDE: Kernels = Kernels {
    name: "portable, wide",
    pack: blocks::wide::pack,
    columns: blocks::wide::columns,
    ..PORTABLE
};

/// Instruction sets that this processor has, best first.
pub(crate) fn available() -> impl Iterator<Item = Kernels> {
    #[cfg(target_arch = "x86_64")]
    let native = {
        let avx2 = std::is_x86_feature_detected!("avx2")
            && std::is_x86_feature_detected!("fma")
            && std::is_x86_feature_detected!("f16c");
        let avx512 = avx2
            && std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("avx512vl");
        let avx512_vnni = avx512 && std::is_x86_feature_detected!("avx512vnni");
        let avx_vnni = avx2 && std::is_x86_feature_detected!("avxvnni");
        [
            avx512_vnni.then_some(kernels!("avx512-vnni", avx512, avx512_vnni)),
            avx512.then_some(kernels!("avx512", avx512, avx2)),
            avx_vnni.then_some(kernels!("avx2-vnni", avx2, avx_vnni)),
            avx2.then_some(kernels!("avx2", avx2, avx2)),
        ]
    };
    // NEON belongs to the architecture.
    #[cfg(target_arch = "aarch64")]
    let native = [
        std::arch::is_aarch64_feature_detected!("dotprod").then_some(kernels!(
            "neon-dotprod",
            neon,
            neon_dot
        )),
        Some(kernels!("neon", neon, neon)),
    ];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let native: [Option<Kernels>; 0] = [];
    let all = native.into_iter().flatten().chain([PORTABLE]);
    #[cfg(test)]
    let all = all.chain([WIDE]);
    all
}

/// ProductSizes of a product: A is m × k, B is k × n.
#[derive(Clone, Copy)]
pub(crate) struct ProductSizes {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

/// How far the elements of a matrix lie apart, as it is multiplied.
#[derive(Clone, Copy)]
pub(crate) struct Steps {
    /// From one row to the next.
    pub(crate) row: usize,
    /// From one column to the next.
    pub(crate) column: usize,
}

/// Any product in any layout, one element after the other: for a process without OpenBLAS, so that
/// it is slow and not dead.
///
/// # Safety
/// The three matrices are as large as the arguments say.
#[expect(clippy::too_many_arguments, reason = "a product has as many")]
pub(crate) unsafe fn any_layout(
    ProductSizes { m, n, k }: ProductSizes,
    alpha: f32,
    a: *const f32,
    a_steps: Steps,
    b: *const f32,
    b_steps: Steps,
    beta: f32,
    c: *mut f32,
    c_steps: Steps,
) {
    for i in 0..m {
        for j in 0..n {
            // SAFETY: i, j and p are within the matrices, as the caller says.
            unsafe {
                let mut sum = 0.0;
                // As in BLAS: α = 0 reads neither A nor B.
                if alpha != 0.0 {
                    for p in 0..k {
                        sum += *a.add(i * a_steps.row + p * a_steps.column)
                            * *b.add(p * b_steps.row + j * b_steps.column);
                    }
                }
                let place = c.add(i * c_steps.row + j * c_steps.column);
                *place = if beta == 0.0 { alpha * sum } else { alpha * sum + beta * *place };
            }
        }
    }
}

/// A dimension or a leading dimension that is no negative number.
pub(crate) fn size(n: c_int) -> Option<usize> {
    usize::try_from(n).ok()
}

#[cfg(test)]
mod tests;
