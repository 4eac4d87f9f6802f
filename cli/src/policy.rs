//! `paceline policy show|set`: the routing policy of the running service.

use paceline_client::channel::{ANSWER_TIMEOUT, answered, operations};
use paceline_client::{Failure, Screen};
use paceline_proto::convert::service::PolicyReport;
use paceline_proto::v1::{PolicySetting, SetPolicyRequest, ShowPolicyRequest};
use serde_json::json;

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
    let policy = PolicyReport::from(answer);
    screen.text(&if *json { format!("{}\n", json!(policy)) } else { text(&policy) })
}

fn text(policy: &PolicyReport) -> String {
    let line = |setting: &PolicySetting| {
        format!("{:24} {:12} {}\n", setting.key, setting.value, setting.source)
    };
    let lines: String = policy.settings.iter().map(line).collect();
    format!("{lines}policy epoch {}\n", policy.epoch)
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
        let settings = vec![
            setting("routing.force", "plain", "operator"),
            setting("routing.max_concurrent", "auto", "configuration"),
        ];
        let policy = PolicyReport { epoch: 3, settings };
        let expected = "\
routing.force            plain        operator
routing.max_concurrent   auto         configuration
policy epoch 3
";
        assert_eq!(text(&policy), expected);
        let object = json!(policy);
        assert_eq!(
            (&object["epoch"], &object["settings"]["routing.force"]["source"]),
            (&json!(3), &json!("operator"))
        );
    }
}
