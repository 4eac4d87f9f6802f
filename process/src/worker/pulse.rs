//! Heartbeats and the lease, on a thread of their own. They go on while the engine is in a long
//! step and while the runtime is busy. They stop when the process does.

use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_proto::internal::v1::Heartbeat;
use tokio::sync::mpsc;

use super::Progress;
use crate::telemetry;
use paceline_system::Clock;

/// Interval between two heartbeats.
const PERIOD: Duration = Duration::from_millis(250);
/// Heartbeats that wait for a slow watcher. It misses later ones.
const WATCHER_BACKLOG: usize = 8;
/// The log file of this process is kept below this.
const MAX_LOG_BYTES: u64 = 8 << 20;

/// A stream of heartbeats.
#[derive(Debug)]
struct Watcher {
    term: u64,
    tx: mpsc::Sender<Heartbeat>,
}

/// Sends the worker's heartbeats and counts its lease. Clones share both.
#[derive(Clone, Debug)]
pub struct Pulse {
    progress: Arc<Progress>,
    watchers: Arc<Mutex<Vec<Watcher>>>,
    nudge: SyncSender<()>,
    epoch: u64,
}

impl Pulse {
    /// Starts the thread. `on_lease_over` is called once, when no supervisor of the highest term
    /// has watched for `lease`.
    pub fn start(
        progress: Arc<Progress>,
        epoch: u64,
        lease: Duration,
        on_lease_over: impl FnOnce() + Send + 'static,
    ) -> Self {
        let (nudge, nudged) = sync_channel(1);
        let pulse = Self { progress, watchers: Arc::default(), nudge, epoch };
        let beating = pulse.clone();
        let clock = Clock::start();
        let beat = move || {
            let (mut on_lease_over, mut watched_at, mut beats) =
                (Some(on_lease_over), clock.now(), 0u64);
            loop {
                match nudged.recv_timeout(PERIOD) {
                    Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                if beating.beat() {
                    watched_at = clock.now();
                } else if clock.now() - watched_at >= lease.as_millis() as u64
                    && let Some(over) = on_lease_over.take()
                {
                    over();
                }
                beats += 1;
                if beats.is_multiple_of(40) {
                    telemetry::bound_own_log(MAX_LOG_BYTES);
                }
            }
        };
        std::thread::Builder::new()
            .name("heartbeat".into())
            .spawn(beat)
            .expect("a thread can be started at the start");
        pulse
    }

    /// Sends a heartbeat to every watcher. Returns whether there is one of the highest term.
    fn beat(&self) -> bool {
        let beat = self.progress.heartbeat(self.epoch);
        let mut watchers = self.watchers.lock().expect("not poisoned");
        watchers.retain(|watcher| !watcher.tx.is_closed());
        for watcher in watchers.iter() {
            // A slow watcher misses this one. The next one has all figures too.
            let _ = watcher.tx.try_send(beat.clone());
        }
        !watchers.is_empty()
    }

    /// Sends a heartbeat at once: after a change that the supervisor waits for.
    pub fn now(&self) {
        // A nudge that waits already has the same effect.
        let _ = self.nudge.try_send(());
    }

    /// A new watcher of `term`. Watchers of older terms are dropped: a newer supervisor has taken
    /// over.
    pub fn watch(&self, term: u64) -> mpsc::Receiver<Heartbeat> {
        let (tx, rx) = mpsc::channel(WATCHER_BACKLOG);
        {
            let mut watchers = self.watchers.lock().expect("not poisoned");
            watchers.retain(|watcher| watcher.term >= term);
            watchers.push(Watcher { term, tx });
        }
        self.now();
        rx
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc as sync;

    fn pulse(lease_ms: u64) -> (Pulse, sync::Receiver<()>) {
        let (over, lease_over) = sync::sync_channel(1);
        let pulse = Pulse::start(Arc::default(), 4, Duration::from_millis(lease_ms), move || {
            over.send(()).expect("the test waits")
        });
        (pulse, lease_over)
    }

    #[test]
    fn a_watcher_gets_a_heartbeat_at_once() {
        let (pulse, _lease) = pulse(60_000);
        let mut watcher = pulse.watch(1);
        assert_eq!(watcher.blocking_recv().expect("beats").epoch, 4);
    }

    #[test]
    fn a_higher_term_takes_over() {
        let (pulse, _lease) = pulse(60_000);
        let mut old = pulse.watch(1);
        let mut new = pulse.watch(2);
        assert!(new.blocking_recv().is_some());
        while old.blocking_recv().is_some() {}
    }

    #[test]
    fn the_lease_ends_when_nobody_watches() {
        let (pulse, lease) = pulse(300);
        drop(pulse.watch(1));
        lease.recv_timeout(Duration::from_secs(30)).expect("the lease is over");
    }
}
