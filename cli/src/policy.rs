//! `paceline policy show|set`: the routing policy of the running service.

use paceline_client::channel::{ANSWER_TIMEOUT, answered, operations};
use paceline_client::{Failure, Screen};
use paceline_proto::v1::{PolicyResponse, PolicySetting, SetPolicyRequest, ShowPolicyRequest};
use serde_json::{Value, json};

use crate::args::{PolicyCommand, ShowArgs};

/// Runs the command.
///
/// # Errors
/// No supervisor answers, the configuration cannot be used, or the setting is refused.
pub async fn run(command: &PolicyCommand, screen: &mut Screen) -> Result<(), Failure> {
    let ShowArgs { json, config } = match command {
        PolicyCommand::Show(show) => show,
        PolicyCommand::Set(set) => &set.show,
    };
    let (mut client, place) = operations(config.config.as_deref())?;
    let request = async {
        match command {
            PolicyCommand::Show(_) => client.show_policy(ShowPolicyRequest {}).await,
            PolicyCommand::Set(set) => {
                client
                    .set_policy(SetPolicyRequest { key: set.key.clone(), value: set.value.clone() })
                    .await
            }
        }
    };
    let answer = answered(request, ANSWER_TIMEOUT, &place).await?;
    let text =
        if *json { format!("{}\n", object(answer.epoch, &answer.policy)) } else { text(&answer) };
    screen.text(&text)
}

/// As JSON, here and in `status`.
pub fn object(epoch: u64, policy: &[PolicySetting]) -> Value {
    let setting = |setting: &PolicySetting| {
        (setting.key.clone(), json!({ "value": setting.value, "source": setting.source }))
    };
    let settings: serde_json::Map<String, Value> = policy.iter().map(setting).collect();
    json!({ "epoch": epoch, "settings": settings })
}

fn text(answer: &PolicyResponse) -> String {
    let line = |setting: &PolicySetting| {
        format!("{:24} {:12} {}\n", setting.key, setting.value, setting.source)
    };
    let lines: String = answer.policy.iter().map(line).collect();
    format!("{lines}policy epoch {}\n", answer.epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_values_and_who_set_them_are_shown() {
        let setting = |key: &str, value: &str, source: &str| PolicySetting {
            key: key.into(),
            value: value.into(),
            source: source.into(),
        };
        let policy = vec![
            setting("routing.force", "plain", "operator"),
            setting("routing.max_concurrent", "auto", "configuration"),
        ];
        let answer = PolicyResponse { epoch: 3, policy };
        let expected = "\
routing.force            plain        operator
routing.max_concurrent   auto         configuration
policy epoch 3
";
        assert_eq!(text(&answer), expected);
        let object = object(answer.epoch, &answer.policy);
        assert_eq!(
            (&object["epoch"], &object["settings"]["routing.force"]["source"]),
            (&json!(3), &json!("operator"))
        );
    }
}
