//! Changes of state and their causes, kept in three places: a file that outlives us, the last of it
//! in memory, and clients that follow.
//!
//! The actor puts an event in and goes on. The file is written by a thread of its own: a disk that
//! is full or slow costs one warning and nothing else. Who follows and does not read is cut.
//! Everything is bounded (I6); no prompt or output is in an event (I9). Stamps are the wall
//! clock's: they are for people, nothing is decided by them.

mod file;
mod logged;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_process::{RuntimeDir, task};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1;
use paceline_vocabulary::Term;
use tokio::sync::{broadcast, mpsc};
use tonic::Status;

use crate::lines::LineWriter;
pub(crate) use logged::{logged, ordered};

/// Events kept in memory: the file may not have them yet.
const RECENT: usize = 256;
/// Most events that wait for a follower; one that lags further is cut off.
const MAX_LAG: usize = 256;
/// Events on their way to one caller.
const STREAM: usize = 64;
/// A follower that takes nothing for this time is cut off.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Callers that may read or follow at once.
const READERS: usize = 32;

/// Events for a caller that names no number.
const DEFAULT_LAST: u32 = 100;
/// Most events that a caller may ask for.
const MAX_LAST: u32 = 10_000;

/// A change of state, before it has its number and its stamp.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "as in v1::Event")]
pub struct Change {
    pub kind: &'static str,
    pub subject: String,
    pub epoch: u64,
    pub from: String,
    pub to: String,
    pub cause: String,
}

/// Takes changes in. The actor's.
#[derive(Debug)]
pub struct Journal {
    term: Term,
    number: u64,
    recent: Arc<Mutex<VecDeque<Arc<v1::Event>>>>,
    live: broadcast::Sender<Arc<v1::Event>>,
    file: LineWriter<file::EventLine>,
}

/// Gives events out. The services'.
#[derive(Clone, Debug)]
pub struct Reader {
    term: Term,
    dir: PathBuf,
    recent: Arc<Mutex<VecDeque<Arc<v1::Event>>>>,
    live: broadcast::WeakSender<Arc<v1::Event>>,
    readers: Arc<tokio::sync::Semaphore>,
}

impl Journal {
    /// A journal of this life, after the events that the runtime directory has already.
    pub fn new(dir: &RuntimeDir, term: Term) -> (Self, Reader) {
        let recent = Arc::<Mutex<VecDeque<_>>>::default();
        let (live, _) = broadcast::channel(MAX_LAG);
        let file = LineWriter::start("events", dir.path().join(file::NAME), file::MAX_BYTES);
        let reader = Reader {
            term,
            dir: dir.path().to_path_buf(),
            recent: recent.clone(),
            live: live.downgrade(),
            readers: Arc::new(tokio::sync::Semaphore::new(READERS)),
        };
        (Self { term, number: 0, recent, live, file }, reader)
    }

    /// Records a change: in the log, in memory, for followers and in the file.
    pub fn record(&mut self, change: Change) {
        let Change { kind, subject, epoch, from, to, cause } = change;
        tracing::info!(kind, subject, epoch, from, to, cause, "event");
        self.number += 1;
        let event = Arc::new(v1::Event {
            time: now(),
            term: self.term.0,
            number: self.number,
            kind: kind.to_owned(),
            subject,
            epoch,
            from,
            to,
            cause,
        });
        {
            let mut recent = self.recent.lock().expect("not poisoned");
            if recent.len() == RECENT {
                recent.pop_front();
            }
            recent.push_back(event.clone());
        }
        // An error means that there is no follower.
        let _ = self.live.send(event.clone());
        self.file.write(file::EventLine::from(&*event));
    }
}

#[expect(clippy::disallowed_methods, reason = "a stamp for people")]
fn now() -> String {
    let now = jiff::Timestamp::now();
    // Milliseconds: as many digits in every line.
    let rounded = now.round(jiff::Unit::Millisecond).unwrap_or(now);
    format!("{rounded:.3}")
}

/// Stream of events that a client reads.
pub type Events = tokio_stream::wrappers::ReceiverStream<Result<v1::Event, Status>>;

impl Reader {
    /// The last events, also of earlier supervisors. If the caller follows, later events come after
    /// them.
    ///
    /// # Errors
    /// Too many read already, or the service is about to end.
    pub fn read(&self, request: v1::EventsRequest) -> Result<Events, Status> {
        let last = request.last.unwrap_or(DEFAULT_LAST);
        if last > MAX_LAST {
            return Err(Reason::InvalidArgument
                .field("last", format!("expected at most {MAX_LAST}, found {last}")));
        }
        let full = |_| {
            Reason::QueueFull
                .status(format!("{READERS} callers read events already, the most there may be"))
        };
        let place = self.readers.clone().try_acquire_owned().map_err(full)?;
        let ending = || Reason::Draining.status("the supervisor is about to end");
        // Subscribed before past events are read, so that no event is lost between both.
        let live = self.live.upgrade().ok_or_else(ending)?.subscribe();
        let (events, stream) = mpsc::channel(STREAM);
        let reader = self.clone();
        task::spawn("events", async move {
            reader.send(request.follow, last as usize, live, events).await;
            drop(place);
        });
        Ok(tokio_stream::wrappers::ReceiverStream::new(stream))
    }

    /// Sends past events, then live ones. Longer than 60 lines: one piece, so that no event is lost
    /// between the two.
    async fn send(
        self,
        follow: bool,
        last: usize,
        mut live: broadcast::Receiver<Arc<v1::Event>>,
        to: mpsc::Sender<Result<v1::Event, Status>>,
    ) {
        let (dir, term) = (self.dir.clone(), self.term.0);
        let written =
            tokio::task::spawn_blocking(move || file::read(&dir, last)).await.unwrap_or_default();
        let recent: Vec<_> = self.recent.lock().expect("not poisoned").iter().cloned().collect();
        let newest = |events: &[v1::Event]| {
            let ours = events.iter().filter(|event| event.term == term);
            ours.map(|event| event.number).max().unwrap_or(0)
        };
        let mut seen = newest(&written);
        let missing =
            recent.into_iter().filter(|event| event.number > seen).map(|event| (*event).clone());
        let mut all: Vec<v1::Event> =
            written.into_iter().chain(missing.collect::<Vec<_>>()).collect();
        seen = newest(&all);
        for event in all.drain(all.len().saturating_sub(last)..) {
            if !put(&to, Ok(event)).await {
                return;
            }
        }
        if last == 0 {
            seen = 0; // whatever comes is live
        }
        if !follow {
            return;
        }
        loop {
            let event = tokio::select! {
                biased;
                () = to.closed() => return,
                event = live.recv() => event,
            };
            match event {
                Ok(event) if event.number <= seen => {}
                Ok(event) => {
                    if !put(&to, Ok((*event).clone())).await {
                        return;
                    }
                }
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    let message =
                        format!("{missed} events were not read in time; ask for them again");
                    put(&to, Err(Reason::FellBehind.status(message))).await;
                    return;
                }
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    }
}

/// Hands an event on; false if the reader has gone, or is too slow.
async fn put(
    to: &mpsc::Sender<Result<v1::Event, Status>>,
    event: Result<v1::Event, Status>,
) -> bool {
    matches!(tokio::time::timeout(UNREAD_TIMEOUT, to.send(event)).await, Ok(Ok(())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_process::Config;
    use tokio_stream::StreamExt as _;

    fn dir(temp: &tempfile::TempDir) -> RuntimeDir {
        let mut config = Config::default();
        config.supervisor.runtime_dir = temp.path().display().to_string();
        RuntimeDir::locate(&config).expect("a short path")
    }

    fn change(to: usize) -> Change {
        Change { kind: "phase", subject: "target".into(), to: to.to_string(), ..Default::default() }
    }

    fn request(follow: bool, last: Option<u32>) -> v1::EventsRequest {
        v1::EventsRequest { follow, last }
    }

    async fn all(stream: Events) -> Vec<(u64, String)> {
        stream
            .map(|event| event.expect("an event"))
            .map(|event| (event.term, event.to))
            .collect()
            .await
    }

    #[tokio::test]
    async fn past_events_include_earlier_supervisors_and_new_ones_come_once() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let (mut journal, reader) = Journal::new(&dir(&temp), Term(1));
        (0..3).for_each(|to| journal.record(change(to)));
        drop(journal);
        assert!(reader.read(request(true, None)).is_err(), "it has ended");

        let (mut journal, reader) = Journal::new(&dir(&temp), Term(2));
        journal.record(change(10));
        let expected: Vec<(u64, String)> =
            [(1, 0), (1, 1), (1, 2), (2, 10)].map(|(term, to)| (term, to.to_string())).to_vec();
        assert_eq!(all(reader.read(request(false, None)).expect("room")).await, expected);
        assert_eq!(all(reader.read(request(false, Some(2))).expect("room")).await, expected[2..]);

        let mut follower = reader.read(request(true, Some(1))).expect("room");
        let mut fresh = reader.read(request(true, Some(0))).expect("room");
        assert_eq!(follower.next().await.expect("one").expect("an event").to, "10");
        journal.record(change(11));
        for stream in [&mut follower, &mut fresh] {
            let event = stream.next().await.expect("one").expect("an event");
            assert_eq!((event.to.as_str(), event.number, event.term), ("11", 2, 2));
        }
        drop(journal);
        assert!(follower.next().await.is_none(), "it ends with the supervisor");
        assert!(reader.read(request(false, Some(MAX_LAST + 1))).is_err());
    }

    #[tokio::test]
    async fn a_follower_that_does_not_read_is_ended_and_delays_no_other() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let (mut journal, reader) = Journal::new(&dir(&temp), Term(1));
        let mut follower = reader.read(request(true, Some(0))).expect("room");
        journal.record(change(0));
        follower.next().await.expect("one").expect("an event");
        // More than its stream, the ring and the way to the disk hold; nothing here waits.
        (1..3_000).for_each(|to| journal.record(change(to)));
        let mut last = None;
        while let Some(event) = follower.next().await {
            last = Some(event);
        }
        let status = last.expect("its end").expect_err("it was cut");
        assert_eq!(Reason::of(&status), Some(Reason::FellBehind), "{status:?}");
    }

    #[test]
    fn stamps_have_milliseconds() {
        let stamp = now();
        assert!(
            stamp.len() == 24 && stamp.ends_with('Z') && stamp.as_bytes()[19] == b'.',
            "{stamp}"
        );
    }
}
