//! Arguments of an earlier tool call that are a text and no JSON object, as a value of templates.
//!
//! Published templates write arguments with `tojson`, print them, or walk through their members.
//! The value prints as its text, `tojson` writes the text as it is, and its member holds the text.

use std::fmt;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr};

/// The name of the one member. Messages answers give a tool call that was cut the same name.
const MEMBER: &str = "incomplete";

/// The text of a tool call's arguments.
#[derive(Debug)]
pub(super) struct ToolCallText(String);

impl ToolCallText {
    /// A template's value of this text.
    pub(super) fn value(text: &str) -> Value {
        Value::from_object(Self(text.to_owned()))
    }

    /// The text of a template's value, if the value is one.
    pub(super) fn of(value: &Value) -> Option<&str> {
        value.downcast_object_ref::<Self>().map(|text| text.0.as_str())
    }
}

impl Object for ToolCallText {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some(MEMBER)).then(|| Value::from(self.0.as_str()))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Str(&[MEMBER])
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::json::tojson;

    #[test]
    fn every_way_of_showing_arguments_shows_the_text() {
        let text = "{\"item\": \"bri";
        let mut environment = minijinja::Environment::new();
        environment.add_filter("tojson", tojson);
        for (template, expected) in [
            ("{{ a | tojson }}", text.to_owned()),
            ("{{ a | tojson(indent=2) }}", text.to_owned()),
            ("{{ a }}", text.to_owned()),
            ("{{ '' ~ a }}", text.to_owned()),
            ("{{ a is mapping }}", "True".to_owned()),
            (
                "{% for k, v in a | items %}{{ k }}={{ v }}{% endfor %}",
                format!("incomplete={text}"),
            ),
            (
                "{{ {'arguments': a} | tojson }}",
                "{\"arguments\": {\"incomplete\": \"{\\\"item\\\": \\\"bri\"}}".to_owned(),
            ),
        ] {
            let variables = minijinja::context! { a => ToolCallText::value(text) };
            assert_eq!(environment.render_str(template, variables).expect(template), expected);
        }
    }
}
