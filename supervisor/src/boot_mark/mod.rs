//! The boot mark on disk: read once at the start, and written when the service becomes busy or
//! idle. What it means is decided by `paceline_supervisor_core::boot_mark`.
//!
//! A thread of its own writes the file, so a full or slow disk delays no request. A failed write
//! costs one warning. Then the next start has no mark and uses the whole KV budget.

mod file;

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use paceline_supervisor_core::Supervisor;
use paceline_supervisor_core::boot_mark::{self, MarkContent, StartVerdict};
use paceline_supervisor_core::worker::stranded_sentence;
use paceline_system::platform;
use paceline_vocabulary::Millis;

use crate::events::Change;
use file::MarkFile;

/// Writes that may wait for the disk. The mark changes every few seconds at most.
const UNWRITTEN: usize = 4;
/// Longest wait for the disk when the service ends.
const FAREWELL: Duration = Duration::from_secs(2);

/// The service may not be started.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}; restart the machine. If another program wired this memory, remove {path} and start again",
    stranded_sentence(*excess_bytes)
)]
pub struct StrandedMemory {
    excess_bytes: u64,
    path: String,
}

/// An order to the thread.
#[derive(Clone, Copy, Debug)]
enum Order {
    Write(MarkContent),
    Remove,
}

/// The boot mark of this service.
#[derive(Debug)]
pub struct BootMark {
    state: boot_mark::BootMark,
    reduced: bool,
    writer: Option<Writer>,
}

impl BootMark {
    /// Reads the mark of the service that runs on this directory, and decides how it may start.
    ///
    /// # Errors
    /// Memory of the machine is stranded since an earlier start in this boot.
    pub fn open(runtime_dir: &Path) -> Result<Self, StrandedMemory> {
        let wired = platform::wired_memory().map(|memory| memory.wired_bytes);
        let file = MarkFile::of(runtime_dir);
        if file.is_none() {
            tracing::warn!("no boot mark is kept: expected $HOME to be set");
        }
        Self::from_file(file, platform::boot_id(), wired)
    }

    /// No mark: for a service whose end nobody has to learn of.
    pub fn none() -> Self {
        Self { state: boot_mark::BootMark::new(false), reduced: false, writer: None }
    }

    fn from_file(
        file: Option<MarkFile>,
        boot: String,
        wired_bytes: Option<u64>,
    ) -> Result<Self, StrandedMemory> {
        let Some(file) = file else { return Ok(Self::none()) };
        let found = file.read().unwrap_or_else(|error| {
            let path = file.path().display();
            tracing::warn!(%path, %error, "the boot mark is ignored and will be replaced");
            None
        });
        let reduced = match boot_mark::verdict(found.as_ref(), &boot, wired_bytes) {
            StartVerdict::Full => false,
            StartVerdict::Reduced => true,
            StartVerdict::Stranded { excess_bytes } => {
                let path = file.path().display().to_string();
                return Err(StrandedMemory { excess_bytes, path });
            }
        };
        let writer = Writer::start(file, boot);
        Ok(Self { state: boot_mark::BootMark::new(reduced), reduced, writer })
    }

    /// Percent of the KV budget that this service may use, if it is reduced.
    pub fn kv_percent(&self) -> Option<u8> {
        self.reduced.then_some(boot_mark::REDUCED_PERCENT)
    }

    /// The event of a reduced KV budget.
    pub(crate) fn change(&self) -> Option<Change> {
        let percent = self.kv_percent()?;
        let cause = "the machine went down while the target was busy; after an ordinary stop the next start uses the whole budget";
        tracing::warn!(percent, cause, "the KV budget is reduced");
        Some(Change {
            kind: "kv",
            subject: "budget".to_owned(),
            from: "100 %".to_owned(),
            to: format!("{percent} %"),
            cause: cause.to_owned(),
            ..Change::default()
        })
    }

    /// Takes the state of the service. Never waits.
    pub(crate) fn observe(&mut self, core: &Supervisor, now: Millis) {
        let stranded = core.target().stranded_above_bytes();
        let Some(content) = self.state.observe(core.is_busy(), stranded, now) else { return };
        if let Some(writer) = &self.writer
            && writer.orders.as_ref().is_some_and(|to| to.try_send(Order::Write(content)).is_err())
        {
            self.state.not_taken();
        }
    }

    /// The service has stopped in order: the next start finds no mark.
    pub(crate) fn clear(&mut self) {
        if let Some(to) = self.writer.as_ref().and_then(|writer| writer.orders.as_ref()) {
            // If the disk does not keep up, the mark stays, and the next boot reduces the budget.
            let _ = to.try_send(Order::Remove);
        }
    }
}

/// The thread that writes the file.
#[derive(Debug)]
struct Writer {
    orders: Option<SyncSender<Order>>,
    thread: Option<(JoinHandle<()>, Receiver<()>)>,
}

impl Writer {
    /// `None`: the system gives no thread, and no mark is kept.
    fn start(file: MarkFile, boot: String) -> Option<Self> {
        let (orders, incoming) = sync_channel(UNWRITTEN);
        let (done_tx, done) = sync_channel(1);
        let write = move || {
            carry_out(&file, &boot, &incoming);
            // The receiver is gone only if the process ends by other means.
            let _ = done_tx.try_send(());
        };
        match std::thread::Builder::new().name("boot-mark".to_owned()).spawn(write) {
            Ok(thread) => Some(Self { orders: Some(orders), thread: Some((thread, done)) }),
            Err(error) => {
                tracing::warn!(%error, "no thread for the boot mark; none is kept");
                None
            }
        }
    }
}

fn carry_out(file: &MarkFile, boot: &str, orders: &Receiver<Order>) {
    let mut warned = false;
    for order in orders {
        let outcome = match order {
            Order::Write(content) => file.write(boot, content),
            Order::Remove => file.remove(),
        };
        if let Err(error) = outcome
            && !std::mem::replace(&mut warned, true)
        {
            tracing::warn!(%error, "the boot mark cannot be written; after a crash of the machine the whole KV budget is used");
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.orders = None;
        if let Some((thread, done)) = self.thread.take()
            && done.recv_timeout(FAREWELL).is_ok()
        {
            // The thread has reported its end.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_supervisor_core::Settings;
    use paceline_supervisor_core::boot_mark::FoundMark;
    use paceline_supervisor_core::drafter::DrafterPlan;
    use paceline_vocabulary::Term;

    use super::*;

    const BUSY: MarkContent =
        MarkContent { busy: true, reduced: false, stranded_above_bytes: None };

    fn open(temp: &tempfile::TempDir, boot: &str, wired: Option<u64>) -> BootMark {
        try_open(temp, boot, wired).expect("no memory is stranded")
    }

    fn try_open(
        temp: &tempfile::TempDir,
        boot: &str,
        wired: Option<u64>,
    ) -> Result<BootMark, StrandedMemory> {
        BootMark::from_file(Some(mark_file(temp)), boot.to_owned(), wired)
    }

    fn mark_file(temp: &tempfile::TempDir) -> MarkFile {
        MarkFile::in_dir(temp.path(), temp.path())
    }

    /// A core whose target is being started.
    fn starting() -> Supervisor {
        let mut core = Supervisor::new(Settings::default(), DrafterPlan::default(), Term(1));
        core.on_event(paceline_supervisor_core::Event::Begun, Millis(0));
        core
    }

    #[test]
    fn a_service_that_dies_busy_leaves_a_mark_and_one_that_stops_leaves_none() {
        let temp = tempfile::tempdir().expect("a directory");
        let mut mark = open(&temp, "a", None);
        mark.observe(&starting(), Millis(0));
        // The thread has written everything.
        drop(mark);
        let busy = FoundMark { boot: "a".to_owned(), content: BUSY };
        assert_eq!(mark_file(&temp).read().expect("a mark"), Some(busy));
        assert_eq!(open(&temp, "a", None).kv_percent(), None, "the machine did not go down");

        let mut mark = open(&temp, "b", None);
        assert_eq!(mark.kv_percent(), Some(80));
        mark.observe(&starting(), Millis(0));
        drop(mark);
        let mut mark = open(&temp, "b", None);
        assert_eq!(mark.kv_percent(), Some(80), "another supervisor of this service");
        mark.clear();
        drop(mark);
        assert_eq!(open(&temp, "c", None).kv_percent(), None);
    }

    #[test]
    fn stranded_memory_refuses_a_start_with_what_to_do() {
        let temp = tempfile::tempdir().expect("a directory");
        let stranded = MarkContent { stranded_above_bytes: Some(1 << 30), ..BUSY };
        mark_file(&temp).write("a", stranded).expect("written");
        let error = try_open(&temp, "a", Some(3 << 30)).expect_err("2 GiB are stranded");
        let text = error.to_string();
        for part in ["2.0 GiB", "restart the machine", "remove /"] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(open(&temp, "a", Some(1 << 30)).kv_percent(), None);
    }

    #[test]
    fn a_disk_without_room_costs_the_mark_alone() {
        let temp = tempfile::tempdir().expect("a directory");
        let place = temp.path().join("a file, not a directory");
        std::fs::write(&place, "").expect("written");
        let file = MarkFile::in_dir(&place, temp.path());
        let mut mark =
            BootMark::from_file(Some(file), "a".to_owned(), None).expect("nothing is stranded");
        mark.observe(&starting(), Millis(0));
        mark.clear();
        drop(mark);
        assert_eq!(BootMark::none().kv_percent(), None);
    }
}
