//! Linux: /proc.

use std::fs::{read_dir, read_to_string};

pub(super) fn resident(pid: u32) -> u64 {
    let status = read_to_string(format!("/proc/{pid}/status")).unwrap();
    number_after(&status, "RssAnon:").unwrap() * 1024
}

pub(super) fn bytes_read(pid: u32) -> u64 {
    let io = read_to_string(format!("/proc/{pid}/io")).unwrap();
    number_after(&io, "rchar:").unwrap()
}

pub(super) fn descriptors(pid: u32) -> Option<usize> {
    read_dir(format!("/proc/{pid}/fd")).ok().map(Iterator::count)
}

pub(super) fn threads(pid: u32) -> Option<usize> {
    read_dir(format!("/proc/{pid}/task")).ok().map(Iterator::count)
}

/// The number on the line that begins with this word.
fn number_after(text: &str, word: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(word)?.split_whitespace().next()?.parse().ok())
}
