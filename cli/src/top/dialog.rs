//! The questions before an order. An order is given only after `y` to the question that names what
//! happens.
//!
//! ```text
//!  r ── which process? ──┐
//!  s ── which change? ── w: which model? ──┤── question ── y ──▶ order
//!  d ── drain or undo? ──┘                        └── any other key ──▶ nothing
//! ```

use super::key::Key;
use super::order::Order;
use crate::args::Process;

/// Most bytes of a model's name: the longest path of the system.
const MOST_NAME_BYTES: usize = 4_096;

/// A question that waits for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dialog {
    /// The choice of the process to restart.
    Process,
    /// What happens with the drafter.
    Drafter,
    /// The model of the next drafter, as far as it is typed.
    Model(String),
    /// Whether the service drains.
    Drain,
    /// Whether the order is given.
    Confirm(Order),
}

/// The next state of a dialog after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Another question, or the same one again.
    Ask(Dialog),
    /// The order is given.
    Give(Order),
    /// Nothing is ordered.
    Closed,
}

impl Dialog {
    /// The dialog that a key opens from the page.
    pub fn opened_by(key: char) -> Option<Self> {
        match key {
            'r' => Some(Dialog::Process),
            's' => Some(Dialog::Drafter),
            'd' => Some(Dialog::Drain),
            _ => None,
        }
    }

    /// The question.
    pub fn question(&self) -> String {
        match self {
            Dialog::Process => "Restart which process?".into(),
            Dialog::Drafter => "The drafter:".into(),
            Dialog::Model(typed) => format!(
                "Swap to which drafter? Directory, org/name, lookup or target; nothing reads the present one again: {typed}_"
            ),
            Dialog::Drain => "Requests:".into(),
            Dialog::Confirm(order) => order.question(),
        }
    }

    /// The keys that answer it.
    pub fn keys(&self) -> &'static str {
        match self {
            Dialog::Process => "g gateway  t target  d drafter  s supervisor  Esc nothing",
            Dialog::Drafter => "s start  t stop  w swap  Esc nothing",
            Dialog::Model(_) => "Enter continue  Esc nothing",
            Dialog::Drain => "d drain  u undo the drain  Esc nothing",
            Dialog::Confirm(_) => "y yes  n no",
        }
    }

    /// The next state of the dialog after `key`.
    pub fn press(self, key: Key) -> Outcome {
        let confirm = |order| Outcome::Ask(Dialog::Confirm(order));
        match (self, key) {
            (_, Key::Escape | Key::Interrupt) => Outcome::Closed,
            (Dialog::Process, Key::Char('g')) => confirm(Order::Restart(Process::Gateway)),
            (Dialog::Process, Key::Char('t')) => confirm(Order::Restart(Process::Target)),
            (Dialog::Process, Key::Char('d')) => confirm(Order::Restart(Process::Drafter)),
            (Dialog::Process, Key::Char('s')) => confirm(Order::Restart(Process::Supervisor)),
            (Dialog::Drafter, Key::Char('s')) => confirm(Order::StartDrafter),
            (Dialog::Drafter, Key::Char('t')) => confirm(Order::StopDrafter),
            (Dialog::Drafter, Key::Char('w')) => Outcome::Ask(Dialog::Model(String::new())),
            (Dialog::Drain, Key::Char('d')) => confirm(Order::Drain),
            (Dialog::Drain, Key::Char('u')) => confirm(Order::Undrain),
            (Dialog::Confirm(order), Key::Char('y' | 'Y')) => Outcome::Give(order),
            (Dialog::Confirm(_), _) => Outcome::Closed,
            (Dialog::Model(typed), Key::Enter) => {
                confirm(Order::SwapDrafter { model: typed.trim().to_owned() })
            }
            (Dialog::Model(mut typed), Key::Backspace) => {
                typed.pop();
                Outcome::Ask(Dialog::Model(typed))
            }
            (Dialog::Model(mut typed), Key::Char(character)) => {
                if typed.len() + character.len_utf8() <= MOST_NAME_BYTES {
                    typed.push(character);
                }
                Outcome::Ask(Dialog::Model(typed))
            }
            (other, _) => Outcome::Ask(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outcome of these keys on the page.
    fn keys(text: &str) -> Outcome {
        let mut keys = text.chars();
        let first = keys.next().and_then(Dialog::opened_by).expect("a key of the page");
        keys.fold(Outcome::Ask(first), |outcome, key| {
            let Outcome::Ask(dialog) = outcome else { panic!("{outcome:?} before {key:?}") };
            dialog.press(match key {
                '\n' => Key::Enter,
                '\x1b' => Key::Escape,
                '\x08' => Key::Backspace,
                '\x03' => Key::Interrupt,
                key => Key::Char(key),
            })
        })
    }

    #[test]
    fn no_order_is_given_without_a_yes_to_its_own_question() {
        let swap = |model: &str| Order::SwapDrafter { model: model.into() };
        let orders = [
            ("rg", Order::Restart(Process::Gateway)),
            ("rt", Order::Restart(Process::Target)),
            ("rd", Order::Restart(Process::Drafter)),
            ("rs", Order::Restart(Process::Supervisor)),
            ("ss", Order::StartDrafter),
            ("st", Order::StopDrafter),
            ("sw\n", swap("")),
            ("sw/m/yn\x08\n", swap("/m/y")),
            ("dd", Order::Drain),
            ("du", Order::Undrain),
        ];
        for (pressed, order) in orders {
            let Outcome::Ask(Dialog::Confirm(asked)) = keys(pressed) else {
                panic!("{pressed:?} asks no question")
            };
            assert_eq!(asked, order);
            assert_eq!(keys(&format!("{pressed}y")), Outcome::Give(order));
            for no in ["n", "\n", "\x1b", "\x03", "r", " "] {
                assert_eq!(keys(&format!("{pressed}{no}")), Outcome::Closed, "{pressed:?} {no:?}");
            }
        }
    }

    #[test]
    fn a_dialog_stays_until_a_key_answers_it_and_its_text_is_bounded() {
        assert_eq!(keys("rxyz"), Outcome::Ask(Dialog::Process));
        assert_eq!(keys("sw\x08"), Outcome::Ask(Dialog::Model(String::new())));
        let long = format!("sw{}", "é".repeat(3_000));
        let Outcome::Ask(Dialog::Model(typed)) = keys(&long) else { panic!("no model") };
        assert_eq!(typed.len(), MOST_NAME_BYTES);
        assert_eq!(Dialog::opened_by('y'), None);
    }
}
