//! Last phase: the figures that heartbeats carry.

use paceline_models::device;
use paceline_proto::internal::v1::{MemoryUse, SpeculationTotals};
use paceline_target_core::Unstarted;

use super::Engine;
use crate::drafting::LinkTotals;

/// Greatest age of figures that take some time to compute, in milliseconds: one heartbeat.
const FIGURES_INTERVAL_MS: u64 = 250;

/// Time between two writes of the measured costs, in milliseconds.
const SAVE_INTERVAL_MS: u64 = 60_000;

/// Speculation pays in a range of load or length if its throughput is this many times that of plain
/// steps: differences below are noise.
const MIN_GAIN: f64 = 1.02;

impl Engine {
    /// Writes the figures for the next heartbeat.
    pub(super) fn write_figures(&mut self) {
        let ledger = self.scheduler.ledger();
        self.progress.set_kv(ledger.budget(), ledger.held(), ledger.hidden_bytes());
        self.progress.set_prefix_bytes(self.pages.bytes());
        self.progress.set_sequences(self.running.len());
        let Unstarted { sequences, tokens } = self.scheduler.unstarted();
        self.progress.set_unstarted(sequences, tokens);
        let LinkTotals { late, bytes: link_bytes } = self.drafting.totals();
        self.progress.set_speculation(SpeculationTotals { late, link_bytes, ..self.totals });
        let now = self.clock.now();
        if self.figures_at.is_none_or(|before| now - before >= FIGURES_INTERVAL_MS) {
            self.figures_at = Some(now);
            self.compute_figures();
        }
    }

    /// Computes the figures that take some time. A heartbeat is sent at once if speculation begins
    /// or ceases to pay in a range, because the supervisor routes by that.
    fn compute_figures(&mut self) {
        let (active_bytes, cache_bytes) = device::memory();
        self.progress.set_memory(MemoryUse {
            active_bytes,
            cache_bytes,
            limit_bytes: device::memory_limit(),
            recommended_bytes: device::recommended_memory(),
        });
        let figures = self.scheduler.speculation.figures();
        let ranges = figures.by_sequences.iter().chain(&figures.by_context);
        let paying: Vec<bool> =
            ranges.map(|range| range.steps > 0 && range.gain > MIN_GAIN).collect();
        self.progress.set_figures(figures.into());
        if paying != self.paying_ranges {
            self.paying_ranges = paying;
            self.pulse.now();
        }
    }

    /// Saves measured costs once a minute, so that a killed worker loses little. A file of some
    /// kilobytes is written in less time than a step takes.
    pub(super) fn save_costs_at_times(&mut self) {
        let now = self.clock.now();
        if now - self.saved_at >= SAVE_INTERVAL_MS {
            self.saved_at = now;
            self.save_costs();
        }
    }

    /// Saves measured costs for the next start.
    pub(super) fn save_costs(&mut self) {
        self.collect_costs();
        self.cost_file.write();
    }

    /// Hands measured costs to their file, which is not written yet.
    pub(super) fn collect_costs(&mut self) {
        let speculation = &self.scheduler.speculation;
        let drafts = speculation.draft_cells();
        let drafter = self.measured_drafter.as_deref();
        self.cost_file.set(&speculation.step_cells(), drafter.map(|name| (name, &drafts[..])));
    }

    /// Sends a heartbeat at once if the link's state changed, because the supervisor routes by it.
    pub(super) fn report_link(&mut self) {
        let now = self.drafting.report();
        if self.sent_link.as_ref() != Some(&now) {
            self.progress.set_link(now.clone().into());
            self.pulse.now();
            self.sent_link = Some(now);
        }
    }
}
