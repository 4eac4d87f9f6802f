//! An engine's mailbox: a bounded queue of commands and a bell, a socket that can be waited on
//! beside the link's, so that one thread hears both and wakes for nothing else.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Where commands are put.
#[derive(Debug)]
pub struct Mail<C> {
    tx: SyncSender<C>,
    bell: Arc<UnixStream>,
}

/// Where the engine takes them out.
#[derive(Debug)]
pub struct Inbox<C> {
    rx: Receiver<C>,
    bell: UnixStream,
}

/// Why a command was not taken; it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// As many wait as may.
    Full,
    /// The engine has ended.
    Ended,
}

/// A mailbox for `places` commands.
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
    /// Puts a command in, without waiting.
    ///
    /// # Errors
    /// It is not taken.
    pub fn try_send(&self, command: C) -> Result<(), Refused> {
        self.tx.try_send(command).map_err(|error| match error {
            TrySendError::Full(_) => Refused::Full,
            TrySendError::Disconnected(_) => Refused::Ended,
        })?;
        // A bell that cannot be rung has been rung often enough.
        let _ = (&*self.bell).write(&[1]);
        Ok(())
    }
}

impl<C> Inbox<C> {
    /// The next command if there is one.
    ///
    /// # Errors
    /// There is none; `Disconnected` when nobody can send any more.
    pub fn try_recv(&self) -> Result<C, TryRecvError> {
        self.rx.try_recv()
    }

    /// Waits for a command, for something to read on `others`, or for `at_most`. `false` if nothing
    /// came in that time.
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
        // A signal, or an error that the reads below would meet as well: whoever waits looks again.
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
    fn a_command_wakes_whoever_waits_and_so_does_a_peer() {
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
        assert_eq!(mail.try_send(7), Err(Refused::Full));
        inbox.wait(&[], None);
        drop(mail);
        assert!(inbox.try_recv().is_ok() && inbox.try_recv().is_ok());
        assert!(matches!(inbox.try_recv(), Err(TryRecvError::Disconnected)));
    }
}
