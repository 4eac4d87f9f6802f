//! The rule by which tokens are chosen, and the ranges of its numbers: the vocabulary's own. A
//! model directory has one, and each request that is submitted.

pub use paceline_vocabulary::sampling::{OutOfRange, SamplingRule};
