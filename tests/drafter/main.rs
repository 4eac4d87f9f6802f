//! The drafter as its users see it: real processes that come, go, hang, break the protocol and die
//! while streams run. Tokens equal those of the plain lane, no request fails, and nothing is left
//! behind (I1, I2, I3).

#![expect(clippy::print_stdout, reason = "figures of a run, beside what it asserts")]

mod faults;
mod hot_plug;
mod identity;
mod kinds;
mod list;
mod lookup;
mod misbehaviour;
mod state;
mod support;
