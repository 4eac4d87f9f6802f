//! The tests of a program once more, in a graph that the environment gives to a process of its own.

use std::process::Command;

use mlx_rs::ops::gather_mm;
use mlx_rs::{Array, Dtype};

use crate::device::{self, DeviceChoice};

/// Why a test does not run in a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It tests what only the graph of the CPU has: nodes of our own, names of formats that only they
    /// compute, or the same bits however a prompt is cut.
    OwnGraphOnly,
    /// In bfloat16 a router chooses another expert of two near ones, so that numbers of a golden file
    /// say nothing: mlx-lm 0.32.2 in the stored types is off by more than the largest logit.
    RouterFlips,
    /// No reference in 16 bits is at hand. The test has a bound of float32, such as what
    /// quantization loses, or its random checkpoint loses more in bfloat16 than others.
    NoBoundIn16Bits,
    /// It asserts what is decided by measured times, which say in this graph, and beside other work,
    /// what the machine is like. The suite has it in the CPU's own graph.
    MeasuredTimes,
    /// MLX's CPU has no products of chosen experts in bfloat16, `gather_mm`.
    NoGatherMm,
}

impl Reason {
    /// Whether the reason is still one. An operation that MLX's CPU lacks is tried.
    pub fn holds(self) -> bool {
        match self {
            Self::OwnGraphOnly
            | Self::RouterFlips
            | Self::NoBoundIn16Bits
            | Self::MeasuredTimes => true,
            Self::NoGatherMm => product_of_an_expert().and_then(|product| product.eval()).is_err(),
        }
    }
}

/// A product of one chosen expert in bfloat16. Lazy.
fn product_of_an_expert() -> Result<Array, mlx_rs::error::Exception> {
    let x = Array::ones::<f32>(&[1, 2, 2])?.as_dtype(Dtype::Bfloat16)?;
    gather_mm(&x, &x, None, &Array::from_slice(&[0u32], &[1]), false)
}

/// Tests of one program in one graph.
#[derive(Clone, Copy, Debug)]
pub struct Rerun<'a> {
    /// `mlx` or `gpu`.
    pub graph: &'a str,
    /// The tests by their whole names, ignored ones too; all that are not ignored if there are none.
    pub only: &'a [&'a str],
    /// Tests that do not run, with the reason. Each is counted: a name of no test is a fault.
    pub skipped: &'a [(&'a str, Reason)],
    /// Tests that run others and so do not run here.
    pub reruns: &'a [&'a str],
}

impl Rerun<'_> {
    /// Runs them, one at a time, in a process of this program, and prints what was skipped.
    ///
    /// # Panics
    /// One fails or is missing, or a reason to skip one is none any more.
    pub fn run(&self) {
        device::choose(DeviceChoice::Cpu).expect("there is a CPU");
        for (test, reason) in self.skipped {
            assert!(
                reason.holds(),
                "{test} is skipped for {reason:?}, which is no reason any more"
            );
        }
        let mut tests = Command::new(std::env::current_exe().expect("this program"));
        tests.args(["--exact", "--test-threads=1"]).args(self.only);
        if !self.only.is_empty() {
            tests.arg("--include-ignored");
        }
        let skipped = self.skipped.iter().map(|(test, _)| test);
        tests.args(skipped.chain(self.reruns).flat_map(|test| ["--skip", test]));
        let output = tests.env("PACELINE_TEST_GRAPH", self.graph).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "in the graph {}:\n{said}{errors}", self.graph);
        let count =
            RunCount::read(&said).unwrap_or_else(|| panic!("expected a count, found {said}"));
        if self.only.is_empty() {
            let expected = self.skipped.len() + self.reruns.len();
            assert_eq!(count.filtered, expected, "a skipped test has another name: {said}");
            assert!(count.passed > 0, "{said}");
        } else {
            assert_eq!(count.passed, self.only.len(), "a test has another name: {said}");
        }
        self.report(count.passed);
    }

    /// A line for each skipped test, and the count.
    fn report(&self, passed: usize) {
        let (graph, skipped) = (self.graph, self.skipped.len());
        for (test, reason) in self.skipped {
            eprintln!("graph {graph}: skipped {test}: {reason:?}");
        }
        eprintln!("graph {graph}: {passed} passed, {skipped} skipped");
    }
}

/// The end of a run of tests.
#[derive(Debug, PartialEq, Eq)]
struct RunCount {
    passed: usize,
    filtered: usize,
}

impl RunCount {
    /// `test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; …`
    fn read(said: &str) -> Option<Self> {
        let line = said.lines().rfind(|line| line.starts_with("test result: "))?;
        let number = |what: &str| {
            let part = line.split(['.', ';']).find(|part| part.trim_end().ends_with(what))?;
            part.split_whitespace().next()?.parse().ok()
        };
        Some(Self { passed: number("passed")?, filtered: number("filtered out")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_run_is_read() {
        let said = "running 3 tests\n\ntest result: ok. 2 passed; 0 failed; 1 ignored; \
                    0 measured; 13 filtered out; finished in 0.70s\n";
        assert_eq!(RunCount::read(said), Some(RunCount { passed: 2, filtered: 13 }));
        assert_eq!(RunCount::read("no tests"), None);
    }

    #[test]
    fn a_name_of_no_test_is_a_fault() {
        let rerun = Rerun { graph: "mlx", only: &["no::such_test"], skipped: &[], reruns: &[] };
        assert!(std::panic::catch_unwind(|| rerun.run()).is_err());
        let skipped = [("no::such_test", Reason::OwnGraphOnly)];
        let only = &["testing::rerun::tests::the_end_of_a_run_is_read"];
        Rerun { graph: "mlx", only, skipped: &skipped, reruns: &[] }.run();
    }

    #[test]
    fn what_the_cpu_of_mlx_lacks_is_tried() {
        device::choose(DeviceChoice::Cpu).expect("there is a CPU");
        assert!(Reason::NoGatherMm.holds(), "gather_mm computes in bfloat16: run those tests");
    }
}
