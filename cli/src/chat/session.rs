//! A conversation with a service: what was said, how it is asked, and one turn at a time. A turn that
//! failed leaves the conversation as it was.

use std::path::Path;

use paceline_client::answer::Answer;
use paceline_client::channel::{Client, Service};
use paceline_client::{Failure, Screen, message};
use paceline_proto::v1::{ContentPart, GenerateResponse, GetModelRequest, Message};

use super::settings;
use crate::args::{ChatArgs, TalkArgs};
use crate::generate::{self, Ask};

/// A conversation with one service, and the settings of its next answer.
pub struct ChatSession {
    client: Client,
    address: String,
    /// Name of the model asked for; empty for the served one.
    model: String,
    /// How turns are asked.
    pub talk: TalkArgs,
    /// What was said, without the system message.
    messages: Vec<Message>,
    /// The last question.
    question: Option<Message>,
    /// Whether the last messages are that question and its answer.
    is_answered: bool,
    /// Images that go with the next message.
    images: Vec<ContentPart>,
}

impl ChatSession {
    /// Connects to the service.
    ///
    /// # Errors
    /// It cannot be reached.
    pub async fn begin(service: Service, args: &ChatArgs) -> Result<Self, Failure> {
        Ok(Self {
            client: service.connect().await?,
            address: service.address,
            model: args.service.model.clone().unwrap_or_default(),
            talk: args.talk.clone(),
            messages: vec![],
            question: None,
            is_answered: false,
            images: vec![],
        })
    }

    /// Asks for the model of this name from now on, by default the one of before, and describes it.
    ///
    /// # Errors
    /// The service's refusal.
    pub async fn ask_model(&mut self, name: &str) -> Result<String, Failure> {
        let name = if name.is_empty() { self.model.clone() } else { name.to_owned() };
        let asked = self.client.get_model(GetModelRequest { model: name.clone() }).await;
        let model = asked.map_err(|status| Failure::before_answer(&status, &self.address))?;
        let model = model.into_inner();
        self.model = name;
        let images = match model.image_limits {
            Some(limits) => format!("at most {} images after an answer", limits.max_images),
            None => "no images".to_owned(),
        };
        Ok(format!("{}: {} tokens of context, {images}", model.name, model.context_length))
    }

    /// Begins anew. What is set stays.
    pub fn reset(&mut self) {
        self.messages.clear();
        self.images.clear();
        self.question = None;
        self.is_answered = false;
    }

    /// Reads an image for the next message. Returns a note for the person.
    ///
    /// # Errors
    /// There is no such file.
    pub fn show(&mut self, path: &Path) -> Result<String, Failure> {
        if path.as_os_str().is_empty() {
            return Err(Failure::usage("/image: expected a file after it, found none"));
        }
        let data = generate::read_image("/image", path)?;
        let note = format!("{} ({} bytes) goes with the next message", path.display(), data.len());
        self.images.push(message::image(data));
        Ok(match self.images.len() {
            1 => note,
            count => format!("{note}, with {} before it", count - 1),
        })
    }

    /// Everything that was said, the system message first.
    pub fn conversation(&self) -> Vec<Message> {
        settings::conversation(&self.talk, &self.messages)
    }

    /// Asks a question with the images that wait for it. Returns the answer; none if Ctrl-C ended
    /// it.
    ///
    /// # Errors
    /// The service's refusal.
    pub async fn turn(
        &mut self,
        text: &str,
        screen: &mut Screen,
    ) -> Result<Option<Answer>, Failure> {
        let mut question = message::text("user", text);
        let images = std::mem::take(&mut self.images);
        question.content.splice(0..0, images.iter().cloned());
        let outcome = self.ask(question, screen).await;
        match &outcome {
            // Images that are refused would be refused with every turn to come.
            Err(_) if !images.is_empty() => screen.note("the message's images are dropped with it"),
            Ok(None) if !self.is_answered => self.images = images,
            _ => {}
        }
        outcome
    }

    /// Asks the last question again. A new answer takes the place of the last one.
    ///
    /// # Errors
    /// There is none; the service's refusal.
    pub async fn retry(&mut self, screen: &mut Screen) -> Result<Option<Answer>, Failure> {
        let Some(question) = self.question.clone() else {
            return Err(Failure::usage("/retry: expected a question before it, found none"));
        };
        let turn = if self.is_answered { self.messages.len() - 2 } else { self.messages.len() };
        let earlier = self.messages.split_off(turn);
        let outcome = self.ask(question, screen).await;
        if !self.is_answered && !earlier.is_empty() {
            self.messages.extend(earlier);
            self.is_answered = true;
        }
        outcome
    }

    async fn ask(
        &mut self,
        question: Message,
        screen: &mut Screen,
    ) -> Result<Option<Answer>, Failure> {
        let before = self.messages.len();
        self.question = Some(question.clone());
        self.is_answered = false;
        self.messages.push(question);
        let mut said = Said::default();
        let outcome = tokio::select! {
            outcome = self.answer(screen, &mut said) => outcome.map(Some),
            _ = tokio::signal::ctrl_c() => Ok(None),
        };
        if !said.text.is_empty() || !said.reasoning.is_empty() {
            screen.line("");
        }
        self.is_answered = match &outcome {
            Ok(Some(_)) => true,
            // It stays, as it does on the screen.
            Ok(None) if !said.text.is_empty() => {
                screen.note("stopped; what was said stays in the conversation");
                true
            }
            Ok(None) => {
                // After the ^C that the terminal shows.
                screen.prompt("\n");
                screen.note("stopped; the question is no part of the conversation");
                false
            }
            Err(_) => false,
        };
        if self.is_answered {
            let Said { text, reasoning } = said;
            self.messages.push(Message { reasoning, ..message::text("assistant", text) });
        } else {
            self.messages.truncate(before);
        }
        outcome
    }

    async fn answer(&mut self, screen: &mut Screen, said: &mut Said) -> Result<Answer, Failure> {
        let request = settings::request(&self.model, &self.talk, &self.messages);
        let mut stream = Ask::Chat(request).send(&mut self.client, &self.address).await?;
        let on_message = |message: &GenerateResponse| {
            // Reasoning comes before the text, in parentheses.
            if !message.reasoning.is_empty() {
                if said.reasoning.is_empty() {
                    screen.text("(")?;
                }
                said.reasoning.push_str(&message.reasoning);
                screen.answer(&message.reasoning)?;
            }
            if !message.text.is_empty() {
                if said.text.is_empty() && !said.reasoning.is_empty() {
                    screen.text(")\n\n")?;
                }
                said.text.push_str(&message.text);
                screen.answer(&message.text)?;
            }
            Ok(())
        };
        Answer::read(&mut stream, on_message).await
    }
}

/// Text and reasoning of the assistant in a turn.
#[derive(Default)]
struct Said {
    text: String,
    reasoning: String,
}
