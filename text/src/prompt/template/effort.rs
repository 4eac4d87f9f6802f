//! How much a model thinks before it answers: the six words of clients, and those that a chat
//! template takes.
//!
//! Templates differ in the words of their variable `reasoning_effort`: some take any text and print
//! it, some take three words and object to others, most do not have the variable. A template's
//! words are found out when it is compiled. A request's effort becomes the nearest word of the
//! template; of two equally near ones the larger.

use super::capabilities::Capabilities;
use super::engine::Engine;
use crate::prompt::conversation::{Conversation, Effort, Message, Role};

/// The variable for the amount of thinking.
const EFFORT: &str = "reasoning_effort";
/// The variable that switches thinking on and off.
const SWITCH: &str = "enable_thinking";
/// A word that no template has.
const NO_WORD: &str = "n0w0rd";
/// Words of templates that take any text: those that the models behind them were trained with
/// (gpt-oss).
const PUBLISHED: [Effort; 3] = [Effort::Low, Effort::Medium, Effort::High];

/// How a template takes an amount of thinking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EffortWords {
    /// The words of its variable, ascending; empty if it has no variable.
    words: Vec<Effort>,
    /// Whether it has the variable that switches thinking on.
    has_switch: bool,
}

impl EffortWords {
    /// The words of the template with this source.
    pub(super) fn of(engine: &Engine, capabilities: Capabilities, source: &str) -> Self {
        let has_switch = engine.uses(SWITCH);
        if !engine.uses(EFFORT) {
            return Self { words: Vec::new(), has_switch };
        }
        let render = |word: &str| engine.render(&question(word), capabilities);
        let unknown = render(NO_WORD);
        let is_known = |effort: &Effort| {
            let word = effort.word();
            let is_written =
                ["'", "\""].iter().any(|quote| source.contains(&format!("{quote}{word}{quote}")));
            match (render(word), &unknown) {
                (Err(_), _) => false,
                // It objects to what it does not know.
                (Ok(_), Err(_)) => true,
                (Ok(_), Ok(other)) if other.contains(NO_WORD) => {
                    is_written || PUBLISHED.contains(effort)
                }
                (Ok(text), Ok(other)) => is_written || text != *other,
            }
        };
        let mut words: Vec<Effort> = Effort::ALL.iter().copied().filter(is_known).collect();
        if words.is_empty() {
            // It objects to the question itself.
            words = PUBLISHED.to_vec();
        }
        Self { words, has_switch }
    }

    /// Sets the template's variables to a conversation's effort. What the request sets by name
    /// stays. A template without words for an amount is asked to think, if it can be.
    pub(super) fn set(&self, conversation: &mut Conversation) {
        let Some(effort) = conversation.effort.take() else { return };
        let (name, value) = match self.nearest(effort) {
            Some(word) => (EFFORT, word.word().into()),
            None if self.has_switch => (SWITCH, true.into()),
            None => return,
        };
        conversation.arguments.entry(name).or_insert(value);
    }

    fn nearest(&self, effort: Effort) -> Option<Effort> {
        let distance = |word: &Effort| (*word as i32 - effort as i32).abs();
        // Of equally near ones the first counts.
        self.words.iter().rev().copied().min_by_key(distance)
    }
}

/// A question with this effort.
fn question(word: &str) -> Conversation {
    let arguments = [(EFFORT.to_owned(), word.into()), (SWITCH.to_owned(), true.into())];
    Conversation {
        messages: vec![Message::new(Role::User, vec!["f1rst".to_owned()])],
        arguments: arguments.into_iter().collect(),
        ..Conversation::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Template;
    use super::*;

    const QUESTION: &str = "{{ messages[0].content }}";

    /// The words that a template with this source takes.
    fn words(source: &str) -> Vec<&'static str> {
        let source = format!("{QUESTION}{source}");
        let template = Template::compile(&source, None, None, &[]).expect("Jinja");
        template.efforts.words.iter().map(|effort| effort.word()).collect()
    }

    #[test]
    fn a_template_that_objects_has_the_words_that_it_takes() {
        let source = "{%- if enable_thinking is undefined or enable_thinking is true %}\
            {%- if reasoning_effort|default('xhigh') not in ('xhigh', 'medium', 'low') %}\
            {{- raise_exception('No such effort.') }}{%- endif %}{%- endif %}";
        assert_eq!(words(source), ["low", "medium", "xhigh"]);
    }

    #[test]
    fn a_template_that_prints_any_word_has_the_published_ones_and_those_it_writes() {
        let source = "{%- set effort = reasoning_effort or 'medium' %}Reasoning: {{ effort }}";
        assert_eq!(words(source), ["low", "medium", "high"]);
        let inside = "{%- macro head() %}{%- if reasoning_effort is not defined %}\
            {%- set reasoning_effort = 'medium' %}{%- endif %}\
            {{- 'Reasoning: ' + reasoning_effort }}{%- endmacro %}{{ head() }}";
        assert_eq!(words(inside), ["low", "medium", "high"]);
        let more = "{%- if reasoning_effort == 'max' %}deep{%- endif %}{{ reasoning_effort }}";
        assert_eq!(words(more), ["low", "medium", "high", "max"]);
    }

    #[test]
    fn a_template_that_takes_all_words_in_silence_has_those_that_change_something() {
        let source =
            "{%- set texts = {'low': 'briefly', \"xhigh\": 'long'} %}{{ texts[reasoning_effort] }}";
        assert_eq!(words(source), ["low", "xhigh"]);
        // Not written, and a change.
        let built = "{%- if reasoning_effort == 'hi' ~ 'gh' %}long{%- endif %}";
        assert_eq!(words(built), ["high"]);
        assert_eq!(words("{{ enable_thinking }}"), [""; 0]);
        // It objects to every question.
        assert_eq!(words("{{ raise_exception(reasoning_effort) }}"), ["low", "medium", "high"]);
    }

    /// Template variables after a request with this effort and these variables.
    fn set(source: &str, effort: Effort, arguments: serde_json::Value) -> serde_json::Value {
        let template = Template::compile(source, None, None, &[]).expect("Jinja");
        let arguments = arguments.as_object().cloned().expect("an object");
        let mut conversation =
            Conversation { effort: Some(effort), arguments, ..Conversation::default() };
        template.efforts.set(&mut conversation);
        assert_eq!(conversation.effort, None);
        conversation.arguments.into()
    }

    #[test]
    fn an_effort_becomes_the_nearest_word_and_of_two_the_larger() {
        let three = "{{ reasoning_effort }}";
        let qwen = "{% if reasoning_effort not in ('low', 'medium', 'xhigh') %}\
            {{ raise_exception('no') }}{% endif %}";
        for (effort, of_three, of_qwen) in [
            (Effort::Minimal, "low", "low"),
            (Effort::Low, "low", "low"),
            (Effort::Medium, "medium", "medium"),
            (Effort::High, "high", "xhigh"),
            (Effort::XHigh, "high", "xhigh"),
            (Effort::Max, "high", "xhigh"),
        ] {
            for (source, word) in [(three, of_three), (qwen, of_qwen)] {
                let expected = json!({"reasoning_effort": word});
                assert_eq!(set(source, effort, json!({})), expected, "{effort:?} {source}");
            }
        }
    }

    #[test]
    fn what_the_request_sets_by_name_stays_and_no_variable_is_set_in_vain() {
        let both = "{{ reasoning_effort }}{{ enable_thinking }}";
        let own = json!({"reasoning_effort": "deep", "enable_thinking": false});
        assert_eq!(set(both, Effort::High, own.clone()), own);
        let off = json!({"enable_thinking": false});
        assert_eq!(set("{{ enable_thinking }}", Effort::High, off.clone()), off);
        let on = json!({"enable_thinking": true});
        assert_eq!(set("{{ enable_thinking }}", Effort::Minimal, json!({})), on);
        assert_eq!(set("{{ messages }}", Effort::High, json!({})), json!({}));
    }
}
