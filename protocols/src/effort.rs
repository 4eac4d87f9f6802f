//! Whether and how much the model is to think, by one wish of a client: a variable of the chat
//! template, or an effort for which the template's nearest word is found.

use paceline_text::prompt::conversation::Effort;
use serde_json::{Map, Value};

use crate::inference::error::{Result, refuse};

/// The variable of published templates that switches thinking on and off.
pub(crate) const ENABLE_THINKING: &str = "enable_thinking";
/// The variable of published templates for the amount of thinking.
pub(crate) const REASONING_EFFORT: &str = "reasoning_effort";

/// Template variables of a request, and its amount of thinking.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Thoughts {
    pub(crate) variables: Map<String, Value>,
    pub(crate) effort: Option<Effort>,
}

/// A client's wish about thinking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Off,
    On,
    /// The model thinks as much as this word says.
    Effort(String),
}

impl Wish {
    /// The wish of a word. `none` switches thinking off.
    pub(crate) fn of_word(word: String) -> Self {
        if word == "none" { Wish::Off } else { Wish::Effort(word) }
    }

    /// Adds the wish of this field to the variables that the request sets by name. An amount that
    /// only one template knows is passed as it is.
    ///
    /// # Errors
    /// The request sets the wish's variable to another value.
    pub(crate) fn thoughts(
        &self,
        field: &str,
        mut variables: Map<String, Value>,
    ) -> Result<Thoughts> {
        let (name, value) = match self {
            Wish::Off => (ENABLE_THINKING, Value::Bool(false)),
            Wish::On => (ENABLE_THINKING, Value::Bool(true)),
            Wish::Effort(word) => (REASONING_EFFORT, Value::String(word.clone())),
        };
        match variables.get(name) {
            None => {
                if let Wish::Effort(word) = self
                    && let Some(effort) = Effort::from_word(word)
                {
                    return Ok(Thoughts { variables, effort: Some(effort) });
                }
                variables.insert(name.to_owned(), value);
            }
            Some(other) if *other == value => {}
            Some(other) => {
                let found = format!("{other} for the template's variable {name}");
                return refuse(field, format!("{value}, as {field} has it"), found);
            }
        }
        Ok(Thoughts { variables, effort: None })
    }
}
