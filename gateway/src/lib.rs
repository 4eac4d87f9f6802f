//! The front door: text in, text out.
