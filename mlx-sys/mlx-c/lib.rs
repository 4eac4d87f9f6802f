//! Empty: see this package's Cargo.toml.
