//! The gate of a feed-forward block as one kernel on Metal: MLX's own operations are three. Numbers on
//! the way are rounded to the rows' type where MLX's operations round theirs (`Sigmoid` rounds its
//! power), so that the kernel gives what they give.

use mlx_rs::Array;

use crate::error::{ModelError, Result};

/// Body of the kernel: a thread for each number of the result, in the part of Metal that is also C++.
/// `T` is the type of the rows, `WIDTH` the numbers of a row of the result.
#[cfg(any(test, target_os = "macos"))]
const SOURCE: &str = "
    uint column = thread_position_in_grid.x;
    size_t row = thread_position_in_grid.y;
    size_t at = row * 2 * WIDTH + column;
    float gate = static_cast<float>(both[at]);
    T power = static_cast<T>(metal::exp(gate < 0 ? -gate : gate));
    float rest = 1.0f / (1.0f + static_cast<float>(power));
    T share = static_cast<T>(gate < 0 ? rest : 1.0f - rest);
    T silu = static_cast<T>(gate * static_cast<float>(share));
    float up = static_cast<float>(both[at + WIDTH]);
    out[row * WIDTH + column] = static_cast<T>(static_cast<float>(silu) * up);
";

/// Lets MLX's operations count as the kernel that Metal has in their place, where a graph is built
/// for its count.
///
/// # Errors
/// Memory is out.
pub(super) fn counted(gated: &Array, both: &Array) -> Result<()> {
    // SAFETY: these are arrays.
    let counted = unsafe { mlx_sys::count_as_one(gated.as_ptr(), c"Gate", &[both.as_ptr()]) };
    counted.then_some(()).ok_or_else(|| ModelError::Batch("expected memory for a count".into()))
}

/// silu(gate) · up of `both` `[rows, 2 · width]`, gate first → `[rows, width]`; `None` where there is
/// no Metal.
///
/// # Errors
/// MLX's own.
#[cfg(not(target_os = "macos"))]
pub(super) fn gated(_: &Array) -> Result<Option<Array>> {
    Ok(None)
}

#[cfg(target_os = "macos")]
pub(super) use metal::gated;

/// The calls of MLX, whose bindings have kernels on macOS alone.
#[cfg(target_os = "macos")]
mod metal {
    use std::cell::OnceCell;

    use mlx_rs::fast::{
        MetalKernel, MetalKernelApplyOptions, MetalKernelOptions, MetalKernelOutput, TemplateArg,
    };

    use super::*;
    use crate::device::on_gpu;

    /// Threads of a group, at most: eight of Metal's SIMD groups.
    const GROUP: i32 = 256;

    thread_local! {
        /// MLX belongs to one thread (I8), which compiles the kernel once.
        static KERNEL: OnceCell<MetalKernel> = const { OnceCell::new() };
    }

    /// As where there is no Metal.
    ///
    /// # Errors
    /// MLX's own.
    pub(in crate::layers) fn gated(both: &Array) -> Result<Option<Array>> {
        if !on_gpu() || both.size() == 0 {
            return Ok(None);
        }
        KERNEL.with(|cell| {
            let kernel = match cell.get() {
                Some(kernel) => kernel,
                None => {
                    let made = made()?;
                    cell.get_or_init(|| made)
                }
            };
            Ok(run(kernel, both)?.into_iter().next())
        })
    }

    fn made() -> Result<MetalKernel> {
        let options = MetalKernelOptions { ensure_row_contiguous: true, ..Default::default() };
        Ok(MetalKernel::new("paceline_gate", &["both"], &["out"], SOURCE, options)?)
    }

    fn run(kernel: &MetalKernel, both: &Array) -> Result<Vec<Array>> {
        let (rows, width) = (both.dim(0), both.dim(1) / 2);
        let output = MetalKernelOutput { shape: vec![rows, width], dtype: both.dtype() };
        let template_args = vec![
            ("T".to_owned(), TemplateArg::Dtype(both.dtype())),
            ("WIDTH".to_owned(), TemplateArg::Int(width)),
        ];
        let options = MetalKernelApplyOptions { template_args, ..Default::default() };
        let (grid, group) = ((width, rows, 1), (width.min(GROUP), 1, 1));
        // SAFETY: a thread of the grid reads two numbers of its row of `both`, which MLX has put in
        // one piece, and writes one number of `out`, which no other thread writes.
        Ok(unsafe { kernel.apply(&[both], &[output], grid, group, options) }?)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use half::bf16;
    use mlx_rs::{Dtype, ops};

    use super::*;
    use crate::device::{DeviceChoice, choose};

    const ROWS: i32 = 3;
    const WIDTH: i32 = 301;

    /// A program that runs the kernel's body for each thread of the grid, on numbers from its input.
    /// `{BODY}` and `{TYPE}` are replaced.
    const PROGRAM: &str = r#"
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>
namespace metal { using std::exp; }
using uint = unsigned int;
struct bfloat {
  uint16_t bits = 0;
  bfloat() = default;
  explicit bfloat(float number) {
    uint32_t wide;
    std::memcpy(&wide, &number, 4);
    bits = (wide + 0x7fff + ((wide >> 16) & 1)) >> 16;
  }
  explicit operator float() const {
    uint32_t wide = uint32_t(bits) << 16;
    float number;
    std::memcpy(&number, &wide, 4);
    return number;
  }
};
struct Place { uint x, y, z; };
template <typename T, int WIDTH>
void kernel(const T* both, T* out, Place thread_position_in_grid) { {BODY} }
int main() {
  std::vector<{TYPE}> both({ROWS} * 2 * {WIDTH}), out({ROWS} * {WIDTH});
  if (std::fread(both.data(), sizeof({TYPE}), both.size(), stdin) != both.size()) return 1;
  for (uint y = 0; y < {ROWS}; ++y)
    for (uint x = 0; x < {WIDTH}; ++x) kernel<{TYPE}, {WIDTH}>(both.data(), out.data(), {x, y, 0});
  return std::fwrite(out.data(), sizeof({TYPE}), out.size(), stdout) != out.size();
}
"#;

    /// The numbers of the kernel, compiled as C++.
    fn by_kernel(dir: &Path, name: &str, both: &[u8]) -> Vec<u8> {
        let (rows, width) = (ROWS.to_string(), WIDTH.to_string());
        let program = PROGRAM
            .replace("{BODY}", SOURCE)
            .replace("{TYPE}", name)
            .replace("{ROWS}", &rows)
            .replace("{WIDTH}", &width);
        let (source, binary) = (dir.join("gate.cpp"), dir.join(name));
        std::fs::write(&source, program).expect("written");
        let mut compiler = Command::new("c++");
        let compiled = compiler.arg("-std=c++17").arg(&source).arg("-o").arg(&binary).output();
        let compiled = compiled.expect("the build needs a C++ compiler, so there is one");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let input = dir.join("both");
        std::fs::write(&input, both).expect("written");
        let input = std::fs::File::open(input).expect("there");
        let ran = Command::new(&binary).stdin(input).output().expect("runs");
        assert!(ran.status.success());
        ran.stdout
    }

    /// silu(gate) · up by MLX's operations.
    fn by_mlx(both: &Array) -> Array {
        let both = both.split_equal(2, 1).expect("two halves");
        let silu = both[0].multiply(ops::sigmoid(&both[0]).expect("lazy")).expect("lazy");
        let gated = silu.multiply(&both[1]).and_then(|gated| gated.as_dtype(Dtype::Float32));
        let gated = gated.expect("lazy");
        gated.eval().expect("evaluates");
        gated
    }

    #[test]
    fn the_kernel_gives_the_numbers_of_mlx_s_operations() {
        choose(DeviceChoice::Cpu).expect("there is a CPU");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let count = ROWS * 2 * WIDTH;
        let values: Vec<f32> = (0..count).map(|at| 9.0 * (at as f32 * 0.7311).sin()).collect();
        let both = Array::from_slice(&values, &[ROWS, 2 * WIDTH]);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let found = by_kernel(dir.path(), "float", &bytes);
        let numbers = found.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
        let expected = by_mlx(&both);
        let expected: &[f32] = expected.try_as_slice().expect("floats");
        assert_eq!(found.len(), 4 * expected.len());
        for (number, expected) in numbers.zip(expected) {
            assert!((number - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{number}");
        }
        let halves: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
        let bytes: Vec<u8> = halves.iter().flat_map(|half| half.to_ne_bytes()).collect();
        let found = by_kernel(dir.path(), "bfloat", &bytes);
        let numbers = found.as_chunks::<2>().0.iter().map(|bytes| bf16::from_ne_bytes(*bytes));
        let expected = by_mlx(&both.as_dtype(Dtype::Bfloat16).expect("a float type"));
        let expected: &[f32] = expected.try_as_slice().expect("floats");
        for (number, expected) in numbers.map(bf16::to_f32).zip(expected) {
            // A step of the type is at most 1/128 of the number.
            assert!((number - expected).abs() <= expected.abs() / 128.0, "{number}, {expected}");
        }
    }
}
