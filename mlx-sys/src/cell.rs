//! Numbers of an array that are written after a graph was built on it, and before that graph runs.

use crate::{mlx_array, mlx_array_data_uint32, mlx_array_size};

/// Overwrites the numbers of an array that was made of numbers of the host. Returns whether it did
/// so: as many numbers must be given as the array has.
///
/// Such an array has memory of MLX's allocator from its making on, which the host can write on every
/// device: no primitive fills it, and nothing is launched for it.
///
/// # Safety
/// `array` is an array of uint32 that was made of numbers of the host, and lies in one piece. No
/// evaluation that reads it has begun and is not over, and nobody else reads its numbers meanwhile.
pub unsafe fn write_numbers(array: mlx_array, numbers: &[u32]) -> bool {
    // SAFETY: the caller's. The memory is no constant: MLX copied the numbers there.
    unsafe {
        if mlx_array_size(array) != numbers.len() {
            return false;
        }
        let place = mlx_array_data_uint32(array).cast_mut();
        if place.is_null() {
            return false;
        }
        std::ptr::copy_nonoverlapping(numbers.as_ptr(), place, numbers.len());
        true
    }
}
