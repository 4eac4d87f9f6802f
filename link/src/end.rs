//! One end of a link. One thread uses it, the engine's. It waits only for a time that the caller
//! gives.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use paceline_vocabulary::TensorType;
use paceline_vocabulary::tensor::TensorRef;

use crate::deadline::Deadline;
use crate::frame::{self, HEADER_BYTES, MAX_FRAME_BYTES};
use crate::handover::Handover;
use crate::ring::Ring;
use crate::segment::SharedSegment;
use crate::tensor::TensorError;
use crate::wire::{Frame, Message};
use crate::{LinkError, ProtocolError, tensor};

/// Bytes of frames that may wait for the peer to read: two of the longest frames. A peer for which
/// more waits has stopped reading.
pub const MAX_WAITING_BYTES: usize = 2 * (MAX_FRAME_BYTES + HEADER_BYTES);
/// Bytes that one read takes from the socket.
const READ_BYTES: usize = 64 << 10;
/// Frames of the peer that one step border takes. A drafter may owe 64 rounds, and answers each
/// with at most one proposal, one report and two acknowledgements.
pub const INTAKE_FRAMES: usize = 256;
/// Bytes of the peer's frames that one step border reads from the socket: four reads. A frame that
/// is longer arrives over several borders.
pub const INTAKE_BYTES: usize = 4 * READ_BYTES;

/// The worker that holds an end. Each writes its own half of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Writes the first half.
    Target,
    /// Writes the second half.
    Drafter,
}

/// Amount that an end may still take from its peer before the next step border.
#[derive(Clone, Copy, Debug)]
struct IntakeAllowance {
    frames: usize,
    bytes: usize,
}

/// One end of a link. Dropping it closes the link; the peer gets [`LinkError::Gone`].
#[derive(Debug)]
pub struct End {
    socket: UnixStream,
    segment: SharedSegment,
    generation: u64,
    ring: Ring,
    /// Where our half of the segment starts.
    ours: u64,
    theirs: Range<u64>,
    /// Number of the peer's last tensor that was copied out, and of the last we have acknowledged.
    taken: u64,
    acknowledged: u64,
    /// Frames not yet written; of these bytes the first `written` have gone.
    outgoing: Vec<u8>,
    written: usize,
    incoming: VecDeque<u8>,
    /// `None`: not limited.
    intake: Option<IntakeAllowance>,
    /// Buffer of reads. It is kept, because filling it with zeros costs more than a read that finds
    /// nothing.
    read: Box<[u8]>,
    bytes: u64,
}

impl End {
    /// Maps the segment and takes the socket. Nothing is sent: the target sends Hello first.
    ///
    /// # Errors
    /// [`LinkError::Io`]: the descriptors that were handed over are no link.
    pub fn open(handover: Handover, side: Side) -> Result<Self, LinkError> {
        let Handover { generation, socket, segment, segment_bytes, .. } = handover;
        // Not `?`: descriptors that never were a link cannot be "gone".
        let segment = SharedSegment::map(segment.as_fd(), segment_bytes).map_err(LinkError::Io)?;
        let socket = UnixStream::from(socket);
        socket.set_nonblocking(true).map_err(LinkError::Io)?;
        let half = segment_bytes / 2;
        let (ours, theirs) = match side {
            Side::Target => (0, half..segment_bytes),
            Side::Drafter => (half, 0..half),
        };
        let (outgoing, incoming) = (vec![], VecDeque::new());
        let ring = Ring::new(half);
        Ok(Self {
            socket,
            segment,
            generation,
            ring,
            ours,
            theirs,
            taken: 0,
            acknowledged: 0,
            outgoing,
            written: 0,
            incoming,
            intake: None,
            read: vec![0; READ_BYTES].into(),
            bytes: 0,
        })
    }

    /// Begins a step border: until the next call, [`End::receive`] takes at most [`INTAKE_FRAMES`]
    /// frames and reads at most [`INTAKE_BYTES`] bytes. A peer that sends without end thus delays a
    /// border by a bounded time; the rest stays in the socket, where it stops the peer.
    pub fn limit_intake(&mut self) {
        self.intake = Some(IntakeAllowance { frames: INTAKE_FRAMES, bytes: INTAKE_BYTES });
    }

    /// Whether the last border's limit was reached. Frames may be buffered then that
    /// [`End::poll_fd`] does not announce, so a caller takes them at its next border without
    /// waiting.
    pub fn is_intake_spent(&self) -> bool {
        self.intake.is_some_and(|intake| intake.frames == 0 || intake.bytes == 0)
    }

    /// Number of this link over the supervisor's life.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Longest tensor that could be put now, in bytes.
    pub fn room(&self) -> u64 {
        self.ring.room()
    }

    /// Longest tensor that ever fits, in bytes.
    pub fn capacity(&self) -> u64 {
        self.ring.capacity()
    }

    /// Copies rows into our ring; `None` if there is no room at the moment, because the peer has
    /// not acknowledged enough. Tensors must be sent in frames in the order in which they were put,
    /// because the peer checks their numbers.
    ///
    /// # Errors
    /// [`LinkError::Io`] (invalid input) if `bytes` are not rows · columns numbers, or more than
    /// ever fit.
    pub fn put(
        &mut self,
        rows: u32,
        columns: u32,
        element: TensorType,
        bytes: &[u8],
    ) -> Result<Option<TensorRef>, LinkError> {
        self.put_parts(rows, columns, element, &[bytes])
    }

    /// As [`End::put`], for rows that lie in several pieces: they are written one after another.
    ///
    /// # Errors
    /// As [`End::put`].
    pub fn put_parts(
        &mut self,
        rows: u32,
        columns: u32,
        element: TensorType,
        parts: &[&[u8]],
    ) -> Result<Option<TensorRef>, LinkError> {
        let found: usize = parts.iter().map(|part| part.len()).sum();
        let expected =
            tensor::length(rows, columns, element).filter(|length| *length == found as u64);
        let Some(length) = expected else {
            return Err(misuse(format!(
                "{found} bytes are no tensor of {rows} rows, {columns} columns, {element:?}"
            )));
        };
        if length > self.ring.capacity() {
            return Err(misuse(format!(
                "a tensor of {length} bytes, a ring has {}",
                self.ring.capacity()
            )));
        }
        let Some((number, start)) = self.ring.put(length) else { return Ok(None) };
        let offset = self.ours + start;
        let mut at = offset as usize;
        for part in parts {
            self.segment.write(at, part);
            at += part.len();
        }
        self.bytes += length;
        Ok(Some(TensorRef { number, offset, length, rows, columns, element }))
    }

    /// Sends a frame after those that wait, as far as the socket takes it without waiting; later
    /// calls send the rest. A [`Message`] is sent as it is, also if it breaks a rule: tests play
    /// faulty peers with it.
    ///
    /// # Errors
    /// [`LinkError::Stalled`] over [`MAX_WAITING_BYTES`]; [`LinkError::Gone`]; [`LinkError::Io`]
    /// also for a frame that is too long.
    pub fn send(&mut self, frame: impl Into<Message>) -> Result<(), LinkError> {
        self.flush()?;
        let before = self.outgoing.len();
        frame::encode(frame.into(), &mut self.outgoing).map_err(misuse)?;
        if self.outgoing.len() - self.written > MAX_WAITING_BYTES {
            self.outgoing.truncate(before);
            return Err(LinkError::Stalled);
        }
        self.flush()
    }

    /// Writes what waits, as far as the socket takes it without waiting. `send`, `receive` and
    /// `take` do so as well.
    ///
    /// # Errors
    /// [`LinkError::Gone`], [`LinkError::Io`].
    pub fn flush(&mut self) -> Result<(), LinkError> {
        loop {
            // Acknowledgements are made here and not when a tensor is taken. One acknowledges all
            // tensors before it, so they do not pile up if the peer reads nothing.
            if self.written == self.outgoing.len() {
                self.outgoing.clear();
                self.written = 0;
                if self.taken > self.acknowledged {
                    let ack = Frame::Ack(self.taken);
                    frame::encode(ack.into(), &mut self.outgoing).map_err(misuse)?;
                    self.acknowledged = self.taken;
                }
            }
            if self.outgoing.is_empty() {
                return Ok(());
            }
            match self.socket.write(&self.outgoing[self.written..]) {
                Ok(0) => return Err(LinkError::Gone),
                Ok(count) => {
                    self.written += count;
                    self.bytes += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.outgoing.drain(..self.written);
                    self.written = 0;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next frame, if one is there within `wait` (zero: only what is there already).
    /// Acknowledgements are taken in here and not returned. What waits to be written goes out
    /// meanwhile. `None` also if the limit of [`End::limit_intake`] is reached.
    ///
    /// # Errors
    /// [`LinkError::Gone`] once everything that the peer sent was returned;
    /// [`LinkError::Protocol`]; [`LinkError::Io`].
    pub fn receive(&mut self, wait: Duration) -> Result<Option<Frame>, LinkError> {
        let deadline = Deadline::after(wait);
        let mut waited = false;
        loop {
            while !self.is_intake_spent()
                && let Some(frame) = self.next_frame()?
            {
                match frame {
                    Frame::Ack(number) => self.ring.free(number).map_err(ProtocolError::from)?,
                    frame => return Ok(Some(frame)),
                }
            }
            if self.is_intake_spent() {
                self.flush()?;
                return Ok(None);
            }
            if self.fill()? {
                continue;
            }
            // Only now: frames that a peer sent before it went away are returned first.
            self.flush()?;
            if waited && deadline.left().is_zero() || wait.is_zero() {
                return Ok(None);
            }
            self.wait(deadline)?;
            waited = true;
        }
    }

    /// Copies a tensor of the peer out of its ring and queues the acknowledgement. Tensors are
    /// taken in the order of their numbers, each once: those of a frame in the order of its fields.
    ///
    /// # Errors
    /// [`LinkError::Protocol`] if it breaks a rule of link.proto, or if a number is not finite.
    pub fn take(&mut self, tensor: &TensorRef) -> Result<Vec<u8>, LinkError> {
        let place =
            tensor::check(tensor, self.taken + 1, &self.theirs).map_err(ProtocolError::from)?;
        let copy = self.segment.read(place.offset, place.length);
        if !tensor::all_finite(&copy, place.element) {
            return Err(
                ProtocolError::from(TensorError::NotFinite { number: tensor.number }).into()
            );
        }
        self.taken = tensor.number;
        self.bytes += place.length as u64;
        match self.flush() {
            // The copy is good; the next `receive` returns the error.
            Ok(()) | Err(LinkError::Gone) => Ok(copy),
            Err(error) => Err(error),
        }
    }

    /// Whether everything that was sent has been written.
    pub fn is_flushed(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// To wait on, beside others, for something to receive.
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Bytes over this link so far, both ways, tensors included.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn next_frame(&mut self) -> Result<Option<Frame>, LinkError> {
        let bytes = self.incoming.make_contiguous();
        let Some((message, used)) = frame::decode(bytes).map_err(ProtocolError::from)? else {
            return Ok(None);
        };
        self.incoming.drain(..used);
        if let Some(intake) = &mut self.intake {
            intake.frames = intake.frames.saturating_sub(1);
        }
        Ok(Some(Frame::try_from(message).map_err(ProtocolError::from)?))
    }

    /// Reads what is there, at most [`READ_BYTES`]; `false` if nothing is. Called only when no
    /// complete frame is buffered, so the buffer holds less than one frame and what is read here.
    fn fill(&mut self) -> Result<bool, LinkError> {
        match self.socket.read(&mut self.read) {
            Ok(0) => Err(LinkError::Gone),
            Ok(count) => {
                self.bytes += count as u64;
                self.incoming.extend(&self.read[..count]);
                if let Some(intake) = &mut self.intake {
                    intake.bytes = intake.bytes.saturating_sub(count);
                }
                Ok(true)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock) => Ok(false),
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    fn wait(&self, deadline: Deadline) -> Result<(), LinkError> {
        let mut events = PollFlags::POLLIN;
        events.set(PollFlags::POLLOUT, !self.outgoing.is_empty());
        match poll(&mut [PollFd::new(self.socket.as_fd(), events)], deadline.poll_timeout()) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }
}

fn misuse(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> LinkError {
    LinkError::Io(io::Error::new(io::ErrorKind::InvalidInput, what))
}
