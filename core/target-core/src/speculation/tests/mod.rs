//! The controller in a scheduler, on imaginary machines and on recorded texts.

mod acceptance;
mod ends;
mod lane_events;
mod lanes;
mod measuring;
mod parking;
mod policy;
mod recorded;
mod restart;
mod simulation;
mod step_cost;
mod table;
mod widths;
