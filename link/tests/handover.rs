//! Handover over real sockets: what reaches a worker, what is turned away, and that nothing is left
//! open.
#![allow(missing_docs, reason = "tests")]

use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use paceline_link::{End, Frame, Handover, Listener, Side, listen, make_pair, send};
use paceline_proto::internal::v1::{LinkHandover, Stamp};
use prost::Message;

const BOUND: Duration = Duration::from_secs(30);
const SEGMENT: u64 = 1 << 20;
const STAMP: Stamp = Stamp { term: 4, epoch: 9 };

struct Worker {
    _dir: tempfile::TempDir,
    path: PathBuf,
    listener: Option<Listener>,
    handed: Receiver<Handover>,
}

fn worker() -> Worker {
    let dir =
        tempfile::Builder::new().prefix("pl").tempdir_in("/tmp").expect("a temporary directory");
    let path = dir.path().join("drafter-0.link.sock");
    let (tx, handed) = sync_channel(64);
    let listener =
        listen(&path, move |handover| tx.try_send(handover).expect("the test takes them"))
            .expect("listens");
    Worker { _dir: dir, path, listener: Some(listener), handed }
}

fn message() -> Vec<u8> {
    let message =
        LinkHandover { stamp: Some(STAMP), generation: 3, segment_bytes: SEGMENT }.encode_to_vec();
    [&(message.len() as u32).to_le_bytes()[..], &message].concat()
}

/// A connection whose reads are bounded. The bound is set before anything is sent: macOS refuses to
/// set it once the other end has closed.
fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).expect("connects");
    stream.set_read_timeout(Some(BOUND)).expect("set");
    stream
}

/// Sends by hand; whether the worker took it.
fn offer(path: &Path, bytes: &[u8], descriptors: &[RawFd]) -> bool {
    let mut stream = connect(path);
    let rights = [ControlMessage::ScmRights(descriptors)];
    let control = if descriptors.is_empty() { &[] } else { &rights[..] };
    sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(bytes)], control, MsgFlags::empty(), None)
        .expect("sent");
    // A connection that is closed with bytes unread is reset.
    stream.read(&mut [0]).unwrap_or(0) == 1
}

fn hand(path: &Path, generation: u64) -> std::io::Result<End> {
    let pair = make_pair(SEGMENT)?;
    send(path, STAMP, generation, pair.drafter.as_fd(), pair.segment.as_fd(), SEGMENT, BOUND)?;
    let target = Handover {
        stamp: STAMP,
        generation,
        socket: pair.target,
        segment: pair.segment,
        segment_bytes: SEGMENT,
    };
    Ok(End::open(target, Side::Target).expect("opens"))
}

fn open_descriptors() -> usize {
    std::fs::read_dir(if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" })
        .expect("there")
        .count()
}

/// One test, as it counts this process's descriptors.
#[test]
fn handovers() {
    a_link_arrives_and_speaks();
    what_is_no_handover_is_turned_away();
    a_silent_caller_is_let_go();
    a_dead_socket_is_replaced_and_a_living_one_is_not();
    a_removed_socket_is_bound_again();
    callers_are_bounded();
    descriptors_that_are_cut_off_are_closed();
    nothing_is_left_open();
}

/// A worker that has too few descriptors left for what is sent gets some of them.
fn descriptors_that_are_cut_off_are_closed() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let worker = worker();
    let pair = make_pair(SEGMENT).expect("made");
    let many = vec![pair.segment.as_raw_fd(); 253];
    let before = open_descriptors();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("known");
    setrlimit(Resource::RLIMIT_NOFILE, before as u64 + 40, hard).expect("lowered");
    let taken = offer(&worker.path, &message(), &many);
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("as before");
    assert!(!taken);
    // The next is served when the last is done with.
    assert!(!offer(&worker.path, &[0; 4], &[]));
    let after = open_descriptors();
    assert!(after <= before + 1, "{before} before, {after} after");
    hand(&worker.path, 1).expect("the listener is still there");
}

fn a_link_arrives_and_speaks() {
    let worker = worker();
    assert_eq!(std::fs::metadata(&worker.path).expect("there").permissions().mode() & 0o777, 0o600);
    let mut target = hand(&worker.path, 7).expect("handed over");
    let handover = worker.handed.recv_timeout(BOUND).expect("arrives");
    assert_eq!((handover.stamp, handover.generation, handover.segment_bytes), (STAMP, 7, SEGMENT));
    for descriptor in [&handover.socket, &handover.segment] {
        let flags = nix::fcntl::fcntl(descriptor, nix::fcntl::FcntlArg::F_GETFD).expect("open");
        assert_eq!(flags, nix::fcntl::FdFlag::FD_CLOEXEC.bits());
    }
    let mut drafter = End::open(handover, Side::Drafter).expect("opens");
    assert_eq!(drafter.generation(), 7);
    target.send(Frame::Refusal("hello".into())).expect("sent");
    assert!(matches!(drafter.receive(BOUND), Ok(Some(Frame::Refusal(_)))));
}

fn what_is_no_handover_is_turned_away() {
    let worker = worker();
    let pair = make_pair(SEGMENT).expect("made");
    let (socket, segment) = (pair.drafter.as_raw_fd(), pair.segment.as_raw_fd());
    let plain = tempfile::tempfile().expect("a file");
    plain.set_len(SEGMENT).expect("grown");
    let pipe = nix::unistd::pipe().expect("a pipe");
    let good = message();
    let other = |change: fn(&mut LinkHandover)| {
        let mut message =
            LinkHandover { stamp: Some(STAMP), generation: 3, segment_bytes: SEGMENT };
        change(&mut message);
        [&(message.encoded_len() as u32).to_le_bytes()[..], &message.encode_to_vec()].concat()
    };
    let table: Vec<(&str, Vec<u8>, Vec<RawFd>)> = vec![
        ("no descriptor", good.clone(), vec![]),
        ("one", good.clone(), vec![socket]),
        ("three", good.clone(), vec![socket, segment, segment]),
        ("as many as go", good.clone(), vec![segment; 253]),
        ("swapped", good.clone(), vec![segment, socket]),
        ("no socket", good.clone(), vec![pipe.0.as_raw_fd(), segment]),
        ("garbage", vec![0xff; 40], vec![socket, segment]),
        ("empty", vec![0; 4], vec![socket, segment]),
        ("more behind it", [good.clone(), vec![0]].concat(), vec![socket, segment]),
        ("no stamp", other(|m| m.stamp = None), vec![socket, segment]),
        ("segment too large", other(|m| m.segment_bytes *= 2), vec![socket, segment]),
        ("segment of no size", other(|m| m.segment_bytes = 0), vec![socket, segment]),
        ("segment of an odd size", other(|m| m.segment_bytes -= 1), vec![socket, segment]),
        ("memory that may shrink", good.clone(), vec![socket, plain.as_raw_fd()]),
    ];
    for (what, bytes, descriptors) in table {
        assert!(!offer(&worker.path, &bytes, &descriptors), "{what}");
    }
    // Descriptors after the first byte, and in two messages.
    let stream = connect(&worker.path);
    (&stream).write_all(&good[..3]).expect("sent");
    let rights = [socket, segment];
    let late = [ControlMessage::ScmRights(&rights)];
    // The worker may have closed already.
    let _ = sendmsg::<()>(
        stream.as_raw_fd(),
        &[IoSlice::new(&good[3..])],
        &late,
        MsgFlags::empty(),
        None,
    );
    assert_ne!((&stream).read(&mut [0]).unwrap_or(0), 1);

    assert!(worker.handed.try_recv().is_err());
    assert!(offer(&worker.path, &good, &[socket, segment]), "the listener is still there");
    worker.handed.recv_timeout(BOUND).expect("arrives");
    // In pieces, as a stream may deliver it.
    let mut stream = UnixStream::connect(&worker.path).expect("connects");
    sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&good[..1])], &late, MsgFlags::empty(), None)
        .expect("sent");
    stream.write_all(&good[1..6]).expect("sent");
    stream.write_all(&good[6..]).expect("sent");
    worker.handed.recv_timeout(BOUND).expect("arrives");
}

fn a_silent_caller_is_let_go() {
    let worker = worker();
    let mut silent = connect(&worker.path);
    let mut halfway = connect(&worker.path);
    halfway.write_all(&message()[..2]).expect("sent");
    hand(&worker.path, 1).expect("those before it are let go");
    worker.handed.recv_timeout(BOUND).expect("arrives");
    for stream in [&mut silent, &mut halfway] {
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
    }
}

fn a_dead_socket_is_replaced_and_a_living_one_is_not() {
    let mut worker = worker();
    let error = listen(&worker.path, |_| {}).expect_err("taken");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    drop(worker.listener.take());
    assert!(!worker.path.exists());
    assert!(hand(&worker.path, 1).is_err(), "no process listens");
    drop(UnixListener::bind(&worker.path).expect("bound"));
    let again = listen(&worker.path, |_| {}).expect("the dead one is replaced");
    drop(again);
    std::fs::write(&worker.path, "mine").expect("written");
    listen(&worker.path, |_| {}).expect_err("a file is not removed");
    assert_eq!(std::fs::read(&worker.path).expect("there"), b"mine");
}

fn a_removed_socket_is_bound_again() {
    let mut worker = worker();
    std::fs::remove_file(&worker.path).expect("removed");
    let tried = || {
        // The pace of looking, not a wait for something to have happened.
        std::thread::sleep(Duration::from_millis(10));
        hand(&worker.path, 1).is_ok()
    };
    assert!((0..1_000).any(|_| tried()), "the socket stays away");
    worker.handed.recv_timeout(BOUND).expect("arrives");
    drop(worker.listener.take());
    assert!(!worker.path.exists(), "the socket is left");
}

/// A process that hands over has bounds: on the wait for an answer, and for room in the backlog.
fn callers_are_bounded() {
    let dir =
        tempfile::Builder::new().prefix("pl").tempdir_in("/tmp").expect("a temporary directory");
    let path = dir.path().join("s");
    let deaf = UnixListener::bind(&path).expect("bound");
    let pair = make_pair(SEGMENT).expect("made");
    let bound = Duration::from_millis(100);
    let attempt =
        || send(&path, STAMP, 1, pair.target.as_fd(), pair.segment.as_fd(), SEGMENT, bound);
    assert_eq!(attempt().expect_err("no answer").kind(), std::io::ErrorKind::TimedOut);
    nix::sys::socket::listen(&deaf, nix::sys::socket::Backlog::new(0).expect("a backlog"))
        .expect("set");
    for _ in 0..3 {
        attempt().expect_err("no answer, or no room");
    }
}

fn nothing_is_left_open() {
    let worker = worker();
    let mut counts = vec![];
    for round in 0..20 {
        let pair = make_pair(SEGMENT).expect("made");
        let (socket, segment) = (pair.drafter.as_raw_fd(), pair.segment.as_raw_fd());
        assert!(!offer(&worker.path, &message(), &[socket, segment, segment]));
        assert!(!offer(&worker.path, &message(), &[segment]));
        drop(pair);
        let target = hand(&worker.path, round).expect("handed over");
        let handover = worker.handed.recv_timeout(BOUND).expect("arrives");
        drop((End::open(handover, Side::Drafter).expect("opens"), target));
        // The worker closes a connection after its answer: one more handover comes after the last
        // of these.
        assert!(!offer(&worker.path, &[0; 4], &[]));
        counts.push(open_descriptors());
    }
    let last = counts.iter().rev().take(10).min().expect("some");
    assert!(last <= &(counts[0] + 1), "{counts:?}");
}
