//! `paceline config show|get|set|unset`: the settings with their sources, and changes that last. The
//! running service is asked, so that its flags and its environment count. Without one the file of kept
//! settings is changed directly.

use std::path::Path;

use paceline_client::channel::{answered, operations};
use paceline_client::{Failure, Screen};
use paceline_process::config::{Applies, Assignment, KeptChange, Source};
use paceline_process::{Loaded, RuntimeDir};
use paceline_proto::v1::{
    ChangeSettingsRequest, ChangeSettingsResponse, Setting, SettingAssignment, SettingChange,
    SettingUse, ShowSettingsRequest, ShowSettingsResponse,
};
use serde_json::{Value, json};

use crate::args::{ConfigCommand, ConfigGet, ConfigSet, ConfigShow, ConfigUnset, ShowArgs};
use crate::drafter::WAIT;

/// Runs the command.
///
/// # Errors
/// The configuration cannot be used, a key or a value is refused, or the file cannot be written.
pub async fn run(command: &ConfigCommand, screen: &mut Screen) -> Result<(), Failure> {
    match command {
        ConfigCommand::Show(args) => show(args, screen).await,
        ConfigCommand::Get(args) => get(args, screen).await,
        ConfigCommand::Set(args) => set(args, screen).await,
        ConfigCommand::Unset(args) => unset(args, screen).await,
    }
}

async fn show(args: &ConfigShow, screen: &mut Screen) -> Result<(), Failure> {
    let config = args.show.config.config.as_deref();
    let (shown, runs) = shown(config).await?;
    let ShowSettingsResponse { settings, config_file, kept_file } = shown;
    let known = |asked: &String| settings.iter().any(|setting| matches(&setting.key, asked));
    if let Some(unknown) = args.keys.iter().find(|asked| !known(asked)) {
        return Err(no_setting("a key or a section", unknown));
    }
    let wanted: Vec<&Setting> = settings
        .iter()
        .filter(|setting| {
            args.keys.is_empty() || args.keys.iter().any(|asked| matches(&setting.key, asked))
        })
        .filter(|setting| !args.changed || setting.source != Source::Default.word())
        .collect();
    if args.show.json {
        let all = wanted.iter().map(|setting| {
            let Setting { key, value, source, .. } = setting;
            (
                key.clone(),
                json!({ "value": value, "source": source, "waits": waits(setting).map(word) }),
            )
        });
        let settings: serde_json::Map<String, Value> = all.collect();
        let object = json!({
            "settings": settings,
            "config_file": some(&config_file),
            "kept_file": some(&kept_file),
            "running": runs,
        });
        return screen.text(&format!("{object}\n"));
    }
    let place = |name: &str, path: &str| match path {
        "" => String::new(),
        path if Path::new(path).exists() => format!("{name}: {path}\n"),
        path => format!("{name}: {path} (not there)\n"),
    };
    let running = if runs { "" } else { "no service runs; it would start with these settings\n" };
    let files =
        format!("{}{}", place("configuration", &config_file), place("kept settings", &kept_file));
    screen.text(&format!("{}{files}{running}", table(&wanted)))
}

/// The settings, and whether a service runs, which is asked then.
async fn shown(config: Option<&Path>) -> Result<(ShowSettingsResponse, bool), Failure> {
    Ok(match service(config)? {
        true => (of_service(config).await?, true),
        false => (Loaded::find(config)?.shown(), false),
    })
}

fn no_setting(expected: &str, found: &str) -> Failure {
    Failure::usage(format!(
        "expected {expected} of the configuration, found {found:?}; `paceline config show` has all"
    ))
}

async fn get(ConfigGet { key, config }: &ConfigGet, screen: &mut Screen) -> Result<(), Failure> {
    let (shown, _) = shown(config.config.as_deref()).await?;
    let setting = shown.settings.iter().find(|setting| setting.key == *key);
    screen.text(&format!("{}\n", setting.ok_or_else(|| no_setting("a key", key))?.value))
}

async fn set(args: &ConfigSet, screen: &mut Screen) -> Result<(), Failure> {
    let assignments: Result<Vec<Assignment>, _> =
        args.settings.iter().map(|text| text.parse()).collect();
    let assignments = assignments.map_err(|error| Failure::usage(error.to_string()))?;
    let changes = assignments.into_iter().map(KeptChange::Set).collect();
    change(&args.show, changes, screen).await
}

async fn unset(args: &ConfigUnset, screen: &mut Screen) -> Result<(), Failure> {
    let changes = args.keys.iter().cloned().map(KeptChange::Unset).collect();
    change(&args.show, changes, screen).await
}

async fn change(
    ShowArgs { json, config }: &ShowArgs,
    changes: Vec<KeptChange>,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let config = config.config.as_deref();
    let (answer, runs) = match service(config)? {
        true => (changed_by_service(config, &changes).await?, true),
        false => (changed_in_file(config, &changes)?, false),
    };
    let ChangeSettingsResponse { changes: outcomes, kept_file } = answer;
    if *json {
        let object = |change: &SettingChange| {
            let setting = change.setting.clone().unwrap_or_default();
            json!({
                "key": setting.key,
                "value": setting.value,
                "source": setting.source,
                "use": word(change.r#use()),
                "trouble": some(&change.trouble),
            })
        };
        let changes: Vec<Value> = outcomes.iter().map(object).collect();
        let object = json!({ "changes": changes, "kept_file": kept_file, "running": runs });
        return screen.text(&format!("{object}\n"));
    }
    let lines: String = changes
        .iter()
        .zip(&outcomes)
        .map(|(change, outcome)| line(change, outcome, runs))
        .collect();
    screen.text(&format!("{lines}kept in {kept_file}\n"))
}

/// Whether a service runs in the runtime directory of this configuration.
fn service(config: Option<&Path>) -> Result<bool, Failure> {
    let loaded = Loaded::find(config)?;
    let socket = RuntimeDir::locate(&loaded.config)?.socket("supervisor");
    // The socket of a service that was killed may be left. Nothing listens there.
    Ok(std::os::unix::net::UnixStream::connect(socket).is_ok())
}

async fn of_service(config: Option<&Path>) -> Result<ShowSettingsResponse, Failure> {
    let (mut client, place) = operations(config)?;
    answered(client.show_settings(ShowSettingsRequest {}), WAIT, &place).await
}

async fn changed_by_service(
    config: Option<&Path>,
    changes: &[KeptChange],
) -> Result<ChangeSettingsResponse, Failure> {
    let mut request = ChangeSettingsRequest::default();
    for change in changes {
        match change.clone() {
            KeptChange::Set(Assignment { key, value }) => {
                request.set.push(SettingAssignment { key, value });
            }
            KeptChange::Unset(key) => request.unset.push(key),
        }
    }
    let (mut client, place) = operations(config)?;
    answered(client.change_settings(request), WAIT, &place).await
}

fn changed_in_file(
    config: Option<&Path>,
    changes: &[KeptChange],
) -> Result<ChangeSettingsResponse, Failure> {
    let before = Loaded::find(config)?;
    let after = Loaded::keep(config, changes)?;
    let outcome = |change: &KeptChange| {
        let find = |loaded: &Loaded| {
            let all = loaded.settings().iter();
            all.clone().find(|setting| setting.key == change.key()).map(Setting::from)
        };
        let gone = || Setting { key: change.key().to_owned(), ..Setting::default() };
        let (was, setting) = (find(&before), find(&after).unwrap_or_else(gone));
        let unchanged = was.is_some_and(|was| was.value == setting.value);
        let used = if unchanged { SettingUse::Unchanged } else { SettingUse::Service };
        SettingChange { setting: Some(setting), r#use: used.into(), trouble: String::new() }
    };
    Ok(ChangeSettingsResponse {
        changes: changes.iter().map(outcome).collect(),
        kept_file: after.kept_file.map(|path| path.display().to_string()).unwrap_or_default(),
    })
}

/// Whether `asked` names this key, or its section.
fn matches(key: &str, asked: &str) -> bool {
    key == asked || key.strip_prefix(asked).is_some_and(|rest| rest.starts_with('.'))
}

fn some(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

fn table(settings: &[&Setting]) -> String {
    let width = settings.iter().map(|setting| setting.key.chars().count()).max().unwrap_or(0);
    let line = |setting: &&Setting| {
        let Setting { key, value, source, .. } = setting;
        let value = if value.is_empty() { "\"\"" } else { value };
        let waits = waits(setting).map(|used| format!("    {}\n", applies(used).what_to_do()));
        format!("{key:width$}  {value:24} {source}\n{}", waits.unwrap_or_default())
    };
    settings.iter().map(line).collect()
}

/// What the value waits for; `None` if it is in force, or nobody knows.
fn waits(setting: &Setting) -> Option<SettingUse> {
    Some(setting.waits()).filter(|used| *used != SettingUse::Unspecified)
}

/// What became of a change.
fn line(change: &KeptChange, outcome: &SettingChange, runs: bool) -> String {
    let Setting { key, value, source, .. } = outcome.setting.clone().unwrap_or_default();
    let is_overridden =
        matches!(change, KeptChange::Set(_)) && source != Source::Kept.word() && !source.is_empty();
    let now = match (change, source.as_str()) {
        (KeptChange::Unset(_), "") => format!("{key} is not set any more"),
        _ => format!("{key} = {}", if value.is_empty() { "\"\"" } else { &value }),
    };
    if is_overridden {
        let what = match source.as_str() {
            "environment" => "a variable of the environment",
            _ => "a flag of paceline serve",
        };
        return format!("{now}: kept, but {what} wins over it\n");
    }
    let used = match outcome.r#use() {
        SettingUse::Unchanged => "as before".to_owned(),
        _ if !runs => "in force when the service starts".to_owned(),
        _ if !outcome.trouble.is_empty() => format!("kept; {}", outcome.trouble),
        used => applies(used).what_to_do().to_owned(),
    };
    let from = match change {
        KeptChange::Unset(_) if !source.is_empty() => format!(" ({source})"),
        _ => String::new(),
    };
    format!("{now}{from}: {used}\n")
}

fn applies(used: SettingUse) -> Applies {
    match used {
        SettingUse::Unspecified | SettingUse::Unchanged | SettingUse::InForce => Applies::AtOnce,
        SettingUse::Gateway => Applies::Gateway,
        SettingUse::Supervisor => Applies::Supervisor,
        SettingUse::Target => Applies::Target,
        SettingUse::OtherTarget => Applies::OtherTarget,
        SettingUse::Drafter => Applies::Drafter,
        SettingUse::Service => Applies::Service,
    }
}

fn word(used: SettingUse) -> &'static str {
    match used {
        SettingUse::Unspecified | SettingUse::Unchanged => "unchanged",
        SettingUse::InForce => "in_force",
        SettingUse::Gateway => "restart_gateway",
        SettingUse::Supervisor => "restart_supervisor",
        SettingUse::Target | SettingUse::OtherTarget => "restart_target",
        SettingUse::Drafter => "restart_drafter",
        SettingUse::Service => "restart_service",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(key: &str, value: &str, source: Source) -> Setting {
        let source = source.word().into();
        Setting { key: key.into(), value: value.into(), source, ..Setting::default() }
    }

    #[test]
    fn a_section_or_a_key_is_asked_for() {
        assert!(matches("limits.queue", "limits.queue") && matches("limits.queue", "limits"));
        assert!(!matches("limits.queue_wait_s", "limits.queue") && !matches("limits.queue", "lim"));
    }

    #[test]
    fn a_table_has_keys_values_and_sources() {
        let settings = [
            setting("limits.queue", "2", Source::Kept),
            setting("target.model", "", Source::Default),
            Setting {
                waits: SettingUse::Drafter.into(),
                ..setting("drafter.kind", "eagle3", Source::File)
            },
        ];
        let expected = "\
limits.queue  2                        config set
target.model  \"\"                       default
drafter.kind  eagle3                   file
    in force after `paceline restart drafter`
";
        assert_eq!(table(&settings.iter().collect::<Vec<_>>()), expected);
    }

    #[test]
    fn each_outcome_is_a_sentence() {
        let set = KeptChange::Set(Assignment::new("limits.queue", "2"));
        let unset = KeptChange::Unset("limits.queue".into());
        let check =
            |change: &KeptChange, source, used: SettingUse, trouble: &str, runs, expected| {
                let outcome = SettingChange {
                    setting: Some(setting("limits.queue", "2", source)),
                    r#use: used.into(),
                    trouble: trouble.into(),
                };
                assert_eq!(line(change, &outcome, runs), expected);
            };
        let (kept, at_once) = (Source::Kept, SettingUse::InForce);
        check(&set, kept, at_once, "", true, "limits.queue = 2: in force\n");
        let expected =
            "limits.queue = 2: in force after `paceline restart gateway`, which loses no request\n";
        check(&set, kept, SettingUse::Gateway, "", true, expected);
        let expected = "limits.queue = 2: in force when the service starts\n";
        check(&set, kept, SettingUse::Service, "", false, expected);
        let expected = "limits.queue = 2: kept, but a variable of the environment wins over it\n";
        check(&set, Source::Environment, SettingUse::Unchanged, "", true, expected);
        check(&set, kept, at_once, "no room", true, "limits.queue = 2: kept; no room\n");
        check(&unset, Source::File, at_once, "", true, "limits.queue = 2 (file): in force\n");
    }
}
