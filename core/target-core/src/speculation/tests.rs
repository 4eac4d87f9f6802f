//! The controller in a scheduler, on imaginary machines and on recorded texts.

mod evidence;
mod lane_events;
mod lanes;
mod measuring;
mod policy;
mod recorded;
mod simulation;
