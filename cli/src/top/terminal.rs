//! The terminal: its modes, and its keyboard. The modes are restored at every end, also at a panic.

use std::io::{self, Stdout};
use std::sync::Once;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use tokio::sync::mpsc;

use super::draw::draw;
use super::key::Key;
use super::view::View;

/// How long the keyboard's thread waits at most before it looks whether the page is over.
const KEY_WAIT: Duration = Duration::from_millis(200);

/// What comes from the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TerminalEvent {
    /// A key.
    Key(Key),
    /// It has another size.
    Resized,
    /// Its input has ended.
    Gone,
}

/// The terminal while it shows the page.
pub struct Page(Terminal<CrosstermBackend<Stdout>>);

impl Page {
    /// Takes the terminal.
    ///
    /// # Errors
    /// The terminal refuses.
    pub fn open() -> io::Result<Self> {
        restore_at_panic();
        enable_raw_mode()?;
        let open = || {
            execute!(io::stdout(), EnterAlternateScreen)?;
            let mut terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
            terminal.hide_cursor()?;
            Ok(Self(terminal))
        };
        open().inspect_err(|_| restore())
    }

    /// Draws the page.
    ///
    /// # Errors
    /// The terminal cannot be written.
    pub fn draw(&mut self, view: &View) -> io::Result<()> {
        let drawn = self.0.draw(|frame| draw(view, frame.area(), frame.buffer_mut()));
        drawn.map(|_| ())
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back as it was. A terminal that is gone needs nothing.
fn restore() {
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// Has a panic of any thread restore the terminal before its message.
fn restore_at_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            earlier(info);
        }));
    });
}

/// Starts a thread that reads the terminal. It ends when the receiver is dropped.
///
/// # Errors
/// The system has no thread left.
pub fn read_keys() -> io::Result<mpsc::Receiver<TerminalEvent>> {
    let (to, events) = mpsc::channel(64);
    let read = move || {
        while !to.is_closed() {
            let event =
                match event::poll(KEY_WAIT).and_then(|ready| ready.then(event::read).transpose()) {
                    Ok(None) => continue,
                    Ok(Some(event)) => understood(&event),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(_) => Some(TerminalEvent::Gone),
                };
            let Some(event) = event else { continue };
            if to.blocking_send(event).is_err() || event == TerminalEvent::Gone {
                return;
            }
        }
    };
    std::thread::Builder::new().name("keys".into()).spawn(read)?;
    Ok(events)
}

fn understood(event: &Event) -> Option<TerminalEvent> {
    match event {
        Event::Resize(..) => Some(TerminalEvent::Resized),
        Event::Key(key) if key.kind != KeyEventKind::Release => key_of(key).map(TerminalEvent::Key),
        _ => None,
    }
}

fn key_of(key: &KeyEvent) -> Option<Key> {
    let has_control = key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT);
    match key.code {
        KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => {
            Some(Key::Interrupt)
        }
        KeyCode::Char(character) if !has_control => Some(Key::Char(character)),
        KeyCode::Enter => Some(Key::Enter),
        KeyCode::Esc => Some(Key::Escape),
        KeyCode::Backspace => Some(Key::Backspace),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_control_is_no_letter() {
        let key = |code, modifiers| key_of(&KeyEvent::new(code, modifiers));
        let letter = KeyCode::Char('r');
        assert_eq!(key(letter, KeyModifiers::NONE), Some(Key::Char('r')));
        assert_eq!(key(KeyCode::Char('Y'), KeyModifiers::SHIFT), Some(Key::Char('Y')));
        assert_eq!(
            (key(letter, KeyModifiers::CONTROL), key(letter, KeyModifiers::ALT)),
            (None, None)
        );
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Key::Interrupt));
        assert_eq!(key(KeyCode::F(1), KeyModifiers::NONE), None);
        let release = KeyEvent { kind: KeyEventKind::Release, ..KeyEvent::from(letter) };
        assert_eq!(understood(&Event::Key(release)), None);
        assert_eq!(understood(&Event::Resize(1, 1)), Some(TerminalEvent::Resized));
    }
}
