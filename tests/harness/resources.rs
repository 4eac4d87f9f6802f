//! Resources that a service must give back: processes, descriptors, threads, shared memory.

use crate::{Stack, usage};

/// Resources that one process holds.
#[derive(Clone, Copy, Debug)]
struct ProcessResources {
    descriptors: usize,
    threads: usize,
    /// Segments of shared memory. 0 on systems where they have no name by which to count them.
    segments: usize,
}

impl ProcessResources {
    fn of(pid: u32) -> Self {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        Self {
            descriptors: usage::descriptors(pid).unwrap_or_default(),
            threads: usage::threads(pid).unwrap_or_default(),
            segments: maps.lines().filter(|line| line.contains("/memfd:")).count(),
        }
    }

    fn within(self, before: Self) -> bool {
        self.descriptors <= before.descriptors
            && self.threads <= before.threads
            && self.segments <= before.segments
    }
}

/// Resources of which a service must not hold more after a fault than before.
#[derive(Clone, Debug)]
pub struct Resources {
    processes: usize,
    of_each: Vec<(&'static str, ProcessResources)>,
}

impl Resources {
    /// Resources that the service holds now: the number of its processes, and what these ones hold
    /// (by their names in the status, or `serve`).
    ///
    /// # Panics
    /// One of the processes does not run, or the supervisor does not answer.
    pub fn of(stack: &Stack, processes: &[&'static str]) -> Self {
        let pid = |process: &str| match process {
            "serve" => stack.serve_pid(),
            _ => stack.pid(process),
        };
        let of_each = processes.iter().map(|name| (*name, ProcessResources::of(pid(name))));
        Self { processes: stack.processes().len(), of_each: of_each.collect() }
    }

    /// Whether the number of processes is equal, and nothing else is more: an idle helper thread
    /// ends after a while.
    pub fn within(&self, before: &Self) -> bool {
        let pairs = self.of_each.iter().zip(&before.of_each);
        self.processes == before.processes
            && pairs.into_iter().all(|((_, now), (_, before))| now.within(*before))
    }
}
