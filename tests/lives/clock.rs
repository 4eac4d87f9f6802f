//! The wall clock jumps under a running service. libfaketime, which every process of the service
//! loads, adds an offset from a file to it. The monotonic clock is left alone, as by a real jump.

use std::path::PathBuf;
use std::time::Duration;

use paceline_system::clock::unix_seconds;
use paceline_tests::prompts::reference;
use paceline_tests::{Stack, chat};
use serde_json::Value;
use tonic::Code;

const HOUR: i64 = 3_600;
/// As libfaketime counts ten years.
const TEN_YEARS: i64 = 10 * 365 * 24 * HOUR;
/// Largest difference between a stamp and the time at which it is looked at, in seconds.
const STAMP_MARGIN: i64 = 120;

/// The library of Debian's package `faketime`.
fn library() -> PathBuf {
    let found = std::fs::read_dir("/usr/lib").expect("readable").flatten();
    let mut paths = found.map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"));
    paths.find(|path| path.is_file()).expect(
        "expected libfaketimeMT.so.1 in a directory of /usr/lib; apt-get install libfaketime",
    )
}

/// A service whose wall clock differs by what a file says.
struct Shifted {
    stack: Stack,
    file: PathBuf,
}

impl Shifted {
    fn start() -> Self {
        let mut stack = Stack::new("");
        let file = stack.path("wall-clock");
        stack.env("LD_PRELOAD", library().to_str().expect("UTF-8"));
        stack.env("FAKETIME_TIMESTAMP_FILE", file.to_str().expect("UTF-8"));
        stack.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        stack.env("FAKETIME_NO_CACHE", "1");
        let shifted = Self { stack, file };
        shifted.jump(0);
        shifted
    }

    /// Sets the wall clock `seconds` seconds ahead of the machine's.
    fn jump(&self, seconds: i64) {
        let fresh = self.stack.path("wall-clock.new");
        std::fs::write(&fresh, format!("{seconds:+}\n")).expect("writable");
        std::fs::rename(&fresh, &self.file).expect("renamed");
    }

    fn events(&self) -> usize {
        let text = std::fs::read_to_string(self.stack.run_dir().join("events.jsonl"));
        text.expect("there").lines().count()
    }

    /// How far the last stamp in the gateway's log is ahead of the machine's clock, in seconds.
    fn last_stamp(&self) -> i64 {
        let log = std::fs::read_to_string(self.stack.run_dir().join("gateway.log")).expect("there");
        let stamps = log.lines().rev().filter_map(|line| line.split_whitespace().next());
        stamps.filter_map(seconds_of).next().expect("a stamp") - unix_seconds()
    }
}

/// Seconds since 1970 of a stamp like 2026-11-25T03:42:33.914794Z.
fn seconds_of(stamp: &str) -> Option<i64> {
    let number = |from: usize, to: usize| stamp.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    // Years begin in March, so that the leap day is the last one of a year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year / 4 - year / 100 + year / 400;
    let days = year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

/// Everything of a process that a jump must not change.
fn lives(status: &Value) -> Vec<String> {
    let of = |process: &str| {
        let keys =
            ["state", "pid", "epoch", "restarts"].map(|key| status[process][key].to_string());
        assert!(status[process]["uptime_s"].as_f64().is_some_and(|s| (0.0..600.0).contains(&s)));
        format!("{process} {}", keys.join(" "))
    };
    ["gateway", "supervisor", "target", "drafter"].map(of).to_vec()
}

#[test]
fn stamps_are_read_as_seconds() {
    assert_eq!(seconds_of("1970-01-01T00:00:00.000000Z"), Some(0));
    assert_eq!(seconds_of("2024-02-29T12:34:56.000001Z"), Some(1_709_210_096));
    assert_eq!(seconds_of("2036-11-23T03:42:33Z"), Some(2_111_024_553));
    assert_eq!(seconds_of("WARN"), None);
}

#[test]
#[ignore = "more: needs libfaketime"]
fn a_jump_of_the_wall_clock_moves_stamps_and_nothing_else() {
    let mut shifted = Shifted::start();
    shifted.stack.serve();
    let stack = &shifted.stack;
    stack.wait_ready();
    let before = lives(&stack.wait_linked());
    let ask = reference(chat("Tell a long story.")).exactly(200);
    let plain = stack.ask(ask.clone()).expect("served").ids;
    assert!(shifted.last_stamp().abs() < STAMP_MARGIN, "not shifted yet");
    let events = shifted.events();
    let mut at = 0;
    for jump in [HOUR, -HOUR, TEN_YEARS, -TEN_YEARS, -TEN_YEARS, TEN_YEARS] {
        at += jump;
        // Its deadline is `limits.deadline_s`, 600 s.
        let mut stream = stack.open(ask.clone()).expect("served");
        stream.read(5);
        let short = chat("Tell a long story.").exactly(3_000);
        let short = stack.start_within(short, Some(Duration::from_millis(500)));
        shifted.jump(at);
        let whole = stream.finish().expect("a jump ends no stream").ids;
        assert_eq!(whole, plain, "after a jump by {jump} s");
        let ended = short.ended();
        let status = ended.outcome.expect_err("its deadline passes");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
        let took_ms = (ended.ended_ns - ended.begun_ns) / 1_000_000;
        assert!((400..30_000).contains(&took_ms), "{took_ms} ms");
        let stamp = shifted.last_stamp();
        assert!((stamp - at).abs() < STAMP_MARGIN, "a stamp is {stamp} s ahead, the clock {at} s");
        assert_eq!(lives(&stack.status().expect("it answers")), before);
    }
    assert_eq!(shifted.events(), events, "no process changed its state");
    let log = std::fs::read_to_string(stack.run_dir().join("supervisor.log")).expect("there");
    assert!(!log.contains("time was lost"), "{log}");
    assert!(!stack.serve_log().contains("sign of life"), "{}", stack.serve_log());
    stack.wait_memory_back();
    shifted.stack.stop();
}
