//! Threads that make prompts: a long text takes up to a second, and neither a stream nor a shorter
//! text may wait for it.

use std::sync::Arc;

use paceline_text::prompt::{Language, PromptError, PromptIds, Source};

use crate::turns::Party;
use crate::turns::seats::Seats;

/// Bytes of a long text. Such a text takes tens of milliseconds or more.
const LONG_BYTES: usize = 64 << 10;
/// A text of more bytes takes a tenth of a second or more.
const LONGEST_BYTES: usize = 1 << 20;

/// Makes prompts on threads of their own. Texts of one size class share seats, and parties have
/// their seats in turn.
#[derive(Clone, Debug)]
pub struct Prompter {
    short: Seats,
    long: Seats,
    longest: Seats,
}

impl Prompter {
    /// A prompter that works on at most `seats` short prompts at once, and on half as many of each
    /// longer kind. Further prompts wait.
    pub fn new(seats: usize) -> Self {
        let [short, long, longest] = [seats, seats / 2, seats / 2].map(Seats::new);
        Self { short, long, longest }
    }

    /// The ids of a prompt of this party in this language. A text that certainly has more than
    /// `most_tokens` is refused before it is tokenized. Ids that are returned may still be more
    /// than `most_tokens`. If the caller stops waiting, its seat becomes free, and work that has
    /// begun ends without effect.
    ///
    /// # Errors
    /// See [`PromptError`].
    pub async fn ids(
        &self,
        language: &Arc<Language>,
        party: &Party,
        source: Source,
        most_tokens: u32,
    ) -> Result<PromptIds, PromptError> {
        match source {
            Source::Ids(ids) | Source::IdsWithImages { ids, .. } => return Ok(ids.into()),
            // Before the prompt waits for a seat.
            Source::Text(ref text) => language.check_length(text, most_tokens)?,
            Source::Chat(_) => {}
        }
        let seats = match source.bytes() {
            0..LONG_BYTES => &self.short,
            LONG_BYTES..=LONGEST_BYTES => &self.long,
            _ => &self.longest,
        };
        let seat = seats.take(party).await;
        let language = Arc::clone(language);
        let work = tokio::task::spawn_blocking(move || {
            let _seat = seat; // free when the work is done, not when the client has gone
            language.prompt_ids(source, most_tokens)
        });
        work.await.unwrap_or(Err(PromptError::Bug("a panic while making a prompt")))
    }
}

#[cfg(test)]
mod tests {
    use paceline_text::prompt::conversation::{Conversation, Message, Role};

    use super::*;

    #[tokio::test]
    async fn a_text_that_cannot_fit_is_refused_before_it_is_tokenized() {
        let (prompter, language) = (Prompter::new(1), Arc::new(paceline_text::samples::language()));
        let text = |bytes: usize| "a".repeat(bytes);
        let chat = |text: String| {
            let messages = vec![Message::new(Role::User, vec![text])];
            Source::Chat(Conversation { messages, ..Conversation::default() })
        };
        // The longest token has 15 bytes; a conversation has some around its text.
        let most = 100;
        let anyone = Party::default();
        assert_eq!(
            prompter.ids(&language, &anyone, Source::Text(text(1_501)), most).await,
            Err(PromptError::TooLong { at_least: 101 })
        );
        assert!(
            prompter.ids(&language, &anyone, Source::Text(text(1_500)), most).await.is_ok(),
            "it may have more, and is counted"
        );
        let refused = prompter.ids(&language, &anyone, chat(text(1_501)), most).await;
        assert!(matches!(refused, Err(PromptError::TooLong { at_least: 102.. })), "{refused:?}");
        assert!(prompter.ids(&language, &anyone, chat(text(1_000)), most).await.is_ok());
        // All seats taken: a text that cannot fit does not wait for one.
        let seats = futures::future::join3(
            prompter.short.take(&anyone),
            prompter.long.take(&anyone),
            prompter.longest.take(&anyone),
        );
        let seats = seats.await;
        assert_eq!(
            prompter.ids(&language, &anyone, Source::Text(text(1 << 20)), most).await,
            Err(PromptError::TooLong { at_least: 69_906 })
        );
        drop(seats);
    }
}
