//! Whether and how much the model thinks. Clients of several services say it in fields of their own;
//! all fields of a request must agree, and together they set one variable of the template.

use paceline_text::prompt::OWN_NAMES;
use serde_json::{Map, Value};

use super::request::{ReasoningSwitch, Think, ThinkingSwitch};
use crate::accepted::check;
use crate::effort::{ENABLE_THINKING, REASONING_EFFORT, Thoughts, Wish};
use crate::inference::error::{InferenceError, Result, quoted, refuse};
use crate::json::AnyJson;
use crate::number::Count;

/// The fields of a request that say it, and the variables of the template.
#[derive(Debug, Default)]
pub(super) struct ThinkingFields {
    pub(super) template_arguments: Option<AnyJson>,
    pub(super) chat_template_kwargs: Option<AnyJson>,
    pub(super) reasoning_effort: Option<String>,
    pub(super) enable_thinking: Option<bool>,
    pub(super) think: Option<Think>,
    pub(super) thinking: Option<ThinkingSwitch>,
    pub(super) reasoning: Option<ReasoningSwitch>,
}

impl Wish {
    fn of_switch(on: bool) -> Self {
        if on { Wish::On } else { Wish::Off }
    }

    /// This wish of one field together with that of another; `None` if they contradict each other.
    fn with(self, other: Wish) -> Option<Wish> {
        match (self, other) {
            (one, other) if one == other => Some(one),
            (Wish::On, effort @ Wish::Effort(_)) | (effort @ Wish::Effort(_), Wish::On) => {
                Some(effort)
            }
            _ => None,
        }
    }

    fn words(&self) -> String {
        match self {
            Wish::Off => "no thinking".to_owned(),
            Wish::On => "thinking".to_owned(),
            Wish::Effort(word) => format!("thinking of the amount {}", quoted(word)),
        }
    }
}

/// The wish about thinking from all fields of a request.
///
/// # Errors
/// Two fields that contradict each other; a field that is not served.
pub(super) fn thoughts(fields: ThinkingFields) -> Result<Thoughts> {
    let ThinkingFields { template_arguments, chat_template_kwargs, .. } = &fields;
    let variables = variables(template_arguments.as_ref(), chat_template_kwargs.as_ref())?;
    let mut all: Option<(&str, Wish)> = None;
    for (field, wish) in wishes(fields)? {
        all = Some(match all {
            None => (field, wish),
            Some((first, before)) => {
                let expected = format!("{}, as {first} has it", before.words());
                let found = wish.words();
                let both = before.with(wish);
                (first, both.ok_or_else(|| InferenceError::invalid(field, expected, found))?)
            }
        });
    }
    let Some((field, wish)) = all else { return Ok(Thoughts { variables, effort: None }) };
    wish.thoughts(field, variables)
}

/// Most tokens of a thought, from the fields of a request that may have it.
///
/// # Errors
/// Two of them have different numbers.
pub(super) fn budget(fields: &ThinkingFields) -> Result<Option<u32>> {
    let thinking = fields.thinking.as_ref().and_then(|thinking| thinking.budget_tokens);
    let reasoning = fields.reasoning.as_ref().and_then(|reasoning| reasoning.max_tokens);
    match (thinking.map(Count::get), reasoning.map(Count::get)) {
        (Some(one), Some(other)) if one != other => {
            let expected = format!("{one}, as thinking.budget_tokens has it");
            refuse("reasoning.max_tokens", expected, other)
        }
        (one, other) => Ok(one.or(other)),
    }
}

/// The variables of the template, from the field that has them.
fn variables(ours: Option<&AnyJson>, theirs: Option<&AnyJson>) -> Result<Map<String, Value>> {
    let (field, given) = match (ours, theirs) {
        (Some(_), Some(_)) => {
            let expected = "nothing beside paceline.template_arguments";
            return refuse("chat_template_kwargs", expected, "both");
        }
        (None, theirs) => ("chat_template_kwargs", theirs),
        (ours, None) => ("paceline.template_arguments", ours),
    };
    match given {
        None => Ok(Map::new()),
        Some(AnyJson(Value::Object(variables))) => match own_name(variables) {
            // The middle checks the same and knows one of the fields alone.
            Some(name) => refuse(field, "no name that the service itself sets", quoted(name)),
            None => Ok(variables.clone()),
        },
        Some(other) => refuse(field, "an object", quoted(&other.text())),
    }
}

/// A name among the variables that the service itself sets.
fn own_name(variables: &Map<String, Value>) -> Option<&String> {
    variables.keys().find(|name| OWN_NAMES.contains(&name.as_str()))
}

/// The wish of each field, by the field's name.
fn wishes(fields: ThinkingFields) -> Result<Vec<(&'static str, Wish)>> {
    let ThinkingFields {
        template_arguments: _,
        chat_template_kwargs: _,
        reasoning_effort,
        enable_thinking,
        think,
        thinking,
        reasoning,
    } = fields;
    let mut wishes = Vec::new();
    wishes.extend(reasoning_effort.map(|word| (REASONING_EFFORT, Wish::of_word(word))));
    wishes.extend(enable_thinking.map(|on| (ENABLE_THINKING, Wish::of_switch(on))));
    wishes.extend(think.map(|think| match think {
        Think::Switch(on) => ("think", Wish::of_switch(on)),
        Think::Effort(word) => ("think", Wish::of_word(word)),
    }));
    if let Some(ThinkingSwitch { kind, budget_tokens: _, rest }) = thinking {
        check("thinking.", &rest, ThinkingSwitch::ACCEPTED)?;
        match kind.as_deref() {
            None | Some("auto" | "adaptive") => {}
            Some("enabled") => wishes.push(("thinking", Wish::On)),
            Some("disabled") => wishes.push(("thinking", Wish::Off)),
            Some(other) => {
                let expected = "enabled, disabled, adaptive or auto";
                return refuse("thinking.type", expected, quoted(other));
            }
        }
    }
    if let Some(ReasoningSwitch { enabled, effort, max_tokens: _, rest }) = reasoning {
        check("reasoning.", &rest, ReasoningSwitch::ACCEPTED)?;
        wishes.extend(enabled.map(|on| ("reasoning.enabled", Wish::of_switch(on))));
        wishes.extend(effort.map(|word| ("reasoning.effort", Wish::of_word(word))));
    }
    Ok(wishes)
}

#[cfg(test)]
mod tests {
    use paceline_text::prompt::conversation::Effort;
    use serde_json::json;

    use super::*;

    fn of(body: Value) -> Result<(Value, Option<Effort>), Option<String>> {
        let field = |name: &str| body.get(name).cloned().unwrap_or_default();
        let read = |name: &str| serde_json::from_value(field(name)).expect("a form of it");
        let fields = ThinkingFields {
            chat_template_kwargs: body.get("chat_template_kwargs").cloned().map(AnyJson),
            reasoning_effort: field("reasoning_effort").as_str().map(str::to_owned),
            enable_thinking: field("enable_thinking").as_bool(),
            think: read("think"),
            thinking: serde_json::from_value(field("thinking")).expect("a form of it"),
            reasoning: serde_json::from_value(field("reasoning")).expect("a form of it"),
            ..Default::default()
        };
        let Thoughts { variables, effort } = thoughts(fields).map_err(|error| error.field)?;
        Ok((variables.into(), effort))
    }

    #[test]
    fn every_service_s_way_sets_the_same_variable() {
        for (on, body) in [
            (true, json!({"enable_thinking": true})),
            (true, json!({"think": true})),
            (true, json!({"thinking": {"type": "enabled", "budget_tokens": 1024}})),
            (true, json!({"reasoning": {"enabled": true}})),
            (true, json!({"enable_thinking": true, "thinking": {"type": "enabled"}})),
            (false, json!({"enable_thinking": false})),
            (false, json!({"think": false})),
            (false, json!({"thinking": {"type": "disabled"}})),
            (false, json!({"reasoning": {"enabled": false}})),
            (false, json!({"reasoning": {"effort": "none"}})),
            (false, json!({"reasoning_effort": "none", "think": "none"})),
        ] {
            assert_eq!(of(body.clone()), Ok((json!({"enable_thinking": on}), None)), "{body}");
        }
        for body in [
            json!({"reasoning_effort": "low"}),
            json!({"think": "low"}),
            json!({"reasoning": {"effort": "low", "enabled": true}}),
            json!({"enable_thinking": true, "reasoning_effort": "low"}),
        ] {
            assert_eq!(of(body.clone()), Ok((json!({}), Some(Effort::Low))), "{body}");
        }
        assert_eq!(
            of(json!({"thinking": {"type": "auto"}, "reasoning": {}})),
            Ok((json!({}), None))
        );
    }

    #[test]
    fn fields_that_contradict_each_other_are_refused_by_name() {
        for (body, field) in [
            (json!({"enable_thinking": true, "think": false}), "think"),
            (json!({"reasoning_effort": "low", "enable_thinking": false}), "enable_thinking"),
            (
                json!({"reasoning_effort": "low", "reasoning": {"effort": "high"}}),
                "reasoning.effort",
            ),
            (json!({"reasoning_effort": "none", "thinking": {"type": "enabled"}}), "thinking"),
            (json!({"thinking": {"type": "often"}}), "thinking.type"),
            (json!({"reasoning": {"exclude": true}}), "reasoning.exclude"),
            (json!({"chat_template_kwargs": {"enable_thinking": true}, "think": false}), "think"),
        ] {
            assert_eq!(of(body.clone()), Err(Some(field.to_owned())), "{body}");
        }
    }
}
