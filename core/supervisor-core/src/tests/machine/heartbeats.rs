//! Reports of processes: heartbeats with their figures and links, and descriptions.

use std::sync::Arc;

use super::process::kind;
use super::{BUDGET, Fate, Happening, Machine};
use crate::tests::testing::*;

impl Machine {
    /// A process sends a heartbeat.
    pub(super) fn send_heartbeat(&mut self, worker: WorkerId) {
        let silent = self.faults.silent_until[kind(worker)] > self.now;
        let busy = worker == WorkerId::Target
            && self.requests.values().any(|request| matches!(request.fate, Fate::Running { .. }));
        let slow = self.faults.slow_until > self.now;
        let pressure = self.faults.pressure;
        let held =
            if pressure.1 > self.now { BUDGET * pressure.0 / 100 } else { self.held_bytes() };
        let (report, gain) = (self.report(), self.faults.gain);
        let (now, dropped, delay) = (self.now, self.random.below(50) == 0, self.random.below(6));
        let Some(process) = self.processes.get_mut(&worker) else { return };
        if process.frozen || process.killed {
            return;
        }
        // A step of the slowest machine that is not hung takes 8 s.
        if !process.hung && now - process.stepped_at >= if slow { 8_000 } else { 1 } {
            process.steps += 1;
            process.stepped_at = now;
        }
        let phase = process.phase(now, busy, slow);
        let loaded_bytes = now.min(process.loaded_at);
        let mut heartbeat = Heartbeat {
            steps: process.steps,
            loaded_bytes,
            ..Heartbeat::new(process.epoch, phase)
        };
        if phase == WorkerPhase::Loading {
            heartbeat.steps = 0;
        } else if worker == WorkerId::Target {
            heartbeat.kv =
                Some(KvUse { budget_bytes: BUDGET, held_bytes: held, ..Default::default() });
            heartbeat.figures = gain.map(figures);
        }
        if worker == WorkerId::Target {
            heartbeat.link = Some(report);
        }
        let at = (now + delay).max(process.last_message_at);
        process.last_message_at = at;
        if !silent && !dropped {
            self.post(
                at - now,
                Happening::Message(Event::Worker(
                    worker,
                    worker::Event::Heartbeat(Box::new(heartbeat)),
                )),
            );
        }
    }

    fn report(&self) -> LinkReport {
        let number = |link: &Option<(u64, WorkerSlot, LinkEnds)>| {
            link.map_or(0, |(generation, _, _)| generation)
        };
        let (generation, serving) = (number(&self.links.newest), number(&self.links.serving));
        LinkReport { generation, phase: self.links.phase, reason: String::new(), serving }
    }

    pub(super) fn describe(&self, worker: WorkerId) -> Arc<WorkerDescription> {
        Arc::new(match worker {
            WorkerId::Target => WorkerDescription::Target {
                model: ModelInfo::default(),
                capacity: self.capacity.clone(),
            },
            WorkerId::Drafter(_) => {
                let path = self
                    .processes
                    .get(&worker)
                    .map(|process| process.model.clone())
                    .unwrap_or_default();
                let images = serves_images(&path);
                WorkerDescription::Drafter(DrafterInfo {
                    path,
                    block_size: 8,
                    images,
                    ..Default::default()
                })
            }
        })
    }
}

/// One of the simulated drafters does not draft for requests with images.
pub(super) fn serves_images(model: &str) -> bool {
    model != "/e"
}

/// Speculation is worth the same wherever it was measured.
fn figures(percent: u64) -> SpeculationFigures {
    let bucket =
        |up_to: u32| SpeculationBucket { up_to, steps: 1_000, gain: percent as f64 / 100.0 };
    SpeculationFigures {
        draft: Some(CostModel { observations: 1_000, ..Default::default() }),
        by_sequences: [1, 2, 4, 8, 16, 32].map(bucket).to_vec(),
        by_context: [512, 1_024, 2_048, 4_096].map(bucket).to_vec(),
        ..Default::default()
    }
}
