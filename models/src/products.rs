//! How products by quantized weights are computed: chosen once per process, after the device and
//! before the first load.

use std::sync::atomic::{AtomicBool, Ordering};

use paceline_checkpoint::plan::DeviceKind;

pub use paceline_checkpoint::plan::ProductsChoice;
pub use paceline_vocabulary::Products;

use crate::device::on_gpu;

/// The configuration asks for products that this place does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "products of integers are configured (target.products = \"integer\"), which are computed on the CPU under Linux, found {found}; set target.products = \"auto\" or \"float\""
)]
pub struct ProductsError {
    found: String,
}

/// Whether the kind depends on the model's size.
static AUTO: AtomicBool = AtomicBool::new(false);
/// Whether products are of integers.
static INTEGER: AtomicBool = AtomicBool::new(false);
/// Whether the configuration names integers.
static REQUIRED: AtomicBool = AtomicBool::new(false);

/// Makes the choice for this process. The device must have been chosen.
///
/// # Errors
/// [`ProductsChoice::Integer`] where the crate `cpu` does not compute.
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

/// What the configuration asks for, by the choice of this process.
pub(crate) fn choice() -> ProductsChoice {
    match (REQUIRED.load(Ordering::Relaxed), AUTO.load(Ordering::Relaxed)) {
        (true, _) => ProductsChoice::Integer,
        (false, true) => ProductsChoice::Auto,
        (false, false) => ProductsChoice::Float,
    }
}

/// The properties of this process's device that decide about the form of weights.
pub(crate) fn device_kind() -> DeviceKind {
    DeviceKind { on_gpu: on_gpu(), has_kernels: obstacle().is_none() }
}

/// The products of a target that is loaded, from now on.
pub(crate) fn settle(products: Products) {
    INTEGER.store(products == Products::Integer, Ordering::Relaxed);
}

/// The choice of this process. [`Products::Float`] before [`choose`]: unit tests and examples
/// compare with floats unless they choose.
pub(crate) fn products() -> Products {
    if INTEGER.load(Ordering::Relaxed) { Products::Integer } else { Products::Float }
}

/// Instruction set of the kernels by which this process computes; `None` where MLX computes.
pub fn instructions() -> Option<&'static str> {
    paceline_cpu::instructions().filter(|_| obstacle().is_none())
}

/// Why the crate `cpu` does not compute here, in words; `None`: it does.
#[cfg(target_os = "linux")]
fn obstacle() -> Option<String> {
    use crate::device::allows_nodes;

    let found = if on_gpu() { "a GPU" } else { "a test of MLX's graph" };
    (!allows_nodes()).then(|| found.to_owned())
}

/// Why the crate `cpu` does not compute here, in words.
#[cfg(not(target_os = "linux"))]
fn obstacle() -> Option<String> {
    Some(std::env::consts::OS.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_os = "linux")]
    use crate::device;
    #[cfg(target_os = "linux")]
    use paceline_checkpoint::plan::SMALL;

    #[test]
    #[cfg(target_os = "linux")]
    fn integers_are_chosen_on_the_cpu_and_floats_before_a_choice() {
        device::choose(device::DeviceChoice::Cpu).expect("there is a CPU");
        assert_eq!((products(), super::choice()), (Products::Float, ProductsChoice::Float));
        for (choice, expected) in [
            (ProductsChoice::Integer, Products::Integer),
            (ProductsChoice::Float, Products::Float),
            (ProductsChoice::Auto, Products::Integer),
        ] {
            assert_eq!(choose(choice), Ok(expected), "{choice:?}");
            assert_eq!((products(), super::choice()), (expected, choice));
        }
        assert_eq!(instructions(), paceline_cpu::instructions());
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
                settle(super::choice().on(device_kind(), bytes));
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
