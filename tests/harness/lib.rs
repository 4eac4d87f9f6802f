//! Starts whole stacks in temporary directories.
