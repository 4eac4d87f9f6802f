//! The model zoo, on mlx-rs.
