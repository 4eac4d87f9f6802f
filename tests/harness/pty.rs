//! A command in a terminal of its own: a pseudo terminal, and what a person sees on it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::Signal;
use nix::sys::termios::{Termios, tcgetattr};
use vt100::Parser;

use crate::wait;

/// A command in a terminal.
pub struct Pty {
    child: Child,
    keyboard: File,
    /// Held, so that the terminal lives on when the command has ended.
    terminal: OwnedFd,
    before: Termios,
    screen: Arc<Mutex<Parser>>,
}

impl Pty {
    /// Starts the command in a terminal of this size.
    ///
    /// # Panics
    /// The system has no terminal, or the command does not start.
    pub fn start(mut command: Command, columns: u16, rows: u16) -> Self {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let before = tcgetattr(&pty.slave).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm-256color");
        let child = command.spawn().unwrap();
        let keyboard = File::from(pty.master);
        let mut output = keyboard.try_clone().unwrap();
        let screen = Arc::new(Mutex::new(Parser::new(cells(rows), cells(columns), 0)));
        let shown = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // It ends when no process has the terminal open.
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                shown.lock().unwrap().process(&buffer[..count]);
            }
        });
        Self { child, keyboard, terminal: pty.slave, before, screen }
    }

    /// What is on the screen.
    ///
    /// # Panics
    /// Never.
    pub fn shown(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Waits until the screen is as wanted, and returns it.
    ///
    /// # Panics
    /// It does not come to be so.
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait(what, || {
                last = self.shown();
                wanted(&last).then(|| last.clone())
            })
        }));
        found.unwrap_or_else(|_| panic!("waited for {what}; the screen is\n{last}"))
    }

    /// Waits until a text is on the screen. Lines may be wrapped.
    pub fn wait_text(&self, text: &str) -> String {
        self.wait_for(text, |screen| screen.replace('\n', " ").contains(text))
    }

    /// Presses keys.
    ///
    /// # Panics
    /// The terminal is gone.
    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Sends the command a signal.
    pub fn signal(&self, signal: Signal) {
        crate::signal(self.child.id(), signal);
    }

    /// Waits for the end of the command, and checks that the terminal is as before.
    ///
    /// # Panics
    /// The command does not end, or leaves the terminal in another mode.
    pub fn ended(mut self) -> ExitStatus {
        let status = wait("the end of the command", || self.child.try_wait().unwrap());
        let after = tcgetattr(&self.terminal).unwrap();
        assert_eq!(after, self.before, "the modes of the terminal are restored");
        // The last bytes may still be on their way.
        wait("the first screen, with its cursor", || {
            let parser = self.screen.lock().unwrap();
            let screen = parser.screen();
            (!screen.alternate_screen() && !screen.hide_cursor()).then_some(())
        });
        status
    }
}

fn cells(count: u16) -> NonZero<u16> {
    NonZero::new(count).expect("a terminal has cells")
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
