//! How products by quantized weights are computed: chosen once per process, after the device and
//! before the first load.

use std::sync::atomic::{AtomicBool, Ordering};

pub use paceline_vocabulary::Products;

/// What the configuration asks for.
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

/// The configuration asks for products that this place does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "products of integers are configured (target.products = \"integer\"), which are computed on the CPU under Linux, found {found}; set target.products = \"auto\" or \"float\""
)]
pub struct ProductsError {
    found: String,
}

/// Bytes of quantized numbers below which a target is small. It is fast with floats, too, and
/// rounding changes its answers more. SmolLM2-135M begins its answer about the capital of France with
/// a token that leads the next best by 0.08 in logits. Rounding to 8 bits moves that lead by up to
/// 0.4, here as in llama.cpp.
pub const SMALL: u64 = 256 << 20;

/// Whether the kind depends on the model's size.
static AUTO: AtomicBool = AtomicBool::new(false);
/// Whether products are of integers.
static INTEGER: AtomicBool = AtomicBool::new(false);
/// Whether the configuration names integers.
static REQUIRED: AtomicBool = AtomicBool::new(false);

/// Makes the choice for this process. The device must have been chosen.
///
/// # Errors
/// [`ProductsChoice::Integer`] where the crate `blas` does not compute.
pub fn choose(choice: ProductsChoice) -> Result<Products, ProductsError> {
    let obstacle = obstacle();
    let products = match (choice, obstacle) {
        (ProductsChoice::Integer, Some(found)) => return Err(ProductsError { found }),
        (ProductsChoice::Integer | ProductsChoice::Auto, None) => Products::Integer,
        _ => Products::Float,
    };
    INTEGER.store(products == Products::Integer, Ordering::Relaxed);
    REQUIRED.store(choice == ProductsChoice::Integer, Ordering::Relaxed);
    let auto = choice == ProductsChoice::Auto && products == Products::Integer;
    AUTO.store(auto, Ordering::Relaxed);
    Ok(products)
}

/// The choice for a target with `bytes` bytes of quantized numbers, from now on.
pub(crate) fn for_target(bytes: u64) -> Products {
    if AUTO.load(Ordering::Relaxed) {
        INTEGER.store(bytes >= SMALL, Ordering::Relaxed);
    }
    products()
}

/// The choice of this process. [`Products::Float`] before [`choose`]: unit tests and examples
/// compare with floats unless they choose.
pub(crate) fn products() -> Products {
    if INTEGER.load(Ordering::Relaxed) { Products::Integer } else { Products::Float }
}

/// Whether a target without products of integers is refused.
pub(crate) fn are_required() -> bool {
    REQUIRED.load(Ordering::Relaxed)
}

/// Instruction set of the kernels by which this process computes; `None` where MLX computes.
pub fn instructions() -> Option<&'static str> {
    paceline_blas::instructions().filter(|_| obstacle().is_none())
}

/// Why the crate `blas` does not compute here, in words; `None`: it does.
#[cfg(target_os = "linux")]
fn obstacle() -> Option<String> {
    use crate::device::{allows_nodes, on_gpu};

    let found = if on_gpu() { "a GPU" } else { "a test of MLX's graph" };
    (!allows_nodes()).then(|| found.to_owned())
}

/// Why the crate `blas` does not compute here, in words.
#[cfg(not(target_os = "linux"))]
fn obstacle() -> Option<String> {
    Some(std::env::consts::OS.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_os = "linux")]
    use crate::device;

    #[test]
    #[cfg(target_os = "linux")]
    fn integers_are_chosen_on_the_cpu_and_floats_before_a_choice() {
        device::choose(device::DeviceChoice::Cpu).expect("there is a CPU");
        assert_eq!((products(), are_required()), (Products::Float, false));
        for (choice, expected, required) in [
            (ProductsChoice::Integer, Products::Integer, true),
            (ProductsChoice::Float, Products::Float, false),
            (ProductsChoice::Auto, Products::Integer, false),
        ] {
            assert_eq!(choose(choice), Ok(expected), "{choice:?}");
            assert_eq!((products(), are_required()), (expected, required), "{choice:?}");
        }
        assert_eq!(instructions(), paceline_blas::instructions());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_small_model_keeps_floats_unless_integers_are_named() {
        device::choose(device::DeviceChoice::Cpu).expect("there is a CPU");
        for (choice, small, large) in [
            (ProductsChoice::Auto, Products::Float, Products::Integer),
            (ProductsChoice::Integer, Products::Integer, Products::Integer),
            (ProductsChoice::Float, Products::Float, Products::Float),
        ] {
            choose(choice).expect("a place with kernels");
            for (bytes, expected) in [(SMALL - 1, small), (SMALL, large), (0, small)] {
                assert_eq!(for_target(bytes), expected, "{choice:?}, {bytes}");
                assert_eq!(products(), expected, "{choice:?}, {bytes}");
            }
        }
    }

    #[test]
    fn an_error_names_the_setting_what_was_found_and_what_to_do() {
        let error = ProductsError { found: "a GPU".into() }.to_string();
        for part in ["target.products = \"integer\"", "found a GPU", "\"auto\" or \"float\""] {
            assert!(error.contains(part), "{error}");
        }
    }
}
