//! The target worker: the model that is served, and its batch.
