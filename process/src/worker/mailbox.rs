//! An engine's mailbox: a bounded queue of commands, and a socket that gets a byte for each
//! command. One thread can wait on that socket and on the link's socket at once.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The sending end of a mailbox.
#[derive(Debug)]
pub struct Mail<C> {
    tx: SyncSender<C>,
    bell: Arc<UnixStream>,
}

/// The engine's end of a mailbox.
#[derive(Debug)]
pub struct Inbox<C> {
    rx: Receiver<C>,
    bell: UnixStream,
}

/// Why a command was not taken. The command is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendRefused {
    /// The queue is full.
    Full,
    /// The engine has ended.
    Ended,
}

/// A mailbox for at most `places` waiting commands.
///
/// # Errors
/// No descriptors are left.
pub fn mailbox<C>(places: usize) -> std::io::Result<(Mail<C>, Inbox<C>)> {
    let (tx, rx) = sync_channel(places);
    let (ours, theirs) = UnixStream::pair()?;
    for end in [&ours, &theirs] {
        end.set_nonblocking(true)?;
    }
    Ok((Mail { tx, bell: Arc::new(ours) }, Inbox { rx, bell: theirs }))
}

impl<C> Clone for Mail<C> {
    fn clone(&self) -> Self {
        Self { tx: self.tx.clone(), bell: self.bell.clone() }
    }
}

impl<C> Mail<C> {
    /// Puts a command into the queue, without waiting.
    ///
    /// # Errors
    /// The command is not taken.
    pub fn try_send(&self, command: C) -> Result<(), SendRefused> {
        self.tx.try_send(command).map_err(|error| match error {
            TrySendError::Full(_) => SendRefused::Full,
            TrySendError::Disconnected(_) => SendRefused::Ended,
        })?;
        // A full socket wakes the engine as well as one more byte would.
        let _ = (&*self.bell).write(&[1]);
        Ok(())
    }
}

impl<C> Inbox<C> {
    /// The next command if there is one.
    ///
    /// # Errors
    /// There is none; `Disconnected` when no sender is left.
    pub fn try_recv(&self) -> Result<C, TryRecvError> {
        self.rx.try_recv()
    }

    /// Waits for a command, or for something to read on `others`, at most for `at_most`. Returns
    /// `false` if nothing came in that time.
    pub fn wait(&mut self, others: &[BorrowedFd<'_>], at_most: Option<Duration>) -> bool {
        let timeout = match at_most {
            None => PollTimeout::NONE,
            // Rounded up: waking early would only be waiting again.
            Some(wait) => {
                PollTimeout::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX)
            }
        };
        let mut fds: Vec<PollFd<'_>> = vec![PollFd::new(self.bell.as_fd(), PollFlags::POLLIN)];
        fds.extend(others.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)));
        // After a signal or an error the caller checks its sources again, as after a command.
        let came = poll(&mut fds, timeout) != Ok(0);
        let mut rings = [0; 64];
        while matches!((&self.bell).read(&mut rings), Ok(count) if count == rings.len()) {}
        came
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_or_a_readable_descriptor_wakes_the_waiting_engine() {
        let (mail, mut inbox) = mailbox::<u32>(2).expect("descriptors");
        mail.try_send(7).expect("room");
        assert!(inbox.wait(&[], None));
        assert!(inbox.try_recv().is_ok());
        let (ours, mut theirs) = UnixStream::pair().expect("descriptors");
        theirs.write_all(&[1]).expect("room");
        inbox.wait(&[ours.as_fd()], None);
        assert!(matches!(inbox.try_recv(), Err(TryRecvError::Empty)));
        assert!(!inbox.wait(&[], Some(Duration::from_millis(1))));
        for _ in 0..2 {
            mail.try_send(7).expect("room");
        }
        assert_eq!(mail.try_send(7), Err(SendRefused::Full));
        inbox.wait(&[], None);
        drop(mail);
        assert!(inbox.try_recv().is_ok() && inbox.try_recv().is_ok());
        assert!(matches!(inbox.try_recv(), Err(TryRecvError::Disconnected)));
    }
}
