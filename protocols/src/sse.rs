//! Events of streams: server-sent events, and lines of JSON.

use std::time::Duration;

/// Time without an event after which a keep-alive is written. Proxies close connections that are
/// silent for 60 s, some for 30 s.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How the events of a stream are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamForm {
    /// Server-sent events.
    ServerSentEvents,
    /// The data of each event as a line. An event has no name here, and there are no comments.
    JsonLines,
}

/// Characters at which some clients end a line. JSON has them inside texts alone, where an escape
/// stands for each.
const LINE_ENDS: [(char, &str); 3] =
    [('\u{85}', r"\u0085"), ('\u{2028}', r"\u2028"), ('\u{2029}', r"\u2029")];

impl StreamForm {
    /// The text of some events.
    pub fn text(self, events: &[SseEvent]) -> String {
        let mut text = String::new();
        match self {
            Self::ServerSentEvents => events.iter().for_each(|event| event.write(&mut text)),
            Self::JsonLines => {
                for event in events {
                    text.push_str(&event.data);
                    text.push('\n');
                }
                for (end, escape) in LINE_ENDS {
                    if text.contains(end) {
                        text = text.replace(end, escape);
                    }
                }
            }
        }
        text
    }

    /// The media type of a stream.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::ServerSentEvents => "text/event-stream",
            Self::JsonLines => "application/x-ndjson",
        }
    }

    /// Whether the connection breaks after an error: clients take the end of lines for the end of a
    /// whole answer.
    pub fn breaks_after_error(self) -> bool {
        self == Self::JsonLines
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_two_lines_stays_one_event() {
        let text = StreamForm::ServerSentEvents.text(&[SseEvent::data("a\nb")]);
        assert_eq!(text, "data: a\ndata: b\n\n");
    }

    #[test]
    fn a_line_of_json_ends_where_every_client_ends_it() {
        let said = "a\u{2028}b\u{2029}c\u{85}d\n";
        let events = [SseEvent::data(serde_json::json!(said).to_string()), SseEvent::data("7")];
        let text = StreamForm::JsonLines.text(&events);
        let ends = ['\n', '\u{2028}', '\u{2029}', '\u{85}'];
        let lines: Vec<&str> = text.split_terminator(ends).collect();
        assert_eq!(lines.len(), 2, "{text:?}");
        assert_eq!(serde_json::from_str::<String>(lines[0]).expect("a text"), said);
        assert_eq!(lines[1], "7");
    }
}
