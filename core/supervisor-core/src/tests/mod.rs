//! The whole core in scenarios, in which each event has its expected actions, and in two simulations,
//! in which any event may come. [`testing`] has what they share with the tests of single modules.

mod fairness;
mod fault_injection;
mod machine;
mod random;
mod scenarios;
mod simulation;
pub(crate) mod testing;
