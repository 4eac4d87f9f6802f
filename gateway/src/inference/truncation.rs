//! Conversations whose oldest messages are left out, because their prompt does not fit, and messages
//! whose images are left out.
//!
//! The rest begins with a message of the user, as templates expect it, or with the assistant's
//! after the last one of the user, which then stays in front. Messages of the system stay. The
//! answer of a tool never stays without its tool call. Of all such rests the longest that fits is
//! found by bisection.

use paceline_text::prompt::conversation::{ContentPart, Conversation, Message, Role, in_order};

/// Stands in the place of an image that is left out.
const IMAGE_NOTE: &str = "[An image was here. It is not shown.]";

/// How many images stand before the end of the assistant's last message. The others are new.
pub fn earlier_images(messages: &[Message]) -> usize {
    let is_assistant = |message: &Message| message.role == Role::Assistant;
    let end = messages.iter().rposition(is_assistant).map_or(0, |last| last + 1);
    let parts = messages[..end].iter().flat_map(|message| &message.parts);
    parts.filter(|part| matches!(part, ContentPart::Image(_))).count()
}

/// Replaces the images of these numbers by a note.
pub fn leave_out_images(messages: &mut [Message], is_left_out: impl Fn(usize) -> bool) {
    for part in messages.iter_mut().flat_map(|message| &mut message.parts) {
        if matches!(part, ContentPart::Image(number) if is_left_out(*number)) {
            *part = ContentPart::Text(IMAGE_NOTE.to_owned());
        }
    }
}

/// Indices of the messages with which a shorter conversation may begin, in ascending order.
pub fn starts(messages: &[Message]) -> Vec<usize> {
    let is_user = |message: &Message| message.role == Role::User;
    let last_user = messages.iter().rposition(is_user).unwrap_or(0);
    let oldest = messages.iter().position(|message| message.role != Role::System).unwrap_or(0);
    let may_begin = |(at, message): (usize, &Message)| match message.role {
        Role::User => Some(at),
        Role::Assistant if at > last_user + 1 => Some(at),
        Role::Assistant | Role::System | Role::Tool => None,
    };
    messages.iter().enumerate().skip(oldest + 1).filter_map(may_begin).collect()
}

/// The conversation without the messages before `start`, one of [`starts`].
pub fn beginning_at(whole: &Conversation, start: usize) -> Conversation {
    let mut shorter = whole.clone();
    let last_user = whole.messages.iter().rposition(|message| message.role == Role::User);
    let mut at = 0;
    shorter.messages.retain(|message| {
        let stays = at >= start || message.role == Role::System || Some(at) == last_user;
        at += 1;
        stays
    });
    shorter.images = in_order(&mut shorter.messages, std::mem::take(&mut shorter.images));
    shorter
}

/// The search for the first choice that fits, if all choices after one that fits fit as well.
#[derive(Clone, Copy, Debug)]
pub struct Bisection {
    low: usize,
    high: usize,
}

impl Bisection {
    /// A search among this number of choices.
    pub fn new(choices: usize) -> Self {
        Self { low: 0, high: choices }
    }

    /// Index of the choice to try next; `None` at the end of the search. The last one that did fit
    /// is the first that fits.
    pub fn next(self) -> Option<usize> {
        (self.low < self.high).then(|| self.low.midpoint(self.high))
    }

    /// Records whether the choice of this index fits.
    pub fn record(&mut self, index: usize, fits: bool) {
        match fits {
            true => self.high = index,
            false => self.low = index + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_text::images::{EncodedImage, ImageSource};

    /// A conversation of messages in a short form, as `user:text`.
    fn conversation(lines: &[&str]) -> Conversation {
        let one = |line: &&str| {
            let (role, text) = line.split_once(':').expect("a role");
            Message::new(Role::from_word(role).expect("known"), vec![text.to_owned()])
        };
        Conversation { messages: lines.iter().map(one).collect(), ..Default::default() }
    }

    fn short(conversation: &Conversation) -> Vec<String> {
        let one = |message: &Message| match &message.parts[..] {
            [ContentPart::Text(text)] => format!("{}:{text}", message.role.word()),
            parts => format!("{}:{parts:?}", message.role.word()),
        };
        conversation.messages.iter().map(one).collect()
    }

    #[test]
    fn the_rest_begins_with_a_question_or_with_what_came_after_the_last_one() {
        let agent = conversation(&[
            "system:s",
            "user:a",
            "assistant:calls",
            "tool:1",
            "assistant:b",
            "user:c",
            "assistant:calls",
            "tool:2",
            "tool:3",
            "assistant:calls",
            "tool:4",
        ]);
        assert_eq!(starts(&agent.messages), [5, 9]);
        let begin = |start| short(&beginning_at(&agent, start));
        assert_eq!(begin(5)[..2], ["system:s", "user:c"]);
        assert_eq!(begin(5).len(), 7);
        assert_eq!(begin(9), ["system:s", "user:c", "assistant:calls", "tool:4"]);
        for alone in [&["user:a"][..], &["system:s", "user:a"], &["system:s"], &[]] {
            assert!(starts(&conversation(alone).messages).is_empty(), "{alone:?}");
        }
    }

    #[test]
    fn images_of_messages_that_are_left_out_are_left_out() {
        let mut seen = conversation(&["user:a", "assistant:b", "user:c"]);
        for (number, at) in [0, 2].into_iter().enumerate() {
            let source = ImageSource::Address(String::new());
            let field = number.to_string();
            seen.images.push(EncodedImage { field, source, detail: Default::default() });
            seen.messages[at].parts = vec![ContentPart::Image(number)];
        }
        let rest = beginning_at(&seen, 2);
        assert_eq!(rest.messages[0].parts, [ContentPart::Image(0)]);
        assert_eq!(rest.images.iter().map(|image| image.field.as_str()).collect::<String>(), "1");
    }

    #[test]
    fn images_before_the_assistants_last_message_are_earlier_ones() {
        let mut seen = conversation(&["user:a", "assistant:b", "tool:c", "user:d"]);
        for (number, message) in seen.messages.iter_mut().enumerate() {
            message.parts.push(ContentPart::Image(number));
        }
        assert_eq!(earlier_images(&seen.messages), 2);
        assert_eq!(earlier_images(&seen.messages[2..]), 0);
        leave_out_images(&mut seen.messages, |number| number == 1);
        assert_eq!(seen.messages[0].parts[1], ContentPart::Image(0));
        assert_eq!(seen.messages[1].parts[1], ContentPart::Text(IMAGE_NOTE.to_owned()));
    }

    #[test]
    fn the_first_choice_that_fits_is_found_in_few_attempts() {
        for first in [0, 1, 499, 998, 999] {
            let (mut search, mut attempts, mut found) = (Bisection::new(999), 0, None);
            while let Some(at) = search.next() {
                attempts += 1;
                search.record(at, at >= first);
                found = if at >= first { Some(at) } else { found };
            }
            assert_eq!(found, Some(first).filter(|first| *first < 999));
            assert!(attempts <= 10, "{attempts} attempts");
        }
        assert_eq!(Bisection::new(0).next(), None);
    }
}
