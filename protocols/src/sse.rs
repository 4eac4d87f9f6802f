//! Server-sent events.

use std::time::Duration;

/// Time without an event after which a keep-alive is written. Proxies close connections that are
/// silent for 60 s, some for 30 s.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// One server-sent event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseEvent {
    /// Name of the event; `None` for protocols whose events have none.
    pub event: Option<&'static str>,
    /// Data of the event: one line, as JSON is.
    pub data: String,
}

/// Text that is written to an idle stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// A comment, which clients skip.
    Comment,
    /// An event of the protocol.
    Event(SseEvent),
}

impl SseEvent {
    /// An event without a name.
    pub fn data(data: impl Into<String>) -> Self {
        Self { event: None, data: data.into() }
    }

    /// An event with a name.
    pub fn named(event: &'static str, data: impl Into<String>) -> Self {
        Self { event: Some(event), data: data.into() }
    }

    fn write(&self, text: &mut String) {
        if let Some(event) = self.event {
            text.push_str("event: ");
            text.push_str(event);
            text.push('\n');
        }
        for line in self.data.split('\n') {
            text.push_str("data: ");
            text.push_str(line);
            text.push('\n');
        }
        text.push('\n');
    }
}

/// The text of some events.
pub fn text(events: &[SseEvent]) -> String {
    let mut text = String::new();
    events.iter().for_each(|event| event.write(&mut text));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_two_lines_stays_one_event() {
        assert_eq!(text(&[SseEvent::data("a\nb")]), "data: a\ndata: b\n\n");
    }
}
