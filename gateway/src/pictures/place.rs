//! Where pictures stand in a prompt: the template writes one placeholder for each, and each becomes
//! as many as its picture has rows. The placeholder is the service's own word: a client who writes
//! it would have text taken for a picture (I5).

use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::content_part::Part;
use paceline_proto::v1::generate_request::Prompt;
use paceline_proto::v1::{ChatRequest, GenerateRequest};
use tonic::Status;

use super::processor::Processor;
use crate::error::invalid;

/// The word that clients may not say, if the model has one.
#[derive(Clone, Copy, Debug)]
pub struct Unsaid<'a>(Option<&'a Processor>);

impl<'a> Unsaid<'a> {
    /// Of this model.
    pub fn new(processor: Option<&'a Processor>) -> Self {
        Self(processor)
    }

    /// Looks at a Generate message.
    ///
    /// # Errors
    /// The field that has it.
    pub fn generate(self, message: &GenerateRequest) -> Result<(), Status> {
        match &message.prompt {
            Some(Prompt::Text(text)) => self.text("text", text),
            Some(Prompt::TokenIds(list)) => {
                let Some(processor) = self.0 else { return Ok(()) };
                match list.ids.iter().position(|id| *id == processor.token) {
                    None => Ok(()),
                    Some(at) => Err(refusal(
                        &format!("token_ids.ids[{at}]"),
                        &processor.token.to_string(),
                        "send Chat with the picture",
                    )),
                }
            }
            None => Ok(()),
        }
    }

    /// Looks at a Chat message: all that a template may show.
    ///
    /// # Errors
    /// The first field that has it.
    pub fn chat(self, message: &ChatRequest) -> Result<(), Status> {
        if self.0.is_none() {
            return Ok(());
        }
        for (at, message) in message.messages.iter().enumerate() {
            let field = |name: &str| format!("messages[{at}].{name}");
            for (place, part) in message.content.iter().enumerate() {
                if let Some(Part::Text(text)) = &part.part {
                    self.text(&field(&format!("content[{place}]")), text)?;
                }
            }
            // Templates set parts one behind the other.
            let text = |part: &paceline_proto::v1::ContentPart| match &part.part {
                Some(Part::Text(text)) => text.clone(),
                _ => "\n".to_owned(),
            };
            if message.content.len() > 1 {
                self.text(
                    &field("content"),
                    &message.content.iter().map(text).collect::<String>(),
                )?;
            }
            self.text(&field("name"), &message.name)?;
            self.text(&field("reasoning"), &message.reasoning)?;
            self.text(&field("tool_call_id"), &message.tool_call_id)?;
            for (place, call) in message.tool_calls.iter().enumerate() {
                self.text(&field(&format!("tool_calls[{place}].arguments")), &call.arguments)?;
                self.text(&field(&format!("tool_calls[{place}].id")), &call.id)?;
            }
        }
        for (at, tool) in message.tools.iter().enumerate() {
            self.text(&format!("tools[{at}].description"), &tool.description)?;
            self.text(&format!("tools[{at}].parameters"), &tool.parameters)?;
        }
        self.text("template_arguments", &message.template_arguments)
    }

    fn text(self, field: &str, text: &str) -> Result<(), Status> {
        match self.0 {
            Some(processor) if text.contains(&processor.placeholder) => {
                Err(refusal(field, &processor.placeholder, "a picture is a part of its own"))
            }
            _ => Ok(()),
        }
    }
}

fn refusal(field: &str, word: &str, instead: &str) -> Status {
    invalid(field, format!("no {word}, which stands for a picture's place ({instead})"), "it")
}

/// Puts as many placeholders in the place of each as its picture has rows (`counts`), and says
/// where each begins.
///
/// # Errors
/// There are not as many as pictures.
pub fn expand(
    ids: Vec<u32>,
    field: &str,
    processor: Option<&Processor>,
    counts: &[u64],
) -> Result<(Vec<u32>, Vec<u32>), Status> {
    let Some(processor) = processor else { return Ok((ids, vec![])) };
    let found = ids.iter().filter(|id| **id == processor.token).count();
    if found == 0 && counts.is_empty() {
        return Ok((ids, vec![]));
    }
    if found != counts.len() {
        let expected = counts.len();
        let what = format!(
            "{field}: expected a place for each of {expected} pictures in the rendered conversation, found {found}: this model's \
             chat template leaves pictures out here, or text has {}; send pictures in turns of the user, and no such text",
            processor.placeholder
        );
        return Err(Reason::Template.field(field, what));
    }
    let all = counts.iter().fold(ids.len() as u64, |sum, count| sum.saturating_add(*count));
    // The caller bounded it by the context.
    let mut expanded = Vec::with_capacity(usize::try_from(all).unwrap_or(0));
    let (mut first, mut counts) = (Vec::with_capacity(counts.len()), counts.iter());
    for id in ids {
        match (id == processor.token).then(|| counts.next()).flatten() {
            None => expanded.push(id),
            Some(count) => {
                first.push(u32::try_from(expanded.len()).unwrap_or(u32::MAX));
                expanded.extend((0..*count).map(|_| id));
            }
        }
    }
    Ok((expanded, first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pictures::tests::processor;
    use paceline_proto::v1::{ContentPart, Message, TokenIds, Tool, ToolCall};

    #[test]
    fn placeholders_become_rows() {
        let made = processor();
        let pad = made.token;
        let of =
            |ids: &[u32], counts: &[u64]| expand(ids.to_vec(), "messages", Some(&made), counts);
        assert_eq!(
            of(&[1, pad, 2, pad], &[3, 1]).expect("fine"),
            (vec![1, pad, pad, pad, 2, pad], vec![1, 5])
        );
        assert_eq!(of(&[1, 2], &[]).expect("fine"), (vec![1, 2], vec![]));
        assert_eq!(
            expand(vec![pad], "text", None, &[]).expect("no tower, no word"),
            (vec![pad], vec![])
        );
        for (ids, counts, field) in [
            (&[1, pad][..], &[][..], "text"),
            (&[1], &[4], "messages"),
            (&[pad, pad, 1], &[4], "messages"),
        ] {
            let status =
                expand(ids.to_vec(), field, Some(&made), counts).expect_err("they do not agree");
            assert_eq!(Reason::of(&status), Some(Reason::Template));
            assert!(
                status.message().contains(&format!("each of {} pictures", counts.len())),
                "{status:?}"
            );
        }
    }

    #[test]
    fn the_word_is_refused_wherever_it_stands() {
        let made = processor();
        let unsaid = Unsaid::new(Some(&made));
        let word = format!("a {} b", made.placeholder);
        let field = |outcome: Result<(), Status>| {
            let status = outcome.expect_err("it has the word");
            assert_eq!(Reason::of(&status), Some(Reason::InvalidArgument));
            status.message().split(": ").next().unwrap_or_default().to_owned()
        };
        let generate = |prompt| GenerateRequest { prompt: Some(prompt), ..Default::default() };
        assert_eq!(field(unsaid.generate(&generate(Prompt::Text(word.clone())))), "text");
        let ids = generate(Prompt::TokenIds(TokenIds { ids: vec![1, made.token] }));
        assert_eq!(field(unsaid.generate(&ids)), "token_ids.ids[1]");
        assert!(Unsaid::new(None).generate(&ids).is_ok());
        assert!(unsaid.generate(&generate(Prompt::Text("a <|image| b".into()))).is_ok());

        let part = |text: &str| ContentPart { part: Some(Part::Text(text.into())) };
        let chat = |message| ChatRequest {
            messages: vec![Message::default(), message],
            ..Default::default()
        };
        let of = |message| field(unsaid.chat(&chat(message)));
        assert_eq!(
            of(Message { content: vec![part("x"), part(&word)], ..Default::default() }),
            "messages[1].content[1]"
        );
        let (head, tail) = made.placeholder.split_at(4);
        assert_eq!(
            of(Message { content: vec![part(head), part(tail)], ..Default::default() }),
            "messages[1].content"
        );
        assert_eq!(of(Message { name: word.clone(), ..Default::default() }), "messages[1].name");
        assert_eq!(
            of(Message { reasoning: word.clone(), ..Default::default() }),
            "messages[1].reasoning"
        );
        let call = ToolCall { arguments: word.clone(), ..Default::default() };
        assert_eq!(
            of(Message { tool_calls: vec![call], ..Default::default() }),
            "messages[1].tool_calls[0].arguments"
        );
        let tool = Tool { description: word.clone(), ..Default::default() };
        assert_eq!(
            field(unsaid.chat(&ChatRequest { tools: vec![tool], ..Default::default() })),
            "tools[0].description"
        );
        let arguments = ChatRequest { template_arguments: word, ..Default::default() };
        assert_eq!(field(unsaid.chat(&arguments)), "template_arguments");
    }
}
