//! A model that the worker refuses by its exit code: another start would end the same while the
//! files are the same. The worker stays `Failed` until the files change, or an operator orders a
//! start.
//!
//! The shell looks at the files at each start, and at every [`LOOK_MS`] of a refused worker. A start
//! follows when two looks in a row found the same files, and other ones than at the last start. So
//! files that are being copied are not tried at each look.

use paceline_vocabulary::Millis;

use super::{Action, Phase, Worker};

/// Pause between two looks. A look reads the names, sizes and times of one directory.
pub(super) const LOOK_MS: u64 = 5_000;

/// What is known of the model's files.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ModelFiles {
    /// The last process refused them.
    pub(super) refused: bool,
    /// At the last start. `None`, so that other files are assumed, if the shell did not answer
    /// before the refusal, or an earlier supervisor started the process.
    at_start: Option<u64>,
    /// At the last look.
    last: Option<u64>,
}

impl Worker {
    /// Whether it waits for other files.
    pub(super) fn is_refused(&self) -> bool {
        self.files.refused && matches!(self.phase, Phase::Failed { retry: Some(_) })
    }

    /// When it is tried again, and what to do.
    pub(super) fn wait_for_files(&self) -> String {
        let part = self.kind.part();
        format!("tried again when its files change, or by `paceline restart {part}`")
    }

    /// The next look at the files of a refused model is due.
    pub(super) fn look_at_files(&mut self, now: Millis, out: &mut Vec<Action>) {
        self.phase = Phase::Failed { retry: Some(now + LOOK_MS) };
        out.push(Action::LookAtFiles { model: self.model.clone() });
    }

    /// The files were looked at.
    pub(super) fn on_files_seen(&mut self, files: u64, now: Millis, out: &mut Vec<Action>) {
        let is_still = self.files.last.replace(files) == Some(files);
        if !self.is_refused() {
            // The last answer counts: one before it may be that of an earlier start.
            self.files.at_start = Some(files);
        } else if is_still && self.files.at_start != Some(files) {
            self.budget.clear();
            self.restart("the model's files have changed", now, out);
        }
    }
}
