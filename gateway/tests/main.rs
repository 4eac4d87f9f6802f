//! The gateway as its clients and its supervisor see it: one executable for all files, because linking one takes as long as
//! compiling ten of them. Files with tests of `make soak` are executables of their own.

mod bodies;
mod bombs;
mod chat_completions;
mod crowd;
mod door;
mod engine;
mod error_fields;
mod errors;
mod foreign_pages;
mod head_of_line;
mod hostile;
mod http_bodies;
mod http_crowd;
mod http_door;
mod image_requests;
mod inference;
mod keyring;
mod life;
mod messages;
mod page_orders;
mod process;
mod questions;
mod requests;
mod responses;
mod samples;
mod silence;
mod stage;
mod status_page;
mod stored_forms;
mod thinking;
mod tool_calls;
mod whole_answers;
