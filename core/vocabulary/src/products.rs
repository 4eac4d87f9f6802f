//! How products by quantized weights are computed.

use crate::words::worded;

worded! {
    /// Kind of the products by quantized weights. Each kind rounds in its own way, so that it is a
    /// part of what a stream depends on (I1).
    #[derive(Default)]
    Products {
        /// The weights become floats, and floats are multiplied. Weights that are floats have no
        /// other products.
        #[default]
        Float = "float",
        /// Activations are rounded to 8 bits, and integers are multiplied.
        Integer = "integer",
    }
}
